"""Graphs and solvers without collectives: networks of arcs, maximum flow, linear programs, orbits."""
