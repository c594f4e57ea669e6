"""Bucket: an allreduce along the dimensions of a torus, all of them and both ways round at once.

A ring in each dimension in turn sums up what the dimension before has left, and an allgather goes back the
same way: of sides a, b and c in 2 (a - 1 + b - 1 + c - 1) steps, where a ring through all ranks has
2 (a b c - 1). The data is cut into two parts a dimension, which begin in different dimensions and go round
different ways, so that all links are busy; where all sides are equal, no link waits for another, and the loads
attain the bound (M. Barnett, R. Littlefield, D. Payne, R. van de Geijn, "Global combine on mesh architectures
with wormhole routing", IPPS 1993; P. Sack and W. Gropp, "Collective algorithms for multiported torus networks",
ACM TOPC 2015).
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import EVERY, SHARDED, Collective
from blinksim.errors import InfeasibleError
from blinksim.schedule.candidate import SymmetricSchedule
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.graph import Topology
from blinksim.topology.symmetry import commuting_group

ENTRY = Algorithm(SHARDED, "rings in every dimension of a torus, in all of them at once", sends=per_pair)


def build(topology: Topology, collective: Collective) -> Schedule:
    """The schedule in steps form; raises `InfeasibleError` for what is no torus of two dimensions or more."""
    return symmetric(topology, collective).schedule


def symmetric(topology: Topology, collective: Collective) -> SymmetricSchedule:
    """The same from the shards of the first rank, as rotations take them to those of all others."""
    own, around = topology.member_places, set[tuple[int, int]]()
    # To look for symmetries of large clusters takes long.
    group = commuting_group(topology) if len(topology.devices) == topology.ranks else None
    if group is not None and group.regular and len(group.orders) > 1:
        for onward in group.generators:
            there = zip(own.tolist(), onward[own].tolist(), strict=True)
            around |= {pair for a, b in there for pair in ((a, b), (b, a))}
    if group is None or around != {*zip(*(end.tolist() for end in topology.ends), strict=True)}:
        raise InfeasibleError("bucket needs the links of a torus of two dimensions or more, and no others")
    sides, place = np.array(group.orders), group.place[own[1:]]
    plan, ways = Plan(topology, collective, "bucket", "steps"), 2 * len(sides)
    rank = np.full(len(topology.devices), -1)
    rank[own] = np.arange(plan.n)
    others, steps = np.arange(1, plan.n), int((sides - 1).sum())
    for first, way in product(range(len(sides)), (1, -1)):
        chunk = plan.add_chunk(Fraction(1, plan.n * ways), *collective.labels(0, 0))
        turn = np.roll(np.arange(len(sides)), -first)
        # How far every rank is from the first one, by dimension in turn, and the first in which it is apart.
        far = (way * place % sides)[:, turn]
        phase = (far > 0).argmax(axis=1)
        nearer = rank[group.along(-way * np.eye(len(sides), dtype=np.int64)[turn[phase]], own[1:])]
        step = np.cumsum(sides[turn] - 1)[phase] - far[others - 1, phase]
        if collective.reduces:
            plan.send(others, nearer, chunk=chunk, op=REDUCE, step=step)
        if collective.ends == EVERY:
            back = (2 if collective.reduces else 1) * steps - 1 - step
            plan.send(nearer, others, chunk=chunk, op=COPY, step=back)
    return SymmetricSchedule(plan.finish(), group)
