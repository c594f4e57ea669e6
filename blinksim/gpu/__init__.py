"""Programs of GPUs: compiled from schedules, timed, run, and called between processes."""
