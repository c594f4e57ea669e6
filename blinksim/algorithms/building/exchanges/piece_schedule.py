"""Schedules of an alltoall or alltoallv whose blocks are cut into pieces, each over a place of its own."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import gcd

import numpy as np

from blinksim.algorithms.building.exchanges.rail_routes import RailRoutes
from blinksim.bounds.exchanges.rail_spread import spread_time
from blinksim.bounds.exchanges.rails import Ints, Rails
from blinksim.collective import Collective
from blinksim.packing.hosts.rail_pieces import Pieces, choose_places
from blinksim.schedule.model import COPY, Schedule
from blinksim.traffic.matrix import Traffic

# Units of a block of an alltoall where adapters carry unequal parts.
_UNITS = 5040


@dataclass(frozen=True, eq=False)
class Inside:
    """Units that stay inside node `own`: from member `i` to member `j`, which may be the same."""

    own: Ints
    i: Ints
    j: Ints
    amount: Ints


def pieces_of(collective: Collective, rails: Rails) -> tuple[Inside, Pieces, int]:
    """What stays inside nodes, what crosses over which places, and how many units the size is."""
    traffic = collective.traffic or equal_blocks(rails)
    units = rails.by_place(traffic.matrix)
    pieces = choose_places(rails, units, aim(rails, traffic))
    nodes = np.arange(rails.nodes)
    own, i, j = np.nonzero(units[nodes, :, nodes, :])
    return Inside(own, i, j, units[own, i, own, j]), pieces, traffic.size


def aim(rails: Rails, traffic: Traffic) -> float:
    """Units/s beyond which no better places are looked for."""
    return 1 / spread_time(rails, traffic)


def alike(rails: Rails) -> bool:
    """True if all members of all nodes have ways to the fabric and back, of one rate each."""
    found = [np.full(rails.open.size, np.inf) for _ in range(2)]
    for rate, uses in zip(found, (rails.up_uses, rails.down_uses), strict=True):
        np.minimum.at(rate, uses.route, rails.rate[uses.resource] / uses.part)
    return bool(rails.open.all()) and all(len(np.unique(rate)) == 1 for rate in found)


def equal_blocks(rails: Rails) -> Traffic:
    """An alltoall in units: one for each block, or more where adapters carry unequal parts."""
    rates = (rails.rate[uses.resource] for uses in (rails.up_uses, rails.down_uses))
    even = rails.open.all() and all(len(set(rate.tolist())) == 1 for rate in rates)
    ranks = rails.topology.ranks
    return Traffic.uniform(ranks, ranks * (1 if even else _UNITS))


def of_pieces(
    collective: Collective,
    rails: Rails,
    within: Inside,
    pieces: Pieces,
    size: int,
    algorithm: str,
    *,
    joined: bool = False,
) -> Schedule:
    """The schedule of pieces, each on a path of its own.

    joined: in three steps, where all that goes the same way is sent together.
    """
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
            (after, pieces.b[after], pieces.k[after], pieces.j[after], 1 + (first[after] | joined)),
            (count + inner, own[inner], i[inner], j[inner], np.zeros(len(inner), np.int64)),
            strict=True,
        )
    )
    # All at once: what goes the same way between two members takes its ways in turn, or is one message.
    inner_route = routes.inside(node, x, y, step if joined else None)
    sends = [(chunk, device[node, x], device[node, y], step, inner_route, np.zeros_like(step))]
    ends = device[pieces.a, pieces.k], device[pieces.b, pieces.k]
    crossing = (pieces.a, pieces.b, pieces.k, pieces.way)
    across = routes.messages(*crossing) if joined else routes.across(*crossing)
    channel = pieces.way if joined else np.zeros_like(pieces.way)
    sends.append((np.arange(count), *ends, (first | joined).astype(np.int64), across, channel))
    columns = [np.concatenate(column).astype(np.int32) for column in zip(*sends, strict=True)]
    by_step = np.argsort(columns[3], kind="stable")
    columns = [np.ascontiguousarray(column[by_step], dtype=np.int32) for column in columns]
    common = gcd(size, int(np.gcd.reduce(amount)))
    start, links = routes.flat()
    return Schedule(
        topology=topology,
        collective=collective,
        algorithm=algorithm,
        form="steps" if joined else "forest",
        share_num=amount // common,
        share_den=size // common,
        origin=np.concatenate([rails.ranks[pieces.a, pieces.i], rails.ranks[own, i]]).astype(np.int32),
        target=np.concatenate([rails.ranks[pieces.b, pieces.j], rails.ranks[own, j]]).astype(np.int32),
        chunk=columns[0],
        src=columns[1],
        dst=columns[2],
        step=columns[3],
        route=columns[4],
        channel=columns[5],
        op=np.full(len(by_step), COPY, dtype=np.uint8),
        route_start=start,
        route_links=links,
    )


def _in_rounds(rails: Rails, pieces: Pieces) -> Pieces:
    """Every node sends to the next one first, and every member to the next place there, so that none takes in all."""
    nodes, local = rails.ranks.shape
    order = np.lexsort((pieces.way, pieces.i, (pieces.j - pieces.i) % local, (pieces.b - pieces.a) % nodes))
    return Pieces(*(getattr(pieces, column.name)[order] for column in fields(pieces)))
