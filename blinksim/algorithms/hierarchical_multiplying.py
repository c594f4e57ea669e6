"""Hierarchical collectives by recursive multiplying: about eight groups exchange in each level.

Few steps and few messages, for small and middle sizes and for nodes of many GPUs: recursive doubling has more
steps, a direct exchange more messages (Ruefenacht, Bull and Booth, "Generalisation of recursive doubling for
AllReduce", Parallel Computing 2017).
"""

from __future__ import annotations

from math import ceil, log

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

# An allgather of 256 KiB on 64 HGX H100 takes 32.7 us with groups of 8, 32.9 of 4, 44 of 2.
_MOST_GROUPS = 8


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps have in common. Raises as `fill` does."""
    return hierarchical.rounds(topology, collective, "hierarchical_multiplying", radices, radices)


def radices(nodes: int) -> tuple[int, ...]:
    """Factors of about equal size, as few as do not exceed eight if there are such.

    >>> radices(16), radices(512), radices(100)
    ((4, 4), (8, 8, 8), (5, 5, 4))
    """
    levels = list[int]()
    while nodes > 1:
        root = nodes ** (1 / ceil(log(nodes, _MOST_GROUPS) - 1e-9))
        factors = (factor for factor in range(2, nodes + 1) if nodes % factor == 0)
        levels.append(min(factors, key=lambda factor: abs(log(factor / root))))
        nodes //= levels[-1]
    return tuple(levels)
