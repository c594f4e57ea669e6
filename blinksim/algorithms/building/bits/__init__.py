"""Schedules along the bits of ranks' numbers."""
