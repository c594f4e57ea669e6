"""Several nodes: a node file replicated and joined by a fabric.

Shapes of a fabric: `switch` (one switch, or `planes` of them: port p of every node goes to plane p mod planes; as many
planes as ports are rails), `tree` (per plane, a leaf switch for every `leaf_nodes` nodes under one spine) and `direct`
(ports wired back to back, as NTB adapters are).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from blinksim.errors import InfeasibleError, InputError, unknown
from blinksim.topology.cluster_symmetry import cluster_symmetries
from blinksim.topology.elements import Device, Link
from blinksim.units import whole

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

SHAPES = ("switch", "tree", "direct")
MOST_DEVICES = 400_000


@dataclass(frozen=True, slots=True)
class Fabric:
    """How copies of a node are joined.

    ports: devices of one node that the fabric's links leave from, such as its NICs. kind, lane_bandwidth (bytes/s),
    lanes, latency, overhead (s): of every port's link. oversubscription: how much more the leaves of a `tree` take in
    than they pass on.
    """

    shape: str
    ports: tuple[str, ...]
    kind: str
    lane_bandwidth: Fraction
    lanes: int = 1
    latency: float = 0.0
    overhead: float = 0.0
    planes: int = 1
    leaf_nodes: int = 16
    oversubscription: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise unknown("fabric shape", self.shape, SHAPES)
        if not self.ports:
            raise InputError("a fabric needs at least one port on every node")
        if not 1 <= self.planes <= len(self.ports):
            raise InputError(f"{self.planes} planes for {len(self.ports)} ports; every plane needs a port")
        if self.leaf_nodes < 1 or self.oversubscription < 1:
            raise InputError("leaf_nodes and oversubscription must be at least 1")

    def pair(self, a: str, b: str, times: Fraction = Fraction(1)) -> list[Link]:
        """The two links between `a` and `b`, with `times` a port's bandwidth."""
        lane = self.lane_bandwidth * times
        ends = ((a, b), (b, a))
        return [Link(src, dst, self.kind, lane, self.lanes, self.latency, self.overhead) for src, dst in ends]


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
    devices = [replace(d, name=f"n{i}.{d.name}", node=i) for i in range(nodes) for d in node.devices]
    links = [
        replace(
            link,
            src=f"n{i}.{link.src}",
            dst=f"n{i}.{link.dst}",
            bus=None if link.bus is None else f"n{i}.{link.bus}",
        )
        for i in range(nodes)
        for link in node.links
    ]
    more_devices, more_links = _join(fabric, nodes)
    return replace(
        node,
        devices=(*devices, *more_devices),
        links=(*links, *more_links),
        members=tuple(f"n{i}.{name}" for i in range(nodes) for name in node.members),
        relays=tuple(f"n{i}.{name}" for i in range(nodes) for name in node.relays),
        # The fabric's own links always count among those that join nodes.
        inter_node_links=tuple(dict.fromkeys((*node.inter_node_links, fabric.kind))),
        nodes=nodes,
        symmetries=cluster_symmetries(node, fabric, nodes, len(more_devices)),
        fabric=None,
    )


def _join(fabric: Fabric, nodes: int) -> tuple[list[Device], list[Link]]:
    if fabric.shape == "direct":
        return [], _back_to_back(fabric, nodes)
    devices: list[Device] = []
    links: list[Link] = []
    for plane in range(fabric.planes):
        ports = fabric.ports[plane :: fabric.planes]
        name = "fabric" if fabric.planes == 1 else f"fabric{plane}"
        devices.append(Device(name, "fabric", node=-1))
        if fabric.shape == "switch":
            tops = [name] * nodes
        else:
            leaves = -(-nodes // fabric.leaf_nodes)
            tops = [f"{name}.leaf{i // fabric.leaf_nodes}" for i in range(nodes)]
            devices += [Device(f"{name}.leaf{i}", "fabric", node=-1) for i in range(leaves)]
            up = Fraction(fabric.leaf_nodes * len(ports)) / fabric.oversubscription
            links += [link for i in range(leaves) for link in fabric.pair(f"{name}.leaf{i}", name, up)]
        links += [link for i in range(nodes) for port in ports for link in fabric.pair(f"n{i}.{port}", tops[i])]
    return devices, links


def _back_to_back(fabric: Fabric, nodes: int) -> list[Link]:
    if nodes - 1 > len(fabric.ports):
        raise InputError(
            f"{nodes} nodes wired directly need {nodes - 1} ports each; this machine has {len(fabric.ports)}"
        )
    links = []
    for i in range(nodes):
        for j in range(i + 1, nodes):
            # Spread the ports over the peers; with one peer all ports join the same two nodes.
            for port in range(len(fabric.ports)):
                if nodes == 2 or port == 0:
                    a = fabric.ports[(j - 1 + port) % len(fabric.ports)]
                    b = fabric.ports[(i + port) % len(fabric.ports)]
                    links += fabric.pair(f"n{i}.{a}", f"n{j}.{b}")
    return links


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
    for rank, name in enumerate(members):
        groups.setdefault(topology.device(name).node, []).append(rank)
    return list(groups.values())
