"""Multi-lane broadcast: a scatter in the root's node, trees of nodes from each of its ranks, allgathers in nodes.

In few steps, and every port carries its part (Traeff and Hunold, "Decomposing MPI collectives for exploiting multi-lane
communication", IEEE Cluster 2020). A reduce goes backwards.
"""

from __future__ import annotations

from blinksim.algorithms import hierarchical
from blinksim.algorithms.building.plan import lanes_between
from blinksim.algorithms.hierarchical_multiplying import radices
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.graphs.arrays import Ints
from blinksim.graphs.rooted_trees import hops_by_levels
from blinksim.schedule.loads import Round, Whole
from blinksim.schedule.model import COPY
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    ("broadcast", "reduce"),
    "shards to the ranks of a node, along trees of nodes, and gathered in every node",
    sends=per_pair,
)

# Nodes that a level of a tree makes of one. A broadcast of 256 KiB, 1 MiB and 4 MiB on 8 HGX H100 takes 31.2, 40.1 and
# 63.8 us with 2, 27.6, 37.2 and 71.1 with 4, 27.0, 40.8 and 97.8 with 8. Along pipelined trees pieces of the first and
# the last steps wait for each other: 16 MiB take 138 us where sums say 112.
_MOST_NODES = 4


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps have in common. Raises `InfeasibleError` for one node, and for unlike numbers of ranks."""
    places = hierarchical.lanes_of(topology, "multi_lane")[None]
    _, each, nodes = places.shape
    tree = hops_by_levels(radices(nodes, most=_MOST_NODES))
    # GPUs that are all linked send to all others at once.
    meshed = len(lanes_between(topology, places[0, :, 0].tolist())) == each * (each - 1)
    levels = (each,) if meshed else radices(each, most=2)

    def inside(places: Whole, root: int, chunks: Ints) -> tuple[hierarchical.Rounds, hierarchical.Rounds]:
        every = [of(COPY) for of in hierarchical.exchanges(places, (1, *levels[::-1]), chunks)[::-1]]
        return hierarchical.scattered(every, topology.ranks, collective.root)

    return hierarchical.rooted(places, collective, inside, tree=tree)
