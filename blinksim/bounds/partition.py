"""The partition bound: least capacity between k parts, each with a member, over k-1.

Nash-Williams and Tutte (1961): an undirected graph packs spanning trees at the rate min c(P)/(|P|-1). Here that minimum
is found exactly by discrete Newton over partitions, each step a greedy of minimum cuts (Cunningham 1985, optimal
attack and reinforcement of a network). Devices without a rank must join some part: with them the bound stays valid for
every choice, and the best one found is given (the exact choice is as hard as a multiway cut).
"""

from __future__ import annotations

from fractions import Fraction
from heapq import heapify, heappop, heappush
from itertools import product

import numpy as np
from numpy.typing import NDArray

from blinksim.graphs.maxflow import Flow
from blinksim.graphs.network import Array, guard, whole
from blinksim.structures.arrays import distinct
from blinksim.topology.graph import Topology

# Choices of a part for the devices without a rank that are all tried.
_ENUMERATE = 64
# Members up to which the exact search over partitions is affordable (flows grow as their number squared).
_SOLVE = 256


def undirected(topology: Topology) -> tuple[Array, Array, Array, Fraction]:
    """(one end, other end, capacity, unit) per joined pair of devices: both directions together, a shared bus once."""
    index = topology.index
    buses: dict[str, tuple[int, int, Fraction]] = {}
    pairs: list[tuple[int, int, Fraction, int]] = []
    for link in topology.links:
        a, b = sorted((index[link.src], index[link.dst]))
        if link.bus is None:
            pairs.append((a, b, link.lane_bandwidth, link.lanes))
        else:
            known = buses.get(link.bus, (a, b, Fraction(0)))[2]
            buses[link.bus] = (a, b, max(known, link.bandwidth))
    pairs += [(a, b, rate, 1) for a, b, rate in buses.values()]
    values, unit = whole([(rate, count) for _, _, rate, count in pairs])
    joined: dict[tuple[int, int], int] = {}
    for (a, b, _, _), value in zip(pairs, values, strict=True):
        joined[a, b] = joined.get((a, b), 0) + value
    ends = np.array(list(joined), dtype=np.int64).reshape(-1, 2)
    return ends[:, 0], ends[:, 1], np.array(list(joined.values()), dtype=np.int64), unit


def strength(count: int, a: Array, b: Array, capacity: Array) -> tuple[Fraction, NDArray[np.int64]]:
    """min over partitions P of vertices 0 … count-1 of c(P)/(|P|-1), and the number of each vertex's part.

    The graph is undirected: edges a-b of whole capacities. Flows: count-1 per Newton step.
    """
    part = np.arange(count, dtype=np.int64)
    ratio = Fraction(int(capacity[a != b].sum()), count - 1)
    degree = np.zeros(count, dtype=np.int64)
    np.add.at(degree, a, capacity)
    np.add.at(degree, b, capacity)
    least = int(degree.argmin())
    around = Fraction(int(degree[least]))
    if around < ratio:
        ratio, part = around, (np.arange(count) != least).astype(np.int64)
    while True:
        found = _attack(count, a, b, capacity, ratio)
        parts = int(found.max()) + 1
        if parts < 2:
            return ratio, part
        value = Fraction(int(capacity[found[a] != found[b]].sum()), parts - 1)
        if value >= ratio:
            return ratio, part
        ratio, part = value, found


def _attack(count: int, a: Array, b: Array, capacity: Array, ratio: Fraction) -> NDArray[np.int64]:
    """A partition P that minimises c(P) - ratio (|P|-1), as the number of each vertex's part.

    Greedy for the polymatroid below f(S) = c(S, rest)/2 - ratio: each vertex takes as much as the sets of the vertices
    before it allow, found as one cut; intersecting tight sets merge into the parts (Frank and Tardos 1988).
    """
    p, q = ratio.numerator, ratio.denominator
    scaled = capacity * q
    guard(4 * (int(capacity.sum()) * q + count * p))
    # Everything is doubled: f(S) = c(S, rest) - 2 ratio.
    taken = np.zeros(count, dtype=np.int64)
    parts: list[set[int]] = []
    sink = count
    for vertex in range(count):
        # Vertices not reached yet stay outside: they are the sink.
        tail, head = np.where(a <= vertex, a, sink), np.where(b <= vertex, b, sink)
        real = tail != head
        tail, head, weight = tail[real], head[real], scaled[real]
        reward, fee = np.maximum(taken[:vertex], 0), np.maximum(-taken[:vertex], 0)
        kept, paid = np.flatnonzero(reward), np.flatnonzero(fee)
        flow = Flow(
            count + 1,
            np.concatenate([tail, head, np.full(len(kept), vertex), paid]),
            np.concatenate([head, tail, kept, np.full(len(paid), sink)]),
            np.concatenate([weight, weight, reward[kept], fee[paid]]),
            vertex,
            sink,
        )
        taken[vertex] = flow.value - int(reward.sum()) - 2 * p
        tight = set(np.flatnonzero(flow.side()[:count]).tolist())
        merged, rest = tight, []
        for other in parts:
            if other & tight:
                merged |= other
            else:
                rest.append(other)
        parts = [*rest, merged]
    label = np.zeros(count, dtype=np.int64)
    for number, group in enumerate(parts):
        label[list(group)] = number
    return label


