"""Loads: the data on each link, in shares of the size, and the parallel routes that share it.

A builder chooses one route for a pair of ranks. Where the router knows others that are as short and as wide
(the NICs of a GPU, parallel links, the planes of a fabric), each carries an equal part, as NCCL's channels
are divided among NICs. `equal_routes` says which they are; `divided` writes the parts out as chunks of their
own, so that every send has one route again. A schedule in forest form is also a list of trees (`trees_of`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from math import lcm
from typing import TypeVar
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from blinksim.graphs.arrays import Floats, Ints, Ints32, distinct, expand, per_topology, places
from blinksim.graphs.rooted_trees import height
from blinksim.schedule.model import COPY, Schedule, of_sends, sums_at
from blinksim.topology.elements import Link
from blinksim.topology.graph import Topology
from blinksim.topology.link_columns import LinkColumns
from blinksim.topology.symmetry import Group, alike_nodes


@dataclass(frozen=True, eq=False)
class Resources:
    """What sends share: every link (or bus), every device with a capacity of its own, once per direction, and adders.

    Each is counted by link and name. Flows and programs divide the capacities of arcs instead
    (`blinksim.graphs.programs`).

    name and kinds (resource): for people; a name is made when asked for. rate (resource): bytes/s, exact.
    starts and members: the resource numbers of each link; link i uses members[starts[i]:starts[i + 1]].
    adders: the resource number of the adders of a switch, by device.
    """

    name: Callable[[int], str]
    kinds: tuple[str, ...]
    rate: tuple[Fraction, ...]
    starts: Ints32
    members: Ints32
    adders: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def rates(self) -> Floats:
        """`rate` as numbers of machine precision."""
        number, different = self.classes
        return np.array([float(rate) for rate in different], dtype=np.float64)[number]

    @cached_property
    def classes(self) -> tuple[Ints, tuple[Fraction, ...]]:
        """The number of every resource's rate among the different ones, and these."""
        objects = {id(rate): rate for rate in self.rate}
        known = {rate: number for number, rate in enumerate(dict.fromkeys(objects.values()))}
        number_of = {key: known[rate] for key, rate in objects.items()}
        return np.array([number_of[id(rate)] for rate in self.rate], dtype=np.int64), tuple(known)

    @cached_property
    def of_link(self) -> Ints32:
        """The number of each link, or of its bus: the first of the resources that it uses."""
        return self.members[self.starts[:-1]]

    def longest(self, amounts: Ints) -> Fraction:
        """The most seconds that any resource takes for these bytes, one amount for each."""
        number, rates = self.classes
        most = np.zeros(len(rates), dtype=np.int64)
        np.maximum.at(most, number, amounts)
        return max((amount / rate for amount, rate in zip(most.tolist(), rates, strict=True)), default=Fraction(0))

    def of_links(self, amounts: Ints) -> Ints:
        """What passes every resource, from what passes every link."""
        passing = np.zeros(len(self.rate), dtype=np.int64)
        np.add.at(passing, self.members, np.repeat(amounts, np.diff(self.starts)))
        return passing


@per_topology
def resources(topology: Topology) -> Resources:
    """The shared resources of a topology: links, buses, and devices with a capacity (in and out)."""
    columns, devices, links = topology.link_columns, topology.devices, topology.links
    limited = np.array([device.capacity is not None for device in devices], dtype=np.bool_)
    used = np.stack([np.ones(len(links), dtype=np.bool_), limited[columns.src], limited[columns.dst]], axis=1)
    link, side = np.nonzero(used)
    # What tells resources apart: the bus or else the link, and the devices; they are counted as they occur.
    own = np.where(columns.bus < 0, int(columns.bus.max(initial=-1)) + 1 + np.arange(len(links)), columns.bus)
    key = np.choose(side, (own[link], -1 - 2 * columns.src[link], -2 - 2 * columns.dst[link]))
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first)
    starts = np.concatenate([[0], np.cumsum(used.sum(axis=1))]).astype(np.int32)
    members = np.argsort(order)[which].astype(np.int32)
    link, side = link[first[order]], side[first[order]]
    rows = columns.figure[link].tolist()
    kinds, rates = [columns.figures[row][2] for row in rows], [columns.bandwidths[row] for row in rows]
    for place in np.flatnonzero(side).tolist():
        device = devices[int(columns.src[link[place]] if side[place] == _OUT else columns.dst[link[place]])]
        assert device.capacity is not None
        kinds[place], rates[place] = device.kind, device.capacity
    # No link of a bus carries more than it has itself (`topo check` refuses a bus of unequal links).
    for one in np.flatnonzero(columns.bus >= 0).tolist():
        bus = int(members[starts[one]])
        rates[bus] = min(rates[bus], links[one].bandwidth)
    # The devices whose adders have a rate, and that rate.
    adders = [(place, device) for place, device in enumerate(devices) if "reduction_rate" in device.attributes]
    sums = [(place, device, rate) for place, device in adders if (rate := device.reduction_rate)]
    name = partial(_name, links, link, side, [f"sums at {device.name}" for _, device, _ in sums])
    number = {place: number for number, (place, _, _) in enumerate(sums, len(kinds))}
    kinds += [device.kind for _, device, _ in sums]
    rates += [rate for _, _, rate in sums]
    return Resources(name, tuple(kinds), tuple(rates), starts, members, number)


