"""The least length that a byte uses: shortest paths and trees for given lengths of links.

Lengths in whole numbers: shortest distances by Dijkstra (1959), least spanning trees where distances
are the same both ways, least-cost out-trees by Chu and Liu (1965) and Edmonds (1967) elsewhere. Standard
library only for small machines, as a check of a certificate must be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from math import lcm
from operator import mul

from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.graphs.connectivity import UnionFind
from blinksim.topology.graph import Topology

Matrix = list[list[int]]


def least_length(
    topology: Topology, collective: Collective, lengths: Mapping[str, Fraction], shares: Sequence[int] = ()
) -> Fraction:
    """Length that any schedule uses per byte of size: shortest paths, or trees between members.

    Trees are in the shortest-path metric, as devices without a rank only pass bytes on.
    """
    whole, common = whole_lengths(topology, lengths)
    if not collective.personalized:
        least = Metric(topology, whole).least_tree()
        if least is not None:
            # All roots have the same tree then, used both ways.
            return Fraction(least * (2 if collective.name == "allreduce" else 1), common)
    cost, row = distances(topology, whole)
    groups, ranks = range(len(cost)), len(row)
    count, weight = [0] * len(cost), [0] * len(cost)
    for place, share in zip(row, list(shares) or [1] * ranks, strict=True):
        count[place] += 1
        weight[place] += share
    back = [list(column) for column in zip(*cost, strict=True)]
    side, root = back if collective.collects else cost, row[collective.root] if collective.rooted else 0
    if collective.traffic is not None:
        there = collective.traffic.matrix.tolist()
        total = sum(sum(map(mul, amounts, [cost[a][b] for b in row])) for amounts, a in zip(there, row, strict=True))
        value = Fraction(total, collective.traffic.size)
    elif collective.name == "alltoall":
        value = Fraction(sum(count[a] * count[b] * cost[a][b] for a in groups for b in groups), ranks)
    elif collective.personalized:
        value = Fraction(sum(weight[b] * side[root][b] for b in groups), sum(weight))
    elif collective.name == "allreduce":
        value = Fraction(min(arborescence(cost, v) + arborescence(back, v) for v in groups))
    else:
        weight = [int(v == root) for v in groups] if collective.rooted else weight
        value = Fraction(sum(weight[v] * arborescence(side, v) for v in groups if weight[v]), sum(weight))
    return value / common


def whole_lengths(topology: Topology, lengths: Mapping[str, Fraction]) -> tuple[list[int], int]:
    """The length of every link as a whole number, with those of its ends' capacities, and how many of these are 1."""
    common = lcm(*{length.denominator for length in {id(length): length for length in lengths.values()}.values()})
    zero = Fraction(0)
    found = [lengths.get(link.name, zero) for link in topology.links]
    if any(name.endswith((" in", " out")) for name in lengths):
        found = [
            length + (lengths.get(f"{link.src} out", zero) + lengths.get(f"{link.dst} in", zero))
            for length, link in zip(found, topology.links, strict=True)
        ]
    # Thousands of links have the very same length: scale it once.
    scaled = {id(length): int(length * common) for length in {id(length): length for length in found}.values()}
    return [scaled[id(length)] for length in found], common


