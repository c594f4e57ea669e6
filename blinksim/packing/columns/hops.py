"""What trees, chains and rings are made of: hops between vertices, with what each loads, in whole numbers.

A hop joins two vertices by a route that passes no third one, and divides what it carries among all equal ways
(`blinksim.schedule.ways`). Its load counts how often it uses each shared resource (a link, a bus, a device with a
capacity), so machines with and without switches, with wide links and with several narrow ones, are one case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import lcm

from blinksim.errors import InfeasibleError
from blinksim.graphs.network import whole
from blinksim.schedule.loads import resources
from blinksim.topology.graph import Topology

Arc = tuple[int, int]
Load = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Hops:
    """The hops between some devices of a topology.

    vertices: device indices, the members first, in rank order. members: how many of them hold ranks. routes and loads,
    by (device, device): link indices, and (resource, times) pairs. capacity: per resource, in whole `unit`s; unit:
    bytes/s. Where hops leave a resource a part only of what they carry, times and capacity are both multiplied until
    the times are whole. lane: the thinnest lane of any hop, bytes/s.
    """

    vertices: tuple[int, ...]
    members: int
    routes: Mapping[Arc, tuple[int, ...]]
    loads: Mapping[Arc, Load]
    capacity: tuple[int, ...]
    unit: Fraction
    lane: Fraction

    @cached_property
    def next_to(self) -> Mapping[int, tuple[int, ...]]:
        """For every vertex, the vertices that a hop leads to, in the order of `vertices`."""
        return {a: tuple(b for b in self.vertices if (a, b) in self.routes) for a in self.vertices}

    @cached_property
    def both(self) -> Mapping[int, tuple[int, ...]]:
        """For every vertex, the vertices that hops join it to in both directions."""
        return {a: tuple(b for b in others if (b, a) in self.routes) for a, others in self.next_to.items()}

    def load(self, arcs: Iterable[Arc]) -> Load:
        """The load of several hops together."""
        total = Counter[int]()
        for arc in arcs:
            for resource, times in self.loads[arc]:
                total[resource] += times
        return tuple(sorted(total.items()))

    def cost(self, price: Sequence[float]) -> dict[Arc, float]:
        """Every hop's price, if each use of resource r costs price[r]."""
        return {arc: sum(price[r] * times for r, times in load) for arc, load in self.loads.items()}


def find_hops(topology: Topology, helpers: Sequence[str] = (), *, divided: bool = True) -> Hops:
    """The hops between the members and `helpers` (further devices that trees may branch at).

    divided: what a hop carries is divided among all ways that are as good as its route. Raises `InfeasibleError` if no
    two vertices are joined.
    """
    index, links = topology.index, topology.links
    vertices = tuple(index[name] for name in (*topology.members, *helpers))
    inside = set(vertices)
    shared = resources(topology)
    passed = [shared.members[a:b].tolist() for a, b in pairwise(shared.starts.tolist())]
    routes: dict[Arc, tuple[int, ...]] = {}
    parts: dict[Arc, dict[int, Fraction]] = {}
    thinnest: set[Fraction] = set()
    for a in vertices:
        for b in vertices:
            if a == b:
                continue
            try:
                route = topology.router.route(a, b)
            except InfeasibleError:
                continue
            if any(index[links[i].dst] in inside for i in route[:-1]):
                continue
            ways = topology.router.ways(a, b) if divided else (route,)
            used = Counter(resource for way in ways for i in way for resource in passed[i])
            routes[a, b], parts[a, b] = route, {r: Fraction(times, len(ways)) for r, times in used.items()}
            thinnest.add(min(links[i].lane_bandwidth for way in ways for i in way))
    if not routes:
        raise InfeasibleError(f"{topology.name}: no link joins two of the members; add link classes or relays")
    whole_of = [1] * len(shared.rate)
    for load in parts.values():
        for resource, part in load.items():
            whole_of[resource] = lcm(whole_of[resource], part.denominator)
    loads = {
        arc: tuple(sorted((r, int(part * whole_of[r])) for r, part in load.items())) for arc, load in parts.items()
    }
    capacity, unit = whole(list(zip(shared.rate, whole_of, strict=True)))
    return Hops(vertices, topology.ranks, routes, loads, tuple(capacity), unit, min(thinnest))