# How a link uses a resource: 0 as itself or its bus, 1 as a way out of its source, 2 as one into its end.
_OUT = 1


def _name(links: Sequence[Link], link: Ints, side: Ints, sums: Sequence[str], place: int) -> str:
    """Of a resource, by a link that uses it, and how; or, after all these, of adders."""
    if place >= len(link):
        return sums[place - len(link)]
    one, way = links[link[place]], side[place]
    if way:
        return f"out of {one.src}" if way == _OUT else f"into {one.dst}"
    return f"bus {one.bus}" if one.bus else one.name


def sums_formed(schedule: Schedule, shared: Resources) -> tuple[Ints, Ints32]:
    """(send, resource) for every sum that adders with a rate form: a send that brings a part of it."""
    found = list(sums_at(schedule, shared.adders)) if np.isin(schedule.dst, [*shared.adders]).any() else []
    number = [shared.adders[switch] for _, switch in found]
    return np.array([send for send, _ in found], np.int64), np.array(number, np.int32)


def link_loads(schedule: Schedule) -> list[Fraction]:
    """The exact share of the size that each link of the topology carries."""
    send, link = expand(schedule.route_start, schedule.route_links, schedule.route)
    total = np.zeros(len(schedule.topology.links), dtype=np.int64)
    np.add.at(total, link, schedule.share_num[schedule.chunk[send]])
    return [Fraction(int(value), schedule.share_den) for value in total]


# The routes that share what one route of a schedule carries, each as indices into topology.links.
Routes = tuple[tuple[int, ...], ...]

# A schedule with more sends than this is not written out.
MOST_SENDS = 8_000_000
# Routes from which on symmetries are worth looking for.
_MANY_ROUTES = 500


@dataclass(frozen=True, eq=False)
class Spread:
    """The equal routes of every route. count (R): how many; start (W + 1), links: path w uses links[start[w]:…].

    first (R + 1): the paths of route r are first[r] to first[r + 1] - 1.
    """

    count: Ints32
    first: Ints32
    start: Ints32
    links: Ints32

    @classmethod
    def of(cls, routes: Iterable[Sequence[tuple[int, ...]]]) -> Spread:
        """From the equal routes of every route."""
        listed = list(routes)
        flat = [route for alternatives in listed for route in alternatives]
        return cls.counted([*map(len, listed)], [*map(len, flat)], [link for route in flat for link in route])

    @classmethod
    def counted(cls, count: npt.ArrayLike, lengths: npt.ArrayLike, links: npt.ArrayLike) -> Spread:
        """From how many equal routes every route has, their lengths, and their links."""
        first, start = (np.concatenate([[0], np.cumsum(each)]).astype(np.int32) for each in (count, lengths))
        return cls(np.asarray(count, dtype=np.int32), first, start, np.asarray(links, dtype=np.int32))

    def alphas(self, columns: LinkColumns, scale: Floats | float = 1.0) -> Floats:
        """Seconds of alpha of each route: all latencies on its slowest path, and its first link's overhead.

        scale: a factor on both, of each link.
        """
        latency, overhead, first = columns.latency * scale, columns.overhead * scale, self.start[:-1]
        path = np.add.reduceat(latency[self.links], first) + overhead[self.links[first]]
        return np.asarray(np.maximum.reduceat(path, self.first[:-1]))


