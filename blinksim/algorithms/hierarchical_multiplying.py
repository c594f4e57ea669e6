"""Hierarchical collectives by recursive multiplying: about four groups exchange in each level.

Few steps and few messages, for small and middle sizes and for nodes of many GPUs: recursive doubling has more
steps, a direct exchange more messages (Ruefenacht, Bull and Booth, "Generalisation of recursive doubling for
AllReduce", Parallel Computing 2017).
"""

from __future__ import annotations

from functools import partial
from math import ceil, log

import numpy as np

from blinksim.algorithms import hierarchical
from blinksim.algorithms.registry import SHARDED, Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.schedule.loads import Round
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    SHARDED,
    "among few groups in every level, inside nodes and between them",
    sends=per_pair,
    source="Ruefenacht, Bull and Booth, Parallel Computing 2017",
)
fill = hierarchical.fill

# An allreduce of 256 KiB on 512 p5 takes 279.6 us with groups of 4, 311.2 of 8, 353.6 of 2; of 1 GiB 5.94, 6.16 and
# 5.95 ms. On 64 MI300X, whose GPUs have a link to each other one, 1 GiB takes 5.4 ms with 8 inside nodes, 8.4 with 4.
_MOST_GROUPS, _MOST_LINKED = 4, 8


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps have in common. Raises as `fill` does."""
    ends = (np.isin(places, topology.member_places) for places in topology.ends)
    # Links of their own to several others work at once; at a port for all the starts of messages add up.
    inside = partial(radices, most=_MOST_LINKED) if np.logical_and(*ends).any() else radices
    return hierarchical.rounds(topology, collective, "hierarchical_multiplying", radices, inside)


def radices(nodes: int, most: int = _MOST_GROUPS) -> tuple[int, ...]:
    """Factors of about equal size, as few as do not exceed `most` if there are such.

    >>> radices(16), radices(512), radices(100)
    ((4, 4), (4, 4, 4, 4, 2), (4, 5, 5))
    """
    levels = list[int]()
    while nodes > 1:
        root = nodes ** (1 / ceil(log(nodes, most) - 1e-9))
        factors = (factor for factor in range(2, nodes + 1) if nodes % factor == 0)
        levels.append(min(factors, key=lambda factor: abs(log(factor / root))))
        nodes //= levels[-1]
    return tuple(levels)
