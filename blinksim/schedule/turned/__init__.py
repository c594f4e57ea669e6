"""Schedules of which symmetries make the rest: what they are, their loads, and their proof."""