def equal_routes(schedule: Schedule) -> Spread | None:
    """The equal routes of every route, None if no route has more than one."""
    topology, start = schedule.topology, schedule.route_start.astype(np.int64)
    links = schedule.route_links.astype(np.int64)
    group = alike_nodes(topology) if len(start) > _MANY_ROUTES and topology.symmetries else None
    if group is None:
        routes = alternatives_of(topology, start, links)
        return Spread.of(routes) if any(len(alternatives) > 1 for alternatives in routes) else None
    # One route stands for all that symmetries take it to; those of data between switches stand for
    # themselves.
    own, first, which, exponents = alike_routes(group, start, links)
    lengths = np.diff(start)[first]
    routes = alternatives_of(topology, np.concatenate([[0], np.cumsum(lengths)]), expand(start, own, first)[1])
    if all(len(alternatives) == 1 for alternatives in routes):
        return None
    few = Spread.of(routes)
    routes_start = few.start[few.first].astype(np.int64)
    _, images = group.route_images(exponents, routes_start, few.links.astype(np.int64), which)
    count = few.count[which]
    _, sizes = expand(few.first, np.diff(few.start).astype(np.int32), which.astype(np.int32))
    return Spread.counted(count, sizes, images)


def alternatives_of(topology: Topology, start: Ints, links: Ints) -> list[Routes]:
    """The equal routes of each route, as the router has them."""
    router, (tail, head) = topology.router, topology.ends
    ends = zip(tail[links[start[:-1]]].tolist(), head[links[start[1:] - 1]].tolist(), strict=True)
    listed = links.tolist()
    routes = []
    for (first, end), (src, dst) in zip(pairwise(start.tolist()), ends, strict=True):
        route, alternatives = tuple(listed[first:end]), router.routes(src, dst)
        routes.append(alternatives if route in alternatives else router.along(route))
    return routes


def alike_routes(group: Group, start: Ints, links: Ints) -> tuple[Ints, ...]:
    """Routes by what a group takes to each other.

    That is, of every route the links of its image between the pair of devices that stands for its ends; one
    route of each different image; for every route the number of its image; and what takes that image to it.
    """
    tail, head = group.topology.ends
    _, _, elements = group.between(tail[links[start[:-1]]], head[links[start[1:] - 1]])
    _, own = group.route_images(group.inverse(elements), start, links, np.arange(len(start) - 1))
    return own, *distinct_routes(start, own), elements


def distinct_routes(start: Ints, links: Ints) -> tuple[Ints, Ints]:
    """The first of each set of equal routes, and for every route the number of its set."""
    lengths = np.diff(start)
    leader = np.arange(len(lengths))
    for length in distinct(lengths).tolist():
        # Links one after the other, numbered anew in between: sorting whole rows takes far longer.
        alike, width = np.flatnonzero(lengths == length), int(links.max(initial=0)) + 1
        one, number = np.zeros(1, dtype=np.int64), np.zeros(len(alike), dtype=np.int64)
        for place in range(length):
            keys = number * width + links[start[alike] + place]
            _, one, number = np.unique(keys, return_index=True, return_inverse=True)
        leader[alike] = alike[one[number]]
    first, which = np.unique(leader, return_inverse=True)
    return first, which


_single = WeakValueDictionary[int, Spread]()


def single_routes(schedule: Schedule) -> Spread:
    """Every route by itself; one object for all schedules that share a table of routes."""
    start, links = schedule.route_start, schedule.route_links
    if (found := _single.get(id(links))) is None or found.start is not start:
        number = np.arange(len(start), dtype=np.int32)
        found = _single[id(links)] = Spread(np.ones(len(start) - 1, np.int32), number, start, links)
    return found


