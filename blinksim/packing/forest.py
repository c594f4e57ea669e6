"""Forests: packed trees with exact rates, each edge with its path through the links.

From exact rates to routed trees by the steps of ForestColl (Zhao et al. 2024): scale, split forwarders off,
pack, and give every arc its path back. Each step keeps the rate exactly, so the forest attains what the cut
bound allows wherever forwarders take in at least as much as they give out.

The capacity of every link, bus and device limit is divided among the arcs that share it (a half-duplex bus
has one each way) and between in-trees and out-trees that run at the same time; with it comes the rate of
every root. `best_split` takes it from the linear program of the best trees, `even_split` gives equal parts.
The program's numbers are rounded to short fractions and checked exactly: loads above a capacity are scaled
down, and the rate is found anew by cuts. Then one factor makes the rates of all roots whole; a capacity may
be rounded down where the trees still fit (ForestColl, section 5, gives the factor that needs no rounding and
the search for a fixed number of trees).

Machines whose vertices are all alike need the trees of one root only. Let a group of symmetries take the
first vertex to every vertex by exactly one of its elements (a regular group, such as the translations of a
torus: Biggs, Algebraic Graph Theory, 2nd edition, 1993, chapter 16). Then every arc is the image of exactly
one arc that leaves the first vertex, its class, and one arc of each class enters every vertex. With the
images of those trees for all other roots, an arc carries as often as there are arcs of its class in one tree.
So a packing chooses, for every vertex, the class that enters it, often enough and no class too often: a flow.
Entered from nearer vertices only, it is a tree of least height.

Undirected graphs hold trees of total weight min over partitions P of c(P)/(|P|-1) (Nash-Williams 1961; Tutte
1961). Every tree of such a packing crosses each tight partition exactly |P|-1 times, so a tree that crosses
the known tight partitions least may be used, until another partition becomes tight or an edge is full (the
decomposition of a point of a polytope, Caratheodory). The strength of the rest finds the partitions that were
not known. Used up for a reduction and down for a broadcast, as in Blink (Wang et al. 2020), such trees, each
rooted at its centre, are an optimal allreduce on full-duplex links.

Flows cut into paths, for data that is not copied on its route: gather, scatter and alltoall.

A flow is a sum of paths (Ford and Fulkerson 1962, flow decomposition). One source's greatest flow needs no
program; for several that share links a program (`blinksim.graphs.programs`) says how much of every link each
source may use, and within that part each source's flow is again a greatest flow in whole numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heappop, heappush
from itertools import pairwise
from math import gcd, lcm, prod
from random import Random
from typing import TypeVar

import numpy as np

from blinksim.bounds.optimum import strength, tightest, undirected
from blinksim.errors import BlinksimError, InfeasibleError
from blinksim.graphs import programs
from blinksim.graphs.arrays import Ints, distinct, partners, scattered
from blinksim.graphs.connectivity import distances, grouped, summed
from blinksim.graphs.digraph import CutPool, Digraph
from blinksim.graphs.network import Flow, Network, NetworkOrbits, guard, single_orbits, whole
from blinksim.graphs.programs import Commodity, Rounding, SharedCapacity, agree, roundings, solve_trees, widest
from blinksim.graphs.rooted_trees import RootedTree, centre, height, hung_from
from blinksim.packing.arborescences import RoutedTree, Routes, longest, lowered, pack, split_off, usual_sets
from blinksim.schedule.loads import Tree
from blinksim.topology.graph import Topology
from blinksim.topology.symmetry import commuting_group

# Numbers of trees tried below the one that is known to work.
_FEWER_TREES = 8


# Exact capacities of the arcs of a network, in its units.
Capacities = Sequence[Fraction]


def whole_graph(net: Network, capacity: Capacities, rates: Mapping[int, Fraction], scale: Fraction) -> Digraph:
    """Capacities times `scale`, rounded down, and root rates times `scale`, which must be whole."""
    # Equal capacities are mostly one object, and fractions are slow to multiply and to look up.
    known = {id(value): value for value in capacity}
    factors = {number: int(value * scale) for number, value in known.items()}
    whole = [factors[id(value)] for value in capacity]
    return Digraph.of(net, whole, {vertex: int(rate * scale) for vertex, rate in rates.items()})


def fewest(net: Network, capacity: Capacities, rates: Mapping[int, Fraction]) -> tuple[Digraph, Fraction]:
    """The graph in whole trees for out-trees of these rates, and its scale (trees per unit of rate).

    The rates must be possible. The number of trees per root is the least that needs no rounding, or a smaller
    one that does with capacities rounded down.
    """
    used = [rate for rate in rates.values() if rate]
    steps = (whole([(value, 1) for value in values])[1] for values in (used, [*used, *capacity]))
    base, most = (1 / step for step in steps)
    times = int(most / base)
    for number in [n for n in range(1, min(times, 4096)) if times % n == 0][:_FEWER_TREES]:
        graph = whole_graph(net, capacity, rates, base * number)
        entering, members = _entering(graph), {*graph.members, *graph.roots}
        # Vertices without data must take in at least what they give out.
        balanced = all(v in members or entering[v] >= sum(row.values()) for v, row in enumerate(graph.out))
        if balanced and not graph.short_sets(most=1):
            return graph, base * number
    return whole_graph(net, capacity, rates, most), most


def fixed(net: Network, capacity: Capacities, shares: Mapping[int, Fraction]) -> tuple[Digraph, Fraction]:
    """The greatest scale at which shares[v] out-trees from every root v fit, and the graph at that scale.

    The scale is trees per unit of rate: a root's rate is shares[v] / scale, so the least scale is the best.
    Only values at which a rounded capacity changes matter; bisection finds the least that works.
    """
    total = int(sum(shares.values()))
    candidates = sorted({number / value for value in {*capacity} if value for number in range(1, total + 1)})

    def graph_at(scale: Fraction) -> Digraph:
        rates = {vertex: part / scale for vertex, part in shares.items()}
        return trimmed(whole_graph(net, capacity, rates, scale))

    place = bisect_left(candidates[:-1], True, key=lambda scale: not graph_at(scale).short_sets(most=1))
    return graph_at(candidates[place]), candidates[place]


def _left_of(graph: Digraph, net: Network, values: Sequence[int]) -> list[int]:
    """What trimming has left of the capacity of every arc; parallel ones share what `graph` has."""
    left, parts = [dict(row) for row in graph.out], list[int]()
    for a, b, value in zip(net.tail.tolist(), net.head.tolist(), values, strict=True):
        parts.append(min(value, left[a].get(b, 0)))
        if parts[-1]:
            left[a][b] -= parts[-1]
    return parts


def _entering(graph: Digraph) -> list[int]:
    entering = summed(arc for row in graph.out for arc in row.items())
    return [entering.get(vertex, 0) for vertex in range(graph.count)]


# Passes over the forwarders: one is enough nearly always, while those of l40s with a link at a twentieth of
# its bandwidth took 266,635 for two of 16 roundings, 20 s.
_MOST_PASSES = 1000


def trimmed(graph: Digraph) -> Digraph:
    """`graph`, in place, with arcs out of forwarders lowered until each gives out no more than it takes in.

    Raises `InfeasibleError` where that goes around among forwarders for long.
    """
    members = {*graph.members, *graph.roots}
    for _ in range(_MOST_PASSES):
        changed = False
        entering = _entering(graph)
        for vertex, row in enumerate(graph.out):
            left, count = entering[vertex], len(row)
            if vertex in members or sum(row.values()) <= left:
                continue
            # The widest first, so that none is cut off before it must be.
            for head, capacity in sorted(row.items(), key=lambda arc: arc[1]):
                lost = max(0, capacity - left // count)
                left, count = left - capacity + lost, count - 1
                entering[head] -= lost
                graph.change(vertex, head, -lost)
            changed = True
        if not changed:
            return graph
    raise InfeasibleError("forwarders hand each other more than they take in")


# How far rounded numbers may exceed a capacity and still be scaled down; beyond it they are another solution.
_MOST_EXCESS = Fraction(21, 20)
# Parts into which the roots' rates may divide their sum; a schedule's shares and the flows' sums take no
# more.
MOST_PARTS = 2**36
# Rounds of the program of one root where that of all roots is small: 17 of 23 took fewer, three no end.
_ONE_ROOT = 32

T = TypeVar("T")


@dataclass(frozen=True)
class Split:
    """rates: of every root's out-trees, in units of the network. capacity: per arc for the out-trees; `back`: for the
    in-trees that go with them (as capacities of the same arcs), None if there are none."""

    rates: Mapping[int, Fraction]
    capacity: tuple[Fraction, ...]
    back: tuple[Fraction, ...] | None = None

    @property
    def rate(self) -> Fraction:
        """The rate of all roots together."""
        return sum(self.rates.values(), start=Fraction(0))


def best_split(
    net: Network,
    shared: Sequence[SharedCapacity],
    weights: Mapping[int, int] | None,
    *,
    both: bool,
    best: Fraction,
    orbits: NetworkOrbits | None = None,
) -> Split | None:
    """The split with the greatest rate; None if no rounding of the program's answer holds.

    weights: how the rate is divided over the roots; None leaves that free. both: in-trees with the same roots
    and rates run at the same time, for a network that is its own reverse the out-trees reversed. best: a
    bound of the rate in units of the network, at which the search for exact fractions stops. orbits:
    equivalent arcs and ranks, where roots are free.
    """
    free, orbits = weights is None, orbits or single_orbits(net)
    if free:
        weights = {widest(net): 1}
    # Of alike ranks, the program of all roots is the smaller one.
    rounds = _ONE_ROOT if free and len(orbits.first) < len(orbits.member) else programs.MOST_ROUNDS
    solution = solve_trees(net, shared, weights, both=both, rounds=rounds)
    every = single_orbits(net)
    if free and not (solution.attained and agree(best, solution.value)):
        weights, every = None, orbits
        solution = solve_trees(net, shared, None, both=both, orbits=orbits)
    used, alone = np.array(solution.used)[:, every.arc].tolist(), np.maximum(solution.roots, 0.0)
    members = net.members.tolist()
    partner = net.partner.tolist() if both and net.partner is not None else None

    def held(to_fractions: Rounding, capacities: Sequence[list[Fraction]]) -> tuple[Fraction, Split] | None:
        roots = [] if weights else to_fractions(alone[list(every.member)].tolist())
        split = _held(net, capacities, weights or dict(zip(members, roots, strict=True)))
        return None if split is None else (split.rate, split)

    found = best_fractions(net, shared, used, best, held, partner)
    return found and found[1]


def best_fractions(
    net: Network,
    shared: Sequence[SharedCapacity],
    rows: Sequence[Sequence[float]],
    best: Fraction,
    held: Callable[[Rounding, Sequence[list[Fraction]]], tuple[Fraction, T] | None],
    partner: Sequence[int] | None = None,
) -> tuple[Fraction, T] | None:
    """What a program's trees or flows use of every arc, in fractions that fit: the best of `roundings`.

    Loads a little above a shared capacity are scaled down; roundings that are far above one are left out.
    best: a bound of the rate at which the search ends. held: the rate that fractions hold, and an answer.
    partner: the arc that reversed out-trees use in the place of each arc.
    """
    found: tuple[Fraction, T] | None = None
    for to_fractions in roundings(best):
        parts = [to_fractions([max(0.0, value) for value in row]) for row in rows]
        totals = [sum(values, start=Fraction(0)) for values in zip(*parts, strict=True)]
        if partner is not None:
            totals = [total + totals[partner[arc]] for arc, total in enumerate(totals)]
        # On a bus, arcs share the time: a slower direction takes more of it for the same data.
        over = max(sum((totals[arc] / int(net.capacity[arc]) for arc, _ in cap.uses), Fraction(0)) for cap in shared)
        if not 0 < over <= _MOST_EXCESS:
            continue
        if over > 1:
            parts = [[value / over for value in row] for row in parts]
        with suppress(BlinksimError):
            answer = held(to_fractions, parts)
            if answer is not None and (found is None or answer[0] > found[0]):
                found = answer
        if found is not None and found[0] >= best:
            break
    return found


def _held(net: Network, sides: Sequence[list[Fraction]], ratio: Mapping[int, Fraction | int]) -> Split | None:
    """The best rate that these capacities hold for roots in this ratio, found by cuts; None if they hold nothing."""
    common = lcm(*(Fraction(value).denominator for value in ratio.values()))
    if not 0 < common * sum(ratio.values()) <= MOST_PARTS:
        return None
    weight = scattered(list(ratio), [int(value * common) for value in ratio.values()], net.vertices, 0)
    roots = dict.fromkeys(np.flatnonzero(weight).tolist(), 1)
    sinks = net.members[weight[net.members] < weight.sum()]
    factors, capacities = list[Fraction](), list[tuple[Fraction, ...]]()
    for side, capacity in zip((net, net.reversed()), sides, strict=False):
        known: dict[Fraction, Fraction] = {}
        values, unit = whole([(known.setdefault(value, value), 1) for value in capacity])
        parts = _left_of(trimmed(Digraph.of(side, values, roots)), side, values)
        # The greatest factor by which the weights of all roots fit.
        factor, _ = tightest(replace(side, capacity=np.array(parts, dtype=np.int64)), weight, sinks)
        factors.append(factor * unit)
        capacities.append(tuple(part * unit for part in parts))
    if not (rate := min(factors)):
        return None
    rates = {vertex: rate * int(weight[vertex]) for vertex in ratio if weight[vertex]}
    return Split(rates, capacities[0], capacities[1] if len(capacities) > 1 else None)


def even_split(net: Network, shared: Sequence[SharedCapacity], weights: Mapping[int, int], *, both: bool) -> Split:
    """A split without a program: the arcs of each shared capacity get equal parts, and so do up and down.

    weights: of the roots. The rate is the exact best of that split, in general below that of `best_split`.
    """
    capacity = [Fraction(0)] * len(net.tail)
    for resource in shared:
        for arc, _ in resource.uses:
            capacity[arc] = Fraction(int(net.capacity[arc]), len(resource.uses) * (1 + both))
    if (split := _held(net, [capacity] * (1 + both), weights)) is None:
        raise InfeasibleError("the links do not reach every member")
    return split


# Trees per root that are tried beside the number that needs no rounding.
_MORE_TREES = 8
# Most vertices: a group of n elements is a table of n x n numbers.
_MOST_VERTICES = 2048


def regular_group(topology: Topology) -> Ints | None:
    """The elements of a regular group of symmetries, row v the one that takes device 0 to v; None if none is found."""
    count = len(topology.devices)
    group = commuting_group(topology) if count <= _MOST_VERTICES else None
    if group is None or prod(group.orders) != count:
        return None
    exponents = group.place - group.place[0]
    return np.stack([group.along(exponents, np.full(count, vertex)) for vertex in range(count)], axis=1)


# A tree of vertex 0: parents, children, amount; parents come first.
Part = tuple[Ints, Ints, int]


def trees_of_first(heads: Ints, capacity: Sequence[Fraction], rate: Fraction) -> tuple[list[Part], int] | None:
    """Trees of vertex 0 whose images carry `rate` from each; and their number. None if they do not fit.

    heads (vertex, class): where the arc of each class ends that leaves a vertex, row 0 that of vertex 0.
    capacity: of an arc of every class.
    """
    entries = _Entries(heads)
    wanted = [value / rate for value in capacity]
    most = lcm(*(value.denominator for value in wanted))
    for units in sorted({*range(1, min(most, _MORE_TREES) + 1), most}):
        parts = entries.parts(units, [int(value * units) for value in wanted])
        if parts is not None:
            order = entries.order
            return [(entries.tails[order, chosen[order]], order, amount) for chosen, amount in parts], units
    return None


class _Entries:
    """The classes by which every vertex but 0 may be entered: those whose arc comes from nearer to 0.

    tails: for every vertex and class the vertex from which that arc comes. order: the vertices, nearer ones
    first.
    """

    def __init__(self, heads: Ints) -> None:
        self.count, self.classes = heads.shape
        # The arcs of a class enter every vertex once.
        self.tails = np.argsort(heads, axis=0)
        far = distances(0, heads.tolist().__getitem__)
        level = scattered(list(far), list(far.values()), self.count)
        self.order = np.argsort(level, kind="stable")[1:]
        self.vertex, self.number = np.nonzero((level[self.tails] < level[:, None]) & (level[self.tails] >= 0))

    def parts(self, units: int, room: Sequence[int]) -> list[tuple[Ints, int]] | None:
        """Classes of all vertices with amounts that add up to `units`; None if there is too little room.

        room: how often each class may be chosen. There are two parts if the even division of the room leaves
        enough.
        """
        if (whole := self._chosen(units, room)) is None:
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

    def _chosen(self, units: int, room: Sequence[int]) -> Ints | None:
        """For every vertex how often it takes each class, `units` times together; None if there is too little room."""
        source, sink = self.count + self.classes, self.count + self.classes + 1
        others, numbers = np.arange(1, self.count), np.arange(self.classes)
        allowed = len(self.vertex)
        tail = np.concatenate([self.vertex, np.full(len(others), source), self.count + numbers])
        head = np.concatenate([self.count + self.number, others, np.full(self.classes, sink)])
        capacity = np.concatenate([np.full(allowed + len(others), units), np.array(room, dtype=np.int64)])
        flow = Flow(sink + 1, tail, head, capacity, source, sink)
        if flow.value < units * len(others):
            return None
        return scattered((self.vertex, self.number), flow.carried()[:allowed], (self.count, self.classes), 0)


Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Forest:
    """Trees and their scale: a tree of amount 1 carries 1 / scale units of rate.

    longest: how long a piece of the data is on its way (`arborescences.longest`), to compare forests of one
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
    net: Network,
    capacity: Capacities,
    rates: Mapping[int, Fraction],
    *,
    counted: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Forest:
    """Out-trees from every root v that carry rates[v] together and reach all members.

    Raises `InfeasibleError` if there are none. counted: rates[v] is how many equal trees there are, at the
    best rate that this number allows. seed: the order of the roots in rotation (0: as given). progress:
    called with trees done and wanted.
    """
    graph, scale = (fixed if counted else fewest)(net, capacity, rates)
    if seed:
        order = list(graph.roots)
        Random(seed).shuffle(order)
        graph.roots = {root: graph.roots[root] for root in order}
    pool, host = CutPool(graph), net.host.tolist()
    pool.add(usual_sets(graph, host))
    whole = _left_of(graph, net, [int(value * scale) for value in capacity])
    log = split_off(graph, host, pool, progress)
    trees = lowered(pack(graph, pool, progress), graph, host)
    routes = Routes(net.tail.tolist(), net.head.tolist(), whole, log)
    return Forest(routes.route(trees), scale, longest(trees, host))


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
        left = ((edge, ends) for edge, ends in enumerate(self.ends) if capacity[edge])
        around = grouped(one for edge, (x, y) in left for one in ((x, (edge, y)), (y, (edge, x))))
        around = {vertex: around.get(vertex, []) for vertex in range(self.count)}
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
        if not (amount := rest.most(chosen)):
            continue
        rest.capacity[chosen] -= amount
        rest.left -= amount
        packed.append((chosen, Fraction(amount, rest.scale)))
        if progress:
            progress(int((1 - rest.left / (rate * rest.scale)) * 1000), 1000)
    trees = []
    for chosen, weight in packed:
        edges = [rest.ends[edge] for edge in chosen]
        root = centre(edges, start=0)
        trees.append(RootedTree(root, int(weight * rest.scale), hung_from(root, edges)))
    return rate, trees


