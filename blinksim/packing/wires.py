"""Wires between ranks (links, or routes through switches), and the cheapest rounds of sends on them.

Trees: in every round some ranks that have the data send it to some that do not; the search goes over all sets
of ranks that may have it after every round, 3**n cases a round. Exchanges, pieces of an allreduce: all ranks
of a clique send to all others of it at once. Several such rounds in a row make an allreduce if every group of
one round meets every group of the next ones in one rank: first inside four GPUs, then in pairs, as in a
hypercube. Times are in microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import combinations
from operator import or_

import numpy as np

from blinksim.graphs.arrays import Floats, Ints, scattered
from blinksim.topology.graph import Topology

# More than any price.
FAR = 1e15
# Ranks up to which all sets of them are tried.
MOST_RANKS = 8


@dataclass(frozen=True)
class Use:
    """How a message keeps a link busy.

    It enters the link `offset` microseconds after its start, and `lag` microseconds later for each whole size
    that it carries; it keeps it busy for `hold`, and `whole` for each whole size.
    """

    link: int
    offset: float
    lag: float
    hold: float
    whole: float


def joined_directly(topology: Topology) -> bool:
    """True if all devices are ranks, and links share nothing."""
    members = set(topology.members)
    apart = not topology.link_columns.shared and not any(device.capacity for device in topology.devices)
    return apart and all(device.name in members for device in topology.devices)


@dataclass(frozen=True, eq=False)
class Wires:
    """Links between ranks, or routes through switches.

    Attributes
    ----------
    ranks : int
        How many there are.
    routes : tuple of tuple of int
        For every wire, the numbers of its links in the topology.
    uses : tuple of tuple of Use
        For every wire, how a message keeps these links busy.
    src, dst : array (E)
        The ranks that it joins.
    overhead, latency : array (E)
        Microseconds of a message, beside its bytes.
    whole : array (E)
        Microseconds that the whole size takes.
    """

    ranks: int
    routes: tuple[tuple[int, ...], ...]
    uses: tuple[tuple[Use, ...], ...]
    src: Ints
    dst: Ints
    overhead: Floats
    latency: Floats
    whole: Floats

    @classmethod
    def of(cls, topology: Topology, size: int, *, relays: bool = False) -> Wires:
        """Between every two ranks: the links, if it is `joined_directly`, else the usual route.

        relays: True for all routes of two links as well, between ranks that no link joins.
        Raises `InfeasibleError` if there is no route.
        """
        devices = topology.member_places.tolist()
        rank, links = {device: number for number, device in enumerate(devices)}, topology.links
        if joined_directly(topology):
            routes: list[tuple[int, ...]] = [(number,) for number in range(len(topology.links))]
            routes += _relayed(topology) if relays else []
        else:
            routes = [topology.router.route(a, b) for a in devices for b in devices if a != b]
        uses = tuple(_uses(topology, route, size) for route in routes)
        src = np.array([rank[topology.index[links[route[0]].src]] for route in routes])
        dst = np.array([rank[topology.index[links[route[-1]].dst]] for route in routes])
        overhead = np.array([links[route[0]].overhead * 1e6 for route in routes])
        latency = np.array([sum(links[number].latency for number in route) * 1e6 for route in routes])
        whole = np.array([max(use.whole for use in one) for one in uses])
        return cls(topology.ranks, tuple(routes), uses, src, dst, overhead, latency, whole)

    def reversed(self) -> Wires:
        """The same in reverse: what comes last comes first."""
        uses = []
        for wire, before in enumerate(self.uses):
            fixed, whole = float(self.overhead[wire] + self.latency[wire]), float(self.whole[wire])
            turned = ((u, fixed - u.offset - u.hold, whole - u.lag - u.whole) for u in reversed(before))
            uses.append(tuple(replace(use, offset=offset, lag=lag) for use, offset, lag in turned))
        return replace(self, src=self.dst, dst=self.src, uses=tuple(uses))

    def between(self, prices: Floats) -> tuple[Floats, Ints]:
        """For every round and ordered pair of ranks the cheapest link's price, and which link that is.

        prices: (K, E). Returns two arrays (K, n, n); `FAR` where there is none.
        """
        rounds, n = len(prices), self.ranks
        least, which = np.full((rounds, n, n), FAR), np.zeros((rounds, n, n), dtype=np.int64)
        for wire, (a, b) in enumerate(zip(self.src.tolist(), self.dst.tolist(), strict=True)):
            better = prices[:, wire] < least[:, a, b]
            least[better, a, b], which[better, a, b] = prices[better, wire], wire
        return least, which


def _relayed(topology: Topology) -> list[tuple[int, ...]]:
    """The routes over one device in between, by the widest links, the first of equally wide ones."""
    links, members = topology.links, topology.members
    order = sorted(range(len(links)), key=lambda number: (links[number].bandwidth, -number))
    widest = {(links[number].src, links[number].dst): number for number in order}
    passing = [device.name for device in topology.devices if "forward" in device.can]
    apart = ((a, b) for a in members for b in members if a != b and (a, b) not in widest)
    ways = (((a, via), (via, b)) for a, b in apart for via in passing)
    return [(widest[into], widest[out]) for into, out in ways if into in widest and out in widest]


def _uses(topology: Topology, route: tuple[int, ...], size: int) -> tuple[Use, ...]:
    """A message enters a link when it has begun to arrive, and no earlier than that it leaves it when all is there."""
    whole = [size / float(topology.links[number].bandwidth) * 1e6 for number in route]
    overhead = topology.links[route[0]].overhead * 1e6
    uses = [Use(route[0], 0.0, 0.0, overhead, whole[0])]
    offset, lag = overhead, 0.0
    for place in range(1, len(route)):
        offset += topology.links[route[place - 1]].latency * 1e6
        lag += max(0.0, whole[place - 1] - whole[place])
        uses.append(Use(route[place], offset, lag, 0.0, whole[place]))
    return tuple(uses)


@lru_cache(maxsize=MOST_RANKS)
class Sets:
    """All sets of n ranks as bit masks, and all steps by which one can grow in a round.

    before, new : array (T), sorted by `before`. first (2^n - 2): where the steps of each set begin, from set
    1 on.
    """

    def __init__(self, n: int) -> None:
        self.n, self.full = n, (1 << n) - 1
        every = np.arange(1 << n)
        before, new = (grid.ravel() for grid in np.meshgrid(every[1:-1], every[1:], indexing="ij"))
        apart = (before & new) == 0
        self.before, self.new = before[apart], new[apart]
        self.first = np.flatnonzero(np.diff(self.before, prepend=0))
        self.bits = ((self.new[:, None] >> np.arange(n)) & 1).astype(np.float64)

    def costs(self, pair: Floats) -> Floats:
        """What each step of growing costs. pair: (n, n), from rank to rank."""
        least = np.full((1 << self.n, self.n), FAR)
        for rank in range(self.n):
            least[1 << rank : 2 << rank] = np.minimum(least[: 1 << rank], pair[rank])
        return np.asarray(np.minimum((least[self.before] * self.bits).sum(axis=1), FAR))


class Growth:
    """The least cost of reaching all ranks from each set of them, from each round on.

    left (K + 1, 2^n): by round and set. pair, which: (K, n, n), of `Wires.between`.
    """

    def __init__(self, pair: Floats, which: Ints) -> None:
        self.pair, self.which, self.sets = pair, which, Sets(pair.shape[1])
        rounds = len(pair)
        self.left = np.full((rounds + 1, self.sets.full + 1), FAR)
        self.left[:, self.sets.full] = 0.0
        self._costs = [self.sets.costs(one) for one in pair]
        for now in range(rounds - 1, -1, -1):
            there = self.left[now + 1, self.sets.before | self.sets.new]
            least = np.minimum.reduceat(self._costs[now] + there, self.sets.first)
            self.left[now, 1:-1] = np.minimum(self.left[now + 1, 1:-1], least)

    def sends(self, have: int, start: int) -> list[tuple[int, int]]:
        """The sends of a cheapest tree: (round, wire). have: the set that has the data before round `start`."""
        sent, sets = list[tuple[int, int]](), self.sets
        for now in range(start, len(self.pair)):
            if have == sets.full:
                break
            if self.left[now + 1, have] <= self.left[now, have]:
                continue
            first = int(sets.first[have - 1])
            steps = slice(first, int(sets.first[have]) if have < len(sets.first) else len(sets.before))
            best = first + int(np.argmin(self._costs[now][steps] + self.left[now + 1, have | sets.new[steps]]))
            holders = [rank for rank in range(sets.n) if have >> rank & 1]
            for rank in range(sets.n):
                if sets.new[best] >> rank & 1:
                    source = min(holders, key=lambda holder: self.pair[now, holder, rank])
                    sent.append((now, int(self.which[now, source, rank])))
            have |= int(sets.new[best])
        return sent


Clique = tuple[int, ...]
Partition = tuple[Clique, ...]
# Ranks of a clique that joins what trees brought, and sequences of exchanges that are tried.
MOST_IN_CLIQUE, _MOST_SEQUENCES = 4, 4000


def cliques(wires: Wires, most: int) -> list[Clique]:
    """All sets of 1 to `most` ranks of which each has a link to each."""
    joined = scattered((wires.src, wires.dst), True, (wires.ranks, wires.ranks), False)
    groups = (group for count in range(1, most + 1) for group in combinations(range(wires.ranks), count))
    joined &= joined.T
    return [group for group in groups if all(joined[pair] for pair in combinations(group, 2))]


def sequences(wires: Wires) -> list[tuple[Partition, ...]]:
    """Rounds of exchanges inside groups of one size after which every rank has what all had; the shortest first."""
    n = wires.ranks
    every = cliques(wires, n)
    sizes = (size for size in range(2, n + 1) if n % size == 0)
    by_size = {size: tuple(_partitions(n, [c for c in every if len(c) == size])) for size in sizes}
    shortest: list[tuple[Partition, ...]] = []

    def extend(before: tuple[Partition, ...], known: tuple[int, ...], count: int) -> None:
        """known: whose contributions, `count` of them, each rank has."""
        if len(shortest) >= _MOST_SEQUENCES:
            return
        if count == n:
            shortest.append(before)
            return
        for size, partitions in by_size.items():
            if n % (count * size) == 0:
                for partition in partitions:
                    after = list(known)
                    for group in partition:
                        for rank in group:
                            after[rank] = reduce(or_, map(known.__getitem__, group))
                    # No contribution may count twice.
                    if all(have.bit_count() == count * size for have in after):
                        extend((*before, partition), tuple(after), count * size)

    extend((), tuple(1 << rank for rank in range(n)), 1)
    return sorted(shortest, key=len)


def _partitions(n: int, groups: list[Clique], taken: frozenset[int] = frozenset()) -> list[Partition]:
    """All divisions of the ranks among the groups."""
    if (free := next((rank for rank in range(n) if rank not in taken), None)) is None:
        return [()]
    return [
        (group, *rest)
        for group in groups
        if free in group and not taken & {*group}
        for rest in _partitions(n, groups, taken | {*group})
    ]