class Metric:
    """Shortest distances for whole link lengths (Dijkstra 1959), where devices that nothing separates are one point.

    place: the point of every device. ends: the points that hold ranks, in the order of their first ranks.
    direct: the length of the least link between two devices. apart: devices that are points of their own.
    """

    def __init__(self, topology: Topology, whole: Sequence[int], apart: Collection[int] = ()) -> None:
        index = topology.index
        ends = [(index[link.src], index[link.dst]) for link in topology.links]
        # Joined both ways by links of length 0.
        free = {pair for pair, length in zip(ends, whole, strict=True) if not length}
        joined = UnionFind(range(len(topology.devices)))
        for a, b in free:
            if (b, a) in free and a not in apart and b not in apart:
                joined.join(a, b)
        self.place = [joined.find(device) for device in range(len(topology.devices))]
        self.direct: dict[tuple[int, int], int] = {}
        self._ahead: list[dict[int, int]] = [{} for _ in topology.devices]
        place, direct, ahead = self.place, self.direct, self._ahead
        for pair, length in zip(ends, whole, strict=True):
            a, b = place[pair[0]], place[pair[1]]
            if length < direct.get(pair, length + 1):
                direct[pair] = length
            if a != b and length < ahead[a].get(b, length + 1):
                ahead[a][b] = length
        self.ends = list(dict.fromkeys(self.place[index[name]] for name in topology.members))

    def _nearest(self, starts: Iterable[int]) -> dict[int, tuple[int, int]]:
        """For every point that can be reached the least distance from one of these, and from which."""
        best: dict[int, tuple[int, int]] = {}
        queue = [(0, start, start) for start in starts]
        while queue:
            far, at, start = heappop(queue)
            if at in best:
                continue
            best[at] = far, start
            for other, length in self._ahead[at].items():
                if other not in best:
                    heappush(queue, (far + length, other, start))
        return best

    def rows(self, points: Sequence[int]) -> list[list[int | None]]:
        """The distances between points, None where there is no way."""
        reached = map(self._nearest, ([start] for start in points))
        return [[best[end][0] if end in best else None for end in points] for best in reached]

    def least_tree(self) -> int | None:
        """Length of the least tree over the points that hold ranks; None if ways differ by direction, or are missing.

        Every point goes to the nearest of them; links between the regions of two of them are candidates for a
        least spanning tree (K. Mehlhorn, A faster approximation algorithm for the Steiner problem in graphs,
        Information Processing Letters 1988, section 2: it is one of the whole metric).
        """
        if any(self._ahead[b].get(a) != length for a, near in enumerate(self._ahead) for b, length in near.items()):
            return None
        best = self._nearest(self.ends)
        bridges = sorted(
            (best[a][0] + length + best[b][0], best[a][1], best[b][1])
            for a, near in enumerate(self._ahead)
            for b, length in near.items()
            if a < b and a in best and best[a][1] != best[b][1]
        )
        joined, total, left = UnionFind(self.ends), 0, len(self.ends) - 1
        for length, a, b in bridges:
            if joined.find(a) != joined.find(b):
                joined.join(a, b)
                total, left = total + length, left - 1
        return total if not left else None


def distances(topology: Topology, whole: Sequence[int]) -> tuple[Matrix, list[int]]:
    """Shortest distances between ranks for whole link lengths, and the row of each rank.

    Ranks that nothing separates share a row.
    """
    metric = Metric(topology, whole)
    rows: Matrix = []
    for found in metric.rows(metric.ends):
        row = [far for far in found if far is not None]
        if len(row) < len(found):
            raise InputError(f"the links of {topology.name} do not connect its members")
        rows.append(row)
    place = {end: number for number, end in enumerate(metric.ends)}
    return rows, [place[metric.place[topology.index[name]]] for name in topology.members]


def arborescence(cost: Matrix, root: int) -> int:
    """Cost of the cheapest out-tree from `root` in a complete digraph (Chu and Liu 1965; Edmonds 1967).

    Vertices that reach each other by entries of least cost become one, all at once.
    """
    # Whole columns at a time: what each vertex is entered by, less what is paid already.
    into: Matrix = [list(column) for column in zip(*cost, strict=True)]
    total, big = 0, max(map(max, cost)) + 1
    while True:
        for vertex, column in enumerate(into):
            column[vertex] = big
        least = [min(column) for column in into]
        total += sum(least) - least[root]
        into = [[entry - low for entry in column] for column, low in zip(into, least, strict=True)]
        into[root] = [big] * len(into)
        groups = strong_components([[other for other, more in enumerate(column) if not more] for column in into])
        if len(groups) == len(into):
            return total
        entered = zip(*_merged(into, groups), strict=True)
        into = [list(column) for column in zip(*_merged([*entered], groups), strict=True)]
        root = groups.index([root])


def _merged(rows: Sequence[Sequence[int]], groups: Iterable[Sequence[int]]) -> list[Sequence[int]]:
    """The least of the rows of each group, entry by entry."""
    picked = ([rows[vertex] for vertex in group] for group in groups)
    return [list(map(min, *some)) if len(some) > 1 else some[0] for some in picked]


def strong_components(before: Sequence[Iterable[int]]) -> list[list[int]]:
    """The vertices in sets of those that reach each other, by what each is reached from (Warshall 1962)."""
    reached = [1 << vertex | sum(1 << other for other in those) for vertex, those in enumerate(before)]
    for middle in range(len(reached)):
        reached = [those | reached[middle] if those >> middle & 1 else those for those in reached]
    return [[v for v, those in enumerate(reached) if those == alike] for alike in dict.fromkeys(reached)]
