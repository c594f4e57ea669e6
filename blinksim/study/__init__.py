"""Comparisons, sweeps and plots."""
