"""Rail-aligned: an alltoall between nodes crosses the fabric between members of equal place, over all adapters evenly.

A rank hands its data to the member of its node whose adapter is on the rail that the data takes, mostly the receiver's
own; members of equal place exchange them; what arrived elsewhere is handed on inside the node. So no byte crosses from
rail to rail, and idle adapters carry what the own cannot: at most three sends, two of them inside nodes (PXN, NCCL
2.12; hierarchical alltoall of Tutel and of DeepSpeed-MoE, 2022).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import gcd, isqrt

import numpy as np

from blinksim.algorithms.building import symmetric_trees
from blinksim.algorithms.building.exchanges.rail_routes import RailRoutes, through_others
from blinksim.bounds.exchanges.rail_spread import spread_time
from blinksim.bounds.exchanges.rails import Rails, read_rails
from blinksim.bounds.exchanges.turned_rails import TurnedRails, turned_rails
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.packing.hosts.rail_pieces import Ints, Pieces, choose_places
from blinksim.schedule.model import COPY, Schedule
from blinksim.schedule.turned.symmetric import SymmetricSchedule
from blinksim.topology.graph import Topology
from blinksim.traffic.matrix import Traffic

# Units of a block of an alltoall where adapters carry unequal parts.
_UNITS = 5040
# Paths that are written out, in a gigabyte or so.
_MOST_PATHS = 2_000_000


def build(topology: Topology, collective: Collective) -> Schedule:
    """The schedule in forest form, a path of at most three sends for every piece.

    Raises `InfeasibleError` for a single node, for nodes with other members or without switches between them, and
    where members of a node reach each other only through others.
    """
    rails = read_rails(topology)
    if rails is None:
        raise InfeasibleError(
            "rail_aligned needs two or more nodes with members of the same names and switches between; take packed"
        )
    if through_others(rails):
        raise InfeasibleError("rail_aligned: members of a node reach each other only through others; take packed")
    traffic = collective.traffic or _equal_blocks(rails)
    units = rails.by_place(traffic.matrix)
    pieces = choose_places(rails, units, 1 / spread_time(rails, traffic))
    nodes = np.arange(rails.nodes)
    own, i, j = np.nonzero(units[nodes, :, nodes, :])
    return _schedule(collective, rails, Inside(own, i, j, units[own, i, own, j]), pieces, traffic.size)


@dataclass(frozen=True, eq=False)
class Inside:
    """Units that stay inside node `own`: from member `i` to member `j`, which may be the same."""

    own: Ints
    i: Ints
    j: Ints
    amount: Ints


def symmetric(topology: Topology, collective: Collective) -> SymmetricSchedule | None:
    """The schedule of an alltoall from what one node sends, for thousands of ranks: turns of the nodes make the rest.

    None for unequal blocks or adapters, and where no turns take a node to all others.
    """
    rails = turned_rails(topology) if collective.name == "alltoall" else None
    return SymmetricSchedule(_first_node(rails), rails.turns) if rails is not None and rails.alike else None


def large(topology: Topology, collective: Collective) -> SymmetricSchedule | None:
    """`symmetric` where the schedule has many sends; None where it has few, or there is no such."""
    return None if 2 * topology.ranks**2 < symmetric_trees.FEW_SENDS else symmetric(topology, collective)


def exchange(topology: Topology, collective: Collective) -> Schedule | None:
    """`build` for whoever may search as well; None where the collective or the machine has none.

    Raises `InfeasibleError` for an exchange of more paths than are written out one by one.
    """
    if not collective.exchanges:
        return None
    paths = topology.ranks * (topology.ranks - 1)
    if paths > _MOST_PATHS:
        raise InfeasibleError(
            f"an exchange of {topology.ranks:,} ranks has {paths:,} paths, and at most {_MOST_PATHS:,} are written "
            f"out: those of {isqrt(_MOST_PATHS):,} ranks; of more, an alltoall over rails of nodes that are alike"
        )
    try:
        return replace(build(topology, collective), algorithm="packed")
    except InfeasibleError:
        return None


def _first_node(rails: TurnedRails) -> Schedule:
    """What the ranks of the first node send in an alltoall where all adapters are alike.

    Over the receiver's place, in equal parts over its ways: what `build` does there.
    """
    nodes, local = rails.ranks.shape
    count = rails.exit.shape[2]
    i, b, j, way = (grid.ravel() for grid in np.meshgrid(*map(np.arange, (local, nodes, local, count)), indexing="ij"))
    apart = b > 0
    i, b, j, way = (column[apart] for column in (i, b, j, way))
    ones, first = np.ones(len(i), dtype=np.int64), np.zeros(len(i), dtype=np.int64)
    own, there = (grid.ravel() for grid in np.meshgrid(np.arange(local), np.arange(local), indexing="ij"))
    inside = Inside(np.zeros_like(own), own, there, np.full_like(own, count))
    pieces = Pieces(first, i, j, way, b, j, ones)
    return _schedule(Collective("alltoall"), rails, inside, pieces, rails.topology.ranks * count)


def _equal_blocks(rails: Rails) -> Traffic:
    """An alltoall in units: one for each block, or more where adapters carry unequal parts."""
    rates = (rails.rate[uses.resource] for uses in (rails.up_uses, rails.down_uses))
    alike = rails.open.all() and all(len(set(rate.tolist())) == 1 for rate in rates)
    ranks = rails.topology.ranks
    return Traffic.uniform(ranks, ranks * (1 if alike else _UNITS))


def _schedule(collective: Collective, rails: Rails, within: Inside, pieces: Pieces, size: int) -> Schedule:
    topology, routes, pieces = rails.topology, RailRoutes(rails), _in_rounds(rails, pieces)
    count, own, i, j = len(pieces.amount), within.own, within.i, within.j
    amount = np.concatenate([pieces.amount, within.amount])
    device = topology.member_places[rails.ranks]
    # Sends of three sorts: to the place where a piece crosses, across, and on from there; and those inside a node.
    first, last = pieces.i != pieces.k, pieces.k != pieces.j
    before, after, inner = np.flatnonzero(first), np.flatnonzero(last), np.flatnonzero(i != j)
    chunk, node, x, y, step = (
        np.concatenate(column)
        for column in zip(
            (before, pieces.a[before], pieces.i[before], pieces.k[before], np.zeros(len(before), np.int64)),
            (after, pieces.b[after], pieces.k[after], pieces.j[after], 1 + first[after]),
            (count + inner, own[inner], i[inner], j[inner], np.zeros(len(inner), np.int64)),
            strict=True,
        )
    )
    # All at once: what goes the same way between two members is one message.
    sends = [(chunk, device[node, x], device[node, y], step, routes.inside(node, x, y))]
    ends = device[pieces.a, pieces.k], device[pieces.b, pieces.k]
    across = routes.across(pieces.a, pieces.b, pieces.k, pieces.way)
    sends.append((np.arange(count), *ends, first.astype(np.int64), across))
    columns = [np.concatenate(column).astype(np.int32) for column in zip(*sends, strict=True)]
    by_step = np.argsort(columns[3], kind="stable")
    chunk, src, dst, step, route = (np.ascontiguousarray(column[by_step], dtype=np.int32) for column in columns)
    common = gcd(size, int(np.gcd.reduce(amount)))
    start, links = routes.flat()
    return Schedule(
        topology=topology,
        collective=collective,
        algorithm="rail_aligned",
        form="forest",
        share_num=amount // common,
        share_den=size // common,
        origin=np.concatenate([rails.ranks[pieces.a, pieces.i], rails.ranks[own, i]]).astype(np.int32),
        target=np.concatenate([rails.ranks[pieces.b, pieces.j], rails.ranks[own, j]]).astype(np.int32),
        chunk=chunk,
        src=src,
        dst=dst,
        op=np.full(len(chunk), COPY, dtype=np.uint8),
        step=step,
        route=route,
        channel=np.zeros(len(chunk), dtype=np.int32),
        route_start=start,
        route_links=links,
    )


def _in_rounds(rails: Rails, pieces: Pieces) -> Pieces:
    """Every node sends to the next one first, and every member to the next place there, so that none takes in all."""
    nodes, local = rails.ranks.shape
    order = np.lexsort((pieces.way, pieces.i, (pieces.j - pieces.i) % local, (pieces.b - pieces.a) % nodes))
    return Pieces(*(getattr(pieces, column.name)[order] for column in fields(pieces)))
