"""Models that time a collective: what each one can time, and the projections that they give."""
