"""Load per step: what each step puts on the resources of a machine, and how it follows from who sends how much to whom.

A ring of 32,768 ranks has a billion sends, in 32,767 steps that are alike: in each, every rank sends one shard to the
next. Its time in steps follows from that much. An algorithm that builds its schedule chunk by chunk also tells such an
outline, for machines on which the schedule has too many sends to write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim import budget
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.schedule.loads import Resources, resources
from blinksim.schedule.model import REDUCE
from blinksim.schedule.ways import Spread, ways_of_routes
from blinksim.structures.arrays import distinct
from blinksim.topology.graph import Topology
from blinksim.topology.group import Exchangeable, Pairs, alike_nodes, turning

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.integer[Any]]
# Sends from which on the time of steps is found without writing them.
_MANY_SENDS = 250_000


@dataclass(frozen=True, eq=False)
class Exchange:
    """Messages that run together: from ranks src (M) to ranks dst (M); None if every rank sends to every other."""

    src: Whole | None = None
    dst: Whole | None = None

    def messages(self, ranks: int) -> int:
        """How many there are."""
        return ranks * (ranks - 1) if self.src is None else len(self.src)

    def most_into_one(self, ranks: int) -> int:
        """The most messages that a rank receives."""
        return ranks - 1 if self.dst is None else int(np.bincount(self.dst).max(initial=0))


@dataclass(frozen=True, eq=False)
class Round:
    """Steps that are alike, one after another: `times` of them.

    share: of the size, of a chunk. chunks: how many go with each message. op: ``COPY`` or ``REDUCE``. channels: into
    how many parts the messages fall that do not wait for each other, such as rings.
    """

    exchange: Exchange
    share: Fraction
    op: int
    times: int = 1
    chunks: int = 1
    channels: int = 1

    @property
    def message(self) -> Fraction:
        """The share of the size that a message carries."""
        return self.share * self.chunks


@dataclass(frozen=True, eq=False)
class StepLoads:
    """Load per step and resource: enough to time S steps on K resources of which nothing else is known.

    collective, sends: of the schedule. names, kinds, rates (K): of the resources, bytes/s. load (S, K): the share of
    the size that passes. alpha (S, K): seconds of the slowest message across it. each, longest (S, K): seconds of
    overhead of all messages that start there, and of the longest of these. limit: algbw in bytes/s that the loads
    allow, where it is known exactly. times, channels (S): how many times in a row a step comes, and into how many parts
    its messages fall that do not wait for each other; 1 where they are empty. total (K): the share of the size that
    passes in all steps, None for the sum of `load`. reduced: how many times a share of the size is reduced by the
    device that reduces most, and how often in a row.
    """

    collective: Collective
    sends: int
    names: Sequence[str]
    kinds: Sequence[str]
    rates: Floats
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
        return self.limit or 1 / Fraction(float((self.load.sum(axis=0) / self.rates).max()))


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
        """Sends of the schedule, before any is divided among parallel ways."""
        ranks = self.topology.ranks
        return sum(one.times * one.chunks * one.exchange.messages(ranks) for one in self.rounds)

    @cached_property
    def shared(self) -> Resources:
        """What messages share."""
        return resources(self.topology)

    @cached_property
    def uses(self) -> tuple[LinkUse, ...]:
        """What every round puts on links: on all equal ways, if the loads then allow at least the rate of one way."""
        found: dict[Exchange, tuple[LinkUse, LinkUse]] = {}
        for one in self.rounds:
            if one.exchange not in found:
                found[one.exchange] = self._uses(one.exchange)
        every, single = (tuple(found[one.exchange][place] for one in self.rounds) for place in (0, 1))
        if every == single or self._busiest(every) <= self._busiest(single):
            return every
        return single

    def _uses(self, exchange: Exchange) -> tuple[LinkUse, LinkUse]:
        topology = self.topology
        if exchange.src is None or exchange.dst is None:
            return uses_of_every_pair(topology)
        devices = topology.member_places
        return uses_of_messages(topology, devices[exchange.src], devices[exchange.dst])

    def loads(self, uses: Sequence[LinkUse]) -> tuple[Ints, int]:
        """What passes each resource in all rounds together, and what stands for the whole size."""
        whole = lcm(*(one.message.denominator * use.parts for one, use in zip(self.rounds, uses, strict=True)))
        total = np.zeros(len(self.shared.names), dtype=np.int64)
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

    @property
    def messages_held(self) -> int:
        """How many messages its rounds list."""
        return sum(len(one.exchange.src) for one in self.rounds if one.exchange.src is not None)

    @cached_property
    def step_loads(self) -> StepLoads:
        """Load per step; rounds one after another that send the same are one step that comes again."""
        shared, overhead = self.shared, self.topology.link_columns.overhead
        resource, count = shared.of_link, len(shared.names)
        parts = lcm(*(use.parts for use in self.uses))
        loads, alphas, every, longest = (list[Floats]() for _ in range(4))
        times, channels, reduced = list[int](), list[int](), list[tuple[int, float, int]]()
        last: tuple[Exchange, Fraction] | None = None
        for one, use in zip(self.rounds, self.uses, strict=True):
            key = one.exchange, one.message
            if key == last:
                # A ring that gathers what it has reduced goes on with the same step.
                times[-1] += one.times
            else:
                # A chunk is divided into as many parts as its most divided way needs. Chunks of an alltoall go one way
                # only, all others go every sort of way.
                messages = use.started if self.collective.name == "alltoall" else use.pieces * (parts // use.parts)
                alpha, most, started = np.zeros(count), np.zeros(count), np.flatnonzero(messages)
                np.maximum.at(alpha, shared.members, np.repeat(use.alpha, np.diff(shared.starts)))
                np.maximum.at(most, resource[started], overhead[started])
                load = shared.of_links(use.units) * (float(one.message) / use.parts)
                loads.append(np.asarray(load, dtype=np.float64))
                alphas.append(alpha)
                every.append(np.asarray(np.bincount(resource, overhead * messages, count), dtype=np.float64))
                longest.append(most)
                times.append(one.times)
                channels.append(one.channels)
            last = key
            if one.op == REDUCE:
                reduced.append((one.times, float(one.message), one.exchange.most_into_one(self.topology.ranks)))
        total, whole = self.loads(self.uses)
        return StepLoads(
            self.collective,
            self.sends,
            shared.names,
            shared.kinds,
            shared.rates,
            np.stack(loads),
            np.stack(alphas),
            np.stack(every),
            np.stack(longest),
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
    return not every_pair or every_pair_is_quick(topology)


Amounts = npt.NDArray[Any]
# Pairs of ranks up to which each has its routes looked up.
_MOST_PAIRS = 20_000


@dataclass(frozen=True, eq=False)
class LinkUse:
    """What messages that run together put on links.

    units (L): on every link, where a message has `parts` of them. started (L): how many start there. pieces (L): how
    many of their `parts` do. alpha (L): seconds of latency and overhead of the slowest that crosses it.
    """

    units: Ints
    parts: int
    started: Ints
    pieces: Ints
    alpha: Floats


def uses_of_messages(topology: Topology, src: Ints, dst: Ints) -> tuple[LinkUse, LinkUse]:
    """What messages between ranks put on links: divided among all equal ways, and on one way each.

    src, dst: devices. Raises `InfeasibleError` if there is no way.
    """
    count = len(topology.devices)
    pair, times = np.unique(src * count + dst, return_counts=True)
    src, dst = pair // count, pair % count
    alike = turning(topology, len(pair))
    if isinstance(alike, Exchangeable):
        return _OfNodes.of(alike, src, dst, times).uses()
    pairs = Pairs.of(topology, src, dst)
    several, single = _spreads(topology, pairs)

    def use(spread: Spread) -> LinkUse:
        start, links = pairs.images(spread.start[spread.first].astype(np.int64), spread.links.astype(np.int64))
        weight, begins = _weights(spread)
        owner = np.repeat(np.arange(len(pair)), np.diff(start))
        place = np.arange(len(links)) - start[:-1][owner] + spread.start[spread.first][pairs.which[owner]]
        units = np.bincount(links, weight[place] * times[owner], len(topology.links))
        begun = begins[place]
        started, pieces = (
            np.bincount(links[begun], counted[begun], len(topology.links)).astype(np.int64)
            for counted in (times[owner], weight[place] * times[owner])
        )
        alpha = np.zeros(len(topology.links))
        np.maximum.at(alpha, links, _alphas(topology, spread)[pairs.which[owner]])
        return LinkUse(units.astype(np.int64), _parts(spread), started, pieces, alpha)

    found = use(several)
    return found, found if several is single else use(single)


def uses_of_every_pair(topology: Topology) -> tuple[LinkUse, LinkUse]:
    """The same where every member sends to every other.

    Raises `InfeasibleError` for very many of them, unless all nodes are alike and may be exchanged as one likes.
    """
    members = topology.member_places
    ranks = len(members)
    alike = alike_nodes(topology)
    if ranks * (ranks - 1) <= _MOST_PAIRS or not isinstance(alike, Exchangeable):
        if ranks * (ranks - 1) > _MOST_PAIRS:
            raise InfeasibleError(f"a route for each of {ranks * (ranks - 1):,} pairs of ranks")
        src, dst = (grid.ravel() for grid in np.meshgrid(members, members, indexing="ij"))
        return uses_of_messages(topology, src[src != dst], dst[src != dst])
    return _OfNodes.every_pair(alike, members).uses()


def every_pair_is_quick(topology: Topology) -> bool:
    """Whether `uses_of_every_pair` has routes to look up for a few ranks only."""
    return topology.ranks * (topology.ranks - 1) <= _MOST_PAIRS or isinstance(alike_nodes(topology), Exchangeable)


@dataclass(frozen=True, eq=False)
class _OfNodes:
    """Messages in a cluster whose nodes can be exchanged: between few pairs in its first two nodes, moved to all.

    Of two nodes, the earlier one does what the first does with the second. So it is enough to know how often each node
    stands for which of the two. pairs (K). times (K, node) and (K, node): how many messages have the first node moved
    there, and the second.
    """

    alike: Exchangeable
    pairs: Pairs
    times: tuple[Ints, Ints]

    @classmethod
    def of(cls, alike: Exchangeable, src: Ints, dst: Ints, times: Ints) -> _OfNodes:
        """From different pairs of ranks, and how many messages go between each."""
        (nodes, width), a, b = alike.table.shape, alike.node[src], alike.node[dst]
        code = (np.sign(b - a) * width + alike.place[src]) * width + alike.place[dst]
        _, one, which = np.unique(code, return_index=True, return_inverse=True)
        first, second, _ = alike.between(src[one], dst[one])

        apart = a != b
        low, high = which * nodes + np.minimum(a, b), (which * nodes + np.maximum(a, b))[apart]
        size = len(one) * nodes
        found = np.bincount(low, times, size), np.bincount(high, times[apart], size)
        lower, upper = (each.astype(np.int64).reshape(-1, nodes) for each in found)
        return cls(alike, Pairs(first, second, np.arange(len(one))), (lower, upper))

    @classmethod
    def every_pair(cls, alike: Exchangeable, members: Ints) -> _OfNodes:
        """One message from every member to every other."""
        node, nodes = alike.node[members], len(alike.table)
        first, second = members[node == 0], members[node == 1]
        grids = [_grid(first, first), _grid(first, second), _grid(second, first)]
        src, dst = (np.concatenate(ends) for ends in zip(*grids, strict=True))
        apart, before = (alike.node[src] != alike.node[dst])[:, None], np.arange(nodes)
        both = np.where(apart, nodes - 1 - before, 1), np.where(apart, before, 0)
        return cls(alike, Pairs(src, dst, np.arange(len(src))), both)

    def uses(self) -> tuple[LinkUse, LinkUse]:
        """As `uses_of_messages`."""
        several, single = _spreads(self.alike.topology, self.pairs)
        found = self._use(several)
        return found, found if several is single else self._use(single)

    def _use(self, spread: Spread) -> LinkUse:
        topology = self.alike.topology
        weight, begins = _weights(spread)
        pair = np.repeat(np.arange(len(self.pairs.src)), np.diff(spread.start[spread.first]))
        counted = (weight, begins.astype(np.int64), weight * begins)
        units, started, pieces = (self._moved(spread, pair, amount) for amount in counted)
        alpha = self._moved(spread, pair, _alphas(topology, spread)[pair], most=True)
        return LinkUse(units.astype(np.int64), _parts(spread), started.astype(np.int64), pieces.astype(np.int64), alpha)

    def _moved(self, spread: Spread, pair: Ints, amount: Amounts, *, most: bool = False) -> Amounts:
        """What all messages put on every link.

        pair, amount: of which pair each link of a way is, and what one message puts there. most: the largest of these,
        in place of their sum.
        """
        own, of, place = self.alike.links
        join = np.maximum if most else np.add
        apart = self.alike.node[self.pairs.src] != self.alike.node[self.pairs.dst]
        found = np.zeros(len(of), dtype=amount.dtype)
        moves = of[spread.links] == 0, (of[spread.links] == 1) & apart[pair]
        every = np.zeros(own.shape[::-1], dtype=amount.dtype)
        for here, times in zip(moves, self.times, strict=True):
            count = (times > 0).astype(np.int64) if most else times
            # Most pairs are moved to the same nodes: what they put there goes together.
            rows: dict[bytes, int] = {}
            row = np.array([rows.setdefault(one.tobytes(), len(rows)) for one in count], dtype=np.int64)
            first = np.unique(row, return_index=True)[1]
            on = np.zeros((own.shape[1], len(rows)), dtype=amount.dtype)
            join.at(on, (place[spread.links[here]], row[pair[here]]), amount[here])
            for link, number in zip(*(ends.tolist() for ends in on.nonzero()), strict=True):
                every[link] = join(every[link], on[link, number] * count[first[number]])
        found[own] = every.T
        stays = ~(moves[0] | moves[1])
        messages = self.times[0].sum(axis=1)[pair[stays]]
        join.at(found, spread.links[stays], amount[stays] * (messages > 0 if most else messages))
        return found


def _grid(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    src, dst = (grid.ravel() for grid in np.meshgrid(a, b, indexing="ij"))
    return src[src != dst], dst[src != dst]


def _spreads(topology: Topology, pairs: Pairs) -> tuple[Spread, Spread]:
    """The ways of what stands for the pairs, and its single routes; the same object if there are no further ways."""
    ends = list(zip(pairs.src.tolist(), pairs.dst.tolist(), strict=True))
    budget.check_routes("its messages", topology, ends)
    routes = [topology.router.route(a, b) for a, b in ends]
    single = Spread.of([(route,) for route in routes])
    ways = ways_of_routes(topology, single.start.astype(np.int64), single.links.astype(np.int64))
    return (Spread.of(ways) if any(len(several) > 1 for several in ways) else single), single


def _weights(spread: Spread) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """For every link of every way, the units that a message puts there, and whether the way starts with it."""
    way = np.repeat(np.arange(len(spread.start) - 1), np.diff(spread.start))
    of_way = np.repeat(_parts(spread) // spread.count.astype(np.int64), spread.count)
    begins = np.zeros(len(spread.links), dtype=np.bool_)
    begins[spread.start[:-1]] = True
    return of_way[way], begins


def _parts(spread: Spread) -> int:
    return lcm(*distinct(spread.count).tolist())


def _alphas(topology: Topology, spread: Spread) -> Floats:
    """Seconds of every route's slowest way: its latencies, and the overhead of its first link."""
    latency, overhead = topology.link_columns.latency[spread.links], topology.link_columns.overhead[spread.links]
    first = spread.start[:-1]
    way = np.add.reduceat(latency, first) + overhead[first]
    return np.asarray(np.maximum.reduceat(way, spread.first[:-1]))
