"""Gather, scatter and alltoall along the paths of optimal flows, with every block split among its paths.

Where the shortest routes already meet the bound, they are the schedule; otherwise optimal flows are. Data
rests at every member on its way, so a path of several members is several sends.

Flows cut into paths, for data that is not copied on its route: gather, scatter and alltoall. A flow is a sum
of paths (Ford and Fulkerson 1962, flow decomposition). One source's greatest flow needs no program; for
several that share links a program (`blinksim.graphs.programs`) says how much of every link each source may
use, and within that part each source's flow is again a greatest flow in whole numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.bounds import BoundResult
from blinksim.bounds.cuts import tightest
from blinksim.bounds.optimum import commodities
from blinksim.collective import ROOT
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Ints
from blinksim.graphs.maxflow import Flow
from blinksim.graphs.network import Network, guard, whole
from blinksim.graphs.programs import MOST_FLOWS, Commodity, SharedCapacity, flow_variables, solve_flows
from blinksim.packing.forest import best_fractions, regular_group
from blinksim.schedule.loads import Edge, Route, resources
from blinksim.schedule.model import COPY
from blinksim.topology.graph import Topology
from blinksim.topology.routes import Router


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
    elif flow_variables(net, len(commodities)) <= MOST_FLOWS:
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
    entering: dict[int, list[int]] = {}
    for arc, b in enumerate(net.head.tolist()):
        if left[arc]:
            entering.setdefault(b, []).append(arc)
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


Pair = tuple[int, int]


def add_paths(plan: Plan, net: Network, shared: list[SharedCapacity], bound: BoundResult) -> None:
    """The chunks and sends of the plan's collective (gather, scatter or alltoall) at the best rate found."""
    topology, collective, (tail, head) = plan.topology, plan.collective, plan.topology.ends
    members = net.members.tolist()
    rank = {vertex: number for number, vertex in enumerate(members)}
    starts, ends = (
        [members[collective.root]] if who == ROOT else members for who in (collective.starts, collective.ends)
    )
    ranks = topology.ranks
    blocks = {
        (start, end): collective.share(rank[start], rank[end], ranks) if collective.exchanges else Fraction(1, ranks)
        for start in starts
        for end in ends
    }

    def add(start: int, end: int, share: Fraction, links: Route) -> None:
        chunk = plan.add_chunk(share, *collective.labels(rank[start], rank[end]))
        # One send per section between two members. Arcs beyond the links stand for capacities.
        edges, part = list[Edge](), list[int]()
        for link in (arc for arc in links if arc < len(tail)):
            part.append(link)
            if int(head[link]) in rank:
                edges.append((int(tail[part[0]]), int(head[link]), tuple(part)))
                part = []
        plan.add_edges(chunk, edges, COPY, range(len(edges)))

    # A rank's block for itself is part of the vector too.
    for vertex in members:
        if blocks.get((vertex, vertex)):
            add(vertex, vertex, blocks[vertex, vertex], ())
    pairs = [(start, end) for (start, end), block in blocks.items() if start != end and block]
    router = Router(topology)
    straight = {pair: router.route(*pair) for pair in pairs}
    direct = _rate(topology, straight, blocks)
    if direct < bound.rate:
        # A flow's rate counts units of its commodities' weights: blocks, or bytes of a traffic matrix.
        unit = Fraction(1, ranks if collective.traffic is None else collective.traffic.size)
        most = bound.rate * unit / net.unit
        rate, amounts = _flows(plan, net, shared, pairs, most)
        if rate * net.unit / unit > direct:
            for (start, end, links), amount in amounts.items():
                add(start, end, amount / rate * unit, links)
            return
    for pair in pairs:
        add(*pair, blocks[pair], straight[pair])


def _flows(
    plan: Plan, net: Network, shared: list[SharedCapacity], pairs: Sequence[Pair], most: Fraction
) -> tuple[Fraction, dict[tuple[int, int, Route], Fraction]]:
    """The rate of one block (in units of the network, at most `most`) by the best flows, and that of every path.

    Where all GPUs of an alltoall are alike and joined by direct links, images of one flow may reach it. Zero
    where the flows are too large to compute.
    """
    topology, collective = plan.topology, plan.collective
    rate, paths, backwards = Fraction(0), list[PathShare](), collective.collects
    plain = len(net.members) == net.vertices and all(len(capacity.uses) == 1 for capacity in shared)
    if collective.name == "alltoall" and topology.symmetries and plain:
        group = regular_group(topology)
        rate, paths = (group is not None and flow_images(net, most, group)) or (rate, paths)
    if rate < most:
        # A gather is a scatter in the reversed network: one source is cheaper than many.
        sinks = defaultdict[int, dict[int, int]](dict)
        for start, end in pairs:
            source, sink = (end, start) if backwards else (start, end)
            sinks[source][sink] = 1
        if collective.traffic is None:
            wanted = [Commodity(source, weights) for source, weights in sinks.items()]
        else:
            wanted = commodities(net, collective.traffic)
        routed = route_flows(net.reversed() if backwards else net, shared, wanted, most)
        if routed is not None and routed[0] > rate:
            rate, paths = routed
    # The same path may come several times.
    amounts = dict[tuple[int, int, Route], Fraction]()
    for path in paths:
        key = (path.sink, path.source, path.arcs[::-1]) if backwards else (path.source, path.sink, path.arcs)
        amounts[key] = amounts.get(key, Fraction(0)) + path.rate
    return rate, amounts


def _rate(topology: Topology, routes: dict[Pair, Route], blocks: Mapping[Pair, Fraction]) -> Fraction:
    """algbw (bytes/s) if every pair sends its block over its route."""
    shared, load = resources(topology), np.zeros(len(topology.links), dtype=np.int64)
    common = lcm(*{block.denominator for block in blocks.values()})
    for pair, links in routes.items():
        load[list(links)] += blocks[pair].numerator * (common // blocks[pair].denominator)
    longest = shared.longest(shared.of_links(load))
    return common / longest if longest else Fraction(0)
