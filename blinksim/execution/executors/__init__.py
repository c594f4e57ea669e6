"""What runs a program: NumPy on the CPU, CuPy on GPUs peer to peer, and NCCL to compare with."""
