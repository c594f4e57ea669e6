"""Candidate ways: a send whose route has equals is divided among all of them, as NCCL's channels are among NICs.

A builder chooses one route for a pair of ranks. Where the router knows others that are as short and as wide (the NICs
of a GPU, parallel links, the planes of a fabric), each carries an equal part. `equal_ways` says which they are;
`divided` writes the parts out as chunks of their own, so that every send has one route again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import lcm

import numpy as np
import numpy.typing as npt

from blinksim.schedule.loads import Resources, sums_formed
from blinksim.schedule.model import Schedule
from blinksim.structures.arrays import distinct, expand, places
from blinksim.topology.graph import Topology
from blinksim.topology.group import alike_nodes

Ways = tuple[tuple[int, ...], ...]
"""The routes that share what one route of a schedule carries, each as indices into topology.links."""

# A schedule with more sends than this is not written out.
MOST_SENDS = 8_000_000
# Routes from which on symmetries are worth looking for.
_MANY_ROUTES = 500
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Spread:
    """The ways of every route of a schedule. count (R): how many; start (W + 1), links: way w uses links[start[w]:…].

    first (R + 1): the ways of route r are first[r] to first[r + 1] - 1.
    """

    count: npt.NDArray[np.int32]
    first: npt.NDArray[np.int32]
    start: npt.NDArray[np.int32]
    links: npt.NDArray[np.int32]

    @classmethod
    def of(cls, ways: Sequence[Ways]) -> Spread:
        """From the ways of every route."""
        count = [len(alternatives) for alternatives in ways]
        flat = [way for alternatives in ways for way in alternatives]
        return cls(
            np.array(count, dtype=np.int32),
            np.cumsum([0, *count]).astype(np.int32),
            np.cumsum([0, *map(len, flat)]).astype(np.int32),
            np.array([link for way in flat for link in way], dtype=np.int32),
        )

    def ways_of(self, route: int) -> list[list[int]]:
        """The links of every way of a route."""
        return [
            self.links[self.start[way] : self.start[way + 1]].tolist()
            for way in range(int(self.first[route]), int(self.first[route + 1]))
        ]


def equal_ways(schedule: Schedule) -> Spread | None:
    """The ways of every route, None if no route has more than one."""
    topology, start = schedule.topology, schedule.route_start.astype(np.int64)
    links = schedule.route_links.astype(np.int64)
    turns = alike_nodes(topology) if len(start) > _MANY_ROUTES and topology.symmetries else None
    if turns is None:
        found = ways_of_routes(topology, start, links)
        return Spread.of(found) if any(len(alternatives) > 1 for alternatives in found) else None
    # One route stands for all that symmetries take it to; those of data between switches stand for themselves.
    tail, head = topology.ends
    _, _, exponents = turns.between(tail[links[start[:-1]]], head[links[start[1:] - 1]])
    _, own = turns.route_images(turns.inverse(exponents), start, links, np.arange(len(start) - 1))
    first, which = distinct_routes(start, own)
    lengths = np.diff(start)[first]
    found = ways_of_routes(topology, np.concatenate([[0], np.cumsum(lengths)]), expand(start, own, first)[1])
    if all(len(alternatives) == 1 for alternatives in found):
        return None
    few = Spread.of(found)
    ways_start = few.start[few.first].astype(np.int64)
    _, turned = turns.route_images(exponents, ways_start, few.links.astype(np.int64), which)
    count = few.count[which]
    _, sizes = expand(few.first, np.diff(few.start).astype(np.int32), which.astype(np.int32))
    return Spread(
        count,
        np.concatenate([[0], np.cumsum(count)]).astype(np.int32),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
        turned.astype(np.int32),
    )


def ways_of_routes(topology: Topology, start: Indices, links: Indices) -> list[Ways]:
    """The ways of routes, each as the router has them."""
    router, (tail, head) = topology.router, topology.ends
    ends = zip(tail[links[start[:-1]]].tolist(), head[links[start[1:] - 1]].tolist(), strict=True)
    listed = links.tolist()
    ways = []
    for (first, end), (src, dst) in zip(pairwise(start.tolist()), ends, strict=True):
        route, alternatives = tuple(listed[first:end]), router.ways(src, dst)
        ways.append(alternatives if route in alternatives else router.along(route))
    return ways


def distinct_routes(start: Indices, links: Indices) -> tuple[Indices, Indices]:
    """The first of each set of equal routes, and for every route the number of its set."""
    lengths = np.diff(start)
    leader = np.arange(len(lengths))
    for length in distinct(lengths).tolist():
        alike = np.flatnonzero(lengths == length)
        if not length:
            leader[alike] = alike[0]
            continue
        # Links one after the other, numbered anew in between: sorting whole rows takes far longer.
        number, width = np.zeros(len(alike), dtype=np.int64), int(links.max()) + 1
        for place in range(length):
            _, one, number = np.unique(
                number * width + links[start[alike] + place], return_index=True, return_inverse=True
            )
        leader[alike] = alike[one[number]]
    first, which = np.unique(leader, return_inverse=True)
    return first, which


def one_way(schedule: Schedule) -> Spread:
    """Every route by itself."""
    routes = len(schedule.route_start) - 1
    number = np.arange(routes + 1, dtype=np.int32)
    return Spread(np.ones(routes, np.int32), number, schedule.route_start, schedule.route_links)


@dataclass(frozen=True, eq=False)
class RouteUses:
    """What each route of a schedule occupies, all of its ways together.

    Entry i: `route` passes `resource` with `times` of its `count` ways. Route r has the entries from start[r] on.
    """

    start: npt.NDArray[np.int64]
    route: npt.NDArray[np.int64]
    resource: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]

    @classmethod
    def of(cls, spread: Spread, shared: Resources) -> RouteUses:
        routes, width = len(spread.count), len(shared.names)
        ways = np.arange(len(spread.start) - 1, dtype=np.int32)
        way, link = expand(spread.start, spread.links, ways)
        position, resource = expand(shared.starts, shared.members, link)
        route_of_way = np.repeat(np.arange(routes), spread.count)
        key, times = np.unique(route_of_way[way[position]] * width + resource, return_counts=True)
        route = key // width
        start = np.concatenate(([0], np.cumsum(np.bincount(route, minlength=routes))))
        return cls(start, route, key % width, times.astype(np.int64), spread.count.astype(np.int64))


def loads(schedule: Schedule, spread: Spread, shared: Resources, occupied: RouteUses | None = None) -> list[Fraction]:
    """The exact share of the size that passes each resource."""
    totals, whole = whole_loads(schedule, spread, shared, occupied)
    return [Fraction(value, whole) for value in totals]


def whole_loads(
    schedule: Schedule, spread: Spread, shared: Resources, occupied: RouteUses | None = None
) -> tuple[list[int], int]:
    """What passes each resource, and what stands for the whole size, as whole numbers."""
    uses = occupied or RouteUses.of(spread, shared)
    parts = lcm(*distinct(spread.count).tolist())
    carried = np.zeros(len(spread.count), dtype=np.int64)
    np.add.at(carried, schedule.route, schedule.share_num[schedule.chunk])
    total = np.zeros(len(shared.names), dtype=np.int64)
    np.add.at(total, uses.resource, carried[uses.route] * (parts // uses.count[uses.route]) * uses.times)
    added, adder = sums_formed(schedule, shared)
    np.add.at(total, adder, schedule.share_num[schedule.chunk[added]] * parts)
    return total.tolist(), schedule.share_den * parts


def busiest(schedule: Schedule, spread: Spread, shared: Resources) -> Fraction:
    """The most seconds that any resource takes for a byte of the size."""
    totals, whole = whole_loads(schedule, spread, shared)
    return shared.longest(np.array(totals, dtype=np.int64)) / whole


def divided(schedule: Schedule, spread: Spread) -> Schedule:
    """The same schedule with every chunk cut into as many equal parts as the ways of its sends need.

    Part j takes way j of each route, counted round where a route has fewer.
    """
    of_send = spread.count[schedule.route].astype(np.int64)
    parts = chunk_parts(schedule, spread)
    common = lcm(*distinct(parts).tolist())
    first = np.concatenate(([0], np.cumsum(parts)))
    times = parts[schedule.chunk]
    send = np.repeat(np.arange(schedule.sends, dtype=np.int64), times)
    part = places(times)
    way = spread.first[schedule.route[send]] + part % of_send[send]
    used, route = np.unique(way, return_inverse=True)
    lengths = (spread.start[1:] - spread.start[:-1])[used]
    _, links = expand(spread.start, spread.links, used.astype(np.int32))
    most = int(parts.max(initial=1))
    return replace(
        schedule,
        share_num=np.repeat(schedule.share_num * (common // parts), parts),
        share_den=schedule.share_den * common,
        origin=np.repeat(schedule.origin, parts),
        target=np.repeat(schedule.target, parts),
        chunk=(first[schedule.chunk[send]] + part).astype(np.int32),
        src=schedule.src[send],
        dst=schedule.dst[send],
        op=schedule.op[send],
        step=schedule.step[send],
        route=route.astype(np.int32),
        channel=(schedule.channel[send] * most + part).astype(np.int32),
        route_start=np.concatenate(([0], np.cumsum(lengths))).astype(np.int32),
        route_links=links,
    )


def chunk_parts(schedule: Schedule, spread: Spread) -> npt.NDArray[np.int64]:
    """How many parts each chunk is cut into."""
    of_send = spread.count[schedule.route].astype(np.int64)
    parts = np.ones(schedule.chunks, dtype=np.int64)
    for number in distinct(of_send).tolist():
        touched = distinct(schedule.chunk[of_send == number])
        parts[touched] = np.lcm(parts[touched], number)
    return parts
