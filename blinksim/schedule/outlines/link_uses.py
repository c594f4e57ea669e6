"""What messages put on the links of a machine, from one route for all that symmetries take it to."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

import numpy as np
import numpy.typing as npt

from blinksim.errors import InfeasibleError
from blinksim.limits import effort
from blinksim.schedule.ways import Spread, ways_of_routes
from blinksim.topology.graph import Topology
from blinksim.topology.symmetries.device_pairs import Pairs
from blinksim.topology.symmetries.exchangeable import Exchangeable, alike_nodes

Ints = npt.NDArray[np.int64]
# Pairs of ranks up to which each has its routes looked up.
_MOST_PAIRS = 20_000


@dataclass(frozen=True, eq=False)
class LinkUse:
    """What messages that run together put on links.

    units (L): on every link, where a message has `parts` of them. started (L): how many start there, as one each if
    several go between the same two ranks. alpha: seconds of latency and overhead of the slowest.
    """

    units: Ints
    parts: int
    started: Ints
    alpha: float


def uses_of_messages(topology: Topology, src: Ints, dst: Ints) -> tuple[LinkUse, LinkUse]:
    """What messages between devices put on links: divided among all equal ways, and on one way each.

    Raises `InfeasibleError` if there is no way.
    """
    count = len(topology.devices)
    pair, times = np.unique(src * count + dst, return_counts=True)
    pairs = Pairs.of(topology, pair // count, pair % count)
    several, single = _spreads(topology, pairs)

    def use(spread: Spread) -> LinkUse:
        start, links = pairs.images(spread.start[spread.first].astype(np.int64), spread.links.astype(np.int64))
        weight, begins = _weights(spread)
        owner = np.repeat(np.arange(len(pair)), np.diff(start))
        place = np.arange(len(links)) - start[:-1][owner] + spread.start[spread.first][pairs.which[owner]]
        units = np.bincount(links, weight[place] * times[owner], len(topology.links))
        started = np.bincount(links[begins[place]], minlength=len(topology.links))
        return LinkUse(units.astype(np.int64), _parts(spread), started, _slowest(topology, spread))

    found = use(several)
    return found, found if several is single else use(single)


def uses_of_every_pair(topology: Topology) -> tuple[LinkUse, LinkUse]:
    """The same where every member sends to every other.

    Raises `InfeasibleError` for very many of them, unless all nodes are alike and may be exchanged as one likes.
    """
    members = np.array([topology.index[name] for name in topology.members], dtype=np.int64)
    ranks = len(members)
    alike = alike_nodes(topology)
    if ranks * (ranks - 1) <= _MOST_PAIRS or not isinstance(alike, Exchangeable):
        if ranks * (ranks - 1) > _MOST_PAIRS:
            raise InfeasibleError(f"a route for each of {ranks * (ranks - 1):,} pairs of ranks")
        src, dst = (grid.ravel() for grid in np.meshgrid(members, members, indexing="ij"))
        return uses_of_messages(topology, src[src != dst], dst[src != dst])
    return _between_all_nodes(topology, alike, members)


def every_pair_is_quick(topology: Topology) -> bool:
    """Whether `uses_of_every_pair` has routes to look up for a few ranks only."""
    return topology.ranks * (topology.ranks - 1) <= _MOST_PAIRS or isinstance(alike_nodes(topology), Exchangeable)


def _between_all_nodes(topology: Topology, alike: Exchangeable, members: Ints) -> tuple[LinkUse, LinkUse]:
    """From the routes inside the first node and both ways between the first two.

    Of two nodes, the earlier one does what the first does with the second; so what the links of a node carry grows
    evenly with the nodes before it and with those after it.
    """
    node = alike.node[members]
    first, second = members[node == 0], members[node == 1]
    src, dst = (np.concatenate(ends) for ends in zip(
        *(_grid(a, b) for a, b in ((first, first), (first, second), (second, first))), strict=True
    ))  # fmt: skip
    pairs = Pairs(src, dst, np.arange(len(src)))
    inside = alike.node[src] == alike.node[dst]
    of_node, fabric = _links_of_nodes(topology, alike)
    nodes = len(of_node)
    before = np.arange(nodes)[:, None]

    def every(one: Ints, other: Ints) -> Ints:
        """On all links, from what routes inside a node and those between two put on the links of these."""
        found = np.zeros(len(one), dtype=np.int64)
        found[fabric] = one[fabric] * nodes + other[fabric] * (nodes * (nodes - 1) // 2)
        found[of_node] = one[of_node[0]] + (nodes - 1 - before) * other[of_node[0]] + before * other[of_node[1]]
        return found

    def use(spread: Spread) -> LinkUse:
        weight, begins = _weights(spread)
        route = np.repeat(np.arange(len(src)), np.diff(spread.start[spread.first]))
        both = []
        for counted in (weight, begins.astype(np.int64)):
            one, other = (
                np.bincount(spread.links[chosen], counted[chosen], len(topology.links)).astype(np.int64)
                for chosen in (inside[route], ~inside[route])
            )
            both.append(every(one, other))
        return LinkUse(both[0], _parts(spread), both[1], _slowest(topology, spread))

    several, single = _spreads(topology, pairs)
    found = use(several)
    return found, found if several is single else use(single)


def _grid(a: Ints, b: Ints) -> tuple[Ints, Ints]:
    src, dst = (grid.ravel() for grid in np.meshgrid(a, b, indexing="ij"))
    return src[src != dst], dst[src != dst]


def _links_of_nodes(topology: Topology, alike: Exchangeable) -> tuple[Ints, Ints]:
    """The links of every node, in the same order, as (node, place), and those that belong to none."""
    tail, head = topology.ends
    owner = np.maximum(alike.node[tail], alike.node[head])
    own = np.flatnonzero(owner == 0)
    nodes = len(alike.table)
    elements = np.full((nodes, 4), -2, dtype=np.int64)
    elements[:, 0], elements[:, 2] = 0, np.arange(nodes)
    _, links = alike.route_images(elements, np.array([0, len(own)]), own, np.zeros(nodes, dtype=np.int64))
    return links.reshape(nodes, len(own)), np.flatnonzero(owner < 0)


def _spreads(topology: Topology, pairs: Pairs) -> tuple[Spread, Spread]:
    """The ways of what stands for the pairs, and its single routes; the same object if there are no further ways."""
    ends = list(zip(pairs.src.tolist(), pairs.dst.tolist(), strict=True))
    effort.check_routes("its messages", topology, ends)
    routes = [topology.router.route(a, b) for a, b in ends]
    single = Spread.of([(route,) for route in routes])
    ways = ways_of_routes(topology, single.start.astype(np.int64), single.links.astype(np.int64))
    return (Spread.of(ways) if any(len(several) > 1 for several in ways) else single), single


def _weights(spread: Spread) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """For every link of every way, the units that a message puts there, and whether the way starts with it."""
    way = np.repeat(np.arange(len(spread.start) - 1), np.diff(spread.start))
    of_way = np.repeat(_parts(spread) // spread.count.astype(np.int64), spread.count)
    begins = np.zeros(len(spread.links), dtype=np.bool_)
    begins[spread.start[:-1]] = True
    return of_way[way], begins


def _parts(spread: Spread) -> int:
    return lcm(*np.unique(spread.count).tolist())


def _slowest(topology: Topology, spread: Spread) -> float:
    """The most seconds of latency on a way, with the overhead of its first link."""
    latency, overhead = topology.link_columns.latency[spread.links], topology.link_columns.overhead[spread.links]
    first = spread.start[:-1]
    return float((np.add.reduceat(latency, first) + overhead[first]).max(initial=0.0))
