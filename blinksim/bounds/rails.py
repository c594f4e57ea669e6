"""Rails: fabrics that join members of equal index in all nodes, with or without a spine.

What goes to another node first goes inside its own to the member at place k, from there over the fabric to
place k of the other node, and inside that to its rank (PXN in NCCL 2.12; rail-optimised networks). So a route
is three numbers, sender, k and receiver, and the load of every link is a sum over pairs of nodes, not of
ranks.

Flows of a traffic matrix over rails that often attain the tightest cut, and so prove it without a solver.

Five ways to choose the place k over which bytes cross to another node (`rails`): the sender's own, the
receiver's own, all of them, as much as each carries, and all of them with bytes of the receiver (or sender)
at each place first. Any mixture of flows is a flow, and the best of these five is a program of five
variables. Spread over all places, a node uses all its adapters equally whatever its ranks send; the others
spare the links inside nodes (valiant load balancing: Valiant and Brebner 1981, between the adapters of a
node). Where the five do not do, as where one GPU receives more than its links inside the node carry, more are
made to measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain, cycle, islice, pairwise, product, repeat
from math import lcm

import numpy as np
import numpy.typing as npt

from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Bools, Floats, Ints, distinct, per_topology, scattered, transport
from blinksim.graphs.connectivity import grouped
from blinksim.graphs.programs import Program, agree
from blinksim.schedule.candidate import Pool
from blinksim.schedule.loads import Resources, RouteUses, Spread, resources
from blinksim.topology.cluster import LinkName, links_by_name, nodes_of
from blinksim.topology.graph import Topology
from blinksim.topology.routes import MOST_ROUTES
from blinksim.topology.symmetry import CommutingGroup, node_automorphisms
from blinksim.traffic import Traffic

Route = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Rails:
    """A cluster of N nodes with up to L members each; those of equal name in their nodes are of one place.

    Attributes
    ----------
    ranks : array (N, L)
        Rank numbers; -1 where a node lacks the member.
    inside : sequence (N * L * L) of routes
        From member i to member k of node a, at (a * L + i) * L + k; none from a member to itself.
    up, down : sequence (N * L) of routes
        From a member to the fabric, and from the fabric to a member; none where it has no route of its own.
    entry, exit : array (N, L, V)
        The fabric's switch where route v leaves a member's node, or enters it; -1 where there is none.
        V routes share the bytes of a member equally; one stands there several times where others are lost.
    """

    topology: Topology
    ranks: Ints
    inside: Sequence[Sequence[Route]]
    up: Sequence[Sequence[Route]]
    down: Sequence[Sequence[Route]]
    exit: Ints
    entry: Ints

    @property
    def nodes(self) -> int:
        return int(self.ranks.shape[0])

    @property
    def local(self) -> int:
        return int(self.ranks.shape[1])

    def ports(self) -> list[int]:
        """How many routes each member has to the fabric, before some take turns for those that are lost."""
        return [len({*ends}) for ends in self.up]

    def by_place(self, matrix: Ints) -> Ints:
        """A matrix (n, n) by nodes and places: (N, L, N, L), 0 where a node lacks the member."""
        order = self.ranks.ravel()
        if np.array_equal(order, np.arange(len(matrix))):
            return matrix.reshape(2 * self.ranks.shape)
        padded = np.zeros((len(matrix) + 1, len(matrix) + 1), dtype=matrix.dtype)
        padded[:-1, :-1] = matrix
        return padded[np.ix_(order, order)].reshape(2 * self.ranks.shape)

    @cached_property
    def resources(self) -> Resources:
        return resources(self.topology)

    @cached_property
    def inside_uses(self) -> RouteUses:
        return RouteUses(Spread.of(self.inside), self.resources)

    @cached_property
    def fabric_uses(self) -> tuple[RouteUses, RouteUses]:
        """Of the routes up to the fabric, and of those down from it."""
        return RouteUses(Spread.of(self.up), self.resources), RouteUses(Spread.of(self.down), self.resources)

    @cached_property
    def trunks(self) -> dict[tuple[int, int], Sequence[Route]]:
        """The routes between two different switches of the fabric at which nodes of one rail end."""
        router, routes = self.topology.router, dict[tuple[int, int], Sequence[Route]]()
        for k, v in np.ndindex(self.local, self.exit.shape[2]):
            ends = (side[:, k, v].tolist() for side in (self.exit, self.entry))
            out, into = ({switch for switch in some if switch >= 0} for some in ends)
            for pair in ((a, b) for a in out for b in into if a != b and (a, b) not in routes):
                routes[pair] = router.routes(*pair)
        return routes

    @cached_property
    def open(self) -> Bools:
        """True at (N, L) where a member has its own route to the fabric and from it."""
        both = [bool(up) and bool(down) for up, down in zip(self.up, self.down, strict=True)]
        return np.array(both).reshape(self.nodes, self.local)

    def loads(self, moved: Floats, across: Floats) -> Floats:
        """Bytes on every resource.

        moved: (N, L, L), bytes from member i to member k inside node a. across: (N, N, L), bytes from node a
        to node b over place k.
        """
        total, (up, down) = self.inside_uses.loads(moved), self.fabric_uses
        total += up.loads(across.sum(axis=1)) + down.loads(across.sum(axis=0))
        if not self.trunks:
            return total
        uses, size, keys, places = self._trunk_keys
        between, parallel = np.zeros(size), self.exit.shape[2]
        for k, v in np.ndindex(self.local, parallel):
            between += np.bincount(keys(k, v).ravel(), across[:, :, k].ravel() / parallel, size)
        return total + uses.loads(between[places])

    def trunk_prices(self, each: Floats) -> Floats:
        """What a byte from node a to node b over place k costs between switches, (N, N, L); each: on every resource."""
        prices = np.zeros((self.nodes, self.nodes, self.local))
        if not self.trunks:
            return prices
        uses, size, keys, places = self._trunk_keys
        price, parallel = np.zeros(size), self.exit.shape[2]
        price[places] = uses.prices(each)
        for k, v in np.ndindex(self.local, parallel):
            prices[:, :, k] += price[keys(k, v)] / parallel
        return prices

    @cached_property
    def _trunk_keys(self) -> tuple[RouteUses, int, Callable[[int, int], Ints], Ints]:
        """Uses of trunks; numbers for pairs of switches: how many, of nodes at a place and route, of trunks.

        Pairs in which a switch is none of them have numbers of their own.
        """
        switches = sorted({switch for pair in self.trunks for switch in pair})
        width, place = len(switches) + 1, np.full(len(self.topology.devices) + 1, len(switches))
        place[switches] = np.arange(len(switches))
        exits, entries = place[self.exit] * width, place[self.entry]
        trunks = np.array([place[a] * width + place[b] for a, b in self.trunks])
        uses = RouteUses(Spread.of(self.trunks.values()), self.resources)
        return uses, width * width, lambda k, v: exits[:, k, v][:, None] + entries[:, k, v][None, :], trunks


@per_topology
def read_rails(topology: Topology) -> Rails | None:
    """The cluster as rails; None for one node, for nodes whose members have other names, and without a fabric."""
    groups = nodes_of(topology, topology.members)
    with suppress(InfeasibleError):
        if len(groups) > 1:
            return _Translation(topology, groups).rails()
    return None


_LocalRoute = tuple[LinkName, ...]
# Pairs of nodes that are asked for the routes of a place, as links may be missing in some of them.
_ASKED = 8


def _halves(topology: Topology, routes: Sequence[Route]) -> list[tuple[Route, Route]] | None:
    """The parts of routes before and behind the fabric; None if one passes no fabric, or a device that holds data."""
    found = dict[tuple[Route, Route], None]()
    for route in routes:
        passed = [topology.devices[place] for place in topology.ends[1][list(route)].tolist()]
        outside = [place for place, device in enumerate(passed) if device.node < 0]
        if not outside or any(device.holds for device in passed[:-1]):
            return None
        found[route[: outside[0] + 1], route[outside[-1] + 1 :]] = None
    return list(found)


class _Translation:
    """Routes of one node in the terms of all, link by link by their names."""

    def __init__(self, topology: Topology, groups: list[list[int]]) -> None:
        self.topology = topology
        numbers = [topology.device(topology.members[group[0]]).node for group in groups]
        heads = [f"n{number}." for number in numbers]
        named = [[topology.members[rank] for rank in group] for group in groups]
        names = [[name.removeprefix(head) for name in row] for head, row in zip(heads, named, strict=True)]
        # The places are those of the fullest node; others may lack some.
        fullest = max(range(len(names)), key=lambda number: len(names[number]))
        place = {name: number for number, name in enumerate(names[fullest])}
        if not all(name in place for row in names for name in row):
            raise InfeasibleError("the nodes have members of other names")
        self.ranks = np.full((len(groups), len(place)), -1, dtype=np.int64)
        for row, (group, there) in enumerate(zip(groups, names, strict=True)):
            self.ranks[row, [place[name] for name in there]] = group
        self.device = np.where(self.ranks < 0, -1, topology.member_places[self.ranks])
        a, b = (topology.device_nodes[ends] for ends in topology.ends)
        wired_directly = (a >= 0) & (b >= 0) & (a != b)
        owner = np.where(wired_directly, -1, np.maximum(a, b)).tolist()
        links = grouped((number, link) for link, number in enumerate(owner))
        self.link_at = [links_by_name(topology, number, links.get(number, ())) for number in numbers]
        self.key_of = {link: key for known in self.link_at for key, link in known.items()}

    def _keys(self, route: Route) -> _LocalRoute:
        return tuple(self.key_of[link] for link in route)

    def _at(self, routes: Sequence[_LocalRoute], row: int) -> list[Route]:
        """Routes in a node; those with a link that is missing there are left out."""
        known = self.link_at[row]
        translated = [tuple(map(known.get, route, repeat(-1))) for route in routes]
        return [route for route in translated if -1 not in route]

    def rails(self) -> Rails | None:
        """The cluster; None if members reach each other nowhere over the fabric alone.

        Members of a place whose rail is out of order in all nodes have no route of their own.
        """
        router, outward, inward = self.topology.router, list[Sequence[Route]](), list[Sequence[Route]]()
        for column in self.device.T:
            # Every node in turn, as one that lacks a link has other routes, or none.
            there = column[column >= 0].tolist()
            asked = islice(dict.fromkeys((*pairwise(there), *pairwise(reversed(there)))), _ASKED)
            routes = (_halves(self.topology, router.routes(*pair)) for pair in asked)
            pairs = list(chain.from_iterable(filter(None, routes)))
            out, into = zip(*pairs, strict=True) if pairs else ((), ())
            outward.append(out)
            inward.append(into)
        sides = self._ends(outward, last=True), self._ends(inward, last=False)
        if not any(sides[0]):
            return None
        # Routes that are left take turns for those that are lost.
        width = min(lcm(*(len(ends) or 1 for ends in chain(*sides))), MOST_ROUTES)
        up, down = ([list(islice(cycle(ends), width)) for ends in side] for side in sides)
        (tail, head), nowhere = self.topology.ends, [-1] * width
        exits = [[head[route[-1]] for route in ends] or nowhere for ends in up]
        entries = [[tail[route[0]] for route in ends] or nowhere for ends in down]
        places = (np.reshape(switches, (*self.device.shape, width)) for switches in (exits, entries))
        return Rails(self.topology, self.ranks, self._inside(), up, down, *places)

    def _inside(self) -> list[Sequence[Route]]:
        """Routes between members of every node: as in the first two, or its own where a link is missing."""
        router, (nodes, local) = self.topology.router, self.device.shape
        pairs = [(i, k) for i in range(local) for k in range(local)]
        alike: list[list[_LocalRoute]] = []
        for i, k in pairs:
            rows = np.flatnonzero((self.device[:, i] >= 0) & (self.device[:, k] >= 0))[:2] if i != k else ()
            both = [router.routes(int(self.device[row, i]), int(self.device[row, k])) for row in rows]
            alike.append([self._keys(route) for route in min(both, key=lambda routes: len(routes[0]), default=())])
        inside: list[Sequence[Route]] = []
        for row in range(nodes):
            for (i, k), routes in zip(pairs, alike, strict=True):
                there: Sequence[Route] = self._at(routes, row)
                if i != k and not there and min(self.device[row, i], self.device[row, k]) >= 0:
                    there = router.routes(int(self.device[row, i]), int(self.device[row, k]))
                inside.append(there)
        return inside

    def _ends(self, halves: Sequence[Sequence[Route]], *, last: bool) -> list[list[Route]]:
        """Routes between members and fabric in all nodes; none where one of some to several switches is gone."""
        end, columns = self.topology.ends[int(last)], list[list[list[Route]]]()
        for found in halves:
            shortest = min(map(len, found), default=0)
            known = list(dict.fromkeys(self._keys(half) for half in found if len(half) == shortest))
            ends = [self._at(known, row) for row in range(len(self.device))]
            apart = any(len({int(end[route[-last]]) for route in there}) > 1 for there in ends)
            columns.append([[] if apart and len(there) < len(known) else there for there in ends])
        return list(chain.from_iterable(zip(*columns, strict=True)))


@dataclass(frozen=True, eq=False)
class SymmetricRails(Rails):
    """Rails whose nodes are images of the first one under `group`; members keep their places."""

    group: CommutingGroup

    @cached_property
    def trunks(self) -> dict[tuple[int, int], Sequence[Route]]:
        """As those of all nodes, but from the switches of the first node only."""
        router, pairs = self.topology.router, ((out, into) for out, into, _ in self._crossings())
        return {pair: router.routes(*pair) for pair in dict.fromkeys(pairs)}

    def _crossings(self) -> Iterator[tuple[int, int, int]]:
        """For every route of the first node: its switch, another where such enter nodes, and how many nodes."""
        for k, v in product(range(self.local), range(self.exit.shape[2])):
            out = int(self.exit[0, k, v])
            entries, times = np.unique(self.entry[1:, k, v], return_counts=True)
            pairs = zip(entries.tolist(), times.tolist(), strict=True)
            yield from ((out, into, many) for into, many in pairs if into != out)

    @cached_property
    def alike(self) -> bool:
        """True if all members' routes to the fabric have the same rate, and those from it."""
        first = (Spread.of([routes[k] for k in range(self.local)]) for routes in (self.up, self.down))
        uses = (RouteUses(spread, self.resources) for spread in first)
        return all(len(distinct(use.rates(self.resources.rates))) == 1 for use in uses)

    @cached_property
    def equal_blocks_time(self) -> float:
        """Seconds for a byte from every rank to every other, over the places of the receivers."""
        pool, shared = Pool(self.group), self.resources
        # Bytes on every link of what the first node sends.
        nodes, local = self.ranks.shape
        count = self.exit.shape[2]
        load = np.zeros(len(self.topology.links))
        sent = [(self.inside[pair], float(nodes)) for pair in range(local * local)]
        sent += [(self.up[k], float((nodes - 1) * local)) for k in range(local)]
        sent += [(self.trunks[out, into], times * local / count) for out, into, times in self._crossings()]
        for routes, amount in sent:
            for route in routes:
                np.add.at(load, list(route), amount / len(routes))
        assert isinstance(self.down, Images)
        for rows in chain.from_iterable(self.down.lists):
            np.add.at(load, rows[1:].ravel(), local / count)
        each = np.repeat(load, np.diff(shared.starts))
        together = np.bincount(pool.orbit[shared.members], each, len(pool.size)) * self.nodes
        return float((together / pool.shared.rates).max())


