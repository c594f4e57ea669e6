"""From exact rates to whole trees: the least number of equal trees that attains a rate, or the best rate of a number.

Multiply the rate of every root and every capacity by one factor that makes the rates whole; a capacity may be rounded
down where the trees still fit (ForestColl, Zhao et al. 2024, section 5, gives the factor that needs no rounding and
the search for a fixed number of trees).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

from blinksim.graphs.digraph import Digraph
from blinksim.graphs.network import Array

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


def common_step(values: Sequence[Fraction]) -> Fraction:
    """The greatest number of which all values are whole multiples."""
    den = lcm(*(value.denominator for value in values))
    return Fraction(gcd(*(int(value * den) for value in values)), den)


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
    factors: dict[Fraction, int] = {}
    known: dict[int, int] = {}
    whole = []
    for value in arcs.capacity:
        # Equal capacities are mostly one object: look them up by identity before by value.
        number = known.get(id(value))
        if number is None:
            number = known[id(value)] = factors.setdefault(value, int(value * scale))
        whole.append(number)
    roots = {vertex: int(rate * scale) for vertex, rate in rates.items()}
    return Digraph.of(arcs.count, arcs.tail, arcs.head, whole, roots, arcs.members)


def fewest(arcs: Arcs, rates: Mapping[int, Fraction]) -> tuple[Digraph, Fraction]:
    """The graph in whole trees for out-trees of these rates, and its scale (trees per unit of rate).

    The rates must be possible. The number of trees per root is the least that needs no rounding, or a smaller one
    that does with capacities rounded down.
    """
    used = [rate for rate in rates.values() if rate]
    base = 1 / common_step(used)
    most = 1 / common_step([*used, *set(arcs.capacity)])
    times = int(most / base)
    divisors = [n for n in range(1, min(times, 4096)) if times % n == 0][:_TRIES]
    for number in divisors:
        graph = whole_graph(arcs, rates, base * number)
        if _balanced(graph) and not graph.short_sets(most=1):
            return graph, base * number
    return whole_graph(arcs, rates, most), most


def fixed(arcs: Arcs, shares: Mapping[int, int]) -> tuple[Digraph, Fraction]:
    """The greatest scale at which shares[v] out-trees from every root v fit, and the graph at that scale.

    The scale is trees per unit of rate: a root's rate is shares[v] / scale, so the least scale is the best. Only
    values at which a rounded capacity changes matter; bisection finds the least that works.
    """
    total = sum(shares.values())
    distinct = sorted({value for value in arcs.capacity if value})
    candidates = sorted({j / value for value in distinct for j in map(Fraction, range(1, total + 1))})

    def graph_at(scale: Fraction) -> Digraph:
        whole = [int(value * scale) for value in arcs.capacity]
        return Digraph.of(arcs.count, arcs.tail, arcs.head, whole, shares, arcs.members)

    low, high = 0, len(candidates) - 1
    while low < high:
        middle = (low + high) // 2
        graph = trimmed(graph_at(candidates[middle]))
        if graph.short_sets(most=1):
            low = middle + 1
        else:
            high = middle
    return trimmed(graph_at(candidates[low])), candidates[low]


def _balanced(graph: Digraph) -> bool:
    """True if every vertex without data takes in at least what it gives out."""
    entering = _entering(graph)
    members = {*graph.members, *graph.roots}
    return all(vertex in members or entering[vertex] >= sum(row.values()) for vertex, row in enumerate(graph.out))


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
        for vertex in range(graph.count):
            if vertex in members:
                continue
            row = graph.out[vertex]
            if sum(row.values()) > entering[vertex]:
                for head, amount in _levelled(row, entering[vertex]).items():
                    entering[head] -= row[head] - amount
                    graph.take(vertex, head, row[head] - amount)
                changed = True
    return graph


def _levelled(row: Mapping[int, int], total: int) -> dict[int, int]:
    """The arcs of one vertex lowered to `total`: the widest first, so that none is cut off before it must be."""
    left, count = total, len(row)
    kept = {}
    for head, capacity in sorted(row.items(), key=lambda arc: arc[1]):
        kept[head] = min(capacity, left // count)
        left -= kept[head]
        count -= 1
    return kept
