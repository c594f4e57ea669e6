"""Recursive halving, then doubling: log2 n steps each way, with no more bytes than a ring.

Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur et al., IJHPCA 2005,
section 4. Other numbers of ranks than powers of two go around, in as many steps.
"""

from __future__ import annotations

from blinksim.algorithms.recursive_doubling import shards
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.schedule.loads import Round
from blinksim.schedule.model import COPY, REDUCE
from blinksim.topology.graph import Topology

ENTRY = Algorithm(("allreduce", "reducescatter"), "exchanges at halving, then doubling distances", sends=per_pair)


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps do."""
    down = shards(topology.ranks, REDUCE)
    return (*down, *(shards(topology.ranks, COPY) if collective.name == "allreduce" else ()))
