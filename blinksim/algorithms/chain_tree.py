"""Chains inside the nodes, a double binary tree between them: what NCCL's tree algorithm is made of.

Every node is one vertex of the inter-node trees; its ranks form a chain under the one that talks to the
network (Blink+ report, section 2; spec of NCCL's graph files). Each local rank heads one channel, so that all
NICs work.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

from blinksim.algorithms.building.plan import Plan, add_rank_trees
from blinksim.algorithms.registry import Algorithm, per_channel
from blinksim.graphs.rooted_trees import Parents, two_trees
from blinksim.topology.cluster import nodes_of

ENTRY = Algorithm(
    ("allreduce",), "chains inside the nodes, a double binary tree between them", sends=per_channel, form="forest"
)


# Channels that every version of NCCL has (NCCL 2.24: 32, two per chain).
_HEADS = 16


def channel_trees(groups: list[list[int]]) -> list[tuple[Parents, int]]:
    """Two trees over all ranks, with their roots, for each of `_HEADS` local ranks or all, which head the chains."""
    trees, local = [], min(map(len, groups))
    for head in range(0, local, -(-local // _HEADS)):
        chains = [group[head:] + group[:head] for group in groups]
        below = {b: a for chain in chains for a, b in itertools.pairwise(chain)}
        for parents, root in two_trees(len(groups)):
            across = {chains[child][0]: chains[parent][0] for child, parent in parents.items()}
            trees.append((below | across, chains[root][0]))
    return trees


def fill(plan: Plan) -> None:
    """Both trees of all channels; on one node a chain per local rank, used up and down."""
    trees = channel_trees(nodes_of(plan.topology, plan.topology.members))
    add_rank_trees(plan, trees, Fraction(1, len(trees)))
