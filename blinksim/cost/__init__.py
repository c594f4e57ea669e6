"""Time from loads and depth: alpha-beta, the scale-up + scale-out projection."""