class RouteUses:
    """What each route of a schedule occupies, all of its paths together.

    Entry i: `route` passes `resource` with `times` of its `count` paths. Route r has the entries from
    start[r] on.
    """

    def __init__(self, spread: Spread, shared: Resources) -> None:
        routes, self.width = len(spread.count), len(shared.rate)
        path, link = expand(spread.start, spread.links, np.arange(len(spread.start) - 1))
        position, resource = expand(shared.starts, shared.members, link)
        route_of_path = np.repeat(np.arange(routes), spread.count)
        key, times = np.unique(route_of_path[path[position]] * self.width + resource, return_counts=True)
        self.route, self.resource = key // self.width, key % self.width
        self.start = np.concatenate(([0], np.cumsum(np.bincount(self.route, minlength=routes))))
        self.times, self.count = times.astype(np.int64), spread.count.astype(np.int64)

    @cached_property
    def part(self) -> Floats:
        """The part of what the route carries that passes, entry by entry."""
        return np.asarray(self.times / self.count[self.route])

    @cached_property
    def entries(self) -> Ints:
        """The numbers of the entries."""
        return np.arange(len(self.times))

    def loads(self, amounts: Floats) -> Floats:
        """Bytes on each resource, for bytes on every route."""
        carried = amounts.ravel()[self.route] * self.part
        return np.asarray(np.bincount(self.resource, carried, self.width), dtype=np.float64)

    def prices(self, each: Floats) -> Floats:
        """The price of a byte on every route, by what one costs on each resource."""
        return np.asarray(np.bincount(self.route, each[self.resource] * self.part, len(self.count)), dtype=np.float64)

    def rates(self, rate: Floats) -> Floats:
        """Bytes/s of every route, by the rates of resources; infinite for those that use none."""
        rates = np.full(len(self.count), np.inf)
        np.minimum.at(rates, self.route, rate[self.resource] / self.part)
        return rates

    @classmethod
    @lru_cache(maxsize=8)
    def of(cls, spread: Spread, shared: Resources) -> RouteUses:
        return cls(spread, shared)


def resource_loads(schedule: Schedule, shared: Resources, spread: Spread | None = None) -> list[Fraction]:
    """The exact share of the size that passes each resource. spread: the routes that sends are divided among."""
    totals, whole = whole_loads(schedule, spread or single_routes(schedule), shared)
    return [Fraction(value, whole) for value in totals]