class Images(Sequence[Sequence[Route]]):
    """P lists of routes of the first node, and their images in all nodes: list p of node a is at a * P + p."""

    def __init__(self, group: CommutingGroup, elements: Ints, routes: Sequence[Sequence[Route]]) -> None:
        links = [link for listed in routes for route in listed for link in route]
        things = np.tile(np.array(links, dtype=np.int64), len(elements))
        images = group.along(np.repeat(elements, len(links), axis=0), things, links=True)
        lengths = [len(route) for listed in routes for route in listed]
        each = iter(np.split(images.reshape(len(elements), len(links)), np.cumsum(lengths)[:-1], axis=1))
        # The links of every route in all nodes, (N, length).
        self.lists = [[next(each) for _ in listed] for listed in routes]
        self._nodes, self._asked = len(elements), dict[int, Sequence[Route]]()

    def __len__(self) -> int:
        return self._nodes * len(self.lists)

    def __getitem__(self, place: int) -> Sequence[Route]:  # type: ignore[override]
        if not 0 <= place < len(self):
            raise IndexError(place)
        if place not in self._asked:
            node, number = divmod(place, len(self.lists))
            self._asked[place] = [tuple(links[node].tolist()) for links in self.lists[number]]
        return self._asked[place]

    def ends(self, devices: Ints, at: int) -> Ints:
        """For every node, list and route, all lists as long: the device at one place of the route, (N, P, V).

        devices: of every link, where it starts or ends.
        """
        return np.stack([np.stack([devices[links[:, at]] for links in rows], axis=1) for rows in self.lists], axis=1)


