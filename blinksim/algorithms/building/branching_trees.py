"""What a bound's linear program finds, as schedules: trees that branch in relays and switches, and paths.

Steiner trees are packed: a bound's trees share out what links carry. They are those of its linear program
(`blinksim.bounds.optimum`; Jain, Mahdian and Salavatipour 2003), which counts trees that symmetries map onto
each other as one; here every image is a tree of its own, a second program shares the rate among them, and
every link keeps its capacity.

A gather, scatter or alltoall goes along the paths of optimal flows, with every block split among its paths.
Where the shortest routes already meet the bound, they are the schedule; otherwise the flows of
`blinksim.packing.forest` are. Data rests at every member on its way, so a path of several members is
several sends.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import lcm
from operator import attrgetter

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.bounds.bound_result import BoundResult
from blinksim.bounds.optimum import BranchingTrees, Hop, TreeSet, commodities
from blinksim.collective import ROOT, Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.connectivity import summed
from blinksim.graphs.network import Network, network
from blinksim.graphs.programs import Commodity, SharedCapacity, with_adders
from blinksim.packing.columns import Column, best_mix
from blinksim.packing.forest import PathShare, flow_images, regular_group, route_flows
from blinksim.schedule.loads import Edge, Route, resources
from blinksim.schedule.model import COPY
from blinksim.topology.graph import Topology
from blinksim.topology.routes import Router
from blinksim.topology.symmetry import automorphisms, candidates, encoded, orbit_labels, orbits, with_name_rotations

# Trees beyond which no more symmetries are applied.
_MOST_TREES = 2000


def shared_out(
    topology: Topology, collective: Collective, sets: Iterable[TreeSet]
) -> tuple[Fraction, list[tuple[Fraction, BranchingTrees]]]:
    """The rate of the collective on such trees, and the bytes/s of each, as the links allow.

    Raises `InfeasibleError` if the solver finds no optimum.
    """
    trees = [tree for each in sets for tree in each.trees]
    # A symmetry may take the root to another device.
    trees = list(dict.fromkeys(trees if collective.rooted else _images(topology, trees)))
    net = network(topology)
    names, shared, _ = with_adders(topology, net)
    capacities, uses = list[int](), defaultdict[str, list[tuple[int, int]]](list)
    for resource, limit in enumerate(shared):
        # A bus is shared by time: a slower link takes more of it for the same data.
        most, bus = Fraction(limit.capacity), len(limit.uses) > 1
        parts = [most / int(net.capacity[arc]) if bus else Fraction(1) for arc, _ in limit.uses]
        whole_of = lcm(most.denominator, *(part.denominator for part in parts))
        capacities.append(int(most * whole_of))
        for (arc, _), part in zip(limit.uses, parts, strict=True):
            uses[names[arc]].append((resource, int(part * whole_of)))
    # Every root of an allgather has the same part of the data; elsewhere any root will do.
    own = collective.name in ("allgather", "reducescatter")
    group = {device: number if own else 0 for number, device in enumerate(topology.member_places.tolist())}
    columns = list[Column]()
    for number, tree in enumerate(trees):
        crossed = (topology.links[link] for hop in (*tree.away, *tree.towards) for link in hop.links)
        used = Counter(f"{topology.devices[switch].name} sums" for switch in tree.sums(topology))
        for link in crossed:
            used.update((link.name, f"{link.src} out", f"{link.dst} in"))
        load = summed((resource, times * each) for name, times in used.items() for resource, each in uses[name])
        columns.append(Column(((number, number),), tuple(sorted(load.items())), 0, group.get(tree.root, 0)))
    groups = topology.ranks if own else 1
    if {column.group for column in columns} != set(range(groups)):
        raise InfeasibleError("some member is the root of none of the trees of this bound")
    mix = best_mix(columns, capacities, weights=[1] * groups)
    chosen = [(rate * net.unit, trees[column.arcs[0][0]]) for column, rate in zip(mix.columns, mix.rates, strict=True)]
    return mix.rate * groups * net.unit, chosen


def _images(topology: Topology, trees: Sequence[BranchingTrees]) -> list[BranchingTrees]:
    """The trees, and what the symmetries of the bound's program make of them: all of it if that is not too much.

    Else powers of the first symmetry, powers of the second of all these, and so on.
    """
    machine = with_name_rotations(topology)
    own = [np.asarray(goes) for goes in automorphisms(machine)]
    # The bound's program takes devices of an orbit as alike. An edit may leave rotations of nodes besides.
    fewer = 1 + orbit_labels(len(machine.devices), own).max() > len(orbits(machine))
    given = candidates(encoded(machine)) if fewer else own
    images = ((goes, encoded(machine).image(goes)) for goes in given)
    symmetries = [(np.asarray(goes).tolist(), image.tolist()) for goes, image in images if image is not None]
    seen, latest = dict.fromkeys(trees), list(trees)
    while latest and len(seen) <= _MOST_TREES:
        moved = dict.fromkeys(_moved(tree, goes, image) for goes, image in symmetries for tree in latest)
        latest = [tree for tree in moved if tree not in seen]
        seen |= dict.fromkeys(latest)
    if not latest:
        return list(seen)
    every = list(trees)
    for goes, image in symmetries:
        powers, known = every, list(every)
        while (powers := [_moved(tree, goes, image) for tree in powers]) != every and len(known) < _MOST_TREES:
            known += powers
        every = known
    return every


def _moved(tree: BranchingTrees, goes: Sequence[int], image: Sequence[int]) -> BranchingTrees:
    def hops(some: Sequence[Hop]) -> tuple[Hop, ...]:
        return tuple(Hop(x.sort, goes[x.start], goes[x.end], tuple(image[link] for link in x.links)) for x in some)

    return replace(tree, root=goes[tree.root], away=hops(tree.away), towards=hops(tree.towards))


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
    if (direct := _rate(topology, straight, blocks)) < bound.rate:
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
