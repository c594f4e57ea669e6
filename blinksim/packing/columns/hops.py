"""What trees, chains and rings are made of: hops between vertices, with what each loads, in whole numbers.

A hop joins two vertices by one route that passes no third one. Its load counts how often it uses each shared resource
(a link, a bus, a device with a capacity), so machines with and without switches are one case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

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
    bytes/s. lane: the thinnest lane of any hop, bytes/s.
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


def find_hops(topology: Topology, helpers: Sequence[str] = ()) -> Hops:
    """The hops between the members and `helpers` (further devices that trees may branch at).

    Raises `InfeasibleError` if no two vertices are joined.
    """
    index = topology.index
    vertices = tuple(index[name] for name in (*topology.members, *helpers))
    inside = set(vertices)
    shared = resources(topology)
    routes: dict[Arc, tuple[int, ...]] = {}
    loads: dict[Arc, Load] = {}
    for a in vertices:
        for b in vertices:
            if a == b:
                continue
            try:
                route = topology.router.route(a, b)
            except InfeasibleError:
                continue
            if any(index[topology.links[i].dst] in inside for i in route[:-1]):
                continue
            used = Counter(int(r) for i in route for r in shared.members[shared.starts[i] : shared.starts[i + 1]])
            routes[a, b], loads[a, b] = route, tuple(sorted(used.items()))
    if not routes:
        raise InfeasibleError(f"{topology.name}: no link joins two of the members; add link classes or relays")
    capacity, unit = whole([(rate, 1) for rate in shared.rate])
    lane = min(topology.links[i].lane_bandwidth for route in routes.values() for i in route)
    return Hops(vertices, topology.ranks, routes, loads, tuple(capacity), unit, lane)