@per_topology
def symmetric_rails(topology: Topology) -> SymmetricRails | None:
    """The cluster as rails by symmetry; None unless a group takes one node to every other, by one element each.

    None as well where members of a node reach each other only through others, or some have no route out.
    """
    group = node_automorphisms(topology) if topology.nodes > 1 else None
    if group is None:
        return None
    members, node = topology.member_places, topology.device_nodes
    first = members[node[members] == node[members[0]]]
    elements = np.indices(group.orders).reshape(len(group.orders), -1).T
    count = len(elements)
    if count * len(first) != len(members):
        return None
    device = np.stack([group.along(elements, np.full(count, member)) for member in first.tolist()], axis=1)
    if len(distinct(node[device[:, 0]])) != count:
        return None
    routes = None
    with suppress(InfeasibleError):
        routes = _first_routes(topology, device[:2])
    if routes is None:
        return None
    inside, outward, inward = routes
    # What enters the second node, as it enters the first.
    back = Images(group, -elements[1:2], inward)
    up, down = Images(group, elements, outward), Images(group, elements, back)
    rank = scattered(members, np.arange(len(members)), len(node))
    exits, entries = up.ends(topology.ends[1], -1), down.ends(topology.ends[0], 0)
    return SymmetricRails(topology, rank[device], Images(group, elements, inside), up, down, exits, entries, group)


