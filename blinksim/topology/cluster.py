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
from blinksim.topology.elements import Device, Link

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
        return [Link(x, y, self.kind, lane, self.lanes, self.latency, self.overhead) for x, y in ends]


def replicate(node: Topology, nodes: int, fabric: Fabric | None = None) -> Topology:
    """`nodes` copies of `node`, whose devices become ``n0.gpu0``, ``n1.gpu0`` …, joined by `fabric`.

    One node is returned as it is. Raises `InfeasibleError` if the machine describes no fabric, and `InputError` for a
    count below one, a node that is itself a cluster, or more nodes than a direct fabric can wire.
    """
    fabric = fabric or node.fabric
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
            "--model projection needs one node only"
        )
    devices = [replace(d, name=f"n{i}.{d.name}", node=i) for i in range(nodes) for d in node.devices]
    links = [
        replace(x, src=f"n{i}.{x.src}", dst=f"n{i}.{x.dst}", bus=None if x.bus is None else f"n{i}.{x.bus}")
        for i in range(nodes)
        for x in node.links
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
        symmetries=_symmetries(node, fabric, nodes, len(more_devices)),
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
            links += [x for i in range(leaves) for x in fabric.pair(f"{name}.leaf{i}", name, up)]
        links += [x for i in range(nodes) for port in ports for x in fabric.pair(f"n{i}.{port}", tops[i])]
    return devices, links


def _symmetries(node: Topology, fabric: Fabric, nodes: int, extra: int) -> tuple[tuple[int, ...], ...]:
    """Permutations of the cluster's devices that map it onto itself: exchanged nodes, leaves and, inside nodes, GPUs.

    extra: how many devices the fabric adds behind those of the nodes.
    """
    size = len(node.devices)
    fixed = list(range(nodes * size, nodes * size + extra))

    def of_nodes(order: Sequence[int], switches: Sequence[int]) -> tuple[int, ...]:
        return (*(i * size + place for i in order for place in range(size)), *switches)

    found: list[tuple[int, ...]] = []
    if fabric.shape == "direct":
        # Two nodes join equal ports; among more, the port that a wire leaves from tells the nodes apart.
        if nodes > 2:
            return ()
        ports_of = {node.index[port] for port in fabric.ports}
        both = [p for p in node.symmetries if all(p[port] in ports_of for port in ports_of)]
        return (of_nodes((1, 0), fixed), *(tuple(i * size + place for i in (0, 1) for place in p) for p in both))
    width = nodes if fabric.shape == "switch" else fabric.leaf_nodes
    # The first node, and the first of a last leaf that is not full, stand for all nodes that they can be turned into.
    firsts = [first for first in dict.fromkeys((0, nodes - nodes % width)) if first < nodes]
    for first in firsts:
        last = min(first + width, nodes)
        found += [of_nodes(order, fixed) for order in _turn_and_swap(list(range(nodes)), first, last, 1)]
    leaves = -(-nodes // width) if fabric.shape == "tree" else 0
    # A leaf moves with all its nodes, in every plane; a last leaf that is not full stays.
    moves = zip(
        _turn_and_swap(list(range(nodes)), 0, nodes - nodes % width, width),
        _turn_and_swap(list(range(leaves)), 0, nodes // width, 1),
        strict=False,
    )
    for order, leaf_order in moves if leaves else ():
        tops = [fixed[p * (1 + leaves)] + i for p in range(fabric.planes) for i in (0, *(1 + k for k in leaf_order))]
        found.append(of_nodes(order, tops))
    ports = [node.index[port] for port in fabric.ports]
    for perm in node.symmetries:
        plane = {port: number % fabric.planes for number, port in enumerate(ports)}
        image = {(plane[port], plane.get(perm[port], -1)) for port in ports}
        if len(image) != fabric.planes or any(to < 0 for _, to in image):
            continue  # it mixes ports with other devices, or tears the ports of a plane apart
        if all(plane_of == to for plane_of, to in image):
            for start in (first * size for first in firsts):
                after = range(start + size, nodes * size + extra)
                found.append((*range(start), *(start + place for place in perm), *after))
            continue
        goes = dict(image)
        block = extra // fabric.planes
        switches = [fixed[goes[p] * block] + i for p in range(fabric.planes) for i in range(block)]
        found.append((*(i * size + place for i in range(nodes) for place in perm), *switches))
    return tuple(dict.fromkeys(found))


def _turn_and_swap(order: list[int], first: int, last: int, width: int) -> list[list[int]]:
    """`order` with its blocks of `width` between `first` and `last` turned by one, and with the first two exchanged."""
    if last - first < 2 * width:
        return []
    blocks, end = order[first:last], first + 2 * width
    turned = [*order[:first], *blocks[width:], *blocks[:width], *order[last:]]
    swapped = [*order[:first], *order[first + width : end], *order[first : first + width], *order[end:]]
    return [turned, swapped]


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
