"""Formats of schedules for runtimes: a module each, whose ``FORMAT`` is a `formats.registry.Format`."""
