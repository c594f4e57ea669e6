"""Formats of schedules for runtimes, one module each: its ``FORMAT`` is a `blinksim.formats.registry.Format`."""
