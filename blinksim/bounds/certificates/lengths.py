"""Link lengths as certificates: whatever a schedule does, it uses at least so much length of what there is.

Linear-programming duality (shortest paths for alltoall: Shahrokhi and Matula 1990; least-cost arborescences for trees:
Edmonds 1967, Chu and Liu 1965): give every link a length; carrying one byte of every rank's result costs at least
`distance` of length, and the machine offers `price` (sum of capacity times length) per second. Checked by shortest
paths and spanning trees in whole numbers; any lengths give a valid bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from math import lcm
from typing import Any

from blinksim.bounds.certificates.certificate import compare_rates, differing
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, InputError
from blinksim.topology.graph import Topology
from blinksim.units import exact_GBps, format_rate

Matrix = list[list[int]]


def _common(lengths: Mapping[str, Fraction]) -> int:
    return lcm(*(length.denominator for length in lengths.values())) if lengths else 1


def effective(topology: Topology, lengths: Mapping[str, Fraction]) -> list[Fraction]:
    """The length of every link, with those of its ends' device capacities (``gpu0 out``, ``gpu3 in``)."""
    zero = Fraction(0)
    devices = any(name.endswith((" in", " out")) for name in lengths)
    return [
        lengths.get(x.name, zero)
        + (lengths.get(f"{x.src} out", zero) + lengths.get(f"{x.dst} in", zero) if devices else zero)
        for x in topology.links
    ]


def price(topology: Topology, lengths: Mapping[str, Fraction]) -> Fraction:
    """Capacity times length, summed over links, buses (the dearest of their links) and device capacities."""
    total, buses = Fraction(0), dict[str, Fraction]()
    for link in topology.links:
        length = lengths.get(link.name)
        if not length:
            continue
        if link.bus is None:
            total += length * link.bandwidth
        else:
            buses[link.bus] = max(buses.get(link.bus, Fraction(0)), length * link.bandwidth)
    for device in topology.devices:
        for way in ("in", "out"):
            length = lengths.get(f"{device.name} {way}")
            if length:
                if device.capacity is None:
                    raise InputError(f"{device.name} has no capacity of its own to give a length to")
                total += length * device.capacity
    return total + sum(buses.values())


