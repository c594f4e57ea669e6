"""Schedules in time on shared links."""
