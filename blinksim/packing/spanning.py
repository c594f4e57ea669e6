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
from blinksim.graphs.arrays import Ints, partners
from blinksim.graphs.network import Network, guard
from blinksim.graphs.rooted_trees import RootedTree, centre, height, hung_from
from blinksim.packing.splitting import Routes
from blinksim.schedule.loads import Tree
from blinksim.topology.graph import Topology

# Vertices up to which several vertex orders are tried, and how many; each takes a few milliseconds.
_SMALL, _ORDERS = 16, 8


class _Rest:
    """What is left: the capacity of every edge, and the weight still to be packed.

    crossed: the edges that cross each known partition. needed: how many of them a tree uses at least.
    """

    def __init__(self, count: int, a: Ints, b: Ints, capacity: Ints, rate: Fraction) -> None:
        self.count, self.a, self.b = count, a, b
        self.ends = list(zip(a.tolist(), b.tolist(), strict=True))
        self.capacity, self.left, self.scale = capacity * rate.denominator, rate.numerator, rate.denominator
        self.crossed, self.needed = np.zeros((0, len(a)), dtype=bool), np.zeros(0, dtype=np.int64)

    def add(self, part: Ints) -> None:
        """Remember a partition (the part of every vertex)."""
        self.crossed = np.vstack([self.crossed, part[self.a] != part[self.b]])
        self.needed = np.append(self.needed, part.max())

    @property
    def slack(self) -> Ints:
        """By how much more crosses each partition than the trees still to be packed need."""
        return np.asarray(self.crossed @ self.capacity - self.left * self.needed)

    def tree(self) -> list[int]:
        """The edges of a spanning tree that crosses tight partitions least, low and over wide edges where free."""
        price, capacity = self.crossed[self.slack == 0].sum(axis=0).tolist(), self.capacity.tolist()
        around: list[list[tuple[int, int]]] = [[] for _ in range(self.count)]
        for edge, (x, y) in enumerate(self.ends):
            if capacity[edge]:
                around[x].append((edge, y))
                around[y].append((edge, x))
        root = max(range(self.count), key=lambda v: (sum(capacity[e] for e, _ in around[v]), len(around[v])))
        depth: dict[int, int] = {}
        chosen: list[int] = []
        queue = [(0, -1, 0, -1, root)]
        while queue:
            _, above, _, edge, vertex = heappop(queue)
            if vertex in depth:
                continue
            depth[vertex] = above + 1
            chosen.append(edge)
            for edge, other in around[vertex]:
                if other not in depth:
                    heappush(queue, (price[edge], depth[vertex], -capacity[edge], edge, other))
        if len(depth) < self.count:
            raise InfeasibleError("the links do not hold the trees that their strength promises")
        return chosen[1:]

    def most(self, chosen: list[int]) -> int:
        """How much of the tree can be used so that the rest stays packable; 0 if a tight partition forbids it.

        Discrete Newton: each partition that would be broken joins the known ones, and lowers the amount.
        """
        while True:
            extra = self.crossed[:, chosen].sum(axis=1) - self.needed
            allowed = (Fraction(s, t) for s, t in zip(self.slack.tolist(), extra.tolist(), strict=True) if t)
            limit = min([Fraction(min(self.left, *self.capacity[chosen].tolist())), *allowed])
            factor, amount = limit.denominator, limit.numerator
            if factor > 1:
                # Edmonds' and Tutte's theorems allow whole weights, but maybe not for this tree: finer units.
                guard(4 * factor * int(self.capacity.sum()) * self.count)
                self.capacity = self.capacity * factor
                self.left, self.scale = self.left * factor, self.scale * factor
            rest, left = self.capacity.copy(), self.left - amount
            rest[chosen] -= amount
            if not amount or not left:
                return amount
            common = gcd(left, *rest.tolist())
            ratio, part = strength(self.count, self.a, self.b, rest // common)
            if ratio * common >= left:
                return amount
            self.add(part)


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
    rest = _Rest(count, a, b, capacity, rate)
    rest.add(part)
    packed: list[tuple[list[int], Fraction]] = []
    while rest.left:
        chosen = rest.tree()
        amount = rest.most(chosen)
        if not amount:
            continue
        rest.capacity[chosen] -= amount
        rest.left -= amount
        packed.append((chosen, Fraction(amount, rest.scale)))
        if progress:
            done = rate * rest.scale - rest.left
            progress(int(done / rate / rest.scale * 1000), 1000)
    trees = []
    for chosen, weight in packed:
        edges = [rest.ends[edge] for edge in chosen]
        root = centre(edges, start=0)
        trees.append(RootedTree(root, int(weight * rest.scale), hung_from(root, edges)))
    return rate, trees


def pack_low(
    count: int, a: Ints, b: Ints, capacity: Ints, progress: Callable[[int, int], None]
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

    random = Random(0)
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


def pairs_of_links(topology: Topology) -> list[int] | None:
    """The reverse of every link, of the same class; None unless all come in equal pairs, alone on their bus."""
    columns = topology.link_columns
    number = {rate: row for row, rate in enumerate(columns.bandwidths)}
    rate = np.array([number[rate] for rate in columns.bandwidths], dtype=np.int64)[columns.figure]
    pairs = partners(*topology.ends, columns.kind, columns.bus, rate)
    alone = (np.bincount(columns.bus[columns.bus >= 0]) == 2).all()
    return pairs.tolist() if pairs is not None and alone else None


def undirected_trees(
    topology: Topology, net: Network, pairs: Sequence[int], progress: Callable[[int, int], None]
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