class _Places:
    """The search for the parts that devices without a rank join; a `home` gives each of them a member's part."""

    def __init__(self, topology: Topology) -> None:
        self.a, self.b, self.capacity, _ = undirected(topology)
        self.count = len(topology.devices)
        self.members = topology.member_places.tolist()
        self.others = sorted(set(range(self.count)) - set(self.members))
        self._rank = {vertex: number for number, vertex in enumerate(self.members)}

    def solve(self, home: dict[int, int]) -> tuple[Fraction, NDArray[np.int64]]:
        """The least ratio with every other device at its `home`, and each device's part."""
        to = np.array([self._rank[home.get(vertex, vertex)] for vertex in range(self.count)], dtype=np.int64)
        real = to[self.a] != to[self.b]
        ratio, part = strength(len(self.members), to[self.a][real], to[self.b][real], self.capacity[real])
        return ratio, part[to]

    def ratio(self, part: NDArray[np.int64]) -> Fraction:
        """c(P)/(|P|-1) of the partition that gives every device a number."""
        return Fraction(int(self.capacity[part[self.a] != part[self.b]].sum()), len(distinct(part)) - 1)

    def first(self) -> dict[int, int]:
        """Each other device with the member that it is joined to by the widest way (Prim 1957)."""
        joined = self._joined()
        home: dict[int, int] = {}
        # (minus capacity, vertex, member): the widest way first.
        queue = [(-(2**62), vertex, vertex) for vertex in self.members]
        heapify(queue)
        while queue:
            _, vertex, member = heappop(queue)
            if vertex not in home:
                home[vertex] = member
                for other, capacity in joined[vertex]:
                    if other not in home:
                        heappush(queue, (-capacity, other, member))
        return {vertex: home.get(vertex, self.members[0]) for vertex in self.others}

    def _joined(self) -> list[list[tuple[int, int]]]:
        joined: list[list[tuple[int, int]]] = [[] for _ in range(self.count)]
        for a, b, capacity in zip(self.a.tolist(), self.b.tolist(), self.capacity.tolist(), strict=True):
            joined[a].append((b, capacity))
            joined[b].append((a, capacity))
        return joined

    def descend(self, home: dict[int, int], rounds: int = 4) -> tuple[Fraction, NDArray[np.int64]]:
        """From `home`, move devices to the part that they are joined to most, as long as the ratio falls."""
        ratio, part = self.solve(home)
        joined = self._joined()
        for _ in range(rounds):
            label = part.copy()
            anchor = {int(label[vertex]): vertex for vertex in self.members}
            for vertex in self.others:
                pull: dict[int, int] = {}
                for other, capacity in joined[vertex]:
                    pull[int(label[other])] = pull.get(int(label[other]), 0) + capacity
                best = max(pull, key=lambda number: pull[number], default=int(label[vertex]))
                if pull.get(best, 0) > pull.get(int(label[vertex]), 0):
                    label[vertex] = best
            home = {vertex: anchor[int(label[vertex])] for vertex in self.others}
            lower, found = self.solve(home)
            if lower >= ratio:
                break
            ratio, part = lower, found
        return ratio, part


def best_partition(topology: Topology) -> tuple[list[list[str]], bool]:
    """The parts (of device names) with the least capacity over k-1, and true if no partition can have less.

    Exact without devices that hold no rank, and where all their places can be tried; otherwise the best found by
    moving them, one by one, to the part they are joined to most. Device capacities are ignored.
    """
    places = _Places(topology)
    exact = len(places.members) ** len(places.others) <= _ENUMERATE
    if exact:
        homes = product(places.members, repeat=len(places.others))
        options = [places.solve(dict(zip(places.others, home, strict=True))) for home in homes]
    else:
        options = [places.descend(places.first())] if len(places.members) <= _SOLVE else []
        options += [(places.ratio(part), part) for part in _simple(topology, places)]
    _, part = min(options, key=lambda entry: entry[0])
    groups: dict[int, list[str]] = {}
    for device, number in zip(topology.devices, part.tolist(), strict=True):
        groups.setdefault(number, []).append(device.name)
    return list(groups.values()), exact


def _simple(topology: Topology, places: _Places) -> list[NDArray[np.int64]]:
    """The obvious partitions: every member apart, and every host apart (the fabric with the first)."""
    home = places.first()
    single = np.array([home.get(vertex, vertex) for vertex in range(places.count)], dtype=np.int64)
    hosts = topology.device_nodes.copy()
    held = hosts[places.members]
    hosts[~np.isin(hosts, held)] = held[0]
    return [part for part in (single, hosts) if len(distinct(part)) > 1]
