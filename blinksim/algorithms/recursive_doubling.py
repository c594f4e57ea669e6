"""Recursive doubling: log2 n exchanges with partners at distance 1, 2, 4 ..., the fewest single-port steps.

Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005,
sections 3 and 4. Powers of two only.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from blinksim.algorithms.building.plan import Plan, log2_ranks
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.schedule.model import COPY, REDUCE
from blinksim.schedule.step_loads import Exchange, Round
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    "recursive_doubling",
    ("allreduce", "allgather"),
    "exchanges at doubling distances",
    order=50,
    sends=per_pair,
    source="Thakur, Rabenseifner and Gropp, IJHPCA 2005",
    outlined=True,
)


def fill(plan: Plan) -> None:
    """The sends; raises `InputError` unless the number of ranks is a power of two."""
    if plan.collective.name == "allreduce":
        plan.add_chunk(Fraction(1))
    else:
        plan.add_shards()
    plan.add_rounds(rounds(plan.topology, plan.collective))


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps do; raises `InputError` unless the number of ranks is a power of two."""
    distances = [1 << step for step in range(log2_ranks("recursive_doubling", topology.ranks))]
    if collective.name == "allreduce":
        return tuple(Round(at_distance(topology.ranks, distance), Fraction(1), REDUCE) for distance in distances)
    share = Fraction(1, topology.ranks)
    return tuple(gather(at_distance(topology.ranks, distance), share, distance) for distance in distances)


def at_distance(n: int, distance: int) -> Exchange:
    """Every rank with the one whose number differs by that power of two."""
    ranks = np.arange(n)[:, None]
    return Exchange(ranks, ranks ^ distance)


def gather(exchange: Exchange, share: Fraction, distance: int) -> Round:
    """Every rank sends the shards of its aligned block of so many (chunk r is shard r)."""
    return Round(
        exchange, share, COPY, chunks=distance, chunk=lambda src, dst, step: (src & -distance) + np.arange(distance)
    )
