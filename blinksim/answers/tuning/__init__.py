"""A tuner file for NCCL from few measured times: which to take, what they say of all others, and the rules."""
