"""Several nodes: a node file replicated and joined by a fabric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from blinksim.errors import InfeasibleError, InputError
from blinksim.structures.collecting import collection_paused
from blinksim.topology.fabrics.cluster_symmetry import cluster_symmetries
from blinksim.topology.fabrics.fabric import Fabric
from blinksim.topology.fabrics.wiring import join
from blinksim.topology.parts import put_together
from blinksim.units import whole

if TYPE_CHECKING:
    from blinksim.topology.elements import Device, Link
    from blinksim.topology.graph import Topology

MOST_DEVICES = 400_000
# Links from which on tables of a cluster are made of those of a node.
_MANY = 2_000


def replicate(node: Topology, nodes: int, fabric: Fabric | None = None) -> Topology:
    """`nodes` copies of `node`, whose devices become ``n0.gpu0``, ``n1.gpu0`` …, joined by `fabric`.

    One node is returned as it is. Raises `InfeasibleError` if the machine describes no fabric, and `InputError` for a
    count below one, a node that is itself a cluster, or more nodes than a direct fabric can wire.
    """
    fabric, nodes = fabric or node.fabric, whole(nodes, "nodes")
    if nodes < 1:
        raise InputError(f"{nodes} nodes; give at least 1")
    if node.nodes != 1:
        raise InputError(f"{node.name} already is a cluster of {node.nodes} nodes; replicate a single node")
    if nodes == 1:
        return node
    if fabric is None:
        raise InfeasibleError(f"{node.name} describes no fabric to join {nodes} nodes with; add `fabric:` to its file")
    for port in fabric.ports:
        node.device(port)
    if nodes * len(node.devices) > MOST_DEVICES:
        raise InputError(
            f"{nodes} nodes of {len(node.devices)} devices are more than {MOST_DEVICES:,} devices; "
            "model=projection needs one node only"
        )
    for d in node.devices:
        replace(d, name=f"n{nodes - 1}.{d.name}")  # raises for a name that grows too long
    with collection_paused():
        return _copies(node, nodes, fabric)


def _copies(node: Topology, nodes: int, fabric: Fabric) -> Topology:
    """`replicate` for what it has checked."""
    devices = [d.placed(f"n{i}.{d.name}", i) for i in range(nodes) for d in node.devices]
    links = [
        link.between(f"{prefix}{link.src}", f"{prefix}{link.dst}", None if link.bus is None else f"{prefix}{link.bus}")
        for prefix in (f"n{i}." for i in range(nodes))
        for link in node.links
    ]
    more_devices, more_links = join(fabric, nodes)
    parts: dict[str, Any] = {
        "devices": (*devices, *more_devices),
        "links": (*links, *more_links),
        "members": tuple(f"n{i}.{name}" for i in range(nodes) for name in node.members),
        "relays": tuple(f"n{i}.{name}" for i in range(nodes) for name in node.relays),
        # The fabric's own links always count among those that join nodes.
        "inter_node_links": tuple(dict.fromkeys((*node.inter_node_links, fabric.kind))),
        "nodes": nodes,
        "symmetries": cluster_symmetries(node, fabric, nodes, len(more_devices)),
        "fabric": None,
    }
    if len(parts["links"]) < _MANY:
        return replace(node, **parts)
    return put_together(node, _tables(node, nodes, parts["devices"], more_links), **parts)


def _tables(node: Topology, nodes: int, devices: Sequence[Device], between: Sequence[Link]) -> dict[str, Any]:
    """What is known of the devices and links of a cluster by how it was made. between: the links of the fabric."""
    import numpy as np

    from blinksim.structures.arrays import fixed
    from blinksim.topology.link_columns import LinkColumns

    index, count = {device.name: place for place, device in enumerate(devices)}, len(node.devices)
    table = node.link_columns.repeated(nodes, count).beside(LinkColumns.of(between, index))
    hosts = np.concatenate([np.repeat(np.arange(nodes), count), [device.node for device in devices[nodes * count :]]])
    return {"index": index, "link_columns": table, "device_nodes": fixed(hosts, len(hosts))}


def place(topology: Topology, ranks_per_node: int | None) -> tuple[str, ...]:
    """The first `ranks_per_node` members of every node in file order (card by card), as rank order.

    Raises `InputError` if a node has fewer.
    """
    if ranks_per_node is None:
        return topology.members
    ranks_per_node = whole(ranks_per_node, "ranks_per_node")
    by_node: dict[int, list[str]] = {}
    for name in topology.members:
        by_node.setdefault(topology.device(name).node, []).append(name)
    if ranks_per_node < 1:
        raise InputError(f"{ranks_per_node} ranks per node; give at least 1")
    fewest = min(map(len, by_node.values()), default=0)
    if ranks_per_node > fewest:
        raise InputError(f"{ranks_per_node} ranks per node, but a node of {topology.name} has {fewest} GPUs")
    return tuple(name for names in by_node.values() for name in names[:ranks_per_node])


def nodes_of(topology: Topology, members: Sequence[str]) -> list[list[int]]:
    """The ranks of `members` grouped by node, in rank order."""
    groups: dict[int, list[int]] = {}
    own = members is topology.members
    places = topology.member_places if own else [topology.index[topology.device(name).name] for name in members]
    for rank, node in enumerate(topology.device_nodes[places].tolist()):
        groups.setdefault(node, []).append(rank)
    return list(groups.values())
