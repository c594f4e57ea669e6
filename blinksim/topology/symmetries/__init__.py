"""Symmetries that are looked for: those that names suggest, and those that commute."""
