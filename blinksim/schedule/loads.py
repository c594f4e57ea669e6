"""Loads: the data on each link, in shares of the size, and the parallel routes that share it.

A builder chooses one route for a pair of ranks. Where the router knows others that are as short and as wide
(the NICs of a GPU, parallel links, the planes of a fabric), each carries an equal part, as NCCL's channels
are divided among NICs. `equal_routes` says which they are; `divided` writes the parts out as chunks of their
own, so that every send has one route again. A schedule in forest form is also a list of trees (`trees_of`).

A ring of 32,768 ranks has a billion sends, in 32,767 steps that are alike: in each, every rank sends one
shard to the next. Its time in steps follows from the load per step and resource, and that from who sends how
much to whom. An algorithm that builds its schedule chunk by chunk also tells such an outline, for machines on
which the schedule has too many sends to write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from itertools import chain, compress, groupby, pairwise
from math import lcm
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from blinksim import budget
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.graphs.arrays import Floats, Ints, Ints32, by_place, distinct, expand, per_topology, places, round_robin
from blinksim.graphs.rooted_trees import height
from blinksim.schedule.model import COPY, REDUCE, Schedule, of_sends, sums_at
from blinksim.topology.elements import Link
from blinksim.topology.graph import Topology
from blinksim.topology.link_columns import LinkColumns
from blinksim.topology.symmetry import Group, NodeGroup, Pairs, alike_nodes, node_group


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
        most = by_place(np.maximum, number, amounts, len(rates))
        return max((amount / rate for amount, rate in zip(most.tolist(), rates, strict=True)), default=Fraction(0))

    def of_links(self, amounts: Ints) -> Ints:
        """What passes every resource, from what passes every link."""
        return by_place(np.add, self.members, np.repeat(amounts, np.diff(self.starts)), len(self.rate))


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
    total = by_place(np.add, link, schedule.share_num[schedule.chunk[send]], len(schedule.topology.links))
    shares = {value: Fraction(value, schedule.share_den) for value in distinct(total).tolist()}
    return [*map(shares.__getitem__, total.tolist())]


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
    def of(cls, routes: Collection[Sequence[tuple[int, ...]]]) -> Spread:
        """From the equal routes of every route."""
        flat = [route for alternatives in routes for route in alternatives]
        return cls.counted([*map(len, routes)], [*map(len, flat)], [link for route in flat for link in route])

    @classmethod
    def counted(cls, count: npt.ArrayLike, lengths: npt.ArrayLike, links: npt.ArrayLike) -> Spread:
        """From how many equal routes every route has, their lengths, and their links."""
        first, start = (np.concatenate([[0], np.cumsum(each)]).astype(np.int32) for each in (count, lengths))
        return cls(np.asarray(count, dtype=np.int32), first, start, np.asarray(links, dtype=np.int32))

    def fewer(self) -> Iterator[Spread]:
        """At most 2, 4, 8 … of the equal routes of every route, in turns, below all of them."""
        for most in (2**n for n in range(1, int(self.count.max() - 1).bit_length())):
            count = np.minimum(self.count, most)
            route, every = np.repeat(np.arange(len(count)), count), np.repeat(self.count, count)
            path = self.first[route] + (route + places(count) * every // count[route]) % every
            yield Spread.counted(count, np.diff(self.start)[path], expand(self.start, self.links, path)[1])

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
    group = alike_nodes(topology) if len(start) > _MANY_ROUTES else None
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
    _, sizes = expand(few.first, np.diff(few.start).astype(np.int32), which.astype(np.int32))
    return Spread.counted(few.count[which], sizes, images)


def alternatives_of(topology: Topology, start: Ints, links: Ints) -> list[Routes]:
    """The equal routes of each route, as the router has them.

    Between nodes with unequal numbers of ports, as many as the one with fewer has: every part has a start.
    """
    router, (tail, head), outside = topology.router, topology.ends, topology.device_nodes < 0
    ends = zip(tail[links[start[:-1]]].tolist(), head[links[start[1:] - 1]].tolist(), strict=True)
    listed = links.tolist()
    routes = []
    for (first, end), (src, dst) in zip(pairwise(start.tolist()), ends, strict=True):
        route, alternatives = tuple(listed[first:end]), router.routes(src, dst)
        equal = alternatives if route in alternatives else router.along(route)
        # Each of a few routes passes one port of either node; links between switches would be passed twice.
        into, out = ({link for link in {*chain(*equal)} if outside[side[link]]} for side in (head, tail))
        few, ports = equal[: min(len(into), len(out))], into | out
        often = Counter(chain(*few))
        alike = len({topology.links[link].bandwidth for link in ports}) == 1 == max(often[link] for link in ports)
        routes.append(few if alike and len(equal) > max(len(into), len(out)) else equal)
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
        self.spread, self.shared, routes, self.width = spread, shared, len(spread.count), len(shared.rate)
        route = np.repeat(np.arange(routes), np.diff(spread.start[spread.first]))
        position, resource = expand(shared.starts, shared.members, spread.links)
        key, times = np.unique(route[position] * self.width + resource, return_counts=True)
        self.route, self.resource = key // self.width, key % self.width
        self.start = np.concatenate(([0], np.cumsum(np.bincount(self.route, minlength=routes))))
        self.times, self.count = times.astype(np.int64), spread.count.astype(np.int64)
        self.entries = np.arange(len(times))

    @cached_property
    def part(self) -> Floats:
        """The part of what the route carries that passes, entry by entry."""
        return np.asarray(self.times / self.count[self.route])

    @cached_property
    def begins(self) -> Ints:
        """The entry of every path where it starts; each has a link."""
        spread, route = self.spread, np.repeat(np.arange(len(self.count)), self.count)
        first = self.shared.of_link[spread.links[spread.start[:-1]]]
        return np.searchsorted(self.route * self.width + self.resource, route * self.width + first)

    @cached_property
    def slowest(self) -> npt.NDArray[np.bool_]:
        """True for resources, but those that pass just what a slower one does: messages wait there alone."""
        # Sines of whole numbers are linearly independent: their sums tell apart which routes pass.
        number = np.sin(1 + np.arange(len(self.count)))
        passed, begins = np.bincount(self.resource, number[self.route] * self.times, self.width), self.begins
        passed[self.resource[begins]] = -1 - self.resource[begins]
        order = np.argsort(self.shared.rates, kind="stable")
        _, first = np.unique(passed[order], return_index=True)
        return np.isin(np.arange(self.width), order[first])

    def loads(self, amounts: Floats) -> Floats:
        """Bytes on each resource, for bytes on every route."""
        carried = amounts.ravel()[self.route] * self.part
        return np.asarray(np.bincount(self.resource, carried, self.width), dtype=np.float64)

    def prices(self, each: Floats) -> Floats:
        """The price of a byte on every route, by what one costs on each resource."""
        return np.asarray(np.bincount(self.route, each[self.resource] * self.part, len(self.count)), dtype=np.float64)

    def rates(self, rate: Floats) -> Floats:
        """Bytes/s of every route, by the rates of resources; infinite for those that use none."""
        return by_place(np.minimum, self.route, rate[self.resource] / self.part, len(self.count), np.inf)

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
    carried = by_place(np.add, schedule.route, schedule.share_num[schedule.chunk], len(spread.count))
    each = carried[uses.route] * (parts // uses.count[uses.route]) * uses.times
    total = by_place(np.add, uses.resource, each, len(shared.rate))
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

    Part j takes path j of each route, counted round where a route has fewer: those that share one go together.
    """
    parts = chunk_parts(schedule, spread)
    common = lcm(*distinct(parts).tolist())
    first = np.concatenate(([0], np.cumsum(parts)))
    times = parts[schedule.chunk]
    send = np.repeat(np.arange(schedule.sends, dtype=np.int64), times)
    part = places(times)
    turn = part % spread.count[schedule.route[send]]
    used, route = np.unique(spread.first[schedule.route[send]] + turn, return_inverse=True)
    lengths = (spread.start[1:] - spread.start[:-1])[used]
    _, links = expand(spread.start, spread.links, used.astype(np.int32))
    most = int(parts.max(initial=1))
    src, dst, op, step = (column[send] for column in (schedule.src, schedule.dst, schedule.op, schedule.step))
    chunk, channel = first[schedule.chunk[send]] + part, schedule.channel[send] * most + turn
    return of_sends(
        (schedule.topology, schedule.collective, schedule.algorithm, schedule.form),
        (np.repeat(schedule.share_num * (common // parts), parts), schedule.share_den * common),
        (np.repeat(schedule.origin, parts), np.repeat(schedule.target, parts)),
        (chunk, src, dst, op, step, route, channel),
        (np.concatenate(([0], np.cumsum(lengths))), links),
    ).with_bound(schedule.bound)


def in_turns(schedule: Schedule, spread: Spread, turn: Ints) -> Schedule:
    """The same schedule with every send whole, on one of its equal routes. turn (M): which, counted round."""
    path = spread.first[schedule.route] + turn % spread.count[schedule.route]
    return replace(schedule, route=path.astype(np.int32), route_start=spread.start, route_links=spread.links)


def whole_messages(schedule: Schedule, spread: Spread) -> Schedule | None:
    """The same steps with every send whole, as every part of a message costs a start.

    The turns give equal shares to the routes of every sender, of every receiver, and of two nodes; in each
    step the same. None if in any step not every rank sends to every other, or divided sends load a link
    otherwise.
    """
    ranks, shared = schedule.topology.ranks, resources(schedule.topology)
    steps = np.append(np.flatnonzero(np.diff(schedule.step, prepend=-1)), schedule.sends)
    if (np.diff(steps) != ranks * (ranks - 1)).any():
        return None
    src, dst = schedule.rank_of[schedule.src], schedule.rank_of[schedule.dst]
    found = in_turns(schedule, spread, src + dst + src // spread.count[schedule.route])
    return found if resource_loads(found, shared) == resource_loads(schedule, shared, spread) else None


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


# --- loads of every step ---------------------------------------------------------------------------------

Whole = npt.NDArray[np.integer[Any]]
Rows = Floats | Sequence[Floats]
# Sends from which on the time of steps is found without writing them.
MANY_SENDS = 250_000


@dataclass(frozen=True, eq=False)
class Exchange:
    """Messages that run together: from ranks src (M) to ranks dst (M); None if every rank sends to every other.

    Arrays (M, 1) where a message has several chunks, one after the other.
    """

    src: Whole | None = None
    dst: Whole | None = None

    def ends(self, ranks: int) -> tuple[Whole, Whole]:
        """The ranks that send, and those that receive."""
        return round_robin(ranks) if self.src is None or self.dst is None else (self.src, self.dst)

    def messages(self, ranks: int) -> int:
        """How many there are."""
        return ranks * (ranks - 1) if self.src is None else len(self.src)


@dataclass(frozen=True, eq=False)
class Round:
    """Steps that are alike, one after another: `times` of them.

    share: of the size, of a chunk. chunks: how many go with each message. op: ``COPY`` or ``REDUCE``.
    chunk: the numbers of the chunks that go from `src` to `dst` in each of the steps, counted from 0; they
    broadcast. channel: of the messages; those of different ones do not wait for each other, such as rings.
    """

    exchange: Exchange
    share: Fraction
    op: int
    times: int = 1
    chunks: int = 1
    chunk: Callable[[Whole, Whole, int], npt.ArrayLike] = lambda src, dst, step: 0
    channel: npt.ArrayLike = 0

    @property
    def message(self) -> Fraction:
        """The share of the size that a message carries."""
        return self.share * self.chunks


@dataclass(frozen=True, eq=False)
class StepLoads:
    """Load per step and resource: enough to time S steps on K resources of which nothing else is known.

    collective, sends: of the schedule. shared (K): the resources. load (S, K): the
    share of the size that passes. alpha (S, K): seconds of the slowest message across it. each, longest (S,
    K): seconds of overhead of all messages that start there, and of the longest of these. limit: algbw in
    bytes/s that the loads allow, where it is known exactly. times (S): how many times in a row a step comes;
    1 where it is empty. channels: into how many parts messages fall that do not wait for each other. total
    (K): the share of the size that passes in all steps, None for the sum of `load`. reduced: how many times
    a share of the size is reduced by the device that reduces most, and how often in a row.
    """

    collective: Collective
    sends: int
    shared: Resources
    load: Rows
    alpha: Rows
    each: Rows
    longest: Rows
    limit: Fraction | None = None
    times: tuple[int, ...] = ()
    channels: int = 1
    total: Floats | None = None
    reduced: tuple[tuple[int, float, int], ...] = ()

    @property
    def steps(self) -> int:
        """Steps one after another."""
        return sum(self.times) if self.times else len(self.load)

    @property
    def rate(self) -> Fraction | None:
        """algbw in bytes/s that the loads allow, in machine precision where it is not known exactly."""
        return self.limit or 1 / Fraction(float((np.sum(self.load, axis=0) / self.shared.rates).max()))


@dataclass(frozen=True, eq=False)
class Outline:
    """The rounds of an algorithm in steps form.

    Raises `InputError` if shares get too long to add up.
    """

    topology: Topology
    collective: Collective
    algorithm: str
    rounds: tuple[Round, ...]

    @property
    def steps(self) -> int:
        """Steps one after another."""
        return sum(one.times for one in self.rounds)

    @property
    def sends(self) -> int:
        """Sends of the schedule, before any is divided among parallel routes."""
        ranks = self.topology.ranks
        return sum(one.times * one.chunks * one.exchange.messages(ranks) for one in self.rounds)

    @cached_property
    def _every(self) -> dict[Exchange, Uses]:
        """What the messages of every exchange put on links, on all equal routes and on one."""
        known, whole, places = dict[Exchange, Uses](), self.topology, self.topology.member_places
        for ends in {one.exchange: None for one in self.rounds}:
            if ends.src is None or ends.dst is None:
                known[ends] = uses_of_every_pair(whole)
            else:
                known[ends] = uses_of_messages(whole, places[ends.src].ravel(), places[ends.dst].ravel())
        return known

    @cached_property
    def _part(self) -> tuple[Topology, Ints]:
        """The part of the machine that stands for all, and its links.

        Of nodes whose links carry alike it has the first and the last: of resources that are equally busy
        the first is named, and the latency of the last one counts.
        """
        whole, alike = self.topology, node_group(self.topology)
        every = whole, np.arange(len(whole.links))
        if alike is None:
            return every
        own, node, _ = alike.links
        kinds = np.stack([use.kinds(own) for uses in self._every.values() for use in uses])
        held, numbers = [*map(bytes, kinds.T)], range(len(own))
        first = dict(zip(held[::-1], numbers[::-1], strict=True))
        among = np.isin(node, [*first.values(), *dict(zip(held, numbers, strict=True)).values(), -1])
        ends = distinct(np.concatenate([end[among] for end in whole.ends])).tolist()
        devices, links = tuple(map(whole.devices.__getitem__, ends)), tuple(compress(whole.links, among))
        part = replace(whole, devices=devices, links=links, members=(), relays=(), symmetries=())
        place, resource = expand(resources(part).starts, resources(part).members, np.arange(len(links)))
        owned = resource * np.int64(len(own) + 1) + node[among][place]
        # All count where nodes share a bus, or what a device carries in all.
        return (part, np.flatnonzero(among)) if len(distinct(owned)) == len(distinct(resource)) else every

    @cached_property
    def uses(self) -> tuple[LinkUse, ...]:
        """What every round puts on those links."""
        few = {use: use.on(self._part[1]) for uses in self._every.values() for use in uses}
        every, single = (tuple(few[self._every[one.exchange][place]] for one in self.rounds) for place in (0, 1))
        return every if every == single or self._busiest(every) <= self._busiest(single) else single

    @property
    def undivided(self) -> list[Outline]:
        """The same on one route each, if any message is divided."""
        every = {ends: (single, single) for ends, (_, single) in self._every.items()}
        one = replace(self)
        one.__dict__.update(_every=every, _part=self._part)
        return [one] if any(use.parts > 1 for use in self.uses) else []

    def loads(self, uses: Sequence[LinkUse]) -> tuple[Ints, int]:
        """What passes each of those resources in all rounds together, and what stands for the whole size."""
        whole = lcm(*(one.message.denominator * use.parts for one, use in zip(self.rounds, uses, strict=True)))
        total = np.zeros(len(self._part[1]), dtype=np.int64)
        for one, use in zip(self.rounds, uses, strict=True):
            factor = one.times * one.message * Fraction(whole, use.parts)
            if int(use.units.max(initial=0)) * int(factor) >= 2**60:
                raise InputError(f"{self.algorithm}: loads with the denominator {whole} exceed 63 bits")
            total += use.units * int(factor)
        return resources(self._part[0]).of_links(total), whole

    def _busiest(self, uses: Sequence[LinkUse]) -> Fraction:
        total, whole = self.loads(uses)
        return resources(self._part[0]).longest(total) / whole

    @property
    def rate(self) -> Fraction | None:
        """algbw in bytes/s that the loads allow; None if nothing is sent."""
        busiest = self._busiest(self.uses)
        return 1 / busiest if busiest else None

    def _started(self, one: Round, use: LinkUse) -> Ints:
        """How many messages start on each of those links: what goes between two ranks at once by a channel is one."""
        rows = np.stack(np.broadcast_arrays(one.channel, *map(np.ravel, one.exchange.ends(self.topology.ranks))))
        # As one number each, as rows are sorted slowly.
        _, apart = np.unique(np.array([1 << 42, 1 << 21, 1]) @ rows, return_index=True)
        if len(apart) < rows.shape[1]:
            joined = uses_of_messages(self.topology, *self.topology.member_places[rows[1:, apart]])
            use = next(found for found in joined if found.parts == use.parts).on(self._part[1])
        return use.paths

    @cached_property
    def step_loads(self) -> StepLoads:
        """Load per step; rounds one after another that send the same are one step that comes again."""
        rows, times = list[tuple[Floats, ...]](), list[int]()
        # As in `whole_messages`, in turns at equal routes; else a message is divided into one for each of these.
        ranks = self.topology.ranks
        every = all(one.exchange.messages(ranks) == ranks * (ranks - 1) for one in self.rounds)
        in_turns = every and not any((use.units % use.parts).any() for use in self.uses)
        # A ring that gathers what it has reduced goes on with the same step.
        pairs = groupby(zip(self.rounds, self.uses, strict=True), lambda pair: (pair[0].exchange, pair[0].message))
        for (one, use), *more in (list(alike) for _, alike in pairs):
            messages = use.whole if in_turns else use.paths if one.exchange.src is None else self._started(one, use)
            rows.append(step_row(self._part[0], use, float(one.message), messages))
            times.append(one.times + sum(other.times for other, _ in more))
        reducing = [one for one in self.rounds if one.op == REDUCE]
        # How many the rank receives that receives most.
        into = (one.exchange.dst for one in reducing)
        most = [ranks - 1 if dst is None else int(np.bincount(dst.ravel()).max(initial=0)) for dst in into]
        reduced = tuple((one.times, float(one.message), number) for one, number in zip(reducing, most, strict=True))
        total, whole = self.loads(self.uses)
        channels = 1 + max(int(np.max(one.channel)) for one in self.rounds)
        known = self.rate, tuple(times), channels, total / whole, reduced
        loads, alphas, starts, longest = zip(*rows, strict=True)
        return StepLoads(self.collective, self.sends, resources(self._part[0]), loads, alphas, starts, longest, *known)


def step_row(topology: Topology, use: LinkUse, share: float, messages: Ints) -> tuple[Floats, Floats, Floats, Floats]:
    """A row of `StepLoads`: load, alpha, each and longest of every resource.

    share: of the size, of every message that `use` counts. messages (L): how many start on each link.
    """
    shared, overhead = resources(topology), topology.link_columns.overhead
    resource, count, started = shared.of_link, len(shared.rate), np.flatnonzero(messages)
    alpha = by_place(np.maximum, shared.members, np.repeat(use.alpha, np.diff(shared.starts)), count)
    most = by_place(np.maximum, resource[started], overhead[started], count)
    load = np.asarray(shared.of_links(use.units) * (share / use.parts), dtype=np.float64)
    each = np.asarray(np.bincount(resource, overhead * messages, count), dtype=np.float64)
    return load, alpha, each, most


class Paths:
    """The hops of a forest, for longest paths.

    order: of sends, their `turns`; bounds: where each step begins, and the end. source, target: of every
    send, places, each a chunk on a device.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.order, devices = schedule.turns, len(schedule.topology.devices)
        self.places, chunk = schedule.chunks * devices, schedule.chunk.astype(np.int64)[self.order] * devices
        self.source, self.target = (chunk + ends[self.order] for ends in (schedule.src, schedule.dst))
        if self.places > 2 * schedule.sends:
            # Most chunks of an alltoall pass a few devices only: number the places that are passed.
            passed, numbers = np.unique(np.concatenate((self.source, self.target)), return_inverse=True)
            self.places, (self.source, self.target) = len(passed), numbers.reshape(2, -1)
        self.bounds = [*np.flatnonzero(np.diff(schedule.step, prepend=-1)).tolist(), schedule.sends]
        # A chain: every send goes on from where the one before it arrived.
        self.single = len(self.bounds) > schedule.sends and np.array_equal(self.source[1:], self.target[:-1])

    def longest(self, seconds: Floats) -> float:
        """The longest path of one piece of any chunk, by the seconds of every send, in `order`."""
        if self.single:
            return float(seconds.sum())
        came = np.zeros(self.places)
        for first, end in pairwise(self.bounds):
            np.maximum.at(came, self.target[first:end], came[self.source[first:end]] + seconds[first:end])
        return float(came.max(initial=0))


# Pairs of ranks up to which each has its routes looked up.
MOST_PAIRS = 20_000


@dataclass(frozen=True, eq=False)
class LinkUse:
    """What messages that run together put on links: those in the same place of nodes that send alike are one.

    units: on every link, where a message has `parts` of them. paths: how many start there, one for each of
    its equal routes. pieces: how many parts do. alpha: seconds of latency and overhead of the slowest that
    crosses it. cell (L): which of these each link of the topology is; those of a node follow each other.
    """

    units: Ints
    parts: int
    paths: Ints
    pieces: Ints
    alpha: Floats
    cell: Ints

    def on(self, links: Ints | slice = slice(None)) -> LinkUse:
        """Of these links, one by one."""
        one = self.cell[links]
        starts = self.paths[one], self.pieces[one]
        return LinkUse(self.units[one], self.parts, *starts, self.alpha[one], np.arange(len(one)))

    @property
    def whole(self) -> Ints:
        """How many start on every link if each goes whole, and they take turns at equal routes."""
        return -(-self.pieces // self.parts)

    def kinds(self, own: Ints) -> Ints:
        """Of every node a number that those with equal loads share. own (node, place): their links."""
        columns = np.stack((self.units, self.paths, self.pieces, self.alpha.view(np.int64)))
        first, which = np.unique(self.cell[own[:, 0]], return_inverse=True)
        held = [columns[:, one : one + own.shape[1]].tobytes() for one in first.tolist()]
        return np.array([held.index(one) for one in held])[which]


Uses = tuple[LinkUse, LinkUse]
# What messages put on every link of a topology, by what those that stand for them put on each of their own.
Total = Callable[[npt.NDArray[Any]], Ints]


def uses_of_messages(topology: Topology, src: Ints, dst: Ints, sent: Ints | None = None) -> Uses:
    """What messages between ranks put on links: divided among all equal routes, and on one route each.

    src, dst: devices. sent: how often each is; once by default. Raises `InfeasibleError` without a route.
    """
    alike, count, width = node_group(topology), len(topology.devices), len(topology.links)
    if alike is None:
        pair, place = np.unique(src * count + dst, return_inverse=True)
        times = np.bincount(place, sent).astype(np.int64)
        pairs = Pairs.of(topology, pair // count, pair % count)

        def by_images(start: Ints, links: Ints) -> Total:
            _, there = pairs.images(start, links)
            owner, entry = expand(start, np.arange(len(links)), pairs.which)
            return lambda amount: np.bincount(there, amount[entry] * times[owner], width).astype(np.int64)

        return _uses(topology, pairs.src, pairs.dst, by_images, np.arange(width))
    # Alike are messages between the same places of two nodes of which the same one comes first.
    (a, b), (nodes, size) = alike.node[np.stack((src, dst))], alike.table.shape
    key = ((np.sign(b - a) + 1) * size + alike.place[src]) * size + alike.place[dst]
    there = np.bincount(key) > 0
    keys, apart = np.flatnonzero(there), a != b
    order, start, end = np.unravel_index(keys, (3, size, size))
    cell, width = (np.cumsum(there) - 1)[key] * nodes, len(keys) * nodes
    first = np.bincount(cell + np.minimum(a, b), sent, width)
    second = np.bincount((cell + np.maximum(a, b))[apart], sent if sent is None else sent[apart], width)
    times = np.stack((first, second)).astype(np.int64).reshape(2, -1, nodes)
    stand = alike.table[(order == 0).astype(np.int64), start], alike.table[(order == 2).astype(np.int64), end]
    return _uses(topology, *stand, *_by_nodes(alike, np.arange(len(keys)), times))


def uses_of_every_pair(topology: Topology) -> Uses:
    """The same where every member sends to every other.

    Raises `InfeasibleError` for very many of them, unless all nodes are alike and may be exchanged as one
    likes.
    """
    members, alike = topology.member_places, node_group(topology)
    ranks = len(members)
    if alike is None:
        if ranks * (ranks - 1) > MOST_PAIRS:
            raise InfeasibleError(f"a route for each of {ranks * (ranks - 1):,} pairs of ranks")
        return uses_of_messages(topology, *_grid(members, members))
    # Of two nodes, the earlier one does what the first does with the second; node k is the earlier one of as
    # many pairs of nodes as nodes come after it.
    node, nodes = alike.node, len(alike.table)
    first, second = members[node[members] == 0], members[node[members] == 1]
    grids = (_grid(first, first), _grid(first, second), _grid(second, first))
    src, dst = (np.concatenate(ends) for ends in zip(*grids, strict=True))
    after, one = np.arange(nodes)[::-1], np.ones(nodes, dtype=np.int64)
    times, apart = np.array(((one, after), (0 * one, after[::-1]))), node[src] != node[dst]
    return _uses(topology, src, dst, *_by_nodes(alike, apart.astype(np.int64), times))


def _uses(topology: Topology, src: Ints, dst: Ints, place: Callable[[Ints, Ints], Total], cell: Ints) -> Uses:
    """The same of messages for which those from `src` to `dst` stand.

    place: from where the routes of these start, and their links.
    """
    single = Spread.of([(route,) for route in searched("its messages", topology, src, dst)])
    routes = alternatives_of(topology, single.start.astype(np.int64), single.links.astype(np.int64))
    several = Spread.of(routes) if any(len(equal) > 1 for equal in routes) else single

    def use(spread: Spread) -> LinkUse:
        start, alphas = spread.start[spread.first].astype(np.int64), spread.alphas(topology.link_columns)
        total, parts = place(start, spread.links.astype(np.int64)), lcm(*distinct(spread.count).tolist())
        # For every link of every path, the units of a message there, and whether the path starts with it.
        of_path = np.repeat(parts // spread.count.astype(np.int64), spread.count)
        weight, begins = np.repeat(of_path, np.diff(spread.start)), np.zeros(len(spread.links), dtype=bool)
        begins[spread.start[:-1]] = True
        units, slowest = total(weight), np.repeat(alphas, np.diff(start))
        alpha = np.zeros(len(units))
        for seconds in distinct(alphas):
            alpha[total(slowest == seconds) > 0] = seconds
        return LinkUse(units, parts, total(begins), total(weight * begins), alpha, cell)

    divided = use(several)
    return divided, divided if several is single else use(single)


def _by_nodes(alike: NodeGroup, kind: Ints, times: Ints) -> tuple[Callable[[Ints, Ints], Total], Ints]:
    """For `_uses`, by how often a node is the first or second one of each kind (2, kinds, nodes)."""
    (own, of, place), (_, many, nodes), between = alike.links, times.shape, times[0].sum(axis=1)
    width, fabric = own.shape[1], len(of) - own.size
    # Nodes that are so equally often do the same.
    rows = np.ascontiguousarray(times.reshape(-1, nodes).T)
    sort = rows.view((np.void, rows.itemsize * rows.shape[1]))
    _, first, number = np.unique(sort, return_index=True, return_inverse=True)
    # Products of whole numbers below 2 ** 53, as here, are exact in floats, and far quicker.
    often = rows[first].astype(np.float64)

    def placed(start: Ints, links: Ints) -> Total:
        host, kinds = of[links], np.repeat(kind, np.diff(start))
        cell, away = (host * many + kinds) * width + place[links], host < 0

        def total(amount: npt.NDArray[Any]) -> Ints:
            found = np.bincount(place[links[away]], amount[away] * between[kinds[away]], fabric).astype(np.int64)
            model = np.bincount(cell[~away], amount[~away], 2 * many * width).reshape(-1, width)
            return np.concatenate([found, (often @ model).ravel().astype(np.int64)])

        return total

    return placed, np.append(fabric + width * number.ravel(), 0)[of] + place


def _grid(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Every one of `a` with every other of `b`."""
    src, dst = (grid.ravel() for grid in np.meshgrid(a, b, indexing="ij"))
    return src[src != dst], dst[src != dst]


def searched(what: str, topology: Topology, src: Ints, dst: Ints) -> list[tuple[int, ...]]:
    """The routes between devices; raises `InfeasibleError` if they would take minutes to find."""
    ends = list(zip(src.tolist(), dst.tolist(), strict=True))
    if budget.of_routes(len(topology.links), min(topology.ranks, len(ends))) > budget.MOST_SECONDS:
        seconds = budget.of_routes(topology.router.looked_at, topology.router.searches(ends))
        instead = "another algorithm, such as chain or ring, whose ranks send to their neighbours"
        budget.check(f"finding the routes of {what}", topology, seconds, instead)
    return [topology.router.route(a, b) for a, b in ends]
