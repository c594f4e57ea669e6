"""Recursive halving, then doubling: log2 n steps each way, with no more bytes than a ring.

Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur et al., IJHPCA 2005,
section 4. Powers of two only.
"""

from __future__ import annotations

from blinksim.algorithms.building.plan import log2_ranks
from blinksim.algorithms.recursive_doubling import at_distance, blocks
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.schedule.model import COPY, REDUCE
from blinksim.schedule.step_loads import Round
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    ("allreduce", "reducescatter"),
    "exchanges at halving, then doubling distances",
    sends=per_pair,
    source="Rabenseifner, ICCS 2004",
    outlined=True,
)


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps do; raises `InputError` unless the number of ranks is a power of two."""
    n, steps = topology.ranks, log2_ranks("halving_doubling", topology.ranks)
    # The same exchange twice in a row is one that comes again.
    exchanges = [(at_distance(n, 1 << step), 1 << step) for step in range(steps)]
    down = [blocks(exchange, n, distance, REDUCE) for exchange, distance in reversed(exchanges)]
    up = [blocks(exchange, n, distance, COPY) for exchange, distance in exchanges]
    return (*down, *(up if collective.name == "allreduce" else ()))
