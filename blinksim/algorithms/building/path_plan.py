"""Gather, scatter and alltoall along the paths of optimal flows, with every block split among its paths.

Where the shortest routes already meet the bound, they are the schedule; otherwise the flows of
`blinksim.packing.flow_paths` are. Data rests at every member on its way, so a path of several members is
several sends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import lcm
from operator import attrgetter

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.bounds import BoundResult
from blinksim.bounds.optimum import commodities
from blinksim.collective import ROOT
from blinksim.graphs.connectivity import summed
from blinksim.graphs.network import Network
from blinksim.graphs.programs import Commodity, SharedCapacity
from blinksim.packing.flow_paths import PathShare, flow_images, route_flows
from blinksim.packing.forest import regular_group
from blinksim.schedule.loads import Edge, Route, resources
from blinksim.schedule.model import COPY
from blinksim.topology.graph import Topology
from blinksim.topology.routes import Router

Pair = tuple[int, int]


def add_paths(plan: Plan, net: Network, shared: list[SharedCapacity], bound: BoundResult) -> None:
    """The chunks and sends of the plan's collective (gather, scatter or alltoall) at the best rate found."""
    topology, collective, (tail, head) = plan.topology, plan.collective, plan.topology.ends
    members = net.members.tolist()
    rank = {vertex: number for number, vertex in enumerate(members)}
    sides = collective.starts, collective.ends
    starts, ends = ([members[collective.root]] if who == ROOT else members for who in sides)
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
        rate, amounts = _flows(plan, net, shared, pairs, bound.rate * unit / net.unit)
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
        wanted = [Commodity(source, weights) for source, weights in sinks.items()]
        wanted = wanted if collective.traffic is None else commodities(net, collective.traffic)
        routed = route_flows(net.reversed() if backwards else net, shared, wanted, most)
        if routed is not None and routed[0] > rate:
            rate, paths = routed
    # The same path may come several times.
    ways = ((p.sink, p.source, p.arcs[::-1]) if backwards else (p.source, p.sink, p.arcs) for p in paths)
    return rate, summed(zip(ways, map(attrgetter("rate"), paths), strict=True))


def _rate(topology: Topology, routes: dict[Pair, Route], blocks: Mapping[Pair, Fraction]) -> Fraction:
    """algbw (bytes/s) if every pair sends its block over its route."""
    shared, load = resources(topology), np.zeros(len(topology.links), dtype=np.int64)
    common = lcm(*{block.denominator for block in blocks.values()})
    for pair, links in routes.items():
        load[list(links)] += blocks[pair].numerator * (common // blocks[pair].denominator)
    longest = shared.longest(shared.of_links(load))
    return common / longest if longest else Fraction(0)
