"""Machines and ready schedules that come with blinksim, by name."""
