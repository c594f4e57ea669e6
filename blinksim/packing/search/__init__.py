"""Searches: chunks through a graph in few steps, Hamiltonian paths, balanced trees."""