_Routes = list[Sequence[Route]]


def _first_routes(topology: Topology, device: Ints) -> tuple[_Routes, _Routes, _Routes] | None:
    """Routes inside the first of two nodes, from its members to the fabric, and from there into the other.

    device: (2, L). None unless all members have as many, over the fabric and not through other members.
    """
    router, (here, there) = topology.router, device.tolist()
    inside: _Routes = [router.routes(a, b) if a != b else () for a in here for b in here]
    passed = topology.ends[1][[link for routes in inside for route in routes for link in route[:-1]]]
    if any(topology.devices[place].holds for place in passed.tolist()):
        return None
    halves = [_halves(topology, router.routes(a, b)) or [] for a, b in zip(here, there, strict=True)]
    if not all(halves) or len({*map(len, halves)}) > 1:
        return None
    outward: _Routes = [[out for out, _ in pairs] for pairs in halves]
    return inside, outward, [[into for _, into in pairs] for pairs in halves]


# Rounds in which places get parts that suit their rates, and rows of the program that are looked at.
_ROUNDS, _MOST_ROWS = 200, 40
_SURELY = 1e-12
# Routes out of one node up to which they are looked at one by one, in a gigabyte.
_MOST_ROUTES = 30_000_000
# Ranks from which on an alltoall is looked at by symmetry, if there is one.
_MANY = 1024
# Flows that may be made to measure after the first five, and those in a row that gain nothing: where nodes
# are alike each spares one of them, and of 11 matrices none gained after more than one that did not.
_MOST_FLOWS, _IDLE_FLOWS = 30, 4


