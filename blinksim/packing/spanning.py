"""Undirected spanning trees packed at the strength of a graph, exactly, each rooted at its centre.

A graph holds trees of total weight min over partitions P of c(P)/(|P|-1) (Nash-Williams 1961; Tutte 1961).
Every tree of such a packing crosses each tight partition exactly |P|-1 times, so a tree that crosses the
known tight partitions least may be used, until another partition becomes tight or an edge is full (the
decomposition of a point of a polytope, Caratheodory). The strength of the rest finds the partitions that were
not known. Used up for a reduction and down for a broadcast, as in Blink (Wang et al. 2020), such trees are an
optimal allreduce on full-duplex links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from math import gcd
from random import Random

import numpy as np

from blinksim.bounds.cuts import strength, undirected
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Ints
from blinksim.graphs.network import Network, guard
from blinksim.graphs.rooted_trees import RootedTree, centre, height, hung_from
from blinksim.packing.splitting import Routes
from blinksim.schedule.loads import Tree
from blinksim.topology.graph import Topology

# Vertices up to which several vertex orders are tried, and how many; each takes a few milliseconds.
_SMALL, _ORDERS = 16, 8


class _State:
    """What is left: capacity of every edge, weight still to be packed, partitions with their slack."""

    def __init__(self, count: int, a: Ints, b: Ints, capacity: Ints, rate: Fraction) -> None:
        self.count, self.a, self.b = count, a, b
        self.ends = list(zip(a.tolist(), b.tolist(), strict=True))
        self.capacity: list[int] = (capacity * rate.denominator).tolist()
        self.left = rate.numerator
        self.scale = rate.denominator
        self.parts: list[Ints] = []
        self.slack: list[int] = []
        self.crossed: list[list[int]] = []

    def add(self, part: Ints) -> None:
        """Remember a partition (the part of every vertex)."""
        crossed = np.flatnonzero(part[self.a] != part[self.b]).tolist()
        needed = int(part.max())
        self.parts.append(part)
        self.crossed.append(crossed)
        self.slack.append(sum(self.capacity[edge] for edge in crossed) - self.left * needed)

    def multiply(self, factor: int) -> None:
        """Finer units, where a tree's weight would not be whole."""
        self.capacity = [value * factor for value in self.capacity]
        self.slack = [value * factor for value in self.slack]
        self.left *= factor
        self.scale *= factor
        guard(4 * sum(self.capacity) * self.count)

    def tree(self) -> list[int] | None:
        """The edges of a spanning tree that crosses tight partitions least, low and over wide edges where free."""
        price = [0] * len(self.ends)
        for slack, crossed in zip(self.slack, self.crossed, strict=True):
            if slack == 0:
                for edge in crossed:
                    price[edge] += 1
        around: list[list[int]] = [[] for _ in range(self.count)]
        for edge, (x, y) in enumerate(self.ends):
            if self.capacity[edge]:
                around[x].append(edge)
                around[y].append(edge)
        root = max(range(self.count), key=lambda v: (sum(self.capacity[e] for e in around[v]), len(around[v])))
        depth = {root: 0}
        chosen: list[int] = []
        queue: list[tuple[int, int, int, int, int]] = []

        def reach(vertex: int) -> None:
            for edge in around[vertex]:
                x, y = self.ends[edge]
                other = y if x == vertex else x
                if other not in depth:
                    heappush(queue, (price[edge], depth[vertex], -self.capacity[edge], edge, other))

        reach(root)
        while queue:
            _, above, _, edge, vertex = heappop(queue)
            if vertex not in depth:
                depth[vertex] = above + 1
                chosen.append(edge)
                reach(vertex)
        return chosen if len(chosen) == self.count - 1 else None


def pack_spanning(
    count: int, a: Ints, b: Ints, capacity: Ints, progress: Callable[[int, int], None] | None = None
) -> tuple[Fraction, list[RootedTree]]:
    """The strength of the graph (edges a-b of whole capacities) and trees, rooted at their centres, that attain it.

    The sum of their whole amounts stands for the strength.

    Raises `InfeasibleError` if the graph is not connected. Trees: at most one per edge and a few more.
    """
    rate, part = strength(count, a, b, capacity)
    if not rate:
        raise InfeasibleError("the links do not reach every member")
    state = _State(count, a, b, capacity, rate)
    state.add(part)
    packed: list[tuple[list[int], Fraction]] = []
    while state.left:
        chosen = state.tree()
        if chosen is None:
            raise InfeasibleError("the links do not hold the trees that their strength promises")
        amount = _most(state, chosen)
        if amount is None:
            continue
        for edge in chosen:
            state.capacity[edge] -= amount
        inside = set(chosen)
        for number, crossed in enumerate(state.crossed):
            extra = sum(edge in inside for edge in crossed) - int(state.parts[number].max())
            state.slack[number] -= amount * extra
        state.left -= amount
        packed.append((chosen, Fraction(amount, state.scale)))
        if progress:
            done = rate * state.scale - state.left
            progress(int(done / rate / state.scale * 1000), 1000)
    trees = []
    for chosen, weight in packed:
        edges = [state.ends[edge] for edge in chosen]
        root = centre(edges, start=0)
        trees.append(RootedTree(root, int(weight * state.scale), hung_from(root, edges)))
    return rate, trees