def whole_loads(schedule: Schedule, spread: Spread, shared: Resources) -> tuple[list[int], int]:
    """What passes each resource, and what stands for the whole size, as whole numbers."""
    uses = RouteUses.of(spread, shared)
    parts = lcm(*distinct(spread.count).tolist())
    carried = np.zeros(len(spread.count), dtype=np.int64)
    np.add.at(carried, schedule.route, schedule.share_num[schedule.chunk])
    total = np.zeros(len(shared.rate), dtype=np.int64)
    np.add.at(total, uses.resource, carried[uses.route] * (parts // uses.count[uses.route]) * uses.times)
    added, adder = sums_formed(schedule, shared)
    np.add.at(total, adder, schedule.share_num[schedule.chunk[added]] * parts)
    return total.tolist(), schedule.share_den * parts


def rate(schedule: Schedule, spread: Spread | None = None, shared: Resources | None = None) -> Fraction | None:
    """algbw in bytes/s that the loads allow: the least rate / load of any resource; None if nothing is sent.

    shared: by default all that sends on the topology of the schedule share.
    """
    shared = shared or resources(schedule.topology)
    totals, whole = whole_loads(schedule, spread or single_routes(schedule), shared)
    longest = shared.longest(np.array(totals, dtype=np.int64))
    return whole / longest if longest else None


def divided(schedule: Schedule, spread: Spread) -> Schedule:
    """The same schedule with every chunk cut into as many equal parts as the paths of its sends need.

    Part j takes path j of each route, counted round where a route has fewer.
    """
    parts = chunk_parts(schedule, spread)
    common = lcm(*distinct(parts).tolist())
    first = np.concatenate(([0], np.cumsum(parts)))
    times = parts[schedule.chunk]
    send = np.repeat(np.arange(schedule.sends, dtype=np.int64), times)
    part = places(times)
    path = spread.first[schedule.route[send]] + part % spread.count[schedule.route[send]]
    used, route = np.unique(path, return_inverse=True)
    lengths = (spread.start[1:] - spread.start[:-1])[used]
    _, links = expand(spread.start, spread.links, used.astype(np.int32))
    most = int(parts.max(initial=1))
    src, dst, op, step = (column[send] for column in (schedule.src, schedule.dst, schedule.op, schedule.step))
    chunk, channel = first[schedule.chunk[send]] + part, schedule.channel[send] * most + part
    return of_sends(
        (schedule.topology, schedule.collective, schedule.algorithm, schedule.form),
        (np.repeat(schedule.share_num * (common // parts), parts), schedule.share_den * common),
        (np.repeat(schedule.origin, parts), np.repeat(schedule.target, parts)),
        (chunk, src, dst, op, step, route, channel),
        (np.concatenate(([0], np.cumsum(lengths))), links),
    ).with_bound(schedule.bound)


def chunk_parts(schedule: Schedule, spread: Spread) -> Ints:
    """How many parts each chunk is cut into."""
    of_send = spread.count[schedule.route].astype(np.int64)
    parts = np.ones(schedule.chunks, dtype=np.int64)
    for number in distinct(of_send).tolist():
        touched = distinct(schedule.chunk[of_send == number])
        parts[touched] = np.lcm(parts[touched], number)
    return parts


Route = tuple[int, ...]
Edge = tuple[int, int, Route]
AnyEdge = TypeVar("AnyEdge", tuple[int, int], Edge)


def pruned(edges: Sequence[AnyEdge], wanted: Collection[int]) -> tuple[AnyEdge, ...]:
    """The edges of a tree, parents first, without branches that lead to none of the vertices that are wanted."""
    if all(edge[1] in wanted for edge in edges):
        return tuple(edges)
    needed, chosen = {*wanted}, list[AnyEdge]()
    for edge in reversed(edges):
        if edge[1] in needed:
            needed.add(edge[0])
            chosen.append(edge)
    return tuple(reversed(chosen))


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of devices with a share: edges (parent, child, links), parents before their children.

    The links of `down` lead from the parent to the child, those of `up` from the child to the parent.
    """

    root: int
    share: Fraction
    down: tuple[Edge, ...] = ()
    up: tuple[Edge, ...] = ()

    @property
    def height(self) -> int:
        """Hops from the root to its farthest leaf, down or up."""
        return max(height(self.root, [edge[:2] for edge in edges]) for edges in (self.down, self.up))

    def loads(self, shared: Resources) -> tuple[tuple[int, int], ...]:
        """How often the tree uses each of the shared resources of its topology: (resource, times)."""
        links = (link for _, _, path in (*self.down, *self.up) for link in path)
        uses = (shared.members[shared.starts[link] : shared.starts[link + 1]].tolist() for link in links)
        return tuple(sorted(Counter(resource for use in uses for resource in use).items()))


def trees_of(schedule: Schedule) -> list[Tree]:
    """The trees of a forest: one per chunk, with its share."""
    order = np.lexsort((schedule.step, schedule.chunk))
    starts = np.searchsorted(schedule.chunk[order], np.arange(schedule.chunks + 1))
    found = []
    for chunk, (first, end) in enumerate(pairwise(starts.tolist())):
        down, up = list[Edge](), list[Edge]()
        for send in order[first:end]:
            src, dst = int(schedule.src[send]), int(schedule.dst[send])
            links = tuple(schedule.links_of(int(schedule.route[send])))
            if schedule.op[send] == COPY:
                down.append((src, dst, links))
            else:
                up.append((dst, src, links))
        up.reverse()
        found.append(Tree((down or up)[0][0], schedule.share(chunk), tuple(down), tuple(up)))
    return found


def moves_along_trees(schedule: Schedule, besides: Sequence[int] = ()) -> bool:
    """True if every device passes a chunk on for reduction at most once, and takes a copy of it at most once.

    In a schedule that is right, the sends of a chunk are then a tree towards some rank and a tree away from
    it. besides: sends that do not count, such as own copies.
    """
    reduces = schedule.op != COPY
    ends = np.where(reduces, schedule.src, schedule.dst).astype(np.int64)
    keys = (schedule.chunk.astype(np.int64) * len(schedule.topology.devices) + ends) * 2 + reduces
    keys = np.delete(keys, np.asarray(besides, dtype=np.int64))
    return len(distinct(keys)) == len(keys)
