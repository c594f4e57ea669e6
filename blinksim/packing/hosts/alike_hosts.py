"""Clusters of alike hosts around a fabric: the trees of one host are packed once and used in every host like it.

What a member sends reaches every other host through one of its ports and spreads there. So a host sees two kinds of
trees: those of its own members, and those of all others together, which enter through its ports. Packing both on the
host alone (the rest of the cluster is one more root) is small, and the cluster's rate is the least of its hosts'. A
host with a link that differs gets a packing of its own; the others keep theirs. The optimum of a quotient need not be
that of the whole, so the rate is claimed only after it has been compared with the bound of the whole graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from blinksim.graphs.capacities import SharedCapacity
from blinksim.graphs.network import Array, Network, whole
from blinksim.packing.exact.forest import pack_forest
from blinksim.packing.exact.scaling import Arcs
from blinksim.packing.exact.shared_capacity import Split, best_split
from blinksim.packing.hosts.fabric_ways import FabricWays
from blinksim.topology.graph import Link, Topology
from blinksim.topology.parts import bandwidths

Path = tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """What all hosts have in common, in local numbers: devices, links between them, members, and ports.

    ports: the local device behind every port. feeds: per port, the member whose data leaves there, and its links.
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

    device (host, local device), link (host, local link), into and outof (host, port): numbers. rates: exact bandwidths
    of (local links, into, outof) of every host. fabric: the ways between the switches at their ports.
    """

    shape: Shape
    device: Array
    link: Array
    into: Array
    outof: Array
    rates: tuple[tuple[tuple[Fraction, ...], tuple[Fraction, ...], tuple[Fraction, ...]], ...]
    fabric: FabricWays

    @property
    def count(self) -> int:
        return len(self.device)

    @property
    def ranks(self) -> int:
        return self.count * len(self.shape.members)


@dataclass(frozen=True, slots=True)
class LocalTree:
    """A tree inside a host with `weight` (1: a whole shard). port: where its data enters, -1 if its root is a member.

    edges: (parent, child, local links), parents before children. entry: links from the port to the first member.
    """

    root: int
    weight: Fraction
    edges: tuple[tuple[int, int, Path], ...]
    port: int = -1
    entry: Path = ()


class NotAlikeError(Exception):
    """Why a machine is no cluster of alike hosts. Not an error for users: `read_hosts` catches it."""


# The ends of a link in local numbers (or a device of the fabric), its kind and its number.
_Entry = tuple[int, int, str, int]


@dataclass
class _Host:
    """The devices of one host, and its links: inside, from the fabric down into it, and up out of it."""

    devices: list[int]
    inner: list[_Entry] = field(default_factory=list)
    down: list[_Entry] = field(default_factory=list)
    up: list[_Entry] = field(default_factory=list)

    @property
    def links(self) -> tuple[list[_Entry], list[_Entry], list[_Entry]]:
        return self.inner, self.down, self.up


def read_hosts(topology: Topology) -> Hosts | None:
    """The cluster as alike hosts, or None: there is one host only, or hosts differ in more than bandwidths."""
    try:
        return explained_hosts(topology)
    except NotAlikeError:
        return None


def explained_hosts(topology: Topology) -> Hosts:
    """The cluster as alike hosts; raises `NotAlikeError` with the reason if it is none."""
    hosts, inner = _grouped(topology)
    shape = _common_shape(topology, hosts)
    link, into, outof = (
        np.array([[number for *_, number in host.links[part]] for host in hosts], dtype=np.int64) for part in range(3)
    )
    bandwidth = bandwidths(topology)

    def rates_of(numbers: list[int]) -> tuple[Fraction, ...]:
        return tuple(bandwidth[number] for number in numbers)

    rates = tuple(
        (rates_of(inner), rates_of(down), rates_of(up))
        for inner, down, up in zip(link.tolist(), into.tolist(), outof.tolist(), strict=True)
    )
    devices = np.array([host.devices for host in hosts], dtype=np.int64)
    fabric = FabricWays([tuple(entry[1] for entry in host.down) for host in hosts], inner)
    if fabric.apart():
        raise NotAlikeError("the fabric does not join every port of a host to the same port of the others")
    return Hosts(shape, devices, link, into, outof, rates, fabric)


def _grouped(topology: Topology) -> tuple[list[_Host], dict[int, tuple[int, int, Fraction]]]:
    """Devices and links by host, in local numbers, the links of each host sorted, and those between switches.

    Raises `NotAlikeError`.
    """
    hosts: dict[int, _Host] = {}
    place: dict[int, tuple[_Host, int]] = {}
    for number, device in enumerate(topology.devices):
        if device.capacity is not None:
            raise NotAlikeError(f"{device.name} has a capacity of its own")
        if device.node >= 0:
            host = hosts.setdefault(device.node, _Host([]))
            place[number] = (host, len(host.devices))
            host.devices.append(number)
    if len(hosts) < 2:
        raise NotAlikeError("there is only one host")
    index = topology.index
    inner: dict[int, tuple[int, int, Fraction]] = {}
    for number, link in enumerate(topology.links):
        if link.bus is not None:
            raise NotAlikeError(f"{link.name} shares a bus")
        a, b = index[link.src], index[link.dst]
        if a in place or b in place:
            _add_link(place, a, b, link, number)
        else:
            inner[number] = (a, b, link.bandwidth)
    if len({ends[:2] for ends in inner.values()}) < len(inner):
        raise NotAlikeError("switches of the fabric are joined by parallel links")
    # Hosts without a member, such as those that are out of order, only stand there.
    ranked = {index[name] for name in topology.members}
    used = [host for host in hosts.values() if not ranked.isdisjoint(host.devices)]
    if len(used) < 2:
        raise NotAlikeError("there is only one host")
    for host in used:
        for part in host.links:
            part.sort()
    return used, inner


def _add_link(place: Mapping[int, tuple[_Host, int]], a: int, b: int, link: Link, number: int) -> None:
    """Put a link from device a to device b among those of its host; raises `NotAlikeError` if it belongs to two."""
    tail, head = place.get(a), place.get(b)
    if tail and head:
        if tail[0] is not head[0]:
            raise NotAlikeError(f"{link.name} joins two hosts without a fabric between them")
        tail[0].inner.append((tail[1], head[1], link.kind, number))
    elif head:
        head[0].down.append((head[1], a, link.kind, number))
    elif tail:
        tail[0].up.append((tail[1], b, link.kind, number))


def _common_shape(topology: Topology, hosts: Sequence[_Host]) -> Shape:
    """What all hosts have in common; raises `NotAlikeError` where they differ or cannot feed their ports."""
    ranked = {topology.index[name] for name in topology.members}
    first, *others = hosts
    members, wiring = _members(first, ranked), _wiring(first)
    node = topology.devices[first.devices[0]].node
    for host in others:
        other = topology.devices[host.devices[0]].node
        if len(host.devices) != len(first.devices):
            raise NotAlikeError(f"node {other} has {len(host.devices)} devices, node {node} has {len(first.devices)}")
        if _wiring(host) != wiring:
            raise NotAlikeError(f"the links of node {other} differ from those of node {node}")
        if _members(host, ranked) != members:
            raise NotAlikeError(f"node {other} has other members than node {node}")
    # A port is one link each way between the same two devices.
    if not first.down or [entry[:2] for entry in first.down] != [entry[:2] for entry in first.up]:
        raise NotAlikeError(f"node {node} is not joined to the fabric by pairs of links, one each way")
    tail, head = tuple(entry[0] for entry in first.inner), tuple(entry[1] for entry in first.inner)
    ports = tuple(entry[0] for entry in first.down)
    return Shape(len(first.devices), tail, head, members, ports, _feeds(tail, head, members, ports))


def _wiring(host: _Host) -> list[list[tuple[int, int, str]]]:
    """The links of a host but for their numbers; a switch of the fabric goes by the place where it comes first."""
    switch: dict[int, int] = {}
    for _, end, *_ in (*host.down, *host.up):
        switch.setdefault(end, len(switch))
    ports = [[(local, switch[end], kind) for local, end, kind, _ in part] for part in (host.down, host.up)]
    return [[entry[:3] for entry in host.inner], *ports]


def _members(host: _Host, ranked: set[int]) -> tuple[int, ...]:
    """The local numbers of the devices that hold a rank."""
    return tuple(local for local, number in enumerate(host.devices) if number in ranked)


def _feeds(
    tail: Sequence[int], head: Sequence[int], members: Sequence[int], ports: Sequence[int]
) -> tuple[tuple[int, Path], ...]:
    """For every port the nearest member that reaches it over forwarders alone, and the links, ports shared evenly.

    Raises `NotAlikeError` for a port that no member reaches.
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
            raise NotAlikeError("a port of every host is out of reach of its members")
        member = min(reached, key=lambda vertex: (used[vertex], vertex))
        used[member] += 1
        found.append((member, ways[member]))
    return tuple(found)


