"""Schedules run for real: NumPy and GPUs."""