def _joined(topology: Topology, whole: Sequence[int]) -> list[int]:
    """A number for every device; devices joined both ways by links of length 0 share one."""
    index = topology.index
    free = {(index[x.src], index[x.dst]) for x, length in zip(topology.links, whole, strict=True) if not length}
    parent = list(range(len(topology.devices)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for a, b in free:
        if (b, a) in free:
            parent[root(a)] = root(b)
    return [root(i) for i in range(len(parent))]


def distances(topology: Topology, whole: Sequence[int]) -> tuple[Matrix, list[int]]:
    """Shortest distances for whole link lengths (Dijkstra 1959), and the row of each rank.

    Ranks that nothing separates share a row.
    """
    index, place = topology.index, _joined(topology, whole)
    ahead: list[dict[int, int]] = [{} for _ in topology.devices]
    for link, length in zip(topology.links, whole, strict=True):
        a, b = place[index[link.src]], place[index[link.dst]]
        if a != b:
            ahead[a][b] = min(length, ahead[a].get(b, length))
    ends = list(dict.fromkeys(place[index[name]] for name in topology.members))
    rows = []
    for start in ends:
        best: dict[int, int] = {}
        queue = [(0, start)]
        while queue:
            far, at = heappop(queue)
            if at in best:
                continue
            best[at] = far
            for other, length in ahead[at].items():
                if other not in best:
                    heappush(queue, (far + length, other))
        if any(end not in best for end in ends):
            raise InputError(f"the links of {topology.name} do not connect its members")
        rows.append([best[end] for end in ends])
    row = {end: number for number, end in enumerate(ends)}
    return rows, [row[place[index[name]]] for name in topology.members]


def arborescence(cost: Matrix, root: int) -> int:
    """Cost of the cheapest out-tree from `root` in a complete digraph: Prim if undirected, else Chu-Liu-Edmonds."""
    count = len(cost)
    if all(cost[i][j] == cost[j][i] for i in range(count) for j in range(i)):
        reach, total = list(cost[root]), 0
        remaining = set(range(count)) - {root}
        while remaining:
            nearest = min(remaining, key=reach.__getitem__)
            total += reach[nearest]
            remaining.remove(nearest)
            row = cost[nearest]
            for other in remaining:
                if row[other] < reach[other]:
                    reach[other] = row[other]
        return total
    total = 0
    while len(cost) > 1:
        count = len(cost)
        parent = [min((i for i in range(count) if i != j), key=lambda i: cost[i][j]) for j in range(count)]
        # Find the cycles of the cheapest entries; the root has none.
        label, mark = [-1] * count, [-1] * count
        label[root], cycles = 0, list[list[int]]()
        for start in range(count):
            at = start
            while at != root and mark[at] == -1:
                mark[at] = start
                at = parent[at]
            if at != root and mark[at] == start:
                cycle, step = [at], parent[at]
                while step != at:
                    cycle.append(step)
                    step = parent[step]
                cycles.append(cycle)
        total += sum(cost[parent[j]][j] for j in range(count) if j != root)
        if not cycles:
            return total
        groups = 1
        for cycle in cycles:
            for vertex in cycle:
                label[vertex] = groups
            groups += 1
        for vertex in range(count):
            if label[vertex] == -1:
                label[vertex] = groups
                groups += 1
        big = max(map(max, cost)) + 1
        merged = [[big] * groups for _ in range(groups)]
        for i in range(count):
            for j in range(count):
                a, b = label[i], label[j]
                if a != b and j != root:
                    # The entry chosen for j is paid already; a dearer one costs the difference.
                    merged[a][b] = min(merged[a][b], cost[i][j] - cost[parent[j]][j])
        cost, root = merged, 0
    return total


def least_length(
    topology: Topology, collective: Collective, lengths: Mapping[str, Fraction], shares: Sequence[int] = ()
) -> Fraction:
    """Length that any schedule uses per byte of size: shortest paths, or trees between members.

    Trees are in the shortest-path metric, as devices without a rank only pass bytes on.
    """
    common = _common(lengths)
    cost, row = distances(topology, [int(length * common) for length in effective(topology, lengths)])
    groups, ranks = range(len(cost)), len(row)
    count, weight = [0] * len(cost), [0] * len(cost)
    for place, share in zip(row, list(shares) or [1] * ranks, strict=True):
        count[place] += 1
        weight[place] += share
    back = [list(column) for column in zip(*cost, strict=True)]
    root = row[collective.root] if collective.rooted else 0
    name = collective.name
    if name == "alltoall":
        value = Fraction(sum(count[a] * count[b] * cost[a][b] for a in groups for b in groups), ranks)
    elif name in ("gather", "scatter"):
        far = cost[root] if name == "scatter" else back[root]
        value = Fraction(sum(weight[b] * far[b] for b in groups), sum(weight))
    elif name in ("broadcast", "reduce"):
        value = Fraction(arborescence(cost if name == "broadcast" else back, root))
    elif back == cost:
        # All roots have the same tree then, used both ways.
        value = Fraction(arborescence(cost, 0) * (2 if name == "allreduce" else 1))
    elif name == "allreduce":
        value = Fraction(min(arborescence(cost, v) + arborescence(back, v) for v in groups))
    else:
        way = cost if name == "allgather" else back
        value = Fraction(sum(weight[v] * arborescence(way, v) for v in groups if weight[v]), sum(weight))
    return value / common


@dataclass(frozen=True)
class Lengths:
    """Lengths by link name (and ``gpu0 in`` / ``gpu0 out`` for device capacities); others are 0.

    price: capacity times length in bytes/s. distance: what `least_length` gives.
    """

    lengths: tuple[tuple[str, Fraction], ...]
    price: Fraction
    distance: Fraction
    shares: tuple[int, ...] = ()
    kind = "lengths"

    @classmethod
    def of(
        cls, topology: Topology, collective: Collective, lengths: Mapping[str, Fraction], shares: Sequence[int] = ()
    ) -> Lengths:
        """The certificate of `lengths`; raises `InputError` for unknown links, or lengths that prove nothing."""
        known = {link.name for link in topology.links}
        for name, length in lengths.items():
            if name not in known and name.rpartition(" ")[0] not in topology.index:
                raise InputError(f"{name!r} is no link of {topology.name}")
            if length < 0:
                raise InputError(f"the length of {name} is negative")
        kept = {name: Fraction(length) for name, length in lengths.items() if length}
        distance = least_length(topology, collective, kept, shares)
        if distance <= 0:
            raise InputError("these lengths prove nothing: some schedule uses none of them")
        return cls(tuple(sorted(kept.items())), price(topology, kept), distance, tuple(shares))

    @property
    def rate(self) -> Fraction:
        return self.price / self.distance

    def check(self, topology: Topology, collective: Collective, rate: Fraction) -> list[str]:
        """Reasons why this does not prove that algbw is at most `rate` (bytes/s); empty if it does."""
        if self.shares and len(self.shares) != topology.ranks:
            return [f"{len(self.shares)} shares for {topology.ranks} ranks"]
        if len(dict(self.lengths)) < len(self.lengths):
            return ["a length is given twice"]
        able = more_than_forwards(topology)
        if able and collective.name not in ("alltoall", "gather", "scatter"):
            return [f"{able[0]} can multicast or reduce, and these lengths assume that it only forwards"]
        try:
            fresh = Lengths.of(topology, collective, dict(self.lengths), self.shares)
        except BlinksimError as error:
            return [str(error)]
        return differing(self.to_dict(), fresh.to_dict()) + compare_rates(fresh.rate, rate)

    def words(self, topology: Topology) -> str:
        """One sentence: how many links count, what they offer, what a byte needs."""
        offers = f"{len(self.lengths)} lengths, bandwidth times length in all {format_rate(self.price)}"
        return f"{offers}; every byte of the size needs {self.distance} of length"

    def to_dict(self) -> dict[str, Any]:
        """JSON: lengths as exact fractions, the price and the ratio (the bound) in GB/s."""
        entry: dict[str, Any] = {
            "kind": self.kind,
            "lengths": {name: str(length) for name, length in self.lengths},
            "price_exact": exact_GBps(self.price),
            "distance_exact": str(self.distance),
            "ratio_exact": exact_GBps(self.rate),
        }
        return entry | ({"shares": list(self.shares)} if self.shares else {})


def more_than_forwards(topology: Topology) -> list[str]:
    """Devices without a rank that can do more than forward: multicast or reduce."""
    members = set(topology.members)
    return [d.name for d in topology.devices if d.name not in members and d.can & {"multicast", "reduce"}]
