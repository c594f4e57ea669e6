"""Clusters: a node replicated and joined by a fabric, and the symmetries of the result.

The symmetries follow from the shape of the fabric. They are generators: their products map any node onto any
other in an equivalent place, and do inside nodes what the symmetries of the single node do (orbits of a
permutation group: D. F. Holt, Handbook of Computational Group Theory, 2005, section 4.1). A permutation p is
a sequence: device i goes to device p[i]. The devices of the nodes come first, node by node, those of the
fabric last. `blinksim.topology.symmetry` checks every permutation before use.

In the examples, a node has two GPUs that are its ports, and the symmetry (1, 0), which exchanges them; of two
nodes, n0.gpu0 is device 0, n0.gpu1 is 1, n1.gpu0 is 2, n1.gpu1 is 3, and the fabric's devices begin at 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from blinksim.errors import InfeasibleError, InputError
from blinksim.graphs.arrays import Ints, fixed
from blinksim.graphs.connectivity import grouped
from blinksim.topology.elements import Device, Fabric, Link, Switch, copies, join, regarded, switches
from blinksim.topology.link_columns import LinkColumns
from blinksim.topology.symmetry import block_generators
from blinksim.units import whole

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

MOST_DEVICES = 400_000
Host: TypeAlias = "tuple[list[str], list[Device], list[Link]]"
"""Members, devices and links of a host."""
LinkName: TypeAlias = "tuple[str, str, str, int]"
"""A link in the terms of any host: ends there, "" for the fabric, class, and which of several it is."""


def replicate(node: Topology, nodes: int, fabric: Fabric | None = None) -> Topology:
    """`nodes` copies of `node`, whose devices become ``n0.gpu0``, ``n1.gpu0`` …, joined by `fabric`.

    One node is returned as it is. Raises `InfeasibleError` if the machine describes no fabric, and
    `InputError` for a count below one, a node that is itself a cluster, or more nodes than a direct fabric
    can wire.
    """
    fabric, nodes = fabric or node.fabric, whole(nodes, "nodes")
    if nodes < 1:
        raise InputError(f"{nodes} nodes; give at least 1")
    if node.nodes != 1:
        raise InputError(f"{node.name} already is a cluster of {node.nodes} nodes; replicate a single node")
    if nodes == 1:
        return node
    if fabric is None:
        cure = "add `fabric:` to its file, or complete it with blinksim topo import and like= a machine of such nodes"
        raise InfeasibleError(f"{node.name} describes no fabric to join {nodes} nodes with; {cure}")
    for port in fabric.ports:
        node.device(port)
    if nodes * len(node.devices) > MOST_DEVICES:
        most = MOST_DEVICES // len(node.devices)
        raise InputError(f"nodes={nodes}: up to {most:,} of these are built; take fewer, or model=projection")
    for d in node.devices:
        replace(d, name=f"n{nodes - 1}.{d.name}")  # raises for a name that grows too long
    known, parts = _copied(node, nodes, fabric)
    return regarded(node, known, **parts)


@lru_cache(maxsize=1)
def _copied(node: Topology, nodes: int, fabric: Fabric) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is known of a cluster by how it is made, and its fields; one answer asks twice."""
    count, names = len(node.devices), on_every_node(tuple(device.name for device in node.devices), nodes)
    table = node.link_columns.repeated(nodes, count)
    src, dst = (map(names.__getitem__, ends.tolist()) for ends in (table.src, table.dst))
    devices = copies(node.devices * nodes, name=names, node=np.repeat(np.arange(nodes), count).tolist())
    buses = [link.bus and f"n{i}.{link.bus}" for i in range(nodes) for link in node.links]
    more_devices, more_links = join(fabric, nodes)
    parts: dict[str, Any] = {
        "devices": (*devices, *more_devices),
        "links": (*copies(node.links * nodes, src=src, dst=dst, bus=buses), *more_links),
        "members": on_every_node(node.members, nodes),
        "relays": on_every_node(node.relays, nodes),
        # The fabric's own links always count among those that join nodes.
        "inter_node_links": tuple(dict.fromkeys((*node.inter_node_links, fabric.kind))),
        "nodes": nodes,
        "symmetries": cluster_symmetries(node, fabric, nodes, len(more_devices)),
        "fabric": None,
    }
    index = {device.name: number for number, device in enumerate(parts["devices"])}
    hosts = np.concatenate([np.repeat(np.arange(nodes), count), [device.node for device in more_devices]])
    table = table.beside(LinkColumns.of(more_links, index))
    return {"index": index, "link_columns": table, "device_nodes": fixed(hosts, len(hosts))}, parts


