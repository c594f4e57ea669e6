"""Alike nodes of a cluster, the fabric between them, and the trees packed inside one node for all.

What a member sends reaches every other node through one of its ports and spreads there. So a node sees two
kinds of trees: those of its own members, and those of all others together, which enter through its ports.
Packing both on the node alone (the rest of the cluster is one more root) is small, and the cluster's rate is
the least of its nodes'. A node with a link that differs gets a packing of its own; one that lacks a device or
link has it put back with no bandwidth. The optimum of a quotient need not be that of the whole, so the
rate is claimed only after it has been compared with the bound of the whole graph.

Nodes whose ports end at the same switches are a leaf. Copies for every node of another leaf can fill the
links between the switches, while one copy for the leaf, which one of its nodes passes on to the others,
seldom does. The nodes then forward as much in all as before, because every byte enters every node once either
way.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from blinksim.graphs.arrays import distinct
from blinksim.graphs.network import Array, Network, whole
from blinksim.graphs.programs import SharedCapacity
from blinksim.graphs.rooted_trees import depths
from blinksim.packing.forest import pack_forest
from blinksim.packing.scaling import Arcs, Split, best_split
from blinksim.topology.graph import Topology

# Hosts that may lack something; of more, they are looked at as they are.
_MOST_LACKING = 256
# A link in the terms of any host: its ends there, "" for the fabric, its class, and which of several it is.
_Key = tuple[str, str, int, int]


@dataclass(frozen=True, eq=False)
class Parts:
    """Devices and links of a cluster in arrays; those that are missing come last.

    node, ranked, slot (device): its host, whether it holds a rank, and what orders the devices of one host.
    src, dst, kind, figure (link): ends, class and row of `bandwidths`. devices, links: how many there really
    are.
    """

    node: Array
    ranked: NDArray[np.bool_]
    slot: Array
    src: Array
    dst: Array
    kind: Array
    figure: Array
    bandwidths: tuple[Fraction, ...]
    devices: int
    links: int


def parts_of(topology: Topology) -> Parts:
    """The cluster with what some of its hosts lack, where that holds no rank; otherwise as it is."""
    columns, count = topology.link_columns, len(topology.devices)
    names = sorted(columns.classes)
    kind = np.array([names.index(name) for name in columns.classes], dtype=np.int64)[columns.kind]
    ranked = np.zeros(count, dtype=np.bool_)
    ranked[topology.member_places] = True
    node, src, dst = (np.asarray(one, dtype=np.int64) for one in (topology.device_nodes, columns.src, columns.dst))
    figure, rates = np.asarray(columns.figure, dtype=np.int64), (*columns.bandwidths, Fraction(0))
    plain = Parts(node, ranked, np.arange(count), src, dst, kind, figure, rates, count, len(src))
    owner = np.maximum(node[src], node[dst])
    used = distinct(node[ranked & (node >= 0)])
    if not len(used):
        return plain
    most = int(node.max()) + 1
    devices, links = np.bincount(node[node >= 0], minlength=most), np.bincount(owner[owner >= 0], minlength=most)
    full = int(used[np.argmax(devices[used] * (len(src) + 1) + links[used])])
    lacking = used[(devices[used] < devices[full]) | (links[used] < links[full])]
    if not len(lacking) or len(lacking) > _MOST_LACKING:
        return plain
    return _Completion(topology, plain, owner, full).of(lacking.tolist()) or plain


class _Completion:
    """What hosts lack, beside the fullest one."""

    def __init__(self, topology: Topology, plain: Parts, owner: Array, full: int) -> None:
        self.topology, self.plain, self.owner = topology, plain, owner
        self.devices = self._devices(full)
        self.links = self._links(full)

    def of(self, hosts: list[int]) -> Parts | None:
        """With these hosts completed; None if one has what the fullest has not, or lacks a rank."""
        plain = self.plain
        more_devices = list[int]()
        more_links = list[tuple[int, int, int]]()
        slot = plain.slot.tolist()
        for host in hosts:
            own, wires = self._devices(host), self._links(host)
            lost = [name for name in self.devices if name not in own]
            surplus = own.keys() - self.devices.keys() or wires.keys() - self.links.keys()
            if surplus or any(plain.ranked[self.devices[name]] for name in lost):
                return None
            for name in lost:
                own[name] = len(slot)
                slot.append(0)
                more_devices.append(host)
            for place, name in enumerate(self.devices):
                slot[own[name]] = place
            switch = {self._switch(self.links[key]): self._switch(link) for key, link in wires.items()}
            for key, link in self.links.items():
                if key not in wires:
                    beyond = self._switch(link)
                    src, dst = (own[name] if name else switch.get(beyond, beyond) for name in key[:2])
                    more_links.append((src, dst, key[2]))
        more = np.array(more_links, dtype=np.int64).reshape(-1, 3)
        return replace(
            plain,
            node=np.concatenate([plain.node, np.array(more_devices, dtype=np.int64)]),
            ranked=np.concatenate([plain.ranked, np.zeros(len(more_devices), dtype=np.bool_)]),
            slot=np.array(slot, dtype=np.int64),
            src=np.concatenate([plain.src, more[:, 0]]),
            dst=np.concatenate([plain.dst, more[:, 1]]),
            kind=np.concatenate([plain.kind, more[:, 2]]),
            figure=np.concatenate([plain.figure, np.full(len(more), len(plain.bandwidths) - 1)]),
        )

    def _local(self, device: int) -> str:
        host = int(self.plain.node[device])
        return self.topology.devices[device].name.removeprefix(f"n{host}.") if host >= 0 else ""

    def _devices(self, host: int) -> dict[str, int]:
        return {self._local(number): number for number in np.flatnonzero(self.plain.node == host).tolist()}

    def _links(self, host: int) -> dict[_Key, int]:
        found, times = dict[_Key, int](), Counter[tuple[str, str, int]]()
        for link in np.flatnonzero(self.owner == host).tolist():
            ends = self._local(int(self.plain.src[link])), self._local(int(self.plain.dst[link]))
            plain = *ends, int(self.plain.kind[link])
            found[*plain, times[plain]] = link
            times[plain] += 1
        return found

    def _switch(self, link: int) -> int:
        """The device outside hosts that a link joins; -1 for one inside."""
        src, dst = int(self.plain.src[link]), int(self.plain.dst[link])
        return src if self.plain.node[src] < 0 else dst if self.plain.node[dst] < 0 else -1


Path = tuple[int, ...]
# Pieces that a shard is cut into so that all hosts of a leaf pass on equally much.
_MOST_PIECES = 32


class FabricWays:
    """The shortest way from each switch of a fabric to each other.

    ends: the switches (numbers of devices) at the ports of every host. inner: number, ends and bandwidth of
    every link between two switches.
    """

    def __init__(self, ends: Sequence[tuple[int, ...]], inner: Mapping[int, tuple[int, int, Fraction]]) -> None:
        self.ends = tuple(ends)
        self._inner = dict(inner)
        self._out: dict[int, list[tuple[int, int]]] = {}
        for number, (a, b, _) in self._inner.items():
            self._out.setdefault(a, []).append((b, number))
        self._from: dict[int, dict[int, Path]] = {}

    @cached_property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """The hosts by the switches that their ports end at."""
        found: dict[tuple[int, ...], list[int]] = {}
        for host, switches in enumerate(self.ends):
            found.setdefault(switches, []).append(host)
        return tuple(map(tuple, found.values()))

    @cached_property
    def leaf_of(self) -> tuple[int, ...]:
        """The number of each host's leaf."""
        place = {host: number for number, leaf in enumerate(self.leaves) for host in leaf}
        return tuple(place[host] for host in range(len(self.ends)))

    @cached_property
    def passed(self) -> tuple[tuple[Fraction, int], ...]:
        """For every leaf: the part of its hosts' shards that one host of each other leaf passes on, in how many pieces.

        A host of a small leaf has fewer to pass to, so it sends more itself, directly. With s hosts in a
        leaf, 1 - 1/s of what comes in for it is passed on inside. Shards passed on in that ratio have every
        host send out n - 1 shards for n hosts, as it takes in; those of the largest leaves all are. The
        pieces have different hosts pass them on, so that all hosts of a leaf do it equally often.
        """
        sizes = [len(leaf) for leaf in self.leaves]
        most, found = max(sizes), {}
        for size in set(sizes):
            pieces = lcm(*(other // gcd(size, other) for other in sizes))
            part = Fraction(most * (size - 1), size * (most - 1)) if most > 1 else Fraction(1)
            found[size] = part, pieces if pieces <= _MOST_PIECES else 1
        return tuple(found[size] for size in sizes)

    def way(self, a: int, b: int) -> Path | None:
        """The links from one switch to another, none for the same; None if there is no way."""
        if a not in self._from:
            found: dict[int, Path] = {a: ()}
            queue = deque([a])
            while queue:
                at = queue.popleft()
                for end, number in self._out.get(at, ()):
                    if end not in found:
                        found[end] = (*found[at], number)
                        queue.append(end)
            self._from[a] = found
        return self._from[a].get(b)

    def apart(self) -> bool:
        """True if some port of a host has no way to the same port of another."""
        return any(
            self.way(start, end) is None
            for one in self.leaves
            for other in self.leaves
            for start, end in zip(self.ends[one[0]], self.ends[other[0]], strict=True)
        )

    def narrow(self, widths: Sequence[Fraction]) -> bool:
        """True if the links between switches are full before the ports, when each host sends to each other directly.

        widths: bytes/s of every port, which are used as these compare.
        """
        # In whole units of the widths, which add up quickly.
        unit = Fraction(gcd(*(width.numerator for width in widths)), lcm(*(width.denominator for width in widths)))
        units = [int(width / unit) for width in widths]
        flows: Counter[tuple[int, int]] = Counter()
        for one in self.leaves:
            for other in self.leaves:
                if one is not other:
                    for start, end, width in zip(self.ends[one[0]], self.ends[other[0]], units, strict=True):
                        flows[start, end] += len(one) * len(other) * width
        load: Counter[int] = Counter()
        for (start, end), amount in flows.items():
            for link in self.way(start, end) or ():
                load[link] += amount
        most = (len(self.ends) - 1) / unit
        return any(carried > most * self._inner[link][2] for link, carried in load.items())


Rates = tuple[tuple[tuple[Fraction, ...], tuple[Fraction, ...], tuple[Fraction, ...]], ...]


@dataclass(frozen=True)
class Shape:
    """What all hosts have in common, in local numbers: devices, links between them, members, and ports.

    ports: the local device behind every port. feeds: per port, the member whose data leaves there, and its
    links.
    """

    devices: int
    tail: tuple[int, ...]
    head: tuple[int, ...]
    members: tuple[int, ...]
    ports: tuple[int, ...]
    feeds: tuple[tuple[int, Path], ...]


@dataclass(frozen=True)
class Hosts:
    """A cluster, host by host: device and link numbers of the topology at every local number.

    device (host, local device), link (host, local link), into and outof (host, port): numbers, -1 for what
    one lacks. rates: exact bandwidths of (local links, into, outof) of every host, 0 for what it lacks.
    fabric: the ways between the switches at their ports.
    """

    shape: Shape
    device: Array
    link: Array
    into: Array
    outof: Array
    rates: Rates
    fabric: FabricWays

    @property
    def count(self) -> int:
        return len(self.device)

    @property
    def ranks(self) -> int:
        return self.count * len(self.shape.members)

    @property
    def lacking(self) -> bool:
        """True if a host lacks a device or a link."""
        return any(bool((table < 0).any()) for table in (self.device, self.link, self.into, self.outof))


@dataclass(frozen=True, slots=True)
class LocalTree:
    """A tree inside a host with `weight` (1: a whole shard). port: where its data enters, -1 if its root is a member.

    edges: (parent, child, local links), parents before children. entry: links from the port to the first
    member.
    """

    root: int
    weight: Fraction
    edges: tuple[tuple[int, int, Path], ...]
    port: int = -1
    entry: Path = ()


def read_hosts(topology: Topology) -> Hosts | None:
    """The cluster as alike hosts, or None: there is one host only, or hosts differ in more than bandwidths."""
    found = _in_arrays(topology)
    return None if found is None or found.fabric.apart() else found


def _in_arrays(topology: Topology) -> Hosts | None:
    """The cluster as alike hosts, all of them compared at once; None if it is none."""
    if topology.link_columns.shared or any(device.capacity is not None for device in topology.devices):
        return None
    parts = parts_of(topology)
    node, ranked, src, dst, kind = parts.node, parts.ranked, parts.src, parts.dst, parts.kind
    a, b = node[src], node[dst]
    # Hosts without a member, such as those that are out of order, only stand there.
    used = distinct(node[ranked])
    if bool((node[ranked] < 0).any()) or len(used) < 2 or bool(((a >= 0) & (b >= 0) & (a != b)).any()):
        return None
    # In the order of their first devices.
    nodes, first = np.unique(node, return_index=True)
    used = used[np.argsort(first[np.searchsorted(nodes, used)])]
    host = np.full(int(node.max()) + 2, -1)
    host[used] = np.arange(len(used))
    of, inside = host[node], np.flatnonzero(host[node] >= 0)
    inside = inside[np.argsort(parts.slot[inside], kind="stable")]
    device = _rows(of[inside], inside, len(used))
    if device is None or not (ranked[device] == ranked[device[0]]).all():
        return None
    local = np.zeros(len(node), dtype=np.int64)
    local[device] = np.arange(device.shape[1])
    owner, number = np.maximum(of[src], of[dst]), np.arange(len(a))
    tables = []
    for chosen, near, far in (
        ((a >= 0) & (b >= 0), local[src], local[dst]),
        ((a < 0) & (b >= 0), local[dst], src),
        ((a >= 0) & (b < 0), local[src], dst),
    ):
        some = np.flatnonzero(chosen & (owner >= 0))
        order = some[np.lexsort((number[some], kind[some], far[some], near[some], owner[some]))]
        rows = _rows(owner[order], order, len(used))
        if rows is None or not all((value[rows] == value[rows[0]]).all() for value in (near, kind)):
            return None
        tables.append((rows, near[rows], far[rows]))
    (link, tail, head), (into, ports, above), (outof, leaving, beyond) = tables
    switches = np.concatenate([above, beyond], axis=1)
    # Every switch goes by the place where it comes first.
    place = (switches[:, :, None] == switches[:, None, :]).argmax(axis=2)
    paired = np.array_equal(ports[0], leaving[0]) and np.array_equal(above[0], beyond[0])
    if not ((head == head[0]).all() and (place == place[0]).all() and paired and ports.shape[1]):
        return None
    inner = {
        place: (int(src[place]), int(dst[place]), parts.bandwidths[parts.figure[place]])
        for place in np.flatnonzero((a < 0) & (b < 0)).tolist()
    }
    fabric = FabricWays([tuple(row) for row in above.tolist()], inner)
    members = tuple(np.flatnonzero(ranked[device[0]]).tolist())
    wires = tuple(tail[0].tolist()), tuple(head[0].tolist())
    doors = tuple(ports[0].tolist())
    feeds = _feeds(*wires, members, doors)
    if feeds is None or len({ends[:2] for ends in inner.values()}) < len(inner):
        return None
    shape = Shape(device.shape[1], *wires, members, doors, feeds)
    rates = _rates(parts, link, into, outof)
    device[device >= parts.devices] = -1
    for table in (link, into, outof):
        table[table >= parts.links] = -1
    return Hosts(shape, device, link, into, outof, rates, fabric)


def _rows(owner: Array, values: Array, count: int) -> Array | None:
    """Values by owner, one row for each of so many, in the order given; None if these have unequally many."""
    if not np.array_equal(np.bincount(owner, minlength=count), np.full(count, len(values) // count)):
        return None
    return values[np.argsort(owner, kind="stable")].reshape(count, -1)


def _rates(parts: Parts, link: Array, into: Array, outof: Array) -> Rates:
    """The bandwidths of (local links, into, outof) of every host; hosts with the same figures share them."""
    figure = parts.figure[np.concatenate([link, into, outof], axis=1)]
    different, row = np.unique(figure, axis=0, return_inverse=True)
    found = []
    for figures in different.tolist():
        rates = tuple(map(parts.bandwidths.__getitem__, figures))
        first, second = link.shape[1], link.shape[1] + into.shape[1]
        found.append((rates[:first], rates[first:second], rates[second:]))
    return tuple(map(found.__getitem__, row.ravel().tolist()))


def _feeds(
    tail: Sequence[int], head: Sequence[int], members: Sequence[int], ports: Sequence[int]
) -> tuple[tuple[int, Path], ...] | None:
    """For every port the nearest member that reaches it over forwarders alone, and the links, ports shared evenly.

    None if no member reaches some port.
    """
    found: list[tuple[int, Path]] = []
    used = dict.fromkeys(members, 0)
    for port in ports:
        ways: dict[int, Path] = {port: ()}
        level, reached = [port], [port] if port in used else []
        while level and not reached:
            following = []
            for number, (a, b) in enumerate(zip(tail, head, strict=True)):
                if b in level and a not in ways:
                    ways[a] = (number, *ways[b])
                    following.append(a)
            reached = [vertex for vertex in following if vertex in used]
            level = following
        if not reached:
            return None
        member = min(reached, key=lambda vertex: (used[vertex], vertex))
        used[member] += 1
        found.append((member, ways[member]))
    return tuple(found)


def local_network(hosts: Hosts, host: int, rate: Fraction) -> tuple[Network, list[int]]:
    """One host, its ports behind a gate (the vertex after its devices), the rest of the cluster behind that (the last).

    The gate lets in what all other members send at `rate` each, so that nothing can enter twice. And for
    every arc the local link, port (after the links) or the gate (after these): those that the host lacks have
    none.
    """
    shape = hosts.shape
    links, into, _ = hosts.rates[host]
    gate, outside = shape.devices, shape.devices + 1
    rates = (*links, *into, rate * (hosts.ranks - len(shape.members)))
    kept = [number for number, value in enumerate(rates) if value]
    values, unit = whole([(rates[number], 1) for number in kept])
    net = Network(
        np.array([*shape.tail, *[gate] * len(shape.ports), outside], dtype=np.int64)[kept],
        np.array([*shape.head, *shape.ports, gate], dtype=np.int64)[kept],
        np.array(values, dtype=np.int64),
        unit,
        np.array(shape.members, dtype=np.int64),
        np.zeros(outside + 1, dtype=np.int64),
        np.arange(outside + 1),
        np.arange(outside + 1),
        (),
    )
    return net, kept


def straight(hosts: Hosts, host: int, rate: Fraction) -> list[LocalTree] | None:
    """As `stars`; None if a shard's `rate` (bytes/s) is too much for the links inside or the ports."""
    links, into, _ = hosts.rates[host]
    trees = stars(hosts, host) or []
    load = [Fraction(0)] * len(links)
    ports = [Fraction(0)] * len(into)
    for tree in trees:
        if tree.port >= 0:
            ports[tree.port] += tree.weight
        for path in (tree.entry, *(path for _, _, path in tree.edges)):
            for link in path:
                load[link] += tree.weight
    fits = all(carried * rate <= most for carried, most in zip((*load, *ports), (*links, *into), strict=True))
    return trees if trees and fits else None


def stars(hosts: Hosts, host: int) -> list[LocalTree] | None:
    """Every member, and every port's member, straight to all others; None where some do not reach each other.

    Ports are used as much as their bandwidths compare.
    """
    shape = hosts.shape
    links, into, _ = hosts.rates[host]
    ways = {vertex: ways_from(shape, vertex) for vertex in shape.members}
    total = hosts.ranks - len(shape.members)
    trees = []

    def star(vertex: int) -> tuple[tuple[int, int, Path], ...] | None:
        rest = [other for other in shape.members if other != vertex]
        if any(other not in ways[vertex] for other in rest):
            return None
        return turned_edges(vertex, [(vertex, other, ways[vertex][other]) for other in rest])

    for vertex in shape.members:
        edges = star(vertex)
        if edges is None:
            return None
        trees.append(LocalTree(vertex, Fraction(1), edges))
    entries = []
    for number, port in enumerate(shape.ports):
        reach = {port: ()} if port in ways else ways_from(shape, port)
        entered = [vertex for vertex in shape.members if vertex in reach]
        if not entered:
            return None
        first = min(entered, key=lambda vertex: (len(reach[vertex]), vertex != shape.feeds[number][0], vertex))
        entries.append((first, reach[first], min([into[number], *(links[i] for i in reach[first])])))
    width = sum(least for _, _, least in entries)
    if not width:
        return None
    for number, (first, path, least) in enumerate(entries):
        if not least:
            continue
        edges = star(first)
        assert edges is not None
        trees.append(LocalTree(first, total * least / width, edges, number, path))
    return trees


def turned_edges(root: int, edges: Sequence[tuple[int, int, Path]]) -> tuple[tuple[int, int, Path], ...]:
    """The edges of a tree by depth, and then from the root's next device on: not all trees begin with the same one."""
    depth = depths(root, [edge[:2] for edge in edges])
    return tuple(sorted(edges, key=lambda edge: (depth[edge[1]], edge[1] < root, edge[1])))


def ways_from(shape: Shape, start: int) -> dict[int, Path]:
    """The links of a shortest way from a local device to every member, over forwarders alone."""
    around: dict[int, list[int]] = {}
    for number, tail in enumerate(shape.tail):
        around.setdefault(tail, []).append(number)
    ways: dict[int, Path] = {start: ()}
    queue = [start]
    for vertex in queue:
        if vertex == start or vertex not in shape.members:
            for number in around.get(vertex, []):
                if shape.head[number] not in ways:
                    ways[shape.head[number]] = (*ways[vertex], number)
                    queue.append(shape.head[number])
    return {vertex: way for vertex, way in ways.items() if vertex in shape.members and vertex != start}


def packed_host(hosts: Hosts, host: int, rate: Fraction) -> list[LocalTree] | None:
    """The best trees of one host, by the linear program and the packing; None if that is too large.

    rate: bytes/s per shard; more is not needed. Weights are relative: 1 is a whole shard.
    """
    shape = hosts.shape
    outside, total = shape.devices + 1, hosts.ranks - len(shape.members)
    weights = {outside: total, **dict.fromkeys(shape.members, 1)}

    def best_at(rate: Fraction) -> tuple[Network, Split | None]:
        net, _ = local_network(hosts, host, rate)
        shared = [SharedCapacity(((arc, 1.0),), value) for arc, value in enumerate(net.capacity.tolist())]
        return net, best_split(net, shared, weights, both=False, best=rate * hosts.ranks / net.unit)

    net, split = best_at(rate)
    if split is not None and split.rate * net.unit < rate * hosts.ranks:
        # The host cannot sustain that rate, so its gate must be narrower.
        net, split = best_at(split.rate * net.unit / hosts.ranks)
    if split is None:
        return None
    each, (_, kept) = split.rates[shape.members[0]], local_network(hosts, host, rate)
    arcs = Arcs(net.tail, net.head, split.capacity, shape.members, tuple(net.host.tolist()))
    forest = pack_forest(arcs, split.rates)
    trees = []
    for tree in forest.trees:
        weight = tree.amount / forest.scale / each
        edges = [(a, b, tuple(kept[arc] for arc in path)) for a, b, path in tree.edges]
        if tree.root != outside:
            trees.append(LocalTree(tree.root, weight, turned_edges(tree.root, edges)))
            continue
        entered = [edge for edge in edges if edge[0] == outside]
        if len(entered) > 1:
            return None
        _, first, path = entered[0]
        rest = turned_edges(first, [edge for edge in edges if edge[0] != outside])
        trees.append(LocalTree(first, weight, rest, path[1] - len(shape.tail), path[2:]))
    return trees