class NodeTraffic:
    """A traffic matrix by nodes and places: bytes (N, L, N, L) from member i of node a to member j of node b."""

    def __init__(self, rails: Rails, traffic: Traffic) -> None:
        nodes, local = rails.ranks.shape
        self._whole = rails.by_place(traffic.matrix)
        own, diagonal = np.arange(nodes), np.arange(local)
        self.within = self._whole[own, :, own, :].astype(np.float64)
        # What member i of node a has for node b, what node a has for member j of node b, and what goes
        # between nodes.
        self.by_sender = self._whole.sum(axis=3).astype(np.float64)
        self.by_receiver = self._whole.sum(axis=1).astype(np.float64)
        self.by_sender[own, :, own] = 0.0
        self.by_receiver[own, own] = 0.0
        self.by_node = self.by_sender.sum(axis=1)
        self.within[:, diagonal, diagonal] = 0.0

    def at_places(self, side: int) -> Floats:
        """(N, L, L): what member i of node a has for places j of other nodes (side 2), or places i for member j (0)."""
        own = np.arange(len(self._whole))
        total = self._whole.sum(axis=side)
        total = total if side else total.swapaxes(0, 1)
        return np.asarray((total - self._whole[own, :, own, :]).astype(np.float64))

    @cached_property
    def apart(self) -> Floats:
        """The bytes between nodes, (N, L, N, L)."""
        blocks, own = self._whole.astype(np.float64), np.arange(len(self._whole))
        blocks[own, :, own, :] = 0.0
        return blocks


