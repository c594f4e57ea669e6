"""NCCL's search for channels."""
