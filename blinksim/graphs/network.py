"""Networks: a topology as whole-number arc arrays, for linear programs and for flows; maximum flows.

Capacities are bytes/s over one common unit. A device with a capacity of its own is split: its links end at an
*in* half, and start at an *out* half, each joined to the device by an arc of that capacity (Ford and
Fulkerson 1962).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm

import numpy as np

from blinksim.errors import InputError
from blinksim.graphs.arrays import Bools, Ints, partners, scattered
from blinksim.graphs.connectivity import grouped, summed
from blinksim.topology.graph import Topology


@dataclass(frozen=True, eq=False)
class Network:
    """Arcs of a topology. Vertices 0 … devices-1 are its devices; halves of limited devices follow.

    tail, head, capacity: per arc; first the links in their order, then the arcs of `limits`. unit: bytes/s of
    capacity 1. members: vertex of each rank. host: node number of every vertex. in_half, out_half: by device,
    itself if not split. transposed: true if all arcs point the other way than the topology's links.
    """

    tail: Ints
    head: Ints
    capacity: Ints
    unit: Fraction
    members: Ints
    host: Ints
    in_half: Ints
    out_half: Ints
    limits: tuple[str, ...]
    transposed: bool = False

    @property
    def vertices(self) -> int:
        return len(self.host)

    @property
    def devices(self) -> int:
        return len(self.in_half)

    @property
    def links(self) -> int:
        """Number of arcs that are links; the others are device capacities."""
        return len(self.tail) - len(self.limits)

    def reversed(self) -> Network:
        """The network with every arc reversed."""
        ahead = replace(self, tail=self.head, head=self.tail, transposed=not self.transposed)
        return replace(ahead, in_half=self.out_half, out_half=self.in_half)

    @cached_property
    def partner(self) -> Ints | None:
        """The partner of every arc: one of equal capacity the other way, each taken once; None if some arc has none."""
        return None if self.limits else partners(self.tail, self.head, self.capacity)

    @cached_property
    def forwarders(self) -> Ints:
        """Vertices that are no member: devices without a rank, and halves."""
        return np.delete(np.arange(self.vertices), self.members)

    def passes_on(self) -> bool:
        """True if every forwarder takes in at least what it can give out, so that out-trees need no multicasting there.

        Then the cut bound is attained (Bang-Jensen, Frank and Jackson 1995: splitting off keeps the
        connectivity).
        """
        entering = np.bincount(self.head, self.capacity.astype(float), self.vertices)
        leaving = np.bincount(self.tail, self.capacity.astype(float), self.vertices)
        return bool((entering[self.forwarders] >= leaving[self.forwarders]).all())

    def side_names(self, topology: Topology, inside: Bools) -> tuple[list[str], list[str]]:
        """A vertex set as (devices inside, device capacities that the cut pays instead of links).

        `inside` is the side that sends in this network; in a transposed network the answer is the other side,
        which sends in the topology.
        """
        core = inside[: self.devices] if not self.transposed else ~inside[: self.devices]
        names = [device.name for device, here in zip(topology.devices, core.tolist(), strict=True) if here]
        limits = []
        for name in self.limits:
            device, _, direction = name.rpartition(" ")
            number = topology.index[device]
            half = int((self.in_half if (direction == "in") != self.transposed else self.out_half)[number])
            sends = inside[half] != self.transposed
            if sends == (direction == "in") and core[number] == (direction == "out"):
                limits.append(name)
        return names, limits


def whole(values: list[tuple[Fraction, int]]) -> tuple[list[int], Fraction]:
    """Products of a rate and a count as whole numbers over a common unit (bytes/s)."""
    # Fractions hash slowly, and a machine has few distinct ones: tell them apart by identity.
    rates = {id(rate): rate for rate, _ in values}
    common = lcm(*(rate.denominator for rate in rates.values()))
    shared = gcd(*(rate.numerator * (common // rate.denominator) for rate in rates.values())) or 1
    scaled = {key: rate.numerator * (common // rate.denominator) // shared for key, rate in rates.items()}
    return [scaled[id(rate)] * count for rate, count in values], Fraction(shared, common)


def network(topology: Topology) -> Network:
    """The arcs of `topology`; raises `InputError` for fewer than two members."""
    if topology.ranks < 2:
        cure = ", or nodes=2" * (topology.nodes < 2)
        raise InputError(f"members={','.join(topology.members)}: a collective needs two GPUs or more{cure}")
    index, count = topology.index, len(topology.devices)
    links = topology.links
    tail, head = topology.ends
    limited = [device for device in topology.devices if device.capacity is not None]
    rates = [(link.lane_bandwidth, link.lanes) for link in links]
    rates += [(device.capacity, 1) for device in limited if device.capacity is not None]
    capacity, unit = whole(rates)
    in_half, out_half = np.arange(count), np.arange(count)
    host = [device.node for device in topology.devices]
    limits, more = [], []
    ways = ("in", head, in_half), ("out", tail, out_half)
    loads = [summed(zip(ends.tolist(), capacity, strict=False)) for _, ends, _ in ways if limited]
    for number, device in enumerate(limited):
        place, own = index[device.name], capacity[len(links) + number]
        for load, (direction, _, half) in zip(loads, ways, strict=True):
            if own < load.get(place, 0):
                half[place] = len(host)
                host.append(device.node)
                limits.append(f"{device.name} {direction}")
                more.append((len(host) - 1, place, own) if direction == "in" else (place, len(host) - 1, own))
    amounts = capacity[: len(links)] + [own for _, _, own in more]
    guard(sum(amounts))
    tails = np.concatenate([out_half[tail], [a for a, _, _ in more]]).astype(np.int64)
    heads = np.concatenate([in_half[head], [b for _, b, _ in more]]).astype(np.int64)
    values, hosts = np.array(amounts, dtype=np.int64), np.array(host, dtype=np.int64)
    return Network(tails, heads, values, unit, topology.member_places.copy(), hosts, in_half, out_half, tuple(limits))


def guard(total: int) -> None:
    """Raises `InputError` if capacities that add up to `total` could overflow 64-bit sums."""
    if total >= 2**62:
        raise InputError("the bandwidths share no unit that keeps exact sums within 64 bits; round them to whole MB/s")


@dataclass(frozen=True, eq=False)
class NetworkOrbits:
    """What the symmetries of a network map onto each other.

    arc: orbit number of every arc. first, count: of each orbit of ranks the vertex of its first, and its
    size. member: for each rank the number of its orbit.
    """

    arc: Ints
    first: tuple[int, ...]
    count: tuple[int, ...]
    member: tuple[int, ...]

    @property
    def arcs(self) -> int:
        """Number of orbits of arcs."""
        return int(self.arc.max()) + 1


def single_orbits(net: Network) -> NetworkOrbits:
    """Every arc and every rank is an orbit of its own."""
    ranks = len(net.members)
    return NetworkOrbits(np.arange(len(net.tail)), tuple(net.members.tolist()), (1,) * ranks, tuple(range(ranks)))


def network_orbits(topology: Topology, net: Network) -> NetworkOrbits:
    """The orbits of arcs and ranks under the checked symmetries of `topology`."""
    if not topology.symmetries and topology.nodes < 2:
        return single_orbits(net)
    from blinksim.topology.symmetry import link_orbits, orbits

    device, link = (
        {place: number for number, group in enumerate(found) for place in group}
        for found in (orbits(topology), link_orbits(topology))
    )
    ends = (limit.rpartition(" ") for limit in net.limits)
    limits = [(direction, device[topology.index[name]]) for name, _, direction in ends]
    keys, seen = (*map(link.get, range(net.links)), *limits), dict[object, int]()
    arc = np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.int64)
    held = [device[vertex] for vertex in net.members.tolist()]
    alike = grouped(zip(held, net.members.tolist(), strict=True))
    member = tuple(map({orbit: number for number, orbit in enumerate(alike)}.__getitem__, held))
    first, size = zip(*((vertices[0], len(vertices)) for vertices in alike.values()), strict=True)
    return NetworkOrbits(arc, first, size, member)


class Flow:
    """One maximum flow and its cuts: OR-Tools' push-relabel on whole numbers, the oracle of the exact bounds.

    Push-relabel: Goldberg and Tarjan, A new approach to the maximum-flow problem, J. ACM 35 (1988). value: of
    the flow.
    """

    def __init__(self, vertices: int, tail: Ints, head: Ints, capacity: Ints, source: int, sink: int) -> None:
        """Solves at once; `capacity` in whole units, one per arc, guarded against overflow by the caller."""
        # OR-Tools takes longer to load than most bounds take, and many need no flow.
        from ortools.graph.python.max_flow import SimpleMaxFlow

        self._vertices = vertices
        self._solver = SimpleMaxFlow()
        self._solver.add_arcs_with_capacity(tail, head, capacity)
        if (status := self._solver.solve(source, sink)) != SimpleMaxFlow.Status.OPTIMAL:
            raise InputError(f"a maximum flow over {len(tail)} links failed ({status.name}); round the bandwidths")
        self.value: int = self._solver.optimal_flow()

    def side(self, *, sink: bool = False) -> Bools:
        """The vertices on the source's (or the sink's) side of that least cut which is nearest to it."""
        cut = self._solver.get_sink_side_min_cut() if sink else self._solver.get_source_side_min_cut()
        return scattered(cut, True, self._vertices, False)

    def carried(self) -> Ints:
        """What every arc carries, in the order in which the arcs were given."""
        return np.asarray(self._solver.flows(np.arange(self._solver.num_arcs())), dtype=np.int64)
