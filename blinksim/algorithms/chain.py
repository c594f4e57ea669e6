"""Pipelined chain: the vector flows down a path of ranks in pieces, so the depth costs only the first piece.

The best number of pieces is sqrt((h-1) beta size / alpha) (e.g. Chan et al., "Collective communication:
theory, practice and experience", CCPE 2007, section 6). Allreduce reduces up the chain and broadcasts down
it, as NCCL's tree does inside a node.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from blinksim.algorithms.building.plan import Plan, add_rank_trees, chain_order
from blinksim.algorithms.registry import REDUCE_AND_SPREAD, Algorithm
from blinksim.packing.tree_columns import Order

ENTRY = Algorithm(REDUCE_AND_SPREAD, "a path of ranks, pipelined", form="forest")


def fill(plan: Plan, order: Order | None = None) -> None:
    """Sends along `order` (default: from the root, or rank 0, over hops as fast as a search finds)."""
    path = order or chain_order(plan.topology, plan.collective.root)
    add_rank_trees(plan, [({b: a for a, b in pairwise(path)}, path[0])], Fraction(1))
