"""Recursive doubling: log2 n exchanges with partners at distance 1, 2, 4 ..., the fewest single-port steps.

Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005,
sections 3 and 4. Powers of two only.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from blinksim.algorithms.building.plan import Plan, log2_ranks
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.schedule.model import COPY, REDUCE, Schedule
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


def build(topology: Topology, collective: Collective) -> Schedule:
    """The schedule; raises `InputError` unless the number of ranks is a power of two."""
    plan = Plan(topology, collective, "recursive_doubling", "steps")
    distances = [1 << step for step in range(log2_ranks("recursive_doubling", plan.n))]
    if collective.name == "allreduce":
        whole, ranks = plan.add_chunk(Fraction(1)), np.arange(plan.n)
        for step, distance in enumerate(distances):
            plan.send(ranks, ranks ^ distance, chunk=whole, op=REDUCE, step=step)
    else:
        for rank in range(plan.n):
            plan.add_chunk(Fraction(1, plan.n), origin=rank)
        gather(plan, distances, 0)
    return plan.finish()


def gather(plan: Plan, distances: Sequence[int], first: int) -> None:
    """Every rank sends the shards of its aligned block to the rank at each distance in turn (chunk r is shard r)."""
    ranks = np.arange(plan.n)[:, None]
    for step, distance in enumerate(distances):
        shards = (ranks & ~(distance - 1)) + np.arange(distance)[None, :]
        plan.send(ranks, ranks ^ distance, chunk=shards, op=COPY, step=first + step)


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps of `build` do; raises `InputError` unless the number of ranks is a power of two."""
    distances = [1 << step for step in range(log2_ranks("recursive_doubling", topology.ranks))]
    if collective.name == "allreduce":
        return tuple(Round(at_distance(topology.ranks, distance), Fraction(1), REDUCE) for distance in distances)
    share = Fraction(1, topology.ranks)
    return tuple(Round(at_distance(topology.ranks, distance), share, COPY, chunks=distance) for distance in distances)


def at_distance(n: int, distance: int) -> Exchange:
    """Every rank with the one whose number differs by that power of two."""
    return Exchange(np.arange(n), np.arange(n) ^ distance)
