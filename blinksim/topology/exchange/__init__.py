"""Topologies as NetworkX graphs, and back."""
