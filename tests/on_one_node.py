"""The algorithms that build schedules on one node without a solver, with each of their collectives."""

from __future__ import annotations

from blinksim.algorithms.registry import REGISTRY

# On one node there is no hierarchy to build.
_BETWEEN_NODES = (
    *("hierarchical", "hierarchical_direct", "hierarchical_multiplying", "hierarchical_trees"),
    *("rail_aligned", "rail_joined", "bruck", "locality_bruck", "multi_lane", "node_aware"),
)
CASES = [
    (entry.name, collective)
    for entry in REGISTRY.values()
    if not entry.solver and entry.name not in _BETWEEN_NODES
    for collective in entry.collectives
]
