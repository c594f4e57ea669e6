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
    steps = log2_ranks("recursive_doubling", plan.n)
    ranks = np.arange(plan.n)
    if collective.name == "allreduce":
        whole = plan.add_chunk(Fraction(1))
        for step in range(steps):
            plan.send(ranks, ranks ^ (1 << step), chunk=whole, op=REDUCE, step=step)
    else:
        for rank in range(plan.n):
            plan.add_chunk(Fraction(1, plan.n), origin=rank)
        for step in range(steps):
            gather_step(plan, distance=1 << step, step=step)
    return plan.finish()


def gather_step(plan: Plan, distance: int, step: int) -> None:
    """Every rank sends the `distance` shards of its aligned block to the rank at that distance (chunk r is shard r)."""
    ranks = np.arange(plan.n)[:, None]
    shards = (ranks & ~(distance - 1)) + np.arange(distance)[None, :]
    plan.send(ranks, ranks ^ distance, chunk=shards, op=COPY, step=step)


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps of `build` do; raises `InputError` unless the number of ranks is a power of two."""
    n = topology.ranks
    distances = [1 << step for step in range(log2_ranks("recursive_doubling", n))]
    if collective.name == "allreduce":
        return tuple(Round(at_distance(n, distance), Fraction(1), REDUCE) for distance in distances)
    return tuple(Round(at_distance(n, distance), Fraction(1, n), COPY, chunks=distance) for distance in distances)


def at_distance(n: int, distance: int) -> Exchange:
    """Every rank with the one whose number differs by that power of two."""
    return Exchange(np.arange(n), np.arange(n) ^ distance)
