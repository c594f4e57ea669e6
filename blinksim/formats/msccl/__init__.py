"""MSCCL and MSCCL++: algorithm files and execution plans, written and carried out symbolically."""
