"""Shared capacity divided, so that trees can be packed into fixed capacities, one for each arc and direction of trees.

What is divided: the capacity of every link, bus and device limit. Among whom: the arcs that share it (a half-duplex bus
has one each way), and, where in-trees run at the same time as out-trees, these two. With the division comes the rate of
every root. `best_split` takes it from the linear program of the best trees; `even_split` gives equal parts.

The program's numbers are rounded to short fractions (`blinksim.graphs.rounding`), and each rounding is checked exactly:
what the shared capacities do not hold is scaled down, and the rate is found anew by cuts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm

import numpy as np

from blinksim.bounds.cuts import tightest
from blinksim.errors import BlinksimError
from blinksim.graphs.capacities import SharedCapacity, agree
from blinksim.graphs.digraph import Digraph
from blinksim.graphs.network import Array, Network, whole
from blinksim.graphs.rounding import roundings
from blinksim.graphs.tree_program import solve_trees, widest
from blinksim.packing.exact.scaling import trimmed

# How far rounded numbers may exceed a capacity and still be scaled down; beyond it they are another solution.
MOST_EXCESS = Fraction(21, 20)
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

    weights: how the rate is divided over the roots; None leaves that free. both: in-trees with the same roots and
    rates run at the same time, for a network that is its own reverse the out-trees reversed. best: a bound of the
    rate in units of the network, at which the search for exact fractions stops.
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
    found: Split | None = None
    for to_fractions in roundings(best):
        used = [to_fractions([max(0.0, value) for value in way]) for way in solution.used]
        ways = _fitting(net, shared, used, partner)
        if ways is None:
            continue
        ratio: Mapping[int, Fraction | int]
        if weights is None:
            roots = to_fractions([max(0.0, value) for value in solution.roots])
            ratio = dict(zip(members, roots, strict=True))
        else:
            ratio = weights
        candidate = _held(net, ways, ratio)
        if candidate is not None and (found is None or candidate.rate > found.rate):
            found = candidate
            if found.rate >= best:
                break
    return found


def _fitting(
    net: Network, shared: Sequence[SharedCapacity], used: Sequence[list[Fraction]], partner: Sequence[int] | None
) -> Sequence[list[Fraction]] | None:
    """What out-trees (and in-trees) use of every arc, scaled down to the shared capacities; None if far above them.

    partner: the arc that reversed out-trees use in the place of each arc.
    """
    totals = [sum(values, start=Fraction(0)) for values in zip(*used, strict=True)]
    if partner is not None:
        totals = [total + totals[partner[arc]] for arc, total in enumerate(totals)]
    over = excess(net, shared, totals)
    if over <= 0 or over > MOST_EXCESS:
        return None
    return [[value / over for value in way] for way in used] if over > 1 else used


def _held(net: Network, ways: Sequence[list[Fraction]], ratio: Mapping[int, Fraction | int]) -> Split | None:
    """The best rate that these capacities hold for roots in this ratio, found by cuts; None if they hold nothing."""
    if not sum(ratio.values()):
        return None
    common = lcm(*(Fraction(value).denominator for value in ratio.values()))
    if common * sum(ratio.values()) > MOST_PARTS:
        return None
    weight = np.zeros(net.vertices, dtype=np.int64)
    for vertex, value in ratio.items():
        weight[vertex] = int(value * common)
    try:
        held = [_rate(net if number == 0 else net.reversed(), way, weight) for number, way in enumerate(ways)]
    except BlinksimError:
        return None
    rate = min(best for best, _ in held)
    if not rate:
        return None
    capacities = [tuple(capacity) for _, capacity in held]
    rates = {vertex: rate * int(weight[vertex]) for vertex in ratio if weight[vertex]}
    return Split(rates, capacities[0], capacities[1] if len(capacities) > 1 else None)


def excess(net: Network, shared: Sequence[SharedCapacity], totals: Sequence[Fraction]) -> Fraction:
    """The greatest load over capacity among the shared capacities, if arc i carries totals[i]; exact."""
    worst = Fraction(0)
    for one in shared:
        # On a bus, arcs share the time: a slower direction takes more of it for the same data.
        load = sum((totals[arc] / int(net.capacity[arc]) for arc, _ in one.uses), start=Fraction(0))
        worst = max(worst, load)
    return worst


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
    for one in shared:
        for arc, _ in one.uses:
            capacity[arc] = Fraction(int(net.capacity[arc]), len(one.uses) * (1 + both))
    weight = np.zeros(net.vertices, dtype=np.int64)
    for vertex, value in weights.items():
        weight[vertex] = value
    ahead, kept = _rate(net, capacity, weight)
    if not both:
        return Split({vertex: ahead * value for vertex, value in weights.items() if value}, tuple(kept))
    behind, back = _rate(net.reversed(), capacity, weight)
    rate = min(ahead, behind)
    return Split({vertex: rate * value for vertex, value in weights.items() if value}, tuple(kept), tuple(back))
