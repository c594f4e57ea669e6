"""Flows cut into paths, for data that is not copied on its route: gather, scatter and alltoall.

A flow is a sum of paths (Ford and Fulkerson 1962, flow decomposition). One source's greatest flow needs no
program; for several that share links a program (`blinksim.graphs.programs`) says how much of every link each
source may use, and within that part each source's flow is again a greatest flow in whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from blinksim.bounds.cuts import tightest
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Ints
from blinksim.graphs.connectivity import grouped
from blinksim.graphs.network import Flow, Network, guard, whole
from blinksim.graphs.programs import MOST_FLOWS, Commodity, SharedCapacity, solve_flows
from blinksim.packing.forest import best_fractions


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
            weight = np.zeros(net.vertices, dtype=np.int64)
            weight[list(commodity.weights)] = list(commodity.weights.values())
            ratio, _ = tightest(reverse, weight, np.array([commodity.source], dtype=np.int64))
            rates.append(ratio * unit)
        return min(rates), parts

    if len(commodities) == 1 and all(len(resource.uses) == 1 for resource in shared):
        found = held(None, [[Fraction(value) for value in net.capacity.tolist()]])
    elif len(net.tail) * len(commodities) <= MOST_FLOWS:
        with suppress(InfeasibleError):
            found = best_fractions(net, shared, solve_flows(net, shared, commodities).flows, best, held)
    if found is None:
        return None
    rate, parts = found
    pairs = zip(parts, commodities, strict=True)
    return rate, [path for row, commodity in pairs for path in _decomposed(net, row, commodity, rate)]


def flow_images(net: Network, best: Fraction, group: Ints) -> tuple[Fraction, list[PathShare]] | None:
    """From every vertex to all others, the image of the first vertex's flow; as `route_flows`, one source each.

    Then an arc carries what all arcs of its class carry of one flow (see `blinksim.packing.forest`), so one flow is
    enough. group: a `regular_group`. None if arcs are not alike by it.
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
    number, paths = np.empty_like(order), []
    number[rows] = np.arange(len(rows))[:, None]
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
