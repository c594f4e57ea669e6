"""Load per step and resource of a machine, and its derivation from who sends how much to whom.

A ring of 32,768 ranks has a billion sends, in 32,767 steps that are alike: in each, every rank sends one
shard to the next. Its time in steps follows from that much. An algorithm that builds its schedule chunk by
chunk also tells such an outline, for machines on which the schedule has too many sends to write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from itertools import groupby
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
    def uses(self) -> tuple[LinkUse, ...]:
        """What every round puts on links: on all equal routes, if the loads then allow at least the rate of one."""
        uses: dict[Exchange, tuple[LinkUse, LinkUse]] = {}
        devices = self.topology.member_places
        for ends in {one.exchange: None for one in self.rounds}:
            if ends.src is None or ends.dst is None:
                uses[ends] = uses_of_every_pair(self.topology)
            else:
                uses[ends] = uses_of_messages(self.topology, devices[ends.src].ravel(), devices[ends.dst].ravel())
        every, single = (tuple(uses[one.exchange][place] for one in self.rounds) for place in (0, 1))
        return every if every == single or self._busiest(every) <= self._busiest(single) else single

    def loads(self, uses: Sequence[LinkUse]) -> tuple[Ints, int]:
        """What passes each resource in all rounds together, and what stands for the whole size."""
        whole = lcm(*(one.message.denominator * use.parts for one, use in zip(self.rounds, uses, strict=True)))
        total = np.zeros(len(self.topology.links), dtype=np.int64)
        for one, use in zip(self.rounds, uses, strict=True):
            factor = one.times * one.message * Fraction(whole, use.parts)
            if int(use.units.max(initial=0)) * int(factor) >= 2**60:
                raise InputError(f"{self.algorithm}: loads with the denominator {whole} exceed 63 bits")
            total += use.units * int(factor)
        return resources(self.topology).of_links(total), whole

    def _busiest(self, uses: Sequence[LinkUse]) -> Fraction:
        total, whole = self.loads(uses)
        return resources(self.topology).longest(total) / whole

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
            rows.append(step_row(self.topology, use, float(one.message), messages))
            times.append(one.times + sum(other.times for other, _ in more))
            channels.append(one.channels)
        reducing, ranks = [one for one in self.rounds if one.op == REDUCE], self.topology.ranks
        reduced = tuple((one.times, float(one.message), one.exchange.most_into(ranks)) for one in reducing)
        total, whole = self.loads(self.uses)
        loads, alphas, starts, longest = zip(*rows, strict=True)
        known = self.rate, tuple(times), tuple(channels), total / whole, reduced
        shared = resources(self.topology)
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
    """What messages that run together put on links.

    units (L): on every link, where a message has `parts` of them. started (L): how many start there. pieces
    (L): how many of their `parts` do. alpha (L): seconds of latency and overhead of the slowest that crosses
    it.
    """

    units: Ints
    parts: int
    started: Ints
    pieces: Ints
    alpha: Floats


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

        return _uses(topology, pairs.src, pairs.dst, by_images)
    # Alike are messages between the same places of two nodes of which the same one comes first.
    (a, b), (nodes, size) = alike.node[np.stack((src, dst))], alike.table.shape
    key = ((np.sign(b - a) + 1) * size + alike.place[src]) * size + alike.place[dst]
    keys = np.flatnonzero(np.bincount(key))
    order, start, end = np.unravel_index(keys, (3, size, size))
    cell, many = np.searchsorted(keys, key) * nodes, 1 if sent is None else sent
    hosts = (np.minimum(a, b), np.ones(len(a)) * many), (np.maximum(a, b), (a != b) * many)
    times = np.stack([np.bincount(cell + host, weight, len(keys) * nodes) for host, weight in hosts])
    rows, kinds = times.astype(np.int64).reshape(2, -1, nodes), dict[bytes, int]()
    kind = np.array([kinds.setdefault(row.tobytes(), len(kinds)) for row in rows.swapaxes(0, 1)], np.int64)
    rows = rows[:, np.unique(kind, return_index=True)[1]]
    stand = alike.table[(order == 0).astype(np.int64), start], alike.table[(order == 2).astype(np.int64), end]
    return _uses(topology, *stand, partial(_by_nodes, alike, kind, rows))


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
    return _uses(topology, src, dst, partial(_by_nodes, alike, apart.astype(np.int64), times))


def _uses(topology: Topology, src: Ints, dst: Ints, placed: Callable[[Ints, Ints], Total]) -> Uses:
    """The same of messages for which those from `src` to `dst` stand.

    placed: from where the routes of these start, and their links.
    """
    single = Spread.of([(route,) for route in searched("its messages", topology, src, dst)])
    routes = alternatives_of(topology, single.start.astype(np.int64), single.links.astype(np.int64))
    several = Spread.of(routes) if any(len(equal) > 1 for equal in routes) else single

    def use(spread: Spread) -> LinkUse:
        start, alphas = spread.start[spread.first].astype(np.int64), spread.alphas(topology.link_columns)
        total, parts = placed(start, spread.links.astype(np.int64)), lcm(*distinct(spread.count).tolist())
        # For every link of every path, the units of a message there, and whether the path starts with it.
        of_path = np.repeat(parts // spread.count.astype(np.int64), spread.count)
        weight, begins = np.repeat(of_path, np.diff(spread.start)), np.zeros(len(spread.links), dtype=bool)
        begins[spread.start[:-1]] = True
        alpha, slowest = np.zeros(len(topology.links)), np.repeat(alphas, np.diff(start))
        for seconds in distinct(alphas):
            alpha[total(slowest == seconds) > 0] = seconds
        return LinkUse(total(weight), parts, total(begins), total(weight * begins), alpha)

    divided = use(several)
    return divided, divided if several is single else use(single)


def _by_nodes(alike: NodeGroup, kind: Ints, times: Ints, start: Ints, links: Ints) -> Total:
    """By how often messages of every kind have a node as the first or second one (2, kinds, nodes)."""
    own, of, place = alike.links
    host, kinds, (_, many, nodes) = of[links], np.repeat(kind, np.diff(start)), times.shape
    cell, away = (host * many + kinds) * own.shape[1] + place[links], host < 0

    def total(amount: npt.NDArray[Any]) -> Ints:
        found = np.bincount(links[away], amount[away] * times[0].sum(axis=1)[kinds[away]], len(of)).astype(np.int64)
        model = np.bincount(cell[~away], amount[~away], 2 * many * own.shape[1]).astype(np.int64)
        found[own] = times.reshape(-1, nodes).T @ model.reshape(-1, own.shape[1])
        return found

    return total


def _grid(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Every one of `a` with every other of `b`."""
    src, dst = (grid.ravel() for grid in np.meshgrid(a, b, indexing="ij"))
    return src[src != dst], dst[src != dst]


def searched(what: str, topology: Topology, src: Ints, dst: Ints) -> list[tuple[int, ...]]:
    """The routes between devices; raises `InfeasibleError` if they would take minutes to find."""
    ends = list(zip(src.tolist(), dst.tolist(), strict=True))
    budget.check_routes(what, topology, ends)
    return [topology.router.route(a, b) for a, b in ends]