def pack_low(
    count: int, a: Ints, b: Ints, capacity: Ints, progress: Progress | None
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
    topology: Topology, net: Network, pairs: Sequence[int], progress: Progress | None
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


@dataclass(frozen=True, slots=True)
class PathShare:
    """`rate` units of the flow from `source` to `sink` take this path (arcs, from the source on)."""

    source: int
    sink: int
    arcs: tuple[int, ...]
    rate: Fraction


def route_flows(
    net: Network, shared: Sequence[SharedCapacity], commodities: Sequence[Commodity], best: Fraction
) -> tuple[Fraction, list[PathShare]] | None:
    """The greatest rate per unit of weight that all commodities reach at once, and paths; None if too large.

    best: a bound of that rate (in units of the network) at which the search for exact fractions stops.
    """
    found: tuple[Fraction, Sequence[list[Fraction]]] | None = None

    def held(_: object, parts: Sequence[list[Fraction]]) -> tuple[Fraction, Sequence[list[Fraction]]]:
        """The least rate per unit of weight, each by a tightest cut as its source sees it, and the capacities."""
        rates = []
        for row, commodity in zip(parts, commodities, strict=True):
            numbers, unit = whole([(value, 1) for value in row])
            guard(sum(numbers))
            reverse = replace(net, capacity=np.array(numbers, dtype=np.int64)).reversed()
            weight = scattered(list(commodity.weights), list(commodity.weights.values()), net.vertices, 0)
            ratio, _ = tightest(reverse, weight, np.array([commodity.source], dtype=np.int64))
            rates.append(ratio * unit)
        return min(rates), parts

    if len(commodities) == 1 and all(len(resource.uses) == 1 for resource in shared):
        found = held(None, [[Fraction(value) for value in net.capacity.tolist()]])
    elif len(net.tail) * len(commodities) <= programs.MOST_FLOWS:
        with suppress(InfeasibleError):
            found = best_fractions(net, shared, programs.solve_flows(net, shared, commodities).flows, best, held)
    if found is None:
        return None
    rate, parts = found
    pairs = zip(parts, commodities, strict=True)
    return rate, [path for row, commodity in pairs for path in _decomposed(net, row, commodity, rate)]


def flow_images(net: Network, best: Fraction, group: Ints) -> tuple[Fraction, list[PathShare]] | None:
    """From every vertex to all others, the image of the first vertex's flow; as `route_flows`, one source each.

    Then an arc carries what all arcs of its class carry of one flow (see `blinksim.packing.forest`), so one
    flow is enough. group: a `regular_group`. None if arcs are not alike by it.
    """
    count = net.vertices
    # The element that takes 0 to the tail of an arc takes the vertex that is the arc's class to its head.
    kind = np.argsort(group, axis=1)[net.tail, net.head]
    order = np.lexsort((net.tail, kind))
    if not {*np.bincount(kind).tolist()} <= {0, count}:
        return None
    # The arcs of each class, by their tails.
    rows = order.reshape(-1, count)
    rows = rows[np.argsort(rows[:, 0])]
    if (net.tail[rows] != np.arange(count)).any() or (net.capacity[rows] != net.capacity[rows[:, :1]]).any():
        return None
    shared = [SharedCapacity(tuple((arc, 1.0) for arc in row), int(net.capacity[row[0]])) for row in rows.tolist()]
    routed = route_flows(net, shared, [Commodity(0, dict.fromkeys(range(1, count), 1))], best)
    if routed is None:
        return None
    number, paths = scattered(rows, np.arange(len(rows))[:, None], len(order)), list[PathShare]()
    for source, image in enumerate(group):
        for path in routed[1]:
            arcs = list(path.arcs)
            images = rows[number[arcs], image[net.tail[arcs]]]
            paths.append(PathShare(source, int(image[path.sink]), tuple(images.tolist()), path.rate))
    return routed[0], paths


def _decomposed(net: Network, capacity: Sequence[Fraction], commodity: Commodity, rate: Fraction) -> list[PathShare]:
    """A flow of `rate` per unit of weight, cut into paths: at most one per arc and sink."""
    sinks = [vertex for vertex, weight in commodity.weights.items() if weight]
    wanted = [*capacity, *(rate * commodity.weights[vertex] for vertex in sinks)]
    numbers, unit = whole([(value, 1) for value in wanted])
    guard(2 * sum(numbers))
    end = net.vertices
    tails = np.concatenate([net.tail, np.array(sinks, dtype=np.int64)])
    heads = np.concatenate([net.head, np.full(len(sinks), end)])
    flow = Flow(end + 1, tails, heads, np.array(numbers, dtype=np.int64), commodity.source, end)
    tail, left = net.tail.tolist(), flow.carried().tolist()
    entering = grouped((b, arc) for arc, b in enumerate(net.head.tolist()) if left[arc])
    paths = []
    for place, sink in enumerate(sinks, start=len(tail)):
        while left[place]:
            # Backwards from the sink to the source, or around a cycle of flow, which is left out.
            arcs, seen, vertex = [place], dict[int, int](), sink
            while vertex != commodity.source and vertex not in seen:
                seen[vertex] = len(arcs)
                arcs.append(next(arc for arc in entering[vertex] if left[arc]))
                vertex = tail[arcs[-1]]
            walk = arcs[seen.get(vertex, 0) :]
            amount = min(left[arc] for arc in walk)
            for arc in walk:
                left[arc] -= amount
            if vertex == commodity.source:
                paths.append(PathShare(commodity.source, sink, tuple(arcs[:0:-1]), amount * unit))
    return paths
