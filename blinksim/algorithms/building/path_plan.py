"""Gather, scatter and alltoall along the paths of best flows; every block is cut up among its paths.

Where everybody's shortest route already meets the bound, these routes are the schedule; otherwise the flows of
`blinksim.packing.exact.flow_paths` are. Data rests at every member on its way, so a path of several members is several
sends.
"""

from __future__ import annotations

from fractions import Fraction

from blinksim.algorithms.building.forest_plan import ForestPlan
from blinksim.bounds import BoundResult
from blinksim.collective import Collective
from blinksim.graphs.capacities import SharedCapacity
from blinksim.graphs.flow_program import Commodity
from blinksim.graphs.network import Network
from blinksim.packing.exact.flow_paths import PathShare, route_flows
from blinksim.packing.hosts.alike_hosts import read_hosts
from blinksim.packing.hosts.alike_hosts import straight as straight_trees
from blinksim.schedule.loads import resources
from blinksim.schedule.tree import Edge
from blinksim.topology.graph import Topology
from blinksim.topology.routes import Router


def add_paths(
    plan: ForestPlan,
    topology: Topology,
    collective: Collective,
    net: Network,
    shared: list[SharedCapacity],
    bound: BoundResult,
) -> None:
    """The chunks and sends of `collective` (gather, scatter or alltoall) at the best rate found."""
    n = topology.ranks
    members = net.members.tolist()
    root = members[collective.root]
    if collective.name == "alltoall":
        pairs = [(a, b) for a in members for b in members if a != b]
    elif collective.name == "scatter":
        pairs = [(root, vertex) for vertex in members if vertex != root]
    else:
        pairs = [(vertex, root) for vertex in members if vertex != root]
    rank = {vertex: number for number, vertex in enumerate(members)}
    block = Fraction(1, n)

    def chunk(start: int, end: int, share: Fraction) -> int:
        origin = -1 if collective.name == "scatter" else rank[start]
        target = -1 if collective.name == "gather" else rank[end]
        return plan.add_chunk(share, origin, target)

    for vertex in members if collective.name == "alltoall" else (root,):
        chunk(vertex, vertex, block)
    straight = _over_ports(topology, pairs) if collective.name == "alltoall" else {}
    direct = _rate(topology, straight, block)
    if direct < bound.rate:
        shortest = _shortest(topology, pairs)
        other = _rate(topology, shortest, block)
        if other > direct:
            straight, direct = shortest, other
    # A gather is a scatter in the network turned round.
    turned = collective.name == "gather"
    found = None
    if direct < bound.rate:
        work = net.reversed() if turned else net
        if collective.name == "alltoall":
            commodities = [Commodity(a, {b: 1 for b in members if b != a}) for a in members]
        else:
            commodities = [Commodity(root, {vertex: 1 for vertex in members if vertex != root})]
        found = route_flows(work, shared, commodities, bound.rate / net.unit / n)
    if found is None or found[0] * net.unit * n <= direct:
        for start, end in pairs:
            plan.add_chain(chunk(start, end, block), _rests(topology, straight[start, end], set(members)))
        return
    rate, paths = found
    for path in _merged(paths):
        ends = (commodities[path.commodity].source, path.sink)
        links = tuple(arc for arc in path.arcs if arc < net.links)
        if turned:
            ends, links = (ends[1], ends[0]), tuple(reversed(links))
        plan.add_chain(chunk(*ends, path.rate / rate * block), _rests(topology, links, set(members)))


def _shortest(topology: Topology, pairs: list[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, ...]]:
    router = Router(topology)
    return {pair: router.route(*pair) for pair in pairs}


def _over_ports(topology: Topology, pairs: list[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, ...]]:
    """In a cluster of alike hosts, routes that cross to the receiver's own port; empty for other machines.

    The sender's data first goes to the member of its host that feeds that port, so that all ports are used equally.
    """
    hosts = read_hosts(topology)
    stars = straight_trees(hosts, 0, Fraction(0)) if hosts is not None else None
    if hosts is None or stars is None:
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
        routes[start, end] = (*before, outof[a][port], into[b][port], *after)
    return routes


def _rate(topology: Topology, routes: dict[tuple[int, int], tuple[int, ...]], block: Fraction) -> Fraction:
    """algbw (bytes/s) if every pair sends one block over its route."""
    shared = resources(topology)
    blocks = [0] * len(shared.names)
    starts, members = shared.starts.tolist(), shared.members.tolist()
    for links in routes.values():
        for link in links:
            for resource in members[starts[link] : starts[link + 1]]:
                blocks[resource] += 1
    return min(
        (rate / (count * block) for rate, count in zip(shared.rate, blocks, strict=True) if count), default=Fraction(0)
    )


def _rests(topology: Topology, links: tuple[int, ...], members: set[int]) -> list[Edge]:
    """The sends along a route: one for every part of it between members."""
    index, edges = topology.index, list[Edge]()
    start = index[topology.links[links[0]].src]
    part: list[int] = []
    for link in links:
        part.append(link)
        end = index[topology.links[link].dst]
        if end in members:
            edges.append((start, end, tuple(part)))
            start, part = end, []
    return edges


def _merged(paths: list[PathShare]) -> list[PathShare]:
    """Equal paths as one."""
    total: dict[tuple[int, int, tuple[int, ...]], Fraction] = {}
    for path in paths:
        key = (path.commodity, path.sink, path.arcs)
        total[key] = total.get(key, Fraction(0)) + path.rate
    return [PathShare(*key, rate) for key, rate in total.items()]
