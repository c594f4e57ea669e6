"""Hierarchical collectives without rings: what crosses between nodes goes straight to the node that wants it.

A message for every other node of a group of ten or more neighbours, which carries most of the bytes and so
keeps links inside nodes busy meanwhile; between the groups, halving and doubling, with few messages for the
rest (Jia et al., "Highly scalable deep learning training system", 2018, section 4.2, without the rings).
"""

from __future__ import annotations

from blinksim.algorithms import hierarchical
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import SHARDED, Collective
from blinksim.schedule.loads import Round
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    SHARDED, "direct inside nodes and between neighbours, halving and doubling between groups of these", sends=per_pair
)
fill = hierarchical.fill


# Smaller groups leave links inside nodes idle, larger ones send more messages: on 64 HGX H100, an allreduce
# of 1 GiB comes to 0.959, 0.962, 0.948 and 0.907 of its bound with groups of 8, 16, 32 and 64; on 512 to
# 0.941, 0.941 and 0.937 with 8, 16 and 32; on 100 to 0.946, 0.956 and 0.934 with 10, 25 and 50.
_LEAST_GROUP = 10


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps have in common. Raises as `fill` does."""
    return hierarchical.rounds(topology, collective, "hierarchical_direct", radices)


def radices(nodes: int) -> tuple[int, ...]:
    """Neighbours in a group, and then the smallest prime factors that leave it at least so large.

    >>> radices(64), radices(100), radices(17)
    ((16, 2, 2), (25, 2, 2), (17,))
    """
    levels = list[int]()
    for factor in range(2, nodes):
        while nodes % factor == 0 and nodes // factor >= _LEAST_GROUP:
            levels.append(factor)
            nodes //= factor
    return nodes, *levels[::-1]
