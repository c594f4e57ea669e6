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

from blinksim.algorithms.building.plan import Plan
from blinksim.bounds import BoundResult
from blinksim.bounds.optimum import commodities
from blinksim.collective import ROOT, Collective
from blinksim.graphs.network import Network
from blinksim.graphs.programs import Commodity, SharedCapacity
from blinksim.packing.flow_paths import PathShare, flow_images, route_flows
from blinksim.packing.forest import regular_group
from blinksim.packing.hosts import read_hosts, straight as straight_trees
from blinksim.schedule.loads import resources
from blinksim.schedule.model import COPY
from blinksim.schedule.tree import Edge, Route
from blinksim.topology.graph import Topology
from blinksim.topology.routes import Router

Pair = tuple[int, int]


def add_paths(plan: Plan, net: Network, shared: list[SharedCapacity], bound: BoundResult) -> None:
    """The chunks and sends of the plan's collective (gather, scatter or alltoall) at the best rate found."""
    topology, collective = plan.topology, plan.collective
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
        edges = _rests(topology, links, set(members))
        plan.add_edges(chunk, edges, COPY, range(len(edges)))

    # A rank's block for itself is part of the vector too.
    for vertex in members:
        if blocks.get((vertex, vertex)):
            add(vertex, vertex, blocks[vertex, vertex], ())
    pairs = [(start, end) for (start, end), block in blocks.items() if start != end and block]
    straight, direct = _straight(topology, collective, pairs, blocks, bound.rate)
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


def _straight(
    topology: Topology, collective: Collective, pairs: list[Pair], blocks: Mapping[Pair, Fraction], enough: Fraction
) -> tuple[dict[Pair, Route], Fraction]:
    """One route per pair, over ports or the shortest, whichever is faster, and the algbw (bytes/s) that they allow.

    enough: a rate that makes trying other routes needless.
    """
    ported = _over_ports(topology, pairs) if collective.exchanges else {}
    rate = _rate(topology, ported, blocks)
    if rate < enough:
        router = Router(topology)
        shortest = {pair: router.route(*pair) for pair in pairs}
        other = _rate(topology, shortest, blocks)
        if other > rate:
            return shortest, other
    return ported, rate


def _flows(
    plan: Plan, net: Network, shared: list[SharedCapacity], pairs: Sequence[Pair], most: Fraction
) -> tuple[Fraction, dict[tuple[int, int, Route], Fraction]]:
    """The rate of one block (in units of the network, at most `most`) by the best flows, and that of every path.

    Where all GPUs of an alltoall are alike and joined by direct links, images of one flow may reach it. Zero where the
    flows are too large to compute.
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


def _over_ports(topology: Topology, pairs: list[Pair]) -> dict[Pair, Route]:
    """In a cluster of alike hosts, routes that cross to the receiver's own port; empty for other machines.

    The sender's data first goes to the member of its host that feeds that port, so that all ports are used equally.
    """
    hosts = read_hosts(topology)
    stars = straight_trees(hosts, 0, Fraction(0)) if hosts is not None else None
    if hosts is None or stars is None or hosts.lacking:
        return {}
    shape = hosts.shape
    inside = {(tree.root, b): path for tree in stars if tree.port < 0 for _, b, path in tree.edges}
    enters = {tree.root: (tree.port, tree.entry) for tree in stars if tree.port >= 0}
    if set(enters) != set(shape.members):
        return {}
    rows = hosts.device.tolist()
    place = {device: (host, local) for host, row in enumerate(rows) for local, device in enumerate(row)}
    link, into, outof = hosts.link.tolist(), hosts.into.tolist(), hosts.outof.tolist()
    routes = {}
    for start, end in pairs:
        (a, i), (b, j) = place[start], place[end]
        if a == b:
            routes[start, end] = tuple(link[a][number] for number in inside[i, j])
            continue
        port, entry = enters[j]
        feeder, out = shape.feeds[port]
        first = (*(inside[i, feeder] if i != feeder else ()), *out)
        before, after = [link[a][number] for number in first], [link[b][number] for number in entry]
        across = hosts.fabric.route(hosts.fabric.ends[a][port], hosts.fabric.ends[b][port]) or ()
        routes[start, end] = (*before, outof[a][port], *across, into[b][port], *after)
    return routes


def _rate(topology: Topology, routes: dict[Pair, Route], blocks: Mapping[Pair, Fraction]) -> Fraction:
    """algbw (bytes/s) if every pair sends its block over its route."""
    shared = resources(topology)
    common = lcm(*{block.denominator for block in blocks.values()})
    load = [0] * len(shared.names)
    starts, members = shared.starts.tolist(), shared.members.tolist()
    for pair, links in routes.items():
        amount = blocks[pair].numerator * (common // blocks[pair].denominator)
        for link in links:
            for resource in members[starts[link] : starts[link + 1]]:
                load[resource] += amount
    return min(
        (rate * common / there for rate, there in zip(shared.rate, load, strict=True) if there), default=Fraction(0)
    )


def _rests(topology: Topology, arcs: Route, members: set[int]) -> list[Edge]:
    """The sends along a route: one per section between two members. Arcs beyond the links stand for capacities."""
    tail, head = topology.ends
    edges, part = list[Edge](), list[int]()
    for link in arcs:
        if link < len(tail):
            part.append(link)
            if int(head[link]) in members:
                edges.append((int(tail[part[0]]), int(head[link]), tuple(part)))
                part = []
    return edges
