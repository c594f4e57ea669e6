"""Pipelined binary tree: depth log2 n, but some ports send all data twice (Chan et al., CCPE 2007)."""

from __future__ import annotations

from fractions import Fraction

from blinksim.algorithms.building.plan import Plan, add_rank_trees
from blinksim.algorithms.registry import REDUCE_AND_SPREAD, Algorithm
from blinksim.graphs.rooted_trees import Parents

ENTRY = Algorithm(REDUCE_AND_SPREAD, "a complete binary tree, pipelined", form="forest")


def heap(ranks: int, root: int) -> Parents:
    """Parents in the complete binary tree: position i has the children 2i + 1 and 2i + 2, and 0 is the root."""
    return {(i + root) % ranks: ((i - 1) // 2 + root) % ranks for i in range(1, ranks)}


def fill(plan: Plan) -> None:
    """Sends on the complete binary tree over the ranks, counted from the root (rank 0 for allreduce)."""
    root = plan.collective.root
    add_rank_trees(plan, [(heap(plan.n, root), root)], Fraction(1))
