"""Root rates and capacities for trees where links share: half duplex, device limits, up and down on the same links.

The best trees are a linear program (see `blinksim.bounds.optimum`); its solution says how much of every shared capacity
each direction gets. Rounded to short fractions and checked exactly, that split is frozen, and what is left is a
packing in fixed capacities, which never needs the program again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import lcm

import numpy as np

from blinksim.bounds.cuts import tightest
from blinksim.errors import BlinksimError
from blinksim.graphs.capacities import SharedCapacity
from blinksim.graphs.digraph import Digraph
from blinksim.graphs.linear import Program
from blinksim.graphs.network import Array, Network, whole
from blinksim.packing.exact.scaling import trimmed

# Flow variables up to which the program is solved.
LIMIT = 12_000
DENOMINATORS = (1, 2, 3, 4, 5, 6, 8, 12, 24, 60, 120, 840, 5040)
_GRID = 2**16


@dataclass(frozen=True)
class Frozen:
    """rates: of every root's out-trees, in units of the network. capacity: per arc for the out-trees; `back`: for the
    in-trees that go with them (as capacities of the same arcs), None if there are none."""

    rates: Mapping[int, Fraction]
    capacity: tuple[Fraction, ...]
    back: tuple[Fraction, ...] | None = None

    @property
    def rate(self) -> Fraction:
        return sum(self.rates.values(), start=Fraction(0))


def size(net: Network, both: bool) -> int:
    """Number of flow variables of the program."""
    return len(net.tail) * (len(net.members) + 1) * (2 if both else 1)


def freeze(
    net: Network, shared: Sequence[SharedCapacity], weights: Mapping[int, int] | None, *, both: bool, best: Fraction
) -> Frozen | None:
    """The best split of the shared capacities for out-trees; None if the program is too large.

    weights: how the rate is divided over the roots; None leaves that free. both: in-trees with the same roots and
    rates run at the same time, for a network that is its own reverse the out-trees turned round. best: a bound of the
    rate in units of the network, at which the search for exact fractions stops.
    """
    paired = both and net.partner is not None
    if size(net, both and not paired) > LIMIT:
        return None
    program = Program()
    scale = float(net.capacity.max())
    members = net.members.tolist()
    if weights is None:
        variables = list(program.variables(len(members)))
        share = {vertex: (variable, 1.0) for vertex, variable in zip(members, variables, strict=True)}
    else:
        variables = list(program.variables(1))
        total = sum(weights.values())
        share = {vertex: (variables[0], weight / total) for vertex, weight in weights.items() if weight}
    ways = [_trees(program, net, share)]
    if both and not paired:
        ways.append(_trees(program, net.reversed(), share))
    partner = net.partner.tolist() if paired and net.partner is not None else None
    for resource in shared:
        terms: dict[int, float] = {}
        for arc, part in resource.uses:
            for way in ways:
                terms[way[arc]] = terms.get(way[arc], 0.0) + part
            if partner is not None:
                other = ways[0][partner[arc]]
                terms[other] = terms.get(other, 0.0) + part
        program.row(list(terms.items()), at_most=resource.capacity / scale)
    program.solve([(variable, 1.0) for variable in variables])
    values = program.values * scale
    roots = [max(0.0, float(values[variable])) for variable in variables]
    arcs = [[max(0.0, float(values[variable])) for variable in way] for way in ways]
    found: Frozen | None = None
    for to_fractions in roundings(best):
        parts = [to_fractions(way) for way in arcs]
        candidate = _checked(net, shared, weights, to_fractions(roots), parts, partner)
        if candidate is not None and (found is None or candidate.rate > found.rate):
            found = candidate
            if found.rate >= best:
                break
    return found


def _trees(program: Program, net: Network, share: Mapping[int, tuple[int, float]]) -> range:
    """Variables for what out-trees use of each arc, with rows that let every member receive all of it."""
    tail, head = net.tail.tolist(), net.head.tolist()
    leaving: list[list[int]] = [[] for _ in range(net.vertices)]
    entering: list[list[int]] = [[] for _ in range(net.vertices)]
    for arc, (a, b) in enumerate(zip(tail, head, strict=True)):
        leaving[a].append(arc)
        entering[b].append(arc)
    used = program.variables(len(tail))
    for vertex in net.forwarders.tolist():
        terms = [(used[arc], 1.0) for arc in leaving[vertex]] + [(used[arc], -1.0) for arc in entering[vertex]]
        if vertex in share:
            terms.append((share[vertex][0], -share[vertex][1]))
        program.row(terms, at_most=0.0)
    for sink in net.members.tolist():
        flow = program.variables(len(tail))
        for arc in range(len(tail)):
            program.row([(flow[arc], 1.0), (used[arc], -1.0)], at_most=0.0)
        for vertex in range(net.vertices):
            if vertex == sink:
                continue
            terms = [(flow[arc], 1.0) for arc in leaving[vertex]] + [(flow[arc], -1.0) for arc in entering[vertex]]
            if vertex in share:
                variable, factor = share[vertex]
                terms.append((variable, -factor))
            program.row(terms, at_least=0.0, at_most=0.0)
    return used


def roundings(best: Fraction) -> Iterator[Callable[[Sequence[float]], list[Fraction]]]:
    """Ways to turn a program's values into fractions, the likeliest first; the last rounds down and always fits.

    A vertex has short fractions, or multiples of those of the rate `best` that it attains.
    """

    def short(values: Sequence[float], most: int) -> list[Fraction]:
        return [Fraction(value).limit_denominator(most) for value in values]

    def multiples(values: Sequence[float], den: int) -> list[Fraction]:
        return [Fraction(round(value * den), den) for value in values]

    for most in DENOMINATORS:
        yield partial(short, most=most)
    for times in DENOMINATORS[:-2]:
        yield partial(multiples, den=best.denominator * times)

    def down(values: Sequence[float]) -> list[Fraction]:
        step = Fraction(max(1, round(max(values))), _GRID)
        return [int(value / float(step) + 1e-6) * step for value in values]

    yield down


def _checked(
    net: Network,
    shared: Sequence[SharedCapacity],
    weights: Mapping[int, int] | None,
    roots: Sequence[Fraction],
    ways: Sequence[list[Fraction]],
    partner: Sequence[int] | None,
) -> Frozen | None:
    """What these numbers hold exactly: capacities are shrunk until they fit, and the rate found anew by cuts."""
    totals = [_load(ways, partner, arc) for arc in range(len(net.tail))]
    over = excess(net, shared, totals)
    if over <= 0 or over > Fraction(21, 20):
        return None
    shrink = 1 / over if over > 1 else Fraction(1)
    members = net.members.tolist()
    parts: Mapping[int, Fraction | int]
    parts = dict(zip(members, roots, strict=True)) if weights is None else weights
    if not sum(parts.values()):
        return None
    common = lcm(*(Fraction(value).denominator for value in parts.values()))
    weight = np.zeros(net.vertices, dtype=np.int64)
    for vertex, value in parts.items():
        weight[vertex] = int(value * common)
    rates: list[Fraction] = []
    kept: list[tuple[Fraction, ...]] = []
    for number, way in enumerate(ways):
        turned = net if number == 0 else net.reversed()
        capacity = [value * shrink for value in way]
        try:
            best, capacity = _rate(turned, capacity, weight)
        except BlinksimError:
            return None
        rates.append(best)
        kept.append(tuple(capacity))
    rate = min(rates)
    if not rate:
        return None
    return Frozen(
        {vertex: rate * int(weight[vertex]) for vertex in parts if weight[vertex]},
        kept[0],
        kept[1] if len(kept) > 1 else None,
    )


def excess(net: Network, shared: Sequence[SharedCapacity], totals: Sequence[Fraction]) -> Fraction:
    """The greatest load over capacity among the shared capacities, if arc i carries totals[i]; exact."""
    worst = Fraction(0)
    for resource in shared:
        # On a bus, arcs share the time: a slower direction takes more of it for the same data.
        load = sum((totals[arc] / int(net.capacity[arc]) for arc, _ in resource.uses), start=Fraction(0))
        worst = max(worst, load)
    return worst


def _load(ways: Sequence[list[Fraction]], partner: Sequence[int] | None, arc: int) -> Fraction:
    load = sum((way[arc] for way in ways), start=Fraction(0))
    return load + ways[0][partner[arc]] if partner is not None else load


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


def even_split(net: Network, shared: Sequence[SharedCapacity], weights: Mapping[int, int], *, both: bool) -> Frozen:
    """A split without a program: the arcs of each shared capacity get equal parts, and so do up and down.

    weights: of the roots. The rate is the exact best of that split, in general below that of `freeze`.
    """
    capacity = [Fraction(0)] * len(net.tail)
    for resource in shared:
        for arc, _ in resource.uses:
            capacity[arc] = Fraction(int(net.capacity[arc]), len(resource.uses) * (1 + both))
    weight = np.zeros(net.vertices, dtype=np.int64)
    for vertex, value in weights.items():
        weight[vertex] = value
    ahead, kept = _rate(net, capacity, weight)
    if not both:
        return Frozen({vertex: ahead * value for vertex, value in weights.items() if value}, tuple(kept))
    behind, back = _rate(net.reversed(), capacity, weight)
    rate = min(ahead, behind)
    return Frozen({vertex: rate * value for vertex, value in weights.items() if value}, tuple(kept), tuple(back))
