"""Recursive halving, then doubling: log2 n steps each way, with no more bytes than a ring.

Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur et al., IJHPCA 2005,
section 4. Powers of two only.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from blinksim.algorithms.building.plan import Plan, log2_ranks
from blinksim.algorithms.recursive_doubling import at_distance, gather
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.schedule.step_loads import Round
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    "halving_doubling",
    ("allreduce", "reducescatter"),
    "exchanges at halving, then doubling distances",
    order=60,
    sends=per_pair,
    source="Rabenseifner, ICCS 2004",
    outlined=True,
)


def build(topology: Topology, collective: Collective) -> Schedule:
    """The schedule; raises `InputError` unless the number of ranks is a power of two."""
    plan = Plan(topology, collective, "halving_doubling", "steps")
    distances = [1 << step for step in range(log2_ranks("halving_doubling", plan.n))]
    for rank in range(plan.n):
        plan.add_chunk(Fraction(1, plan.n), *collective.labels(rank, rank))
    ranks = np.arange(plan.n)[:, None]
    for step, distance in enumerate(reversed(distances)):
        # What the partner's half of the block will own goes to the partner.
        partner = ranks ^ distance
        shards = (partner & ~(distance - 1)) + np.arange(distance)[None, :]
        plan.send(ranks, partner, chunk=shards, op=REDUCE, step=step)
    if collective.name == "allreduce":
        gather(plan, distances, len(distances))
    return plan.finish()


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps of `build` do; raises `InputError` unless the number of ranks is a power of two."""
    share, steps = Fraction(1, topology.ranks), log2_ranks("halving_doubling", topology.ranks)
    # The same exchange twice in a row is one that comes again.
    exchanges = [(at_distance(topology.ranks, 1 << step), 1 << step) for step in range(steps)]
    down = [Round(one, share, REDUCE, chunks=distance) for one, distance in reversed(exchanges)]
    up = [Round(one, share, COPY, chunks=distance) for one, distance in exchanges]
    return (*down, *(up if collective.name == "allreduce" else ()))
