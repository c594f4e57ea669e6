"""Multiphase alltoall: blocks travel level by level, inside nodes and between them, in few messages.

Ranks have a digit for each level. In each, a rank sends to those that differ from it in this digit alone all
blocks that are for ranks with theirs: of n ranks in groups of r, n / r blocks in a message (Bokhari,
"Multiphase complete exchange on a circuit switched hypercube", ICPP 1991; Bruck et al., IEEE TPDS 1997, in
mixed radices). For few bytes: every block is sent once in each level, and straight once.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import numpy as np

from blinksim.algorithms.recursive_multiplying import levels_of
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.graphs.arrays import Ints, round_robin
from blinksim.schedule.loads import Exchange, Round, Whole
from blinksim.schedule.model import COPY
from blinksim.topology.graph import Topology

ENTRY = Algorithm(("alltoall",), "level by level inside nodes and between them, in few messages", sends=per_pair)


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps do. Raises `InfeasibleError` for nodes with different numbers of ranks."""
    grid, found = levels_of(topology, "multiphase"), list[Round]()
    for axis, width in enumerate(grid.shape):
        src, dst = (np.moveaxis(grid, axis, 0)[end].reshape(-1, 1) for end in round_robin(width))
        chunk = partial(_blocks, grid.reshape(*grid.shape[:axis], width, -1), axis)
        found.append(Round(Exchange(src, dst), Fraction(1, grid.size), COPY, chunks=grid.size // width, chunk=chunk))
    return tuple(found)


def _blocks(grid: Whole, axis: int, src: Whole, dst: Whole, step: int) -> Ints:
    """What goes from ranks to ranks (M, 1) on an axis: blocks are where digits before it are the target's."""
    ranks, place = grid.reshape(-1, *grid.shape[axis:]), np.empty(grid.size, dtype=np.int64)
    place[ranks.ravel()] = np.arange(grid.size)
    (before, digit, after), (_, wanted, _) = (np.unravel_index(place[end], ranks.shape) for end in (src, dst))
    origin, target = ranks[:, digit, after].transpose(1, 0, 2), ranks[before, wanted]
    return (origin * np.int64(grid.size) + target).reshape(len(src), -1)