@lru_cache(maxsize=32)
def on_every_node(names: tuple[str, ...], nodes: int) -> tuple[str, ...]:
    """The devices with these names on each of the nodes: ``n0.gpu0``, ``n0.gpu1`` …, ``n1.gpu0`` …"""
    return tuple(f"n{node}.{name}" for node in range(nodes) for name in names)


def place(topology: Topology, ranks_per_node: int | None) -> tuple[str, ...]:
    """The first `ranks_per_node` members of every node in file order (card by card), as rank order.

    Members linked to other GPUs alone, without a NIC of their own, come last. Raises `InputError` if a node has fewer.
    """
    if ranks_per_node is None:
        return topology.members
    ranks_per_node = whole(ranks_per_node, "ranks_per_node")
    by_node = nodes_of(topology, topology.members)
    fewest = min(map(len, by_node), default=0)
    if not 1 <= ranks_per_node <= fewest:
        sizes = [*map(len, by_node)]
        where = "a node" if len({*sizes}) < 2 else f"n{sizes.index(fewest)}"
        has = f"{where} of {topology.name} has {fewest} GPUs; give 1 to {fewest}, or no number for all GPUs"
        raise InputError(f"{ranks_per_node} ranks per node, but {has}")
    few = ranks_per_node < max(map(len, by_node))
    linked = {link.src for link in topology.links if not topology.device(link.dst).holds} if few else set[str]()
    ported = [sorted(ranks, key=lambda rank: topology.members[rank] not in linked) for ranks in by_node]
    return tuple(topology.members[rank] for ranks in ported for rank in sorted(ranks[:ranks_per_node]))


def nodes_of(topology: Topology, members: Sequence[str]) -> list[list[int]]:
    """The ranks of `members` grouped by node, in rank order."""
    own = members is topology.members
    places = topology.member_places if own else [topology.index[topology.device(name).name] for name in members]
    nodes = topology.device_nodes[places].tolist()
    return list(grouped(zip(nodes, range(len(nodes)), strict=True)).values())


def links_by_name(topology: Topology, host: int, links: Iterable[int]) -> dict[LinkName, int]:
    """Links of a host by their names there."""
    found, times = dict[LinkName, int](), Counter[tuple[str, ...]]()
    for number in links:
        link = topology.links[number]
        ends = (topology.device(link.src), topology.device(link.dst))
        src, dst = (end.name.removeprefix(f"n{host}.") if end.node == host else "" for end in ends)
        found[src, dst, link.kind, times[src, dst, link.kind]] = number
        times[src, dst, link.kind] += 1
    return found


def unlike_hosts(topology: Topology, members: Sequence[str]) -> list[Host]:
    """One host of each sort: its members in rank order, its devices, and the links that leave these.

    Hosts are of one sort if their devices have the same kinds and attributes, in the same order, and the same
    links among each other and to the outside, and if their members have the same names but for the host's.
    """
    table, host = topology.link_columns, topology.device_nodes
    source = host[table.src]
    order, leaving = np.argsort(host, kind="stable"), np.argsort(source, kind="stable")
    hosts, sources = host[order], source[leaving]
    place = np.argsort(order) - np.searchsorted(hosts, host)
    far = np.where(source == host[table.dst], place[table.dst], -1)
    rows = np.stack((place[table.src], far, table.figure), axis=1)
    found: dict[object, Host] = {}
    for ranks in nodes_of(topology, members):
        local = [members[rank] for rank in ranks]
        number = topology.device(local[0]).node
        span, out = (slice(*np.searchsorted(of, (number, number + 1)).tolist()) for of in (hosts, sources))
        devices, own = [topology.devices[i] for i in order[span].tolist()], leaving[out]
        names = tuple(name.removeprefix(f"n{number}.") for name in local)
        # Copies of a host share their attributes.
        sort = names, tuple((device.kind, id(device.attributes)) for device in devices), rows[own].tobytes()
        if sort not in found:
            found[sort] = local, devices, [topology.links[i] for i in own.tolist()]
    return list(found.values())


Permutation = tuple[int, ...]