def local_network(hosts: Hosts, host: int, rate: Fraction) -> Network:
    """One host, its ports behind a gate (the vertex after its devices), the rest of the cluster behind that (the last).

    The gate lets in what all other members send at `rate` each, so that nothing can enter twice.
    """
    shape = hosts.shape
    links, into, _ = hosts.rates[host]
    gate, outside = shape.devices, shape.devices + 1
    values, unit = whole([(value, 1) for value in (*links, *into, rate * (hosts.ranks - len(shape.members)))])
    return Network(
        np.array([*shape.tail, *[gate] * len(shape.ports), outside], dtype=np.int64),
        np.array([*shape.head, *shape.ports, gate], dtype=np.int64),
        np.array(values, dtype=np.int64),
        unit,
        np.array(shape.members, dtype=np.int64),
        np.zeros(outside + 1, dtype=np.int64),
        np.arange(outside + 1),
        np.arange(outside + 1),
        (),
    )


def straight(hosts: Hosts, host: int, rate: Fraction) -> list[LocalTree] | None:
    """Every member, and every port's member, straight to all others; None if a shard's `rate` (bytes/s) is too much.

    Ports are used as much as their bandwidths compare.
    """
    shape = hosts.shape
    links, into, _ = hosts.rates[host]
    ways = {vertex: _ways(shape, vertex) for vertex in shape.members}
    total = hosts.ranks - len(shape.members)
    trees = []

    def star(vertex: int) -> tuple[tuple[int, int, Path], ...] | None:
        rest = [other for other in shape.members if other != vertex]
        if any(other not in ways[vertex] for other in rest):
            return None
        return tuple((vertex, other, ways[vertex][other]) for other in rest)

    for vertex in shape.members:
        edges = star(vertex)
        if edges is None:
            return None
        trees.append(LocalTree(vertex, Fraction(1), edges))
    entries = []
    for number, port in enumerate(shape.ports):
        reach = {port: ()} if port in ways else _ways(shape, port)
        entered = [vertex for vertex in shape.members if vertex in reach]
        if not entered:
            return None
        first = min(entered, key=lambda vertex: (len(reach[vertex]), vertex != shape.feeds[number][0], vertex))
        entries.append((first, reach[first], min([into[number], *(links[i] for i in reach[first])])))
    width = sum(least for _, _, least in entries)
    for number, (first, path, least) in enumerate(entries):
        edges = star(first)
        assert edges is not None
        trees.append(LocalTree(first, total * least / width, edges, number, path))
    load = [Fraction(0)] * len(links)
    ports = [Fraction(0)] * len(into)
    for tree in trees:
        if tree.port >= 0:
            ports[tree.port] += tree.weight
        for path in (tree.entry, *(path for _, _, path in tree.edges)):
            for link in path:
                load[link] += tree.weight
    fits = all(carried * rate <= most for carried, most in zip((*load, *ports), (*links, *into), strict=True))
    return trees if fits else None


