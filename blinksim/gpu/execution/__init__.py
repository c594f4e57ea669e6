"""Execution of schedules: one program, run by NumPy or by GPUs, and checked against the definition."""