def attained_rate(topology: Topology, collective: Collective, enough: float = np.inf) -> float:
    """algbw in bytes/s that the flows of this module attain in alltoall or alltoallv; 0 where there are none.

    enough: a rate at which no more of them are tried.
    """
    if collective.traffic is None and topology.ranks > _MANY:
        symmetric = symmetric_rails(topology)
        if symmetric is not None and symmetric.alike:
            return topology.ranks / symmetric.equal_blocks_time
    traffic = collective.traffic or Traffic.uniform(topology.ranks, topology.ranks)
    time = star_time(topology, traffic)
    if time is None:
        rails = read_rails(topology)
        time = np.inf if rails is None else spread_time(rails, traffic, traffic.size / enough)
    return traffic.size / time


def spread_attains(topology: Topology, collective: Collective, rate: Fraction) -> bool:
    """True if these flows attain a rate."""
    return agree(rate, attained_rate(topology, collective, float(rate)))


def star_time(topology: Topology, traffic: Traffic) -> float | None:
    """Seconds of all bytes where every member has links to and from one switch only; None for other machines."""
    columns, members = topology.link_columns, topology.member_places
    if len(topology.devices) != len(members) + 1 or columns.shared:
        return None
    inner = np.isin(columns.src, members) & np.isin(columns.dst, members)
    if inner.any() or any(device.capacity is not None for device in topology.devices):
        return None
    rates = np.array([float(rate) for rate in columns.bandwidths])[columns.figure]
    out, into = (np.bincount(ends, rates, len(members) + 1)[members] for ends in (columns.src, columns.dst))
    own = np.diagonal(traffic.matrix)
    return float(max(((traffic.sent - own) / out).max(), ((traffic.received - own) / into).max()))


