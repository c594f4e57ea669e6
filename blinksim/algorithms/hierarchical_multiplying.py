"""Hierarchical collectives by recursive multiplying: about eight groups exchange in each level, four at ports.

Few steps and few messages, for small and middle sizes and for nodes of many GPUs: recursive doubling has more
steps, a direct exchange more messages (Ruefenacht, Bull and Booth, "Generalisation of recursive doubling for
AllReduce", Parallel Computing 2017).

A broadcast goes along trees in the root's node, and a part of it from each of its ranks along trees of nodes, which
gather the parts in that exchange: scatter and allgather (Barnett et al., "Interprocessor collective communication
library", 1994) with one message for all that a rank has for another. A reduce goes the other way.
"""

from __future__ import annotations

from functools import partial
from math import ceil, log

import numpy as np

from blinksim.algorithms import hierarchical
from blinksim.algorithms.registry import ON_TREES, Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.schedule.loads import Round
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    ON_TREES,
    "among few groups in every level, inside nodes and between them",
    sends=per_pair,
    source="Ruefenacht, Bull and Booth, Parallel Computing 2017",
)
fill = hierarchical.fill

# An allgather of 256 KiB on 64 HGX H100 takes 32.7 us with groups of 8 between nodes, 32.9 of 4, 44 of 2; of 4 KiB on
# 512 p3dn, whose messages take long to arrive, 35 % more with 4 than with 8. At ports of a switch starts add up: an
# allreduce of 1 MiB on 2 p5 takes 54 us with groups of 4 inside nodes, 61 with 8.
_MOST_GROUPS, _AT_A_PORT = 8, 4


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps have in common. Raises as `fill` does."""
    ends = (np.isin(places, topology.member_places) for places in topology.ends)
    # GPUs that have links to others send on several at once.
    inside = radices if np.logical_and(*ends).any() else partial(radices, most=_AT_A_PORT)
    if collective.rooted:
        return hierarchical.rooted(hierarchical.places_of(topology, "hierarchical_multiplying"), collective, inside)
    return hierarchical.rounds(topology, collective, "hierarchical_multiplying", radices, inside)


def radices(nodes: int, most: int = _MOST_GROUPS) -> tuple[int, ...]:
    """Factors of about equal size, as few as do not exceed `most` if there are such.

    >>> radices(16), radices(512), radices(72, most=4)
    ((4, 4), (8, 8, 8), (3, 3, 4, 2))
    """
    levels = list[int]()
    while nodes > 1:
        root = nodes ** (1 / ceil(log(nodes, most) - 1e-9))
        factors = (factor for factor in range(2, nodes + 1) if nodes % factor == 0)
        levels.append(min(factors, key=lambda factor: abs(log(factor / root))))
        nodes //= levels[-1]
    return tuple(levels)
