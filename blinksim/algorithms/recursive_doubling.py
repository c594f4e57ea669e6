"""Recursive doubling: exchanges with partners at distance 1, 2, 4 ..., in log2 n single-port steps.

Other numbers of ranks than powers of two: an allreduce sends what is beyond the power to ranks below it before,
and the result back after; an allgather goes around, in as few steps (Bruck et al., IEEE TPDS 1997). Thakur,
Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005, sections 3
and 4.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np

from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.schedule.loads import Exchange, Round, Whole
from blinksim.schedule.model import COPY, REDUCE
from blinksim.topology.graph import Topology

ENTRY = Algorithm(("allreduce", "allgather"), "exchanges at doubling distances", sends=per_pair)


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps do."""
    n = topology.ranks
    if collective.name == "allgather":
        return tuple(shards(n, COPY))
    steps = n.bit_length() - 1
    beyond = np.arange(1 << steps, n)
    below, whole = beyond - (1 << steps), Fraction(1)
    doubling = [Round(at_distance(1 << steps, 1 << step), whole, REDUCE) for step in range(steps)]
    if not len(beyond):
        return tuple(doubling)
    before, after = (Exchange(*ends) for ends in ((beyond, below), (below, beyond)))
    return Round(before, whole, REDUCE), *doubling, Round(after, whole, COPY)


@lru_cache(maxsize=64)
def at_distance(n: int, distance: int) -> Exchange:
    """Every rank with the one whose number differs by that power of two; around where n is none."""
    ranks = np.arange(n)[:, None]
    return Exchange(ranks, ranks ^ distance if n & (n - 1) == 0 else (ranks + distance) % n)


def shards(n: int, op: int) -> list[Round]:
    """Every rank gets the shards of all, in ever larger blocks (COPY), or in reverse its sum (REDUCE)."""
    steps, back = range((n - 1).bit_length()), -1 if op == COPY and n & (n - 1) else 1
    distances = [1 << step for step in (steps if op == COPY else reversed(steps))]
    return [_blocks(at_distance(n, back * distance), n, distance, op) for distance in distances]


def _blocks(exchange: Exchange, n: int, distance: int, op: int) -> Round:
    """Every rank sends the shards of a block of its own (COPY), or of its partner's (REDUCE)."""
    block = np.arange(min(distance, n - distance))

    def chunk(src: Whole, dst: Whole, step: int) -> Whole:
        owner = src if op == COPY else dst
        return (owner & -distance) + block if n & (n - 1) == 0 else (owner + block) % n

    return Round(exchange, Fraction(1, n), op, chunks=len(block), chunk=chunk)
