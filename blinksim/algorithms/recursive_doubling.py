"""Recursive doubling: log2 n exchanges with partners at distance 1, 2, 4 ..., the fewest single-port steps.

Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005,
sections 3 and 4. Powers of two only.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from blinksim.algorithms.building.plan import log2_ranks
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.schedule.model import COPY, REDUCE
from blinksim.schedule.step_loads import Exchange, Round, Whole
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    ("allreduce", "allgather"),
    "exchanges at doubling distances",
    sends=per_pair,
    source="Thakur, Rabenseifner and Gropp, IJHPCA 2005",
    outlined=True,
)


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps do; raises `InputError` unless the number of ranks is a power of two."""
    distances = [1 << step for step in range(log2_ranks("recursive_doubling", topology.ranks))]
    if collective.name == "allreduce":
        return tuple(Round(at_distance(topology.ranks, distance), Fraction(1), REDUCE) for distance in distances)
    return tuple(
        blocks(at_distance(topology.ranks, distance), topology.ranks, distance, COPY) for distance in distances
    )


def at_distance(n: int, distance: int) -> Exchange:
    """Every rank with the one whose number differs by that power of two."""
    ranks = np.arange(n)[:, None]
    return Exchange(ranks, ranks ^ distance)


def blocks(exchange: Exchange, ranks: int, many: int, op: int) -> Round:
    """Every rank sends the shards of its own aligned block of so many (COPY), or of its partner's (REDUCE)."""

    def chunk(src: Whole, dst: Whole, step: int) -> Whole:
        return ((src if op == COPY else dst) & -many) + np.arange(many)

    return Round(exchange, Fraction(1, ranks), op, chunks=many, chunk=chunk)
