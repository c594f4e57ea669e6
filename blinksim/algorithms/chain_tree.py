"""Chains inside the nodes, a double binary tree between them: what NCCL's tree algorithm is made of.

Every node is one vertex of the inter-node trees; its ranks form a chain under the one that talks to the
network (Blink+ report, section 2; spec of NCCL's graph files). Each local rank heads one channel, so that all
NICs work.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from fractions import Fraction

from blinksim.algorithms.building.plan import Parents, Plan, add_rank_trees
from blinksim.algorithms.double_binary import two_trees
from blinksim.algorithms.registry import Algorithm, per_channel
from blinksim.collective import Collective
from blinksim.schedule.loads import equal_routes
from blinksim.schedule.model import Schedule
from blinksim.schedule.symmetric import SymmetricSchedule
from blinksim.topology.cluster import nodes_of
from blinksim.topology.graph import Topology
from blinksim.topology.group import place_rotation

ENTRY = Algorithm(
    ("allreduce",),
    "chains inside the nodes, a double binary tree between them",
    sends=per_channel,
    source="Blink+ report, section 2",
    symmetric=True,
)


# Channels that every version of NCCL has (NCCL 2.24: 32, two per chain).
_HEADS = 16


def _heads(groups: list[list[int]]) -> range:
    """The local ranks that head a chain in their nodes."""
    local = min(map(len, groups))
    return range(0, local, -(-local // _HEADS))


def channel_trees(groups: list[list[int]], heads: Iterable[int] | None = None) -> list[tuple[Parents, int]]:
    """Two trees over all ranks, with their roots, for each of `heads`; default: `_HEADS` local ranks or all."""
    trees = []
    for head in _heads(groups) if heads is None else heads:
        chains = [group[head:] + group[:head] for group in groups]
        below = {b: a for chain in chains for a, b in itertools.pairwise(chain)}
        for parents, root in two_trees(len(groups)):
            across = {chains[child][0]: chains[parent][0] for child, parent in parents.items()}
            trees.append((below | across, chains[root][0]))
    return trees


def build(topology: Topology, collective: Collective) -> Schedule:
    """The schedule; on one node a chain per local rank, used up and down."""
    trees = channel_trees(nodes_of(topology, topology.members))
    return _schedule(topology, collective, trees, Fraction(1, len(trees)))


def symmetric(topology: Topology, collective: Collective) -> SymmetricSchedule | None:
    """The same trees from those of the first heads, where a symmetry rotates the ranks of all nodes; None elsewhere.

    None as well where a route has equals: what `build` makes is divided among these.
    """
    groups, rotation = nodes_of(topology, topology.members), place_rotation(topology)
    heads = _heads(groups)
    if rotation is None or heads.step > 1:
        return None
    group, step = rotation
    base = _schedule(topology, collective, channel_trees(groups, heads[:step]), Fraction(1, 2 * len(heads)))
    whole = SymmetricSchedule(base, group)
    return whole if whole.chunks == 2 * len(heads) and equal_routes(base) is None else None


def _schedule(
    topology: Topology, collective: Collective, trees: Sequence[tuple[Parents, int]], share: Fraction
) -> Schedule:
    plan = Plan(topology, collective, "chain_tree", "forest")
    add_rank_trees(plan, trees, share)
    return plan.finish()
