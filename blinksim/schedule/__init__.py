"""Schedules: representation, loads and proof."""
