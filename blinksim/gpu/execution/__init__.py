"""Schedules run for real: one program, interpreted by NumPy and by GPUs, and checked against the definition."""
