"""Schedules as programs: the ops that GPUs and NumPy run, where their data lie, and how they are cut."""
