"""Load per step and resource of a machine, and its derivation from who sends how much to whom.

A ring of 32,768 ranks has a billion sends, in 32,767 steps that are alike: in each, every rank sends one
shard to the next. Its time in steps follows from that much. An algorithm that builds its schedule chunk by
chunk also tells such an outline, for machines on which the schedule has too many sends to write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import compress, groupby
from math import lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim import budget
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.graphs.arrays import Floats, Ints, distinct, expand, round_robin
from blinksim.schedule.loads import Resources, Spread, alternatives_of, resources
from blinksim.schedule.model import REDUCE
from blinksim.topology.graph import Topology
from blinksim.topology.symmetry import NodeGroup, Pairs, node_group

Whole = npt.NDArray[np.integer[Any]]
Rows = Floats | Sequence[Floats]
# Sends from which on the time of steps is found without writing them.
_MANY_SENDS = 250_000


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

    def most_into(self, ranks: int) -> int:
        """How many the rank receives that receives most."""
        return ranks - 1 if self.dst is None else int(np.bincount(self.dst.ravel()).max(initial=0))

    def messages(self, ranks: int) -> int:
        """How many there are."""
        return ranks * (ranks - 1) if self.src is None else len(self.src)


@dataclass(frozen=True, eq=False)
class Round:
    """Steps that are alike, one after another: `times` of them.

    share: of the size, of a chunk. chunks: how many go with each message. op: ``COPY`` or ``REDUCE``.
    channels: into how many parts the messages fall that do not wait for each other, such as rings. chunk: the
    numbers of the chunks that go from `src` to `dst` in each of the steps, counted from 0; they broadcast.
    channel: of the messages.
    """

    exchange: Exchange
    share: Fraction
    op: int
    times: int = 1
    chunks: int = 1
    channels: int = 1
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
    bytes/s that the loads allow, where it is known exactly. times, channels (S): how many times in a row a
    step comes, and into how many parts its messages fall that do not wait for each other; 1 where they are
    empty. total (K): the share of the size that passes in all steps, None for the sum of `load`. reduced: how
    many times a share of the size is reduced by the device that reduces most, and how often in a row.
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
    channels: tuple[int, ...] = ()
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
        """What every round puts on those links: on all equal routes, if that allows the rate of one."""
        few = {use: use.on(self._part[1]) for uses in self._every.values() for use in uses}
        every, single = (tuple(few[self._every[one.exchange][place]] for one in self.rounds) for place in (0, 1))
        return every if every == single or self._busiest(every) <= self._busiest(single) else single

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

    @cached_property
    def step_loads(self) -> StepLoads:
        """Load per step; rounds one after another that send the same are one step that comes again."""
        parts = lcm(*(use.parts for use in self.uses))
        rows, times, channels = list[tuple[Floats, ...]](), list[int](), list[int]()
        # A ring that gathers what it has reduced goes on with the same step.
        pairs = groupby(zip(self.rounds, self.uses, strict=True), lambda pair: (pair[0].exchange, pair[0].message))
        for (one, use), *more in (list(alike) for _, alike in pairs):
            # A chunk is divided into as many parts as its most divided route needs. Chunks of an alltoall
            # take one route only, all others every sort of route.
            messages = use.started if self.collective.name == "alltoall" else use.pieces * (parts // use.parts)
            rows.append(step_row(self._part[0], use, float(one.message), messages))
            times.append(one.times + sum(other.times for other, _ in more))
            channels.append(one.channels)
        reducing, ranks = [one for one in self.rounds if one.op == REDUCE], self.topology.ranks
        reduced = tuple((one.times, float(one.message), one.exchange.most_into(ranks)) for one in reducing)
        total, whole = self.loads(self.uses)
        loads, alphas, starts, longest = zip(*rows, strict=True)
        known = self.rate, tuple(times), tuple(channels), total / whole, reduced
        shared = resources(self._part[0])
        return StepLoads(self.collective, self.sends, shared, loads, alphas, starts, longest, *known)


def step_row(topology: Topology, use: LinkUse, share: float, messages: Ints) -> tuple[Floats, Floats, Floats, Floats]:
    """A row of `StepLoads`: load, alpha, each and longest of every resource.

    share: of the size, of every message that `use` counts. messages (L): how many start on each link.
    """
    shared, overhead = resources(topology), topology.link_columns.overhead
    resource, count, started = shared.of_link, len(shared.rate), np.flatnonzero(messages)
    alpha, most = np.zeros(count), np.zeros(count)
    np.maximum.at(alpha, shared.members, np.repeat(use.alpha, np.diff(shared.starts)))
    np.maximum.at(most, resource[started], overhead[started])
    load = np.asarray(shared.of_links(use.units) * (share / use.parts), dtype=np.float64)
    each = np.asarray(np.bincount(resource, overhead * messages, count), dtype=np.float64)
    return load, alpha, each, most


def worth_it(topology: Topology, collective: Collective, sends: int, every_pair: bool) -> bool:
    """Whether a schedule has many sends, and its rounds few routes. every_pair: each rank sends to every other."""
    if collective.data is not None or sends <= _MANY_SENDS:
        return False
    # `uses_of_every_pair` has routes to look up for a few ranks only.
    pairs = topology.ranks * (topology.ranks - 1)
    return not every_pair or pairs <= _MOST_PAIRS or node_group(topology) is not None


# Pairs of ranks up to which each has its routes looked up.
_MOST_PAIRS = 20_000


@dataclass(frozen=True, eq=False)
class LinkUse:
    """What messages that run together put on links: those in the same place of nodes that send alike are one.

    units: on every link, where a message has `parts` of them. started: how many start there. pieces: how many
    of their `parts` do. alpha: seconds of latency and overhead of the slowest that crosses it. cell (L):
    which of these each link of the topology is; those of a node follow each other.
    """

    units: Ints
    parts: int
    started: Ints
    pieces: Ints
    alpha: Floats
    cell: Ints

    def on(self, links: Ints | slice = slice(None)) -> LinkUse:
        """Of these links, one by one."""
        one = self.cell[links]
        messages = self.started[one], self.pieces[one], self.alpha[one]
        return LinkUse(self.units[one], self.parts, *messages, np.arange(len(one)))

    def kinds(self, own: Ints) -> Ints:
        """Of every node a number that those with equal loads share. own (node, place): their links."""
        columns = np.stack((self.units, self.started, self.pieces, self.alpha.view(np.int64)))
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
    keys = np.flatnonzero(np.bincount(key))
    order, start, end = np.unravel_index(keys, (3, size, size))
    cell, many = np.searchsorted(keys, key) * nodes, 1 if sent is None else sent
    hosts = (np.minimum(a, b), np.ones(len(a)) * many), (np.maximum(a, b), (a != b) * many)
    times = np.stack([np.bincount(cell + host, weight, len(keys) * nodes) for host, weight in hosts])
    stand = alike.table[(order == 0).astype(np.int64), start], alike.table[(order == 2).astype(np.int64), end]
    times = times.astype(np.int64).reshape(2, -1, nodes)
    return _uses(topology, *stand, *_by_nodes(alike, np.arange(len(keys)), times))


def uses_of_every_pair(topology: Topology) -> Uses:
    """The same where every member sends to every other.

    Raises `InfeasibleError` for very many of them, unless all nodes are alike and may be exchanged as one
    likes.
    """
    members, alike = topology.member_places, node_group(topology)
    ranks = len(members)
    if alike is None:
        if ranks * (ranks - 1) > _MOST_PAIRS:
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
    few, number = np.unique(times.reshape(-1, nodes), axis=1, return_inverse=True)

    def placed(start: Ints, links: Ints) -> Total:
        host, kinds = of[links], np.repeat(kind, np.diff(start))
        cell, away = (host * many + kinds) * width + place[links], host < 0

        def total(amount: npt.NDArray[Any]) -> Ints:
            found = np.bincount(place[links[away]], amount[away] * between[kinds[away]], fabric).astype(np.int64)
            model = np.bincount(cell[~away], amount[~away], 2 * many * width).astype(np.int64)
            return np.concatenate([found, (few.T @ model.reshape(-1, width)).ravel()])

        return total

    return placed, np.append(fabric + width * number.ravel(), 0)[of] + place


def _grid(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Every one of `a` with every other of `b`."""
    src, dst = (grid.ravel() for grid in np.meshgrid(a, b, indexing="ij"))
    return src[src != dst], dst[src != dst]


def searched(what: str, topology: Topology, src: Ints, dst: Ints) -> list[tuple[int, ...]]:
    """The routes between devices; raises `InfeasibleError` if they would take minutes to find."""
    ends = list(zip(src.tolist(), dst.tolist(), strict=True))
    budget.check_routes(what, topology, ends)
    return [topology.router.route(a, b) for a, b in ends]
