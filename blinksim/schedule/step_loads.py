"""Load per step and resource of a machine, and its derivation from who sends how much to whom.

A ring of 32,768 ranks has a billion sends, in 32,767 steps that are alike: in each, every rank sends one
shard to the next. Its time in steps follows from that much. An algorithm that builds its schedule chunk by
chunk also tells such an outline, for machines on which the schedule has too many sends to write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import groupby
from math import lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim import budget
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.graphs.arrays import Bools, Floats, Ints, distinct, round_robin
from blinksim.schedule.loads import Resources, Spread, alternatives_of, resources
from blinksim.schedule.model import REDUCE
from blinksim.topology.graph import Topology
from blinksim.topology.group import NodeGroup, Pairs, alike_nodes

Whole = npt.NDArray[np.integer[Any]]
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
    load: Floats
    alpha: Floats
    each: Floats
    longest: Floats
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
        return self.limit or 1 / Fraction(float((self.load.sum(axis=0) / self.shared.rates).max()))


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
    def shared(self) -> Resources:
        """What messages share."""
        return resources(self.topology)

    @cached_property
    def uses(self) -> tuple[LinkUse, ...]:
        """What every round puts on links: on all equal routes, if the loads then allow at least the rate of one."""
        uses: dict[Exchange, tuple[LinkUse, LinkUse]] = {}
        devices = self.topology.member_places
        for ends in {one.exchange: None for one in self.rounds}:
            if ends.src is None or ends.dst is None:
                uses[ends] = uses_of_every_pair(self.topology)
            else:
                uses[ends] = uses_of_messages(self.topology, devices[ends.src], devices[ends.dst])
        every, single = (tuple(uses[one.exchange][place] for one in self.rounds) for place in (0, 1))
        return every if every == single or self._busiest(every) <= self._busiest(single) else single

    def loads(self, uses: Sequence[LinkUse]) -> tuple[Ints, int]:
        """What passes each resource in all rounds together, and what stands for the whole size."""
        whole = lcm(*(one.message.denominator * use.parts for one, use in zip(self.rounds, uses, strict=True)))
        total = np.zeros(len(self.shared.rate), dtype=np.int64)
        for one, use in zip(self.rounds, uses, strict=True):
            factor = one.times * one.message * Fraction(whole, use.parts)
            if int(use.units.max(initial=0)) * int(factor) >= 2**60:
                raise InputError(f"{self.algorithm}: loads with the denominator {whole} exceed 63 bits")
            total += self.shared.of_links(use.units) * int(factor)
        return total, whole

    def _busiest(self, uses: Sequence[LinkUse]) -> Fraction:
        total, whole = self.loads(uses)
        return self.shared.longest(total) / whole

    @property
    def rate(self) -> Fraction | None:
        """algbw in bytes/s that the loads allow; None if nothing is sent."""
        busiest = self._busiest(self.uses)
        return 1 / busiest if busiest else None

    @cached_property
    def step_loads(self) -> StepLoads:
        """Load per step; rounds one after another that send the same are one step that comes again."""
        shared, overhead = self.shared, self.topology.link_columns.overhead
        resource, count = shared.of_link, len(shared.rate)
        parts = lcm(*(use.parts for use in self.uses))
        rows, times, channels = list[tuple[Floats, ...]](), list[int](), list[int]()
        # A ring that gathers what it has reduced goes on with the same step.
        pairs = groupby(zip(self.rounds, self.uses, strict=True), lambda pair: (pair[0].exchange, pair[0].message))
        for (one, use), *more in (list(alike) for _, alike in pairs):
            # A chunk is divided into as many parts as its most divided route needs. Chunks of an alltoall
            # take one route only, all others every sort of route.
            messages = use.started if self.collective.name == "alltoall" else use.pieces * (parts // use.parts)
            alpha, most, started = np.zeros(count), np.zeros(count), np.flatnonzero(messages)
            np.maximum.at(alpha, shared.members, np.repeat(use.alpha, np.diff(shared.starts)))
            np.maximum.at(most, resource[started], overhead[started])
            load = np.asarray(shared.of_links(use.units) * (float(one.message) / use.parts), dtype=np.float64)
            each = np.asarray(np.bincount(resource, overhead * messages, count), dtype=np.float64)
            rows.append((load, alpha, each, most))
            times.append(one.times + sum(other.times for other, _ in more))
            channels.append(one.channels)
        reduced = list[tuple[int, float, int]]()
        for one in self.rounds:
            if one.op == REDUCE:
                into = one.exchange.dst
                most_into = self.topology.ranks - 1 if into is None else int(np.bincount(into.ravel()).max(initial=0))
                reduced.append((one.times, float(one.message), most_into))
        total, whole = self.loads(self.uses)
        load, alpha, each, longest = (np.stack(column) for column in zip(*rows, strict=True))
        return StepLoads(
            self.collective,
            self.sends,
            shared,
            load,
            alpha,
            each,
            longest,
            limit=self.rate,
            times=tuple(times),
            channels=tuple(channels),
            total=total / whole,
            reduced=tuple(reduced),
        )


def worth_it(topology: Topology, collective: Collective, sends: int, every_pair: bool) -> bool:
    """Whether a schedule has many sends, and its rounds few routes. every_pair: each rank sends to every other."""
    if collective.traffic is not None or sends <= _MANY_SENDS:
        return False
    # `uses_of_every_pair` has routes to look up for a few ranks only.
    pairs = topology.ranks * (topology.ranks - 1)
    return not every_pair or pairs <= _MOST_PAIRS or isinstance(alike_nodes(topology), NodeGroup)


Amounts = npt.NDArray[Any]
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


def uses_of_messages(
    topology: Topology, src: Ints, dst: Ints, sent: Ints | None = None
) -> tuple[LinkUse, LinkUse]:  # fmt: skip
    """What messages between ranks put on links: divided among all equal routes, and on one route each.

    src, dst: devices. sent: how often each is; once by default. Raises `InfeasibleError` without a route.
    """
    count, width = len(topology.devices), len(topology.links)
    pair, place = np.unique(src * count + dst, return_inverse=True)
    times = np.bincount(place.ravel(), sent).astype(np.int64)
    pairs = Pairs.of(topology, pair // count, pair % count)
    several, single = _spreads(topology, pairs)

    def use(spread: Spread) -> LinkUse:
        start, links = pairs.images(spread.start[spread.first].astype(np.int64), spread.links.astype(np.int64))
        weight, begins, alphas = _weights(topology, spread)
        owner = np.repeat(np.arange(len(pair)), np.diff(start))
        place = np.arange(len(links)) - start[:-1][owner] + spread.start[spread.first][pairs.which[owner]]
        units = np.bincount(links, weight[place] * times[owner], width).astype(np.int64)
        begun = begins[place]
        first, messages, pieces = links[begun], times[owner[begun]], weight[place[begun]] * times[owner[begun]]
        started, parted = (np.bincount(first, counted, width).astype(np.int64) for counted in (messages, pieces))
        alpha = np.zeros(width)
        np.maximum.at(alpha, links, alphas[pairs.which[owner]])
        return LinkUse(units, _parts(spread), started, parted, alpha)

    divided = use(several)
    return divided, divided if several is single else use(single)


def uses_of_every_pair(topology: Topology) -> tuple[LinkUse, LinkUse]:
    """The same where every member sends to every other.

    Raises `InfeasibleError` for very many of them, unless all nodes are alike and may be exchanged as one
    likes.
    """
    members = topology.member_places
    ranks = len(members)
    alike = alike_nodes(topology)
    if ranks * (ranks - 1) <= _MOST_PAIRS or not isinstance(alike, NodeGroup):
        if ranks * (ranks - 1) > _MOST_PAIRS:
            raise InfeasibleError(f"a route for each of {ranks * (ranks - 1):,} pairs of ranks")
        return uses_of_messages(topology, *_grid(members, members))
    # Of two nodes, the earlier one does what the first does with the second; node k is the earlier one of as
    # many pairs of nodes as nodes come after it.
    node, nodes = alike.node, len(alike.table)
    first, second = members[node[members] == 0], members[node[members] == 1]
    grids = (_grid(first, first), _grid(first, second), _grid(second, first))
    src, dst = (np.concatenate(ends) for ends in zip(*grids, strict=True))
    apart = node[src] != node[dst]
    own, of, place = alike.links
    after = np.arange(nodes)[::-1]
    several, single = _spreads(topology, Pairs(src, dst, np.arange(len(src))))

    def use(spread: Spread) -> LinkUse:
        pair = np.repeat(np.arange(len(src)), np.diff(spread.start[spread.first]))
        far, host, at = apart[pair], of[spread.links], place[spread.links]
        # Links of the first node, of messages inside it and to others; of the second; and of the fabric.
        where = (host == 0) & ~far, (host == 0) & far, (host == 1) & far, host < 0

        def moved(amount: Amounts, *, most: bool = False) -> Amounts:
            """What all messages put on every link: the sum of what each does, or the most."""
            join = np.maximum if most else np.add
            total = np.zeros(len(of), dtype=amount.dtype)
            inside, out, into = (np.zeros(own.shape[1], dtype=amount.dtype) for _ in range(3))
            for on, here in zip((inside, out, into), where, strict=False):
                join.at(on, at[here], amount[here])
            earlier, later = ((times > 0 if most else times)[:, None] for times in (after, after[::-1]))
            total[own] = join(join(inside, out * earlier), into * later)
            times = 1 if most else np.where(far[where[3]], nodes * (nodes - 1) // 2, nodes)
            join.at(total, spread.links[where[3]], amount[where[3]] * times)
            return total

        weight, begins, alphas = _weights(topology, spread)
        units, started, pieces = (
            moved(amount).astype(np.int64) for amount in (weight, begins.astype(np.int64), weight * begins)
        )
        return LinkUse(units, _parts(spread), started, pieces, moved(alphas[pair], most=True))

    divided = use(several)
    return divided, divided if several is single else use(single)


def _grid(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    """Every one of `a` with every other of `b`."""
    src, dst = (grid.ravel() for grid in np.meshgrid(a, b, indexing="ij"))
    return src[src != dst], dst[src != dst]


def _spreads(topology: Topology, pairs: Pairs) -> tuple[Spread, Spread]:
    """The equal routes of what stands for the pairs, and its single ones; the same object if no others."""
    single = Spread.of([(route,) for route in searched("its messages", topology, pairs)])
    routes = alternatives_of(topology, single.start.astype(np.int64), single.links.astype(np.int64))
    return (Spread.of(routes) if any(len(several) > 1 for several in routes) else single), single


def searched(what: str, topology: Topology, pairs: Pairs) -> list[tuple[int, ...]]:
    """The routes of what stands for the pairs; raises `InfeasibleError` if they would take minutes to find."""
    ends = list(zip(pairs.src.tolist(), pairs.dst.tolist(), strict=True))
    budget.check_routes(what, topology, ends)
    return [topology.router.route(a, b) for a, b in ends]


def _weights(topology: Topology, spread: Spread) -> tuple[Ints, Bools, Floats]:
    """For every link of every path, the units that a message puts there, and whether the path starts with it.

    And seconds of every route's slowest path: its latencies, and the overhead of its first link.
    """
    path = np.repeat(np.arange(len(spread.start) - 1), np.diff(spread.start))
    of_path = np.repeat(_parts(spread) // spread.count.astype(np.int64), spread.count)
    first = spread.start[:-1]
    begins = np.zeros(len(spread.links), dtype=np.bool_)
    begins[first] = True
    latency, overhead = topology.link_columns.latency[spread.links], topology.link_columns.overhead[spread.links]
    alpha = np.add.reduceat(latency, first) + overhead[first]
    return of_path[path], begins, np.asarray(np.maximum.reduceat(alpha, spread.first[:-1]))


def _parts(spread: Spread) -> int:
    return lcm(*distinct(spread.count).tolist())