def pack_low(
    count: int, a: Ints, b: Ints, capacity: Ints, progress: Callable[[int, int], None] | None = None, seed: int = 0
) -> tuple[Fraction, list[RootedTree]]:
    """As `pack_spanning`, but on small graphs the best of several packings, with the vertices in other orders.

    The best loses least to overheads and to pipeline fill when every tree's share is cut into equally many
    pieces: few trees over one edge, low ones, and no large share. Every piece costs the edge an overhead, so
    the best number of pieces, and what is lost with it, goes with the root of their product.
    """
    rate, best = pack_spanning(count, a, b, capacity, progress)
    if count > _SMALL:
        return rate, best

    def lost(trees: Sequence[RootedTree]) -> tuple[Fraction, int]:
        """What is minimized; ties by number."""
        passing = Counter(frozenset(edge) for tree in trees for edge in tree.edges)
        longest = max(tree.amount * height(tree.root, tree.edges) for tree in trees)
        return Fraction(longest * max(passing.values()), sum(tree.amount for tree in trees)), len(trees)

    random = Random(seed)
    for _ in range(_ORDERS):
        label, order = list(range(count)), list(range(len(a)))
        random.shuffle(label)
        random.shuffle(order)
        new, back = np.array(label), np.argsort(label).tolist()
        x, y = new[a][order], new[b][order]
        _, packed = pack_spanning(count, np.minimum(x, y), np.maximum(x, y), capacity[order])
        trees = [
            RootedTree(back[tree.root], tree.amount, tuple((back[parent], back[child]) for parent, child in tree.edges))
            for tree in packed
        ]
        best = min(best, trees, key=lost)
    return rate, best


def _most(state: _State, chosen: list[int]) -> int | None:
    """How much of the tree can be used so that the rest stays packable; None if a tight partition was found instead.

    Discrete Newton: each partition that would be broken lowers the amount to what it allows.
    """
    inside = set(chosen)
    amount = min(state.left, *(state.capacity[edge] for edge in chosen))

    def allowed(number: int) -> Fraction | None:
        extra = sum(edge in inside for edge in state.crossed[number]) - int(state.parts[number].max())
        return Fraction(state.slack[number], extra) if extra else None

    limit = Fraction(amount)
    for number in range(len(state.parts)):
        most = allowed(number)
        if most is not None:
            limit = min(limit, most)
    while True:
        if not limit:
            return None
        if limit.denominator > 1:
            # Edmonds' and Tutte's theorems allow whole weights, but maybe not for this tree.
            state.multiply(limit.denominator)
            limit = Fraction(limit.numerator)
        amount = limit.numerator
        rest = np.array(state.capacity, dtype=np.int64)
        rest[chosen] -= amount
        left = state.left - amount
        if not left:
            return amount
        common = gcd(left, *rest.tolist())
        ratio, part = strength(state.count, state.a, state.b, rest // common)
        if ratio * common >= left:
            return amount
        state.add(part)
        most = allowed(len(state.parts) - 1)
        assert most is not None
        limit = min(limit, most)


def pairs_of_links(topology: Topology) -> list[int] | None:
    """The reverse of every link, of the same class; None unless all come in equal pairs, alone on their bus."""
    columns, count = topology.link_columns, len(topology.devices)
    kinds = len(columns.classes)
    key, back = ((a * count + b) * kinds + columns.kind for a, b in (topology.ends, topology.ends[::-1]))
    if not len(key):
        return []
    order = np.argsort(key)
    place = np.minimum(np.searchsorted(key[order], back), len(key) - 1)
    pairs = order[place]
    number = {rate: row for row, rate in enumerate(columns.bandwidths)}
    rate = np.array([number[rate] for rate in columns.bandwidths], dtype=np.int64)[columns.figure]
    equal = (key[pairs] == back) & (columns.bus[pairs] == columns.bus) & (rate[pairs] == rate)
    alone = bool((np.bincount(columns.bus[columns.bus >= 0]) == 2).all())
    return pairs.tolist() if bool(equal.all()) and alone else None


def undirected_trees(
    topology: Topology, net: Network, pairs: Sequence[int], progress: Callable[[int, int], None] | None = None
) -> tuple[Fraction, list[Tree]]:
    """algbw in bytes/s, and spanning trees of the graph whose edges are pairs of links.

    net: the network of `topology`, in which every device is a vertex of the trees. pairs: what
    `pairs_of_links` gives.
    """
    a, b, capacity, unit = undirected(topology)
    strength, trees = pack_low(net.vertices, a, b, capacity, progress)
    # Amounts are whole; scaled, they add up to the strength.
    scale = sum(tree.amount for tree in trees) / strength
    # One arc per pair of links, from the lower to the higher device; a bus counts once for both directions.
    tail, head = net.tail.tolist(), net.head.tolist()
    once = [0] * len(tail)
    for arc, (x, y, c) in enumerate(zip(tail, head, net.capacity.tolist(), strict=True)):
        if x < y:
            once[arc] = int(c * net.unit / unit * scale) * (1 if topology.links[arc].bus else 2)
    routes = Routes(tail, head, once, ())
    packed: list[Tree] = []
    for tree in trees:
        plain = RootedTree(tree.root, tree.amount, tuple((min(e), max(e)) for e in tree.edges))
        for routed in routes.route([plain]):
            down, up = [], []
            for (parent, child), (_, _, (arc,)) in zip(tree.edges, routed.edges, strict=True):
                ends = (arc, pairs[arc]) if tail[arc] == parent else (pairs[arc], arc)
                down.append((parent, child, ends[:1]))
                up.append((parent, child, ends[1:]))
            packed.append(Tree(tree.root, routed.amount / (strength * scale), tuple(down), tuple(up)))
    return strength * unit / 2, packed
