"""Hamiltonian paths and cycles of small graphs, and disjoint cycles that use every edge.

A graph whose vertices all have 2k edges falls into k two-factors, sets of cycles that pass every vertex
(Petersen, 1891). Where two edges of one factor and two of another make a square, the factors may exchange
them; each exchange joins cycles or parts them. Tori fall into Hamiltonian cycles this way (Kotzig 1973;
Aubert and Schneider 1982 proved that they always can).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations
from random import Random

import numpy as np

from blinksim.graphs.connectivity import joined_labels

Order = tuple[int, ...]


def hamiltonian(
    next_to: Sequence[Sequence[int]], *, closed: bool, both: bool, starts: Sequence[int] | None = None
) -> Iterator[Order]:
    """Orders of the vertices in which each is next to the one before, and the last to the first if `closed`.

    next_to: for each vertex those that may follow it. both: neighbours are mutual, and of an order and its
    reverse only one is given; otherwise orders are directed. Closed orders start at vertex 0, others at one
    of `starts` (default: any).
    """
    n = len(next_to)

    def extend(path: list[int], seen: int) -> Iterator[Order]:
        if len(path) == n:
            ends = (path[1], path[-1]) if closed else (path[0], path[-1])
            if (not closed or path[0] in next_to[path[-1]]) and (not both or n < 3 or ends[0] < ends[1]):
                yield tuple(path)
            return
        for b in next_to[path[-1]]:
            if not seen >> b & 1:
                path.append(b)
                yield from extend(path, seen | 1 << b)
                path.pop()

    for first in starts or range(1 if closed or (both and n < 3) else n):
        yield from extend([first], 1 << first)


_Factor = list[list[int]]
_Square = tuple[int, int, int, int]
# Exchanges that only move cycles about, between two that join some, before the search gives up.
_PATIENCE = 400


def disjoint_cycles(edges: Sequence[tuple[int, int]], count: int) -> list[Order]:
    """Hamiltonian cycles of the vertices 0 … count-1 that use each of `edges` once; empty if none were found.

    edges: each once, as (a, b) in any order; parallel ones are allowed. The answer is the same everywhere.
    """
    degree = Counter(vertex for edge in edges for vertex in edge)
    if count < 3 or len(degree) < count or len({*degree.values()}) > 1 or degree[0] % 2:
        return []
    import networkx as nx

    graph: nx.MultiGraph[int] = nx.MultiGraph(edges)
    if not nx.is_connected(graph):
        return []
    # The neighbours of every vertex in each factor: an Euler tour's directions, as perfect matchings.
    left: list[list[int]] = [[] for _ in range(count)]
    for a, b in nx.eulerian_circuit(graph, source=0):
        left[a].append(b)
    factors = []
    for _ in range(len(edges) // count):
        pairs = nx.Graph((a, count + b) for a, ends in enumerate(left) for b in ends)
        matched = nx.bipartite.hopcroft_karp_matching(pairs, range(count))
        factor: _Factor = [[] for _ in range(count)]
        for a in range(count):
            b = matched[a] - count
            left[a].remove(b)
            factor[a].append(b)
            factor[b].append(a)
        factors.append(factor)
    return _Merging(factors, count).cycles()


class _Merging:
    """Two-factors on their way to single cycles. label: by factor and vertex the first of its cycle."""

    def __init__(self, factors: list[_Factor], count: int) -> None:
        self.factors, self.count = factors, count
        self.label = [self._labels(factor) for factor in factors]
        self.random = Random(0)

    @property
    def total(self) -> int:
        return sum(map(len, map(set, self.label)))

    def cycles(self) -> list[Order]:
        patience = _PATIENCE
        while self.total > len(self.factors):
            if not self._joined():
                patience -= 1
                if patience < 0 or not self._moved():
                    return []
        orders = []
        for factor in self.factors:
            # Along the cycle from vertex 0, after one of its neighbours.
            order = [factor[0][1], 0]
            while len(order) <= self.count:
                ahead, behind = factor[order[-1]]
                order.append(ahead if behind == order[-2] else behind)
            orders.append(tuple(order[1:]))
        return orders

    def _joined(self) -> bool:
        """Exchanges the first square that leaves fewer cycles, if there is one."""
        for first, second in permutations(range(len(self.factors)), 2):
            if not any(self.label[first]):
                continue
            for square in self._squares(first, second, range(self.count)):
                a, _, _, d = square
                if self.label[first][a] != self.label[first][d] and self._exchanged(first, second, square, -1):
                    return True
        return False

    def _moved(self) -> bool:
        """Exchanges a square drawn at random that leaves as many cycles, or one or two more."""
        vertices = self.random.sample(range(self.count), self.count)
        pairs = list(permutations(range(len(self.factors)), 2))
        for more in (0, 2):
            for first, second in self.random.sample(pairs, len(pairs)):
                for square in self._squares(first, second, vertices):
                    if self._exchanged(first, second, square, more):
                        return True
        return False

    def _squares(self, first: int, second: int, vertices: Sequence[int]) -> Iterator[_Square]:
        """(a, b, c, d) with a-b and c-d in one factor, b-c and d-a in the other."""
        one, other = self.factors[first], self.factors[second]
        for a in vertices:
            for b in list(one[a]):
                for d in list(other[a]):
                    for c in list(other[b]):
                        if len({a, b, c, d}) == 4 and c in one[d]:
                            yield a, b, c, d

    def _exchanged(self, first: int, second: int, square: _Square, more: int) -> bool:
        """Exchanges a square, and takes that back unless there are then at most `more` cycles more."""
        before, labels = self.total, (self.label[first], self.label[second])
        self._exchange(first, second, square)
        self.label[first], self.label[second] = (self._labels(self.factors[which]) for which in (first, second))
        if self.total - before <= more:
            return True
        self._exchange(second, first, square)
        self.label[first], self.label[second] = labels
        return False

    def _exchange(self, first: int, second: int, square: _Square) -> None:
        a, b, c, d = square
        one, two = self.factors[first], self.factors[second]
        for x, y, giver, taker in ((a, b, one, two), (c, d, one, two), (b, c, two, one), (d, a, two, one)):
            for here, there in ((x, y), (y, x)):
                giver[here].remove(there)
                taker[here].append(there)

    def _labels(self, factor: _Factor) -> list[int]:
        joined = np.arange(self.count).repeat(2), np.ravel(factor)
        label: list[int] = joined_labels(self.count, *joined).tolist()
        return label
