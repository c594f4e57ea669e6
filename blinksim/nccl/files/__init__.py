"""NCCL's files: topologies, graph files, and what NCCL does with them."""
