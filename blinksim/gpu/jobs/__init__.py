"""Schedules between processes: one process per GPU, all calling collectives in the same order, as in training."""