def cluster_symmetries(node: Topology, fabric: Fabric, nodes: int, extra: int) -> tuple[Permutation, ...]:
    """Permutations of the devices of `nodes` copies of `node`, joined by `fabric`, that map the cluster onto itself.

    extra: how many devices the fabric adds behind those of the nodes.

    Levels of switches: nodes below one switch can be exchanged, and full groups of nodes with their switches.
    Two nodes of two GPUs around one switch, device 4: (2, 3, 0, 1, 4) exchanges the nodes, (1, 0, 2, 3, 4)
    the GPUs of the first. On two rails, devices 4 and 5, GPUs are exchanged in all nodes with their rails:
    (1, 0, 3, 2, 5, 4). With a leaf each, 5 and 6, below the spine 4: (2, 3, 0, 1, 4, 6, 5) exchanges the
    leaves with their nodes.
    """
    devices, wiring = nodes * len(node.devices), switches(fabric, nodes)
    rows, fixed = np.arange(devices).reshape(nodes, -1), [*range(devices, devices + extra)]
    ports = [node.index[port] for port in fabric.ports]
    # Symmetries of a node that mix ports with other devices are none of the cluster.
    within = [inside for inside in node.symmetries if {inside[port] for port in ports} == {*ports}]
    if fabric.shape == "direct":
        # Ports wired back to back: two nodes can be exchanged, and both changed inside in the same way. Two
        # nodes of two GPUs: (2, 3, 0, 1) exchanges the nodes, (1, 0, 3, 2) the GPUs of both. Among more than
        # two nodes the port of a wire distinguishes the nodes.
        both = [rows[::-1], *(rows[:, inside] for inside in within)] if nodes == 2 else []
        return tuple(dict.fromkeys(_laid(hosts, ()) for hosts in both))
    number = dict(zip(wiring, fixed, strict=False))
    widths = [level.nodes or nodes for level in fabric.tiers()]
    # Exchanges carry what is known of a node to all nodes of full groups; a last group that is not full stays
    # apart.
    firsts = sorted({0, *(nodes - nodes % width for width in widths)} - {nodes})
    found = []
    for order, levels in _node_orders(nodes, widths, firsts):
        found.append(_laid(rows[order], map(number.__getitem__, _carried(wiring, order, widths[:levels]))))
    for inside in within:
        if goes := _plane_moves(fabric, ports, inside):
            moved = [number[level, goes[level][plane], group] for level, plane, group in wiring]
            found.append(_laid(rows[:, inside], moved))
        for first in firsts if goes == [] else ():
            hosts = rows.copy()
            hosts[first] = rows[first, inside]
            found.append(_laid(hosts, fixed))
    return tuple(dict.fromkeys(found))


def _laid(hosts: Ints, switches: Iterable[int]) -> Permutation:
    """The devices of every node go to those of a row, those of the fabric to `switches`."""
    return (*hosts.ravel().tolist(), *switches)


def _node_orders(nodes: int, widths: Sequence[int], firsts: Sequence[int]) -> Iterator[tuple[list[int], int]]:
    """Orders of the nodes that a fabric leaves alike, and how many levels of its switches go with them.

    Nodes below one switch of the lowest level, and then full groups of nodes of every level. widths: how many
    nodes are below a switch of each level. firsts: the first nodes of the groups.
    """
    for first in firsts:
        for order in block_generators(nodes, first, min(first + widths[0], nodes)):
            yield order, 0
    for level, (width, above) in enumerate(zip(widths, [*widths[1:], nodes], strict=True)):
        for first in firsts:
            if first % above == 0:
                last = min(first + above, nodes)
                for order in block_generators(nodes, first, last - (last - first) % width, width):
                    yield order, level + 1


def _carried(wiring: Sequence[Switch], order: Sequence[int], widths: Sequence[int]) -> Iterator[Switch]:
    """Where switches go if groups of nodes move as `order`: the levels with these `widths` go with them."""
    for level, plane, group in wiring:
        yield level, plane, order[group * widths[level]] // widths[level] if level < len(widths) else group


def _plane_moves(fabric: Fabric, ports: Sequence[int], inside: Permutation) -> list[dict[int, int]] | None:
    """Where a symmetry of a node takes the planes of its ports, level by level; None if it tears those of one apart.

    Empty for one that keeps every port in its planes. It applies to a single node, others to all nodes at
    once.
    """
    planes = {port: fabric.planes_of(number) for number, port in enumerate(ports)}
    goes = []
    for level, tier in enumerate(fabric.tiers()):
        images = {(planes[port][level], planes[inside[port]][level]) for port in ports}
        if not len(images) == tier.planes == len(dict(images)):
            return None
        goes.append(dict(images))
    return goes if any(own != to for planes_of in goes for own, to in planes_of.items()) else []
