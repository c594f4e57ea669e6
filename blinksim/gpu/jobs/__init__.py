"""Collective calls between processes: one process per GPU, all calling in the same order, as in training."""
