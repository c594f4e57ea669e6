"""Chains inside the nodes, a double binary tree between them: what NCCL's tree algorithm is made of.

Every node is one vertex of the inter-node trees; its ranks form a chain under the one that talks to the network
(Blink+ report, section 2; spec of NCCL's graph files). Each local rank heads one channel, so that all NICs work.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.building.rank_trees import Parents, add_tree
from blinksim.algorithms.double_binary import two_trees
from blinksim.collective import Collective
from blinksim.schedule.model import Schedule
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology

# Channels that every version of NCCL has (NCCL 2.24: 32, two per chain).
_HEADS = 16


def channel_trees(groups: list[list[int]]) -> list[tuple[Parents, int]]:
    """For every local rank, or `_HEADS` of them, two trees over all ranks, with their roots."""
    trees = []
    local = min(map(len, groups))
    for head in range(0, local, -(-local // _HEADS)):
        chains = [group[head:] + group[:head] for group in groups]
        below = {b: a for chain in chains for a, b in itertools.pairwise(chain)}
        for parents, root in two_trees(len(groups)):
            across = {chains[child][0]: chains[parent][0] for child, parent in parents.items()}
            trees.append((below | across, chains[root][0]))
    return trees


def build(topology: Topology, collective: Collective) -> Schedule:
    """The schedule; on one node a chain per local rank, used up and down."""
    plan = Plan(topology, collective, "chain_tree", "forest")
    trees = channel_trees(nodes_of(topology, topology.members))
    for channel, (parents, root) in enumerate(trees):
        add_tree(plan, collective, Fraction(1, len(trees)), parents, root, channel)
    return plan.finish()
