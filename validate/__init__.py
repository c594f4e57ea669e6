"""Runs on real GPUs: recipes that measure, their results, and the report."""
