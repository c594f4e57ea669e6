"""NCCL's model of time, by which it chooses algorithm and protocol."""
