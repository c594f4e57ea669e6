"""Engines: exact events, rounds of array arithmetic, formulas, shared servers; choice picks one."""
