"""Forests: packed trees with exact rates, each edge with its path through the links.

From exact rates to routed trees by the steps of ForestColl (Zhao et al. 2024): scale, split forwarders off,
pack, and give every arc its path back. Each step keeps the rate exactly, so the forest attains what the cut
bound allows wherever forwarders take in at least as much as they give out.

Machines whose vertices are all alike need the trees of one root only. Let a group of symmetries take the
first vertex to every vertex by exactly one of its elements (a regular group, such as the translations of a
torus: Biggs, Algebraic Graph Theory, 2nd edition, 1993, chapter 16). Then every arc is the image of exactly
one arc that leaves the first vertex, its class, and one arc of each class enters every vertex. With the
images of those trees for all other roots, an arc carries as often as there are arcs of its class in one tree.
So a packing chooses, for every vertex, the class that enters it, often enough and no class too often: a flow.
Entered from nearer vertices only, it is a tree of least height.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import lcm
from random import Random

import numpy as np

from blinksim.graphs.arrays import distinct
from blinksim.graphs.digraph import CutPool
from blinksim.graphs.maxflow import Flow
from blinksim.graphs.network import Array
from blinksim.graphs.rooted_trees import RootedTree
from blinksim.packing.arborescences import longest, lowered, pack
from blinksim.packing.scaling import Arcs, clipped, fewest, fixed
from blinksim.packing.splitting import RoutedTree, Routes, split_off, usual_sets
from blinksim.topology.graph import Topology
from blinksim.topology.group import commuting_group

# Trees per root that are tried beside the number that needs no rounding.
_TRIES = 8
# Most vertices: a group of n elements is a table of n x n numbers.
_MOST_VERTICES = 2048


def pack_images(arcs: Arcs, rate: Fraction, group: Array) -> tuple[list[RootedTree], Fraction] | None:
    """Out-trees from every vertex that carry `rate` each and span all vertices, and their scale (trees per rate).

    group: a `regular_group`; capacities that it does not keep are found. None if the lowest trees do not hold
    the rate.
    """
    total: dict[tuple[int, int], Fraction] = {}
    for a, b, value in zip(arcs.tail.tolist(), arcs.head.tolist(), arcs.capacity, strict=True):
        if value and a != b:
            total[a, b] = total.get((a, b), Fraction(0)) + value
    # The capacity of every class, by the vertex at which its arc from vertex 0 ends.
    steps = {b: value for (a, b), value in total.items() if a == 0}
    alike = (total.get((a, b)) == value for end, value in steps.items() for a, b in enumerate(group[:, end].tolist()))
    if len(total) != len(steps) * len(group) or not all(alike):
        return None
    packed = trees_of_first(group[:, list(steps)], list(steps.values()), rate)
    if packed is None:
        return None
    trees, units = packed
    rooted = [
        RootedTree(root, amount, tuple(zip(image[parents].tolist(), image[children].tolist(), strict=True)))
        for root, image in enumerate(group)
        for parents, children, amount in trees
    ]
    return rooted, units / rate


def regular_group(topology: Topology) -> Array | None:
    """The elements of a regular group of symmetries, row v the one that takes device 0 to v; None if none is found."""
    count = len(topology.devices)
    group = commuting_group(topology) if count <= _MOST_VERTICES else None
    if group is None or group.size != count:
        return None
    exponents = group.place - group.place[0]
    return np.stack([group.along(exponents, np.full(count, vertex)) for vertex in range(count)], axis=1)


Part = tuple[Array, Array, int]
"""A tree of vertex 0: parents, children, amount; parents come first."""


def trees_of_first(heads: Array, capacity: Sequence[Fraction], rate: Fraction) -> tuple[list[Part], int] | None:
    """Trees of vertex 0 whose images carry `rate` from each; and their number. None if they do not fit.

    heads (vertex, class): where the arc of each class ends that leaves a vertex, row 0 that of vertex 0.
    capacity: of an arc of every class.
    """
    entries = _Entries(heads)
    wanted = [value / rate for value in capacity]
    most = lcm(*(value.denominator for value in wanted))
    for units in sorted({*range(1, min(most, _TRIES) + 1), most}):
        parts = entries.parts(units, [int(value * units) for value in wanted])
        if parts is not None:
            return [(*entries.tree(chosen), amount) for chosen, amount in parts], units
    return None


class _Entries:
    """The classes by which every vertex but 0 may be entered: those whose arc comes from nearer to 0.

    tails: for every vertex and class the vertex from which that arc comes. order: the vertices, nearer ones
    first.
    """

    def __init__(self, heads: Array) -> None:
        self.count, self.classes = heads.shape
        self.tails = np.empty((self.count, self.classes), dtype=np.int64)
        for number, ends in enumerate(heads.T):
            self.tails[ends, number] = np.arange(self.count)
        level, near, distance = np.full(self.count, -1), np.array([0]), 0
        while len(near):
            level[near] = distance
            ends = distinct(heads[near])
            near, distance = ends[level[ends] < 0], distance + 1
        self.order = np.argsort(level, kind="stable")[1:]
        self.vertex, self.number = np.nonzero((level[self.tails] < level[:, None]) & (level[self.tails] >= 0))

    def tree(self, chosen: Array) -> tuple[Array, Array]:
        """(parents, children) if every vertex is entered by its class in `chosen`."""
        return self.tails[self.order, chosen[self.order]], self.order

    def parts(self, units: int, room: Sequence[int]) -> list[tuple[Array, int]] | None:
        """Classes of all vertices with amounts that add up to `units`; None if there is too little room.

        room: how often each class may be chosen. There are two parts if the even division of the room leaves
        enough.
        """
        whole = self._chosen(units, room)
        if whole is None:
            return None
        even = self._chosen(1, [-(-value // units) for value in room])
        if units > 1 and even is not None:
            left = [value - (units - 1) * used for value, used in zip(room, even.sum(axis=0).tolist(), strict=True)]
            last = self._chosen(1, left) if min(left) >= 0 else None
            if last is not None:
                return [(even.argmax(axis=1), units - 1), (last.argmax(axis=1), 1)]
        ends = whole.cumsum(axis=1)
        cuts = distinct(np.append(ends[self.order], 0)).tolist()
        return [((ends > start).argmax(axis=1), end - start) for start, end in pairwise(cuts)]

    def _chosen(self, units: int, room: Sequence[int]) -> Array | None:
        """For every vertex how often it takes each class, `units` times together; None if there is too little room."""
        source, sink = self.count + self.classes, self.count + self.classes + 1
        others, numbers = np.arange(1, self.count), np.arange(self.classes)
        allowed = len(self.vertex)
        flow = Flow(
            sink + 1,
            np.concatenate([self.vertex, np.full(len(others), source), self.count + numbers]),
            np.concatenate([self.count + self.number, others, np.full(self.classes, sink)]),
            np.concatenate([np.full(allowed + len(others), units), np.array(room, dtype=np.int64)]),
            source,
            sink,
        )
        if flow.value < units * len(others):
            return None
        chosen = np.zeros((self.count, self.classes), dtype=np.int64)
        chosen[self.vertex, self.number] = flow.carried()[:allowed]
        return chosen


Progress = Callable[[int, int], None]
# Orders of the roots that are tried where a packing takes a fraction of a second: up to so many vertices of all trees.
_ORDERS, _FEW = 4, 20_000


@dataclass(frozen=True)
class Forest:
    """Trees and their scale: a tree of amount 1 carries 1 / scale units of rate.

    longest: how long a piece of the data is on its way (`lower_trees.longest`), to compare forests of one
    machine.
    """

    trees: list[RoutedTree]
    scale: Fraction
    longest: int = 0

    @property
    def rate(self) -> Fraction:
        """The rate of all trees together."""
        return sum(tree.amount for tree in self.trees) / self.scale


def pack_forest(
    arcs: Arcs,
    rates: Mapping[int, Fraction],
    *,
    counted: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Forest:
    """Out-trees from every root v that carry rates[v] together and reach all members.

    Raises `InfeasibleError` if there are none. counted: rates[v] is how many equal trees there are, at the
    best rate that this number allows. seed: the order of the roots in rotation (0: as given). progress: called
    with trees done and wanted.
    """
    arcs = clipped(arcs, rates)
    graph, scale = (fixed if counted else fewest)(arcs, rates)
    if seed:
        order = list(graph.roots)
        Random(seed).shuffle(order)
        graph.roots = {root: graph.roots[root] for root in order}
    pool = CutPool(graph)
    pool.add(usual_sets(graph, arcs.host))
    # The whole capacity of every arc; parallel ones share what `graph` has, which trimming may have lowered.
    left, capacity = [dict(row) for row in graph.out], list[int]()
    for a, b, value in zip(arcs.tail.tolist(), arcs.head.tolist(), arcs.capacity, strict=True):
        part = min(left[a].get(b, 0), int(value * scale))
        if part:
            left[a][b] -= part
        capacity.append(part)
    log = split_off(graph, arcs.host, pool, progress)
    trees = lowered(pack(graph, pool, progress), graph, arcs.host)
    routes = Routes(arcs.tail.tolist(), arcs.head.tolist(), capacity, log)
    return Forest(routes.route(trees), scale, longest(trees, arcs.host))


def low_forest(arcs: Arcs, rates: Mapping[int, Fraction], *, progress: Progress | None = None) -> Forest:
    """As `pack_forest`; where trees are few, the one of several orders of roots that ends soonest."""
    best = pack_forest(arcs, rates, progress=progress)
    if len(rates) == 1 or len(best.trees) * arcs.count > _FEW:
        return best
    others = (pack_forest(arcs, rates, seed=seed, progress=progress) for seed in range(1, _ORDERS))
    return min([best, *others], key=lambda forest: forest.longest)


def symmetric_forest(arcs: Arcs, rates: Mapping[int, Fraction], topology: Topology) -> Forest | None:
    """As `pack_forest`, by the images of the trees of one root; None where that is not possible."""
    if not topology.symmetries or not len(arcs.members) == arcs.count == len(rates) or len(set(rates.values())) > 1:
        return None
    group = regular_group(topology)
    packed = None if group is None else pack_images(arcs, next(iter(rates.values())), group)
    if packed is None:
        return None
    trees, scale = packed
    whole = [int(value * scale) for value in arcs.capacity]
    return Forest(Routes(arcs.tail.tolist(), arcs.head.tolist(), whole, ()).route(trees), scale)
