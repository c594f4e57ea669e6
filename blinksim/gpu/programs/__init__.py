"""Programs from schedules: ops for GPUs and NumPy, the layout of their data, and their cuts."""
