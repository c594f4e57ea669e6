"""Answers of the tool: projections, comparisons, schedules, sweeps, advice."""
