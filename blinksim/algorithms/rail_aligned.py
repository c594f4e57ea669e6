"""Rail-aligned alltoall: between nodes, only members of equal index exchange, evenly over all adapters.

A rank hands its data to the member of its node whose adapter is on the rail that the data takes, mostly the
receiver's own; members of equal place exchange them; what arrived elsewhere is handed on inside the node. So
no byte crosses from rail to rail, and idle adapters carry what the own cannot: at most three sends, two of
them inside nodes (PXN, NCCL 2.12; hierarchical alltoall of Tutel and of DeepSpeed-MoE: Rajbhandari et al.,
ICML 2022).
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

import numpy as np

from blinksim.algorithms.building.rail_alltoall import of_pieces, pieces_of, rails_for
from blinksim.algorithms.building.token_sends import token_schedule
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.bounds.rails import symmetric_rails
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.packing.rails import Pieces
from blinksim.schedule.candidate import SymmetricSchedule
from blinksim.schedule.model import Schedule
from blinksim.topology.graph import Topology
from blinksim.topology.symmetry import commuting_group

ENTRY = Algorithm(
    ("alltoall",),
    "between nodes over rails, all adapters evenly, at most three sends",
    sends=per_pair,
    routes=True,
    traffic=True,
    tokens=True,
)


# Paths that are written out, in a gigabyte or so.
_MOST_PATHS = 4_200_000


def build(topology: Topology, collective: Collective) -> Schedule:
    """The schedule in forest form, a path of at most three sends for every piece; of tokens in two steps.

    Raises `InfeasibleError` as `rails_for` does.
    """
    rails = rails_for(topology, collective, "rail_aligned")
    if collective.routing is not None:
        return token_schedule(topology, collective, "rail_aligned")
    return of_pieces(collective, rails, *pieces_of(collective, rails), "rail_aligned")


def symmetric(topology: Topology, collective: Collective) -> SymmetricSchedule | None:
    """The schedule of an alltoall from what one node sends, for thousands of ranks: images are the rest.

    None for unequal blocks or adapters, and where no group takes a node to all others.
    """
    rails = symmetric_rails(topology) if collective.name == "alltoall" else None
    if rails is None or not rails.alike:
        return None
    # Over the receiver's place, in equal parts over its ports: what `build` does there.
    nodes, local = rails.ranks.shape
    count, whole = rails.exit.shape[2], commuting_group(topology)
    # What one rank sends stands for all where symmetries take it to each. Between switches who waits for whom depends
    # on the order of what several ranks send.
    one = whole is not None and whole.regular and not rails.trunks
    group, senders = (whole, 1) if whole and one else (rails.group, local)
    grid = np.indices((senders, nodes, local, count)).reshape(4, -1)
    i, b, j, port = grid[:, grid[1] > 0]
    ones, first = np.ones(len(i), dtype=np.int64), np.zeros(len(i), dtype=np.int64)
    own, there = np.indices((senders, local)).reshape(2, -1)
    none, every = np.zeros_like(own), np.full_like(own, count)
    inside = none, own, there, none, none, there, every
    pieces = Pieces(*map(np.concatenate, zip((first, i, j, port, b, j, ones), inside, strict=True)))
    base = of_pieces(collective, rails, pieces, rails.topology.ranks * count, "rail_aligned")
    return SymmetricSchedule(base, group)


def exchange(topology: Topology, collective: Collective) -> Schedule | None:
    """`build` for whoever may search as well; None where the collective or the machine has none.

    Raises `InfeasibleError` for an exchange of more paths than are written out one by one.
    """
    if not collective.exchanges:
        return None
    ranks, paths = topology.ranks, topology.ranks * (topology.ranks - 1)
    if paths > _MOST_PATHS:
        most = f"at most {_MOST_PATHS:,} are written out: those of {isqrt(_MOST_PATHS):,} ranks"
        more = f"{most}; of more, an alltoall over rails of nodes that are alike"
        raise InfeasibleError(f"an exchange of {ranks:,} ranks has {paths:,} paths, and {more}")
    try:
        return replace(build(topology, collective), algorithm="packed")
    except InfeasibleError:
        return None