def _ways(shape: Shape, start: int) -> dict[int, Path]:
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
        net = local_network(hosts, host, rate)
        shared = [SharedCapacity(((arc, 1.0),), value) for arc, value in enumerate(net.capacity.tolist())]
        return net, best_split(net, shared, weights, both=False, best=rate * hosts.ranks / net.unit)

    net, split = best_at(rate)
    if split is not None and split.rate * net.unit < rate * hosts.ranks:
        # The host cannot sustain that rate, so its gate must be narrower.
        net, split = best_at(split.rate * net.unit / hosts.ranks)
    if split is None:
        return None
    each = split.rates[shape.members[0]]
    arcs = Arcs(net.tail, net.head, split.capacity, shape.members, tuple(net.host.tolist()))
    forest = pack_forest(arcs, split.rates)
    trees = []
    for tree in forest.trees:
        weight = tree.amount / forest.scale / each
        if tree.root != outside:
            trees.append(LocalTree(tree.root, weight, tree.edges))
            continue
        entered = [edge for edge in tree.edges if edge[0] == outside]
        if len(entered) > 1:
            return None
        _, first, path = entered[0]
        rest = tuple(edge for edge in tree.edges if edge[0] != outside)
        trees.append(LocalTree(first, weight, rest, path[1] - len(shape.tail), path[2:]))
    return trees