def spread_time(rails: Rails, traffic: Traffic, enough: float = 0.0) -> float:
    """Seconds that the best mixture of the flows takes for all bytes; infinite if there is none.

    enough: seconds at which no more flows are tried.
    """
    there = NodeTraffic(rails, traffic)
    parts = place_parts(rails, there.by_node)
    # Over the receivers' places, over the senders', and over all.
    quick = [(there.at_places(2), there.by_receiver), (there.at_places(0), there.by_sender.swapaxes(1, 2))]
    # Nothing may cross at a place without a route.
    closed = ~rails.open
    quick = [flow for flow in quick if not any(flow[1].sum(axis=end)[closed].any() for end in (0, 1))]
    if parts is not None:
        moved = np.einsum("aib,abk->aik", there.by_sender, parts) + np.einsum("abj,abk->bkj", there.by_receiver, parts)
        quick.append((moved, there.by_node[:, :, None] * parts))
    times = [_seconds(rails, there, flow) for flow in quick]
    if not times:
        return np.inf
    best, _ = _mixed(np.stack(times))
    if best <= enough * (1 + _SURELY) or parts is None or rails.nodes * rails.local**3 > _MOST_ROUTES:
        return best
    times.append(_seconds(rails, there, _own_first(there.apart, parts)))
    # The same backwards.
    moved, across = _own_first(there.apart.transpose(2, 3, 0, 1), parts.swapaxes(0, 1))
    times.append(_seconds(rails, there, (moved.swapaxes(1, 2), across.swapaxes(0, 1))))
    best, prices = _mixed(np.stack(times))
    gained = made = 0
    while enough and made < _MOST_FLOWS and made - gained < _IDLE_FLOWS and best > enough * (1 + _SURELY):
        # What would be quickest if every resource cost as much as it holds the mixture up (Dantzig and Wolfe
        # 1960).
        times.append(_seconds(rails, there, cheapest(rails, there.apart, prices)))
        if float(times[-1] @ prices) >= best * (1 - _SURELY):
            break
        before, (best, prices) = best, _mixed(np.stack(times))
        made += 1
        gained = made if best < before * (1 - _SURELY) else gained
    return best


def _seconds(rails: Rails, there: NodeTraffic, flow: _Flow) -> Floats:
    """How long every resource is busy."""
    moved, across = flow
    return np.asarray(rails.loads(moved + there.within, across) / rails.resources.rates)


# Bytes moved inside nodes, from member to member (N, L, L), and across, from node to node over each place (N,
# N, L).
_Flow = tuple[Floats, Floats]


def _own_first(apart: Floats, parts: Floats) -> _Flow:
    """As much over each place as `parts` say, first of all what is for the receiver there, and comes from there.

    So `rail_pieces` chooses, in whole units.
    """
    nodes, local = apart.shape[:2]
    moved, across = np.zeros((nodes, local, local)), np.zeros((nodes, nodes, local))
    for a in range(nodes):
        sent = apart[a].transpose(1, 2, 0)
        received = sent.sum(axis=2)
        across[a] = received.sum(axis=1, keepdims=True) * parts[a]
        over = transport(received, across[a])
        moved += over.swapaxes(1, 2)
        # One other node at a time stays in the processor's cache.
        for own, onward in zip(sent, over, strict=True):
            moved[a] += transport(own, onward).sum(axis=0)
    return moved, across


def place_parts(rails: Rails, by_node: Floats) -> Floats | None:
    """The part (N, N, L) of what goes from node a to b over each place, so that no route is busy longer than need be.

    Iterative proportional fitting (Deming and Stephan 1940) with one factor for every route up and down:
    those of routes that are busy longer than all routes of the busiest node together shrink. None where two
    nodes have no open place in common.
    """
    open_ = np.logical_and(rails.open[:, None, :], rails.open[None, :, :])
    if bool((by_node[np.sum(open_, axis=2) == 0] > 0).any()):
        return None
    # Routes up and then down: (2, N, L), and bytes that leave and enter each node: (2, N).
    known = [uses.rates(rails.resources.rates) for uses in rails.fabric_uses]
    rates = np.where(np.isinf(known), 0.0, known).reshape(2, *rails.ranks.shape)
    factors = np.where(rails.open, rates, 0.0)
    aim = float(_over(np.stack([by_node.sum(axis=1), by_node.sum(axis=0)]), factors.sum(axis=2)).max())
    best, least = None, np.inf
    for _ in range(_ROUNDS):
        parts = factors[0][:, None, :] * factors[1] * open_
        parts = _over(parts, parts.sum(axis=2, keepdims=True))
        across = by_node[:, :, None] * parts
        busy = _over(np.stack([across.sum(axis=1), across.sum(axis=0)]), rates)
        if (most := float(busy.max())) < least:
            best, least = parts, most
        if least <= aim * (1 + 1e-13):
            break
        # Routes that are busy longer get smaller factors.
        factors = factors * np.minimum(1.0, np.divide(aim, busy, out=np.ones_like(busy), where=busy > aim))
    return best


