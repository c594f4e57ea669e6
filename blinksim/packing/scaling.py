"""Capacities and rates for tree packings: shared capacity divided, rates scaled until trees are whole.

Division: the capacity of every link, bus and device limit is divided among the arcs that share it (a
half-duplex bus has one each way) and between in-trees and out-trees that run at the same time; with it comes
the rate of every root. `best_split` takes it from the linear program of the best trees, `even_split` gives
equal parts. The program's numbers are rounded to short fractions (`blinksim.graphs.linear`) and checked
exactly: loads above a capacity are scaled down, and the rate is found anew by cuts.

Scaling: multiply the rate of every root and every capacity by one factor that makes the rates whole; a
capacity may be rounded down where the trees still fit (ForestColl, Zhao et al. 2024, section 5, gives the
factor that needs no rounding and the search for a fixed number of trees).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm

import numpy as np

from blinksim.bounds.cuts import tightest
from blinksim.errors import BlinksimError, InfeasibleError
from blinksim.graphs.digraph import Digraph
from blinksim.graphs.linear import Rounding, roundings
from blinksim.graphs.network import Array, Network, whole
from blinksim.graphs.programs import SharedCapacity, agree, solve_trees, widest

# Numbers of trees tried below the one that is known to work.
_TRIES = 8


@dataclass(frozen=True)
class Arcs:
    """A graph with exact capacities: arc i goes from tail[i] to head[i] with capacity[i].

    members: vertices that every tree must reach. host: node number by vertex.
    """

    tail: Array
    head: Array
    capacity: tuple[Fraction, ...]
    members: tuple[int, ...]
    host: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.host)


def clipped(arcs: Arcs, roots: Iterable[int] = ()) -> Arcs:
    """The same trees fit: forwarders between two neighbours pass on no more than the narrower side of each way."""
    members = {*arcs.members, *roots}
    tail, head = arcs.tail.tolist(), arcs.head.tolist()
    capacity = list(arcs.capacity)
    into: dict[int, list[int]] = {}
    outof: dict[int, list[int]] = {}
    for arc, (a, b) in enumerate(zip(tail, head, strict=True)):
        outof.setdefault(a, []).append(arc)
        into.setdefault(b, []).append(arc)
    for vertex in range(arcs.count):
        entering, leaving = into.get(vertex, []), outof.get(vertex, [])
        sides = sorted({tail[i] for i in entering} | {head[i] for i in leaving})
        if vertex in members or len(sides) != 2 or max(len(entering), len(leaving)) > 2:
            continue
        for start, end in (sides, sides[::-1]):
            here = [i for i in entering if tail[i] == start]
            onward = [i for i in leaving if head[i] == end]
            if max(len(here), len(onward)) < 2:
                # Inflow that cannot leave is useless, and so is outflow capacity that nothing can fill.
                least = min(capacity[here[0]], capacity[onward[0]]) if here and onward else Fraction(0)
                for i in here + onward:
                    capacity[i] = least
    return Arcs(arcs.tail, arcs.head, tuple(capacity), arcs.members, arcs.host)


def whole_graph(arcs: Arcs, rates: Mapping[int, Fraction], scale: Fraction) -> Digraph:
    """Capacities times `scale`, rounded down, and root rates times `scale`, which must be whole."""
    # Equal capacities are mostly one object, and fractions are slow to multiply and to look up.
    known = {id(value): value for value in arcs.capacity}
    factors = {number: int(value * scale) for number, value in known.items()}
    whole = [factors[id(value)] for value in arcs.capacity]
    roots = {vertex: int(rate * scale) for vertex, rate in rates.items()}
    return Digraph.of(arcs.count, arcs.tail, arcs.head, whole, roots, arcs.members)


def fewest(arcs: Arcs, rates: Mapping[int, Fraction]) -> tuple[Digraph, Fraction]:
    """The graph in whole trees for out-trees of these rates, and its scale (trees per unit of rate).

    The rates must be possible. The number of trees per root is the least that needs no rounding, or a smaller
    one that does with capacities rounded down.
    """
    used = [rate for rate in rates.values() if rate]
    steps = (whole([(value, 1) for value in values])[1] for values in (used, [*used, *arcs.capacity]))
    base, most = (1 / step for step in steps)
    times = int(most / base)
    divisors = [n for n in range(1, min(times, 4096)) if times % n == 0][:_TRIES]
    for number in divisors:
        graph = whole_graph(arcs, rates, base * number)
        entering, members = _entering(graph), {*graph.members, *graph.roots}
        # Vertices without data must take in at least what they give out.
        balanced = all(v in members or entering[v] >= sum(row.values()) for v, row in enumerate(graph.out))
        if balanced and not graph.short_sets(most=1):
            return graph, base * number
    return whole_graph(arcs, rates, most), most


def fixed(arcs: Arcs, shares: Mapping[int, Fraction]) -> tuple[Digraph, Fraction]:
    """The greatest scale at which shares[v] out-trees from every root v fit, and the graph at that scale.

    The scale is trees per unit of rate: a root's rate is shares[v] / scale, so the least scale is the best.
    Only values at which a rounded capacity changes matter; bisection finds the least that works.
    """
    total = int(sum(shares.values()))
    distinct = sorted({value for value in arcs.capacity if value})
    candidates = sorted({j / value for value in distinct for j in map(Fraction, range(1, total + 1))})

    def graph_at(scale: Fraction) -> Digraph:
        return whole_graph(arcs, {vertex: trees / scale for vertex, trees in shares.items()}, scale)

    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        graph = trimmed(graph_at(candidates[middle]))
        if graph.short_sets(most=1):
            low = middle + 1
        else:
            high = middle
    return trimmed(graph_at(candidates[low])), candidates[low]


def _entering(graph: Digraph) -> list[int]:
    entering = [0] * graph.count
    for row in graph.out:
        for head, capacity in row.items():
            entering[head] += capacity
    return entering


def trimmed(graph: Digraph) -> Digraph:
    """`graph`, in place, with arcs out of forwarders lowered until each gives out no more than it takes in."""
    members = {*graph.members, *graph.roots}
    changed = True
    while changed:
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
                graph.take(vertex, head, lost)
            changed = True
    return graph


# How far rounded numbers may exceed a capacity and still be scaled down; beyond it they are another solution.
_MOST_EXCESS = Fraction(21, 20)
# Parts into which the roots' rates may divide their sum; a schedule's shares and the flows' sums take no more.
MOST_PARTS = 2**36


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
    net: Network, shared: Sequence[SharedCapacity], weights: Mapping[int, int] | None, *, both: bool, best: Fraction
) -> Split | None:
    """The split with the greatest rate; None if no rounding of the program's answer holds.

    weights: how the rate is divided over the roots; None leaves that free. both: in-trees with the same roots
    and rates run at the same time, for a network that is its own reverse the out-trees reversed. best: a
    bound of the rate in units of the network, at which the search for exact fractions stops.
    """
    free = weights is None
    if free:
        weights = {widest(net): 1}
    solution = solve_trees(net, shared, weights, both=both)
    if free and not agree(best, solution.value):
        weights = None
        solution = solve_trees(net, shared, None, both=both)
    members = net.members.tolist()
    partner = net.partner.tolist() if both and net.partner is not None else None
    split: Split | None = None
    for to_fractions, capacities in fitting(net, shared, solution.used, best, partner):
        if weights is None:
            roots = to_fractions([max(0.0, value) for value in solution.roots])
        ratio: Mapping[int, Fraction | int] = weights or dict(zip(members, roots, strict=True))
        try:
            candidate = _held(net, capacities, ratio)
        except BlinksimError:
            continue
        if candidate is not None and (split is None or candidate.rate > split.rate):
            split = candidate
            if split.rate >= best:
                break
    return split


def fitting(
    net: Network,
    shared: Sequence[SharedCapacity],
    rows: Sequence[Sequence[float]],
    best: Fraction,
    partner: Sequence[int] | None = None,
) -> Iterator[tuple[Rounding, Sequence[list[Fraction]]]]:
    """What a program's trees or flows use of every arc, in fractions that fit: one answer for each of `roundings`.

    Loads a little above a shared capacity are scaled down; roundings that are far above one are left out.
    partner: the arc that reversed out-trees use in the place of each arc.
    """
    for to_fractions in roundings(best):
        parts = [to_fractions([max(0.0, value) for value in row]) for row in rows]
        totals = [sum(values, start=Fraction(0)) for values in zip(*parts, strict=True)]
        if partner is not None:
            totals = [total + totals[partner[arc]] for arc, total in enumerate(totals)]
        # On a bus, arcs share the time: a slower direction takes more of it for the same data.
        over = max(sum((totals[arc] / int(net.capacity[arc]) for arc, _ in cap.uses), Fraction(0)) for cap in shared)
        if 0 < over <= _MOST_EXCESS:
            yield to_fractions, [[value / over for value in row] for row in parts] if over > 1 else parts


def _held(net: Network, sides: Sequence[list[Fraction]], ratio: Mapping[int, Fraction | int]) -> Split | None:
    """The best rate that these capacities hold for roots in this ratio, found by cuts; None if they hold nothing."""
    if not sum(ratio.values()):
        return None
    common = lcm(*(Fraction(value).denominator for value in ratio.values()))
    if common * sum(ratio.values()) > MOST_PARTS:
        return None
    weight = np.zeros(net.vertices, dtype=np.int64)
    for vertex, value in ratio.items():
        weight[vertex] = int(value * common)
    held = [_rate(net if number == 0 else net.reversed(), values, weight) for number, values in enumerate(sides)]
    rate = min(best for best, _ in held)
    if not rate:
        return None
    capacities = [tuple(capacity) for _, capacity in held]
    rates = {vertex: rate * int(weight[vertex]) for vertex in ratio if weight[vertex]}
    return Split(rates, capacities[0], capacities[1] if len(capacities) > 1 else None)


def _rate(net: Network, capacity: list[Fraction], weight: Array) -> tuple[Fraction, list[Fraction]]:
    """The greatest factor x such that x weight[v] fits at every root v, and the capacities after trimming."""
    known: dict[Fraction, Fraction] = {}
    values, unit = whole([(known.setdefault(value, value), 1) for value in capacity])
    tail, head = net.tail.tolist(), net.head.tolist()
    roots = dict.fromkeys(np.flatnonzero(weight).tolist(), 1)
    graph = trimmed(Digraph.of(net.vertices, net.tail, net.head, values, roots, net.members.tolist()))
    trimmed_values = []
    for a, b, value in zip(tail, head, values, strict=True):
        part = min(value, graph.out[a].get(b, 0))
        if part:
            graph.take(a, b, part)
        trimmed_values.append(part)
    lowered = replace(net, capacity=np.array(trimmed_values, dtype=np.int64))
    sinks = net.members[weight[net.members] < weight.sum()]
    ratio, _ = tightest(lowered, weight, sinks)
    return ratio * unit, [value * unit for value in trimmed_values]


def even_split(net: Network, shared: Sequence[SharedCapacity], weights: Mapping[int, int], *, both: bool) -> Split:
    """A split without a program: the arcs of each shared capacity get equal parts, and so do up and down.

    weights: of the roots. The rate is the exact best of that split, in general below that of `best_split`.
    """
    capacity = [Fraction(0)] * len(net.tail)
    for resource in shared:
        for arc, _ in resource.uses:
            capacity[arc] = Fraction(int(net.capacity[arc]), len(resource.uses) * (1 + both))
    split = _held(net, [capacity] * (1 + both), weights)
    if split is None:
        raise InfeasibleError("the links do not reach every member")
    return split
