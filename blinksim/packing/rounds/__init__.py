"""Schedules of a few rounds for one size: what every link sends in every round, and when, by linear programs."""
