"""What NCCL does: paths, search, tuner."""