def _over(amounts: Floats, rates: Floats) -> Floats:
    """Amounts by rates, 0 where there is no rate."""
    return np.asarray(np.divide(amounts, rates, out=np.zeros_like(amounts), where=rates > 0))


def _mixed(times: Floats) -> tuple[float, Floats]:
    """The least of the longest times of any mixture, and what each resource counts in it, together 1.

    times: seconds of every flow (rows) on every resource.
    """
    best = float(times.max(axis=1).min())
    scale = best or 1.0
    rows = {int(np.argmax(row)) for row in times}
    prices = np.zeros(times.shape[1])
    for _ in range(_MOST_ROWS):
        # Maximise the amount of all flows together under times of 1: its inverse is the time of one unit.
        program = Program()
        parts = program.variables(len(times))
        listed = sorted(rows)
        for row in listed:
            program.row([(part, float(times[part, row]) / scale) for part in parts], at_most=1.0)
        amount = program.solve([(part, 1.0) for part in parts])
        prices[:] = 0.0
        prices[listed] = np.maximum(program.duals, 0.0) / max(float(np.maximum(program.duals, 0.0).sum()), 1e-300)
        mixture = np.maximum(program.values[: len(times)], 0.0) / amount @ times
        best = min(best, float(mixture.max()))
        worst = int(np.argmax(mixture))
        if worst in rows or mixture[worst] <= scale / amount * (1 + 1e-12):
            break
        rows.add(worst)
    return best, prices


# Places whose routes cost the same up to this share divide a block evenly.
_ALIKE = 1e-9


def cheapest(rails: Rails, apart: Floats, prices: Floats) -> tuple[Floats, Floats]:
    """Bytes moved inside nodes (N, L, L), and across over each place (N, N, L), at the least price.

    apart: bytes (N, L, N, L) from member i of node a to member j of node b. prices: of a second of every
    resource.
    """
    nodes, local = apart.shape[:2]
    each = prices / rails.resources.rates
    inside = rails.inside_uses.prices(each).reshape(nodes, local, local)
    ways = (uses.prices(each) for uses in rails.fabric_uses)
    up, down = (np.where(rails.open, price.reshape(nodes, local), np.inf) for price in ways)
    between = rails.trunk_prices(each)
    moved, across = np.zeros((nodes, local, local)), np.zeros((nodes, nodes, local))
    smallest = _ALIKE * float(each.max(initial=0.0))
    # Few resources have a price, so that most members pay the same for every place: those are looked at as
    # one.
    (rows, i), (columns, j) = (_sorts(costs) for costs in (inside, inside.swapaxes(1, 2)))
    sort_of = np.eye(columns.shape[1])[j]  # (b, j, sort)
    for a in range(nodes):
        amounts = apart[a].swapaxes(0, 1)  # (b, i, j)
        over = (up[a] + down + between[a])[:, :, None, None]
        cost = rows[a].T[:, :, None] + over + columns.swapaxes(1, 2)[:, :, None, :]  # (b, k, sorts of i, sorts of j)
        chosen = cost <= cost.min(axis=1, keepdims=True) + smallest
        part = chosen / chosen.sum(axis=1, keepdims=True)
        received = np.eye(rows.shape[1])[i[a]].T @ amounts
        into = np.einsum("bksj,bsj->bkj", part @ sort_of.swapaxes(1, 2)[:, None], received)
        moved[a] += np.einsum("bkit,bit->ik", part[:, :, i[a]], amounts @ sort_of)
        moved += into
        across[a] = into.sum(axis=2)
    return moved, across


def _sorts(costs: Floats) -> tuple[Floats, npt.NDArray[np.intp]]:
    """The rows of every node (N, L, K) that differ, filled up to as many, and which of them is each (N, L)."""
    found = [np.unique(rows, axis=0, return_inverse=True) for rows in costs]
    most = max(len(rows) for rows, _ in found)
    filled = [np.pad(rows, ((0, most - len(rows)), (0, 0)), mode="edge") for rows, _ in found]
    return np.stack(filled), np.stack([number.ravel() for _, number in found])
