"""Flows cut into paths, for data that is not copied on its route: gather, scatter and alltoall.

A flow is a sum of paths (Ford and Fulkerson 1962, flow decomposition). One source's greatest flow needs no
program; for several that share links a program (`blinksim.graphs.programs`) says how much of every link each
source may use, and within that part each source's flow is again a greatest flow in whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from blinksim.bounds.cuts import tightest
from blinksim.errors import BlinksimError, InfeasibleError
from blinksim.graphs.arrays import Ints
from blinksim.graphs.maxflow import Flow
from blinksim.graphs.network import Network, guard, whole
from blinksim.graphs.programs import MOST_FLOWS, Commodity, SharedCapacity, flow_variables, solve_flows
from blinksim.packing.forest import fitting


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
    if len(commodities) == 1 and all(len(resource.uses) == 1 for resource in shared):
        capacity = [[Fraction(value) for value in net.capacity.tolist()]]
        rate = _rate(net, capacity[0], commodities[0])
        return rate, _decomposed(net, capacity[0], commodities[0], rate)
    if flow_variables(net, len(commodities)) > MOST_FLOWS:
        return None
    try:
        flows = solve_flows(net, shared, commodities).flows
    except InfeasibleError:
        return None
    reached: tuple[Fraction, Sequence[list[Fraction]]] | None = None
    for _, parts in fitting(net, shared, flows, best):
        try:
            rate = min(_rate(net, row, commodity) for row, commodity in zip(parts, commodities, strict=True))
        except BlinksimError:
            continue
        if reached is None or rate > reached[0]:
            reached = rate, parts
        if rate >= best:
            break
    if reached is None:
        return None
    rate, parts = reached
    paths = []
    for row, commodity in zip(parts, commodities, strict=True):
        paths += _decomposed(net, row, commodity, rate)
    return rate, paths


def flow_images(net: Network, best: Fraction, group: Ints) -> tuple[Fraction, list[PathShare]] | None:
    """From every vertex to all others, the image of the first vertex's flow; as `route_flows`, one source each.

    Then an arc carries what all arcs of its class carry of one flow (see `blinksim.packing.forest`), so one flow is
    enough. group: a `regular_group`. None if arcs are not alike by it.
    """
    arcs = {arc: number for number, arc in enumerate(zip(net.tail.tolist(), net.head.tolist(), strict=True))}
    if len(arcs) < len(net.tail):
        return None
    classes: dict[int, list[int]] = {}
    for first, second in list(arcs):
        if not first:
            images = [arcs.get((int(image[first]), int(image[second])), -1) for image in group]
            if -1 in images or len(set(net.capacity[images].tolist())) > 1:
                return None
            classes[second] = images
    if sum(map(len, classes.values())) < len(arcs):
        return None
    shared = [
        SharedCapacity(tuple((arc, 1.0) for arc in images), int(net.capacity[images[0]])) for images in classes.values()
    ]
    routed = route_flows(net, shared, [Commodity(0, dict.fromkeys(range(1, net.vertices), 1))], best)
    if routed is None:
        return None
    tail, head = net.tail.tolist(), net.head.tolist()
    paths = [
        PathShare(
            source, image[path.sink], tuple(arcs[image[tail[arc]], image[head[arc]]] for arc in path.arcs), path.rate
        )
        for source, image in enumerate(group.tolist())
        for path in routed[1]
    ]
    return routed[0], paths


def _rate(net: Network, capacity: Sequence[Fraction], commodity: Commodity) -> Fraction:
    """The greatest rate per unit of weight in these capacities: a tightest cut, seen from the source."""
    numbers, unit = whole([(value, 1) for value in capacity])
    guard(sum(numbers))
    reverse = replace(net, capacity=np.array(numbers, dtype=np.int64)).reversed()
    weight = np.zeros(net.vertices, dtype=np.int64)
    for vertex, value in commodity.weights.items():
        weight[vertex] = value
    ratio, _ = tightest(reverse, weight, np.array([commodity.source], dtype=np.int64))
    return ratio * unit


def _decomposed(net: Network, capacity: Sequence[Fraction], commodity: Commodity, rate: Fraction) -> list[PathShare]:
    """A flow of `rate` per unit of weight, cut into paths: at most one per arc and sink."""
    sinks = [vertex for vertex, weight in commodity.weights.items() if weight]
    wanted = [*capacity, *(rate * commodity.weights[vertex] for vertex in sinks)]
    numbers, unit = whole([(value, 1) for value in wanted])
    guard(2 * sum(numbers))
    end = net.vertices
    flow = Flow(
        end + 1,
        np.concatenate([net.tail, np.array(sinks, dtype=np.int64)]),
        np.concatenate([net.head, np.full(len(sinks), end)]),
        np.array(numbers, dtype=np.int64),
        commodity.source,
        end,
    )
    tail, left = net.tail.tolist(), flow.carried().tolist()
    entering: dict[int, list[int]] = {}
    for arc, b in enumerate(net.head.tolist()):
        if left[arc]:
            entering.setdefault(b, []).append(arc)
    paths = []
    for place, sink in enumerate(sinks, start=len(tail)):
        while left[place]:
            # Backwards from the sink; cycles of flow met on the way are removed.
            arcs: list[int] = []
            seen = {sink: 0}
            vertex, amount = sink, left[place]
            while vertex != commodity.source:
                arc = next(arc for arc in entering[vertex] if left[arc])
                arcs.append(arc)
                vertex = tail[arc]
                if vertex in seen:
                    circle = arcs[seen[vertex] :]
                    least = min(left[arc] for arc in circle)
                    for arc in circle:
                        left[arc] -= least
                    arcs, seen, vertex = [], {sink: 0}, sink
                    continue
                seen[vertex] = len(arcs)
            amount = min([amount, *(left[arc] for arc in arcs)])
            for arc in arcs:
                left[arc] -= amount
            left[place] -= amount
            paths.append(PathShare(commodity.source, sink, tuple(reversed(arcs)), amount * unit))
    return paths
