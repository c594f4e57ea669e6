"""What the tool answers: projections, comparisons, schedules, sweeps, advice."""
