"""The tightest cut and the tightest partition of a machine, exactly, by minimum cuts.

Cut: the capacity out of a set of devices over the data that must leave it. Discrete Newton (Dinkelbach 1967)
over minimum cuts: at the present ratio x, connect a source to every vertex with x times its weight; a sink
that cannot receive all of it shows a set with a smaller ratio. All ratios are quotients of whole numbers, and
the last set is the witness. For trees the bound is attained (Edmonds 1973).

Partition: the least capacity between k parts, each with a member, over k-1. An undirected graph packs
spanning trees at the rate min c(P)/(|P|-1) (Nash-Williams 1961; Tutte 1961), found by discrete Newton over
partitions, each step a greedy of minimum cuts (Cunningham 1985, optimal attack and reinforcement of a
network). Devices without a rank may join any part: the bound is valid for every choice, and the best choice
found is given (the best of all is as hard as a multiway cut).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush
from itertools import product

import numpy as np

from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Bools, Ints, distinct
from blinksim.graphs.connectivity import grouped, summed
from blinksim.graphs.network import Flow, Network, guard, whole
from blinksim.topology.graph import Topology


class _Pieces:
    """The arcs of each host with those that join it to the fabric: small pieces in which most sinks can be served."""

    def __init__(self, net: Network) -> None:
        a, b = net.host[net.tail], net.host[net.head]
        own = np.where(a == b, a, np.where(a < 0, b, np.where(b < 0, a, -2)))
        self._parts: list[dict[int, Ints]] = []
        for key in (net.host, own):
            order = np.argsort(key, kind="stable")
            values, starts = np.unique(key[order], return_index=True)
            self._parts.append(dict(zip(values.tolist(), np.split(order, starts[1:]), strict=True)))
        self._local = np.zeros(net.vertices, dtype=np.int64)
        self.useful = len(self._parts[0]) > 3

    def of(self, hosts: Sequence[int]) -> tuple[Ints, Ints, Ints]:
        """(vertices, arcs, place of every vertex among them) of some hosts and the fabric."""
        which, none = dict.fromkeys((*hosts, -1)), np.zeros(0, dtype=np.int64)
        vertices, arcs = (np.concatenate([part.get(host, none) for host in which]) for part in self._parts)
        self._local[vertices] = np.arange(len(vertices))
        return vertices, arcs, self._local


def tightest(net: Network, weight: Ints, sinks: Ints, orbits: Sequence[Ints] = ()) -> tuple[Fraction, Bools]:
    """The least capacity-over-weight ratio of all sets that lack a sink, in units of `net`, and such a set of vertices.

    weight: whole number per vertex, what a set that holds the vertex must send. sinks: vertices that all must
    receive. orbits: groups of equivalent sinks; one of each group is checked. Raises `InfeasibleError` if
    some sink cannot be reached. Flows: one per sink or orbit, most of them on a small piece, and one per
    improvement.
    """
    everything, total = int(net.capacity.sum()), int(weight.sum())
    leaving, entering = np.zeros((2, net.vertices), dtype=np.int64)
    np.add.at(leaving, net.tail, net.capacity)
    np.add.at(entering, net.head, net.capacity)
    # It begins with the best of the cuts around one sink.
    rest = total - weight[sinks]
    first = int(np.argmin(entering[sinks] / rest))
    ratio, side = Fraction(int(entering[sinks][first]), int(rest[first])), np.arange(net.vertices) != sinks[first]
    # Sinks that receive all at the present ratio.
    served, pieces, reference = np.zeros(net.vertices, dtype=bool), _Pieces(net), -1

    def flow_into(sink: int, piece: tuple[Ints, Ints, Ints] | None = None) -> Flow:
        """The flow into `sink` at the present ratio, in the whole network or in a piece of it."""
        p, q = ratio.numerator, ratio.denominator
        guard(2 * q * everything + p * total)
        tail, head, capacity, vertices = net.tail, net.head, net.capacity, np.arange(net.vertices)
        if piece is not None:
            vertices, arcs, place = piece
            tail, head, capacity, sink = place[tail[arcs]], place[head[arcs]], capacity[arcs], int(place[sink])
        # A served vertex may send any amount: no cut with it on the far side can be violated any more.
        supply = np.where(served[vertices], leaving[vertices] * q, weight[vertices] * p)
        sources, count = np.flatnonzero(supply), len(vertices)
        tail, head = np.concatenate([np.full(len(sources), count), tail]), np.concatenate([sources, head])
        return Flow(count + 1, tail, head, np.concatenate([supply[sources], capacity * q]), count, sink)

    groups = {int(group[0]): group for group in orbits} or {sink: np.array([sink]) for sink in sinks.tolist()}
    for sink, group in sorted(groups.items(), key=lambda entry: int(net.host[entry[0]])):
        own = int(net.host[sink])
        # Serving a host from its predecessor keeps the pieces small; within a host, from itself.
        piece = pieces.of((own, reference)) if ratio and pieces.useful and len(groups) > 1 else None
        short = piece is None or flow_into(sink, piece).value < ratio.numerator * total
        # Lower the ratio until the sink can receive everything.
        while short and ratio:
            flow = flow_into(sink)
            short = flow.value < ratio.numerator * total
            if short:
                side = flow.side()[:-1] | served
                crossing = side[net.tail] & ~side[net.head]
                ratio = Fraction(int(net.capacity[crossing].sum()), int(weight[side].sum()))
        if not ratio:
            raise InfeasibleError("the links do not reach every member")
        served[group] = True
        reference = own
    return ratio, side


# Choices of a part for the devices without a rank that are all tried.
_ENUMERATE = 64
# Members up to which the exact search over partitions is affordable (flows grow as their number squared).
_SOLVE = 256


def undirected(topology: Topology) -> tuple[Ints, Ints, Ints, Fraction]:
    """(one end, other end, capacity, unit) per joined pair of devices: both directions together, a shared bus once."""
    index = topology.index
    buses: dict[str, tuple[int, int, Fraction]] = {}
    pairs: list[tuple[int, int, Fraction, int]] = []
    for link in topology.links:
        a, b = sorted((index[link.src], index[link.dst]))
        if link.bus is None:
            pairs.append((a, b, link.lane_bandwidth, link.lanes))
        else:
            buses[link.bus] = (a, b, max(buses.get(link.bus, (a, b, Fraction(0)))[2], link.bandwidth))
    pairs += [(a, b, rate, 1) for a, b, rate in buses.values()]
    values, unit = whole([(rate, count) for _, _, rate, count in pairs])
    joined = summed(((a, b), value) for (a, b, _, _), value in zip(pairs, values, strict=True))
    ends = np.array(list(joined), dtype=np.int64).reshape(-1, 2)
    return ends[:, 0], ends[:, 1], np.array(list(joined.values()), dtype=np.int64), unit


def strength(count: int, a: Ints, b: Ints, capacity: Ints) -> tuple[Fraction, Ints]:
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


def _attack(count: int, a: Ints, b: Ints, capacity: Ints, ratio: Fraction) -> Ints:
    """A partition P that minimises c(P) - ratio (|P|-1), as the number of each vertex's part.

    Greedy for the polymatroid below f(S) = c(S, rest)/2 - ratio: each vertex takes as much as the sets of the
    vertices before it allow, found as one cut; intersecting tight sets merge into the parts (Frank and Tardos
    1988).
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
        starts = np.concatenate([tail, head, np.full(len(kept), vertex), paid])
        ends = np.concatenate([head, tail, kept, np.full(len(paid), sink)])
        room = np.concatenate([weight, weight, reward[kept], fee[paid]])
        flow = Flow(count + 1, starts, ends, room, vertex, sink)
        taken[vertex] = flow.value - int(reward.sum()) - 2 * p
        tight = set(np.flatnonzero(flow.side()[:count]).tolist())
        met = [other for other in parts if other & tight]
        parts = [*(other for other in parts if not other & tight), tight.union(*met)]
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
        self._joined: list[list[tuple[int, int]]] = [[] for _ in range(self.count)]
        for a, b, capacity in zip(self.a.tolist(), self.b.tolist(), self.capacity.tolist(), strict=True):
            self._joined[a].append((b, capacity))
            self._joined[b].append((a, capacity))

    def solve(self, home: dict[int, int]) -> tuple[Fraction, Ints]:
        """The least ratio with every other device at its `home`, and each device's part."""
        to = np.array([self._rank[home.get(vertex, vertex)] for vertex in range(self.count)], dtype=np.int64)
        real = to[self.a] != to[self.b]
        ratio, part = strength(len(self.members), to[self.a][real], to[self.b][real], self.capacity[real])
        return ratio, part[to]

    def ratio(self, part: Ints) -> Fraction:
        """c(P)/(|P|-1) of the partition that gives every device a number."""
        return Fraction(int(self.capacity[part[self.a] != part[self.b]].sum()), len(distinct(part)) - 1)

    def first(self) -> dict[int, int]:
        """Each other device with the member that it is joined to by the widest way (Prim 1957)."""
        home: dict[int, int] = {}
        # (minus capacity, vertex, member): the widest way first.
        queue = [(-(2**62), vertex, vertex) for vertex in self.members]
        heapify(queue)
        while queue:
            _, vertex, member = heappop(queue)
            if vertex not in home:
                home[vertex] = member
                for other, capacity in self._joined[vertex]:
                    if other not in home:
                        heappush(queue, (-capacity, other, member))
        return {vertex: home.get(vertex, self.members[0]) for vertex in self.others}

    def descend(self, home: dict[int, int], rounds: int = 4) -> tuple[Fraction, Ints]:
        """From `home`, move devices to the part that they are joined to most, as long as the ratio falls."""
        ratio, part = self.solve(home)
        for _ in range(rounds):
            label = part.copy()
            anchor = {int(label[vertex]): vertex for vertex in self.members}
            for vertex in self.others:
                pull = summed((int(label[other]), capacity) for other, capacity in self._joined[vertex])
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

    Exact without devices that hold no rank, and where all their places can be tried; otherwise the best found
    by moving them, one by one, to the part they are joined to most. Device capacities are ignored.
    """
    places = _Places(topology)
    exact = len(places.members) ** len(places.others) <= _ENUMERATE
    if exact:
        homes = product(places.members, repeat=len(places.others))
        options = [places.solve(dict(zip(places.others, home, strict=True))) for home in homes]
    else:
        options = [places.descend(places.first())] if len(places.members) <= _SOLVE else []
        # Every member apart, and every host apart (the fabric with the first).
        home, hosts = places.first(), topology.device_nodes.copy()
        held = hosts[places.members]
        hosts[~np.isin(hosts, held)] = held[0]
        single = np.array([home.get(vertex, vertex) for vertex in range(places.count)], dtype=np.int64)
        options += [(places.ratio(part), part) for part in (single, hosts) if len(distinct(part)) > 1]
    _, part = min(options, key=lambda entry: entry[0])
    names = (device.name for device in topology.devices)
    return list(grouped(zip(part.tolist(), names, strict=True)).values()), exact
