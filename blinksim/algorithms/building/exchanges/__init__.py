"""Alltoall on clusters: routes over rails, and blocks that travel together."""
