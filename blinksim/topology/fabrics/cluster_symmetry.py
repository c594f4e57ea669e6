"""The symmetries of a cluster of equal nodes, by the shape of its fabric.

The permutations are generators: their products map any node onto any other in an equivalent place, and do inside nodes
what the symmetries of the single node do (orbits of a permutation group: D. F. Holt, Handbook of Computational Group
Theory, 2005, section 4.1). A permutation p is a sequence: device i goes to device p[i]. The devices of the nodes come
first, node by node, those of the fabric last. `blinksim.topology.symmetry` checks every permutation before use.

In the examples, a node has two GPUs that are its ports, and the symmetry (1, 0), which exchanges them; of two nodes,
n0.gpu0 is device 0, n0.gpu1 is 1, n1.gpu0 is 2, n1.gpu1 is 3, and the fabric's devices begin at 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blinksim.topology.fabrics.wiring import Switch, switches

if TYPE_CHECKING:
    from blinksim.topology.fabrics.fabric import Fabric
    from blinksim.topology.graph import Topology

Permutation = tuple[int, ...]


def cluster_symmetries(node: Topology, fabric: Fabric, nodes: int, extra: int) -> tuple[Permutation, ...]:
    """Permutations of the devices of `nodes` copies of `node`, joined by `fabric`, that map the cluster onto itself.

    extra: how many devices the fabric adds behind those of the nodes.
    """
    cluster = _Cluster(node, fabric, nodes, extra)
    return tuple(dict.fromkeys(_direct(cluster) if fabric.shape == "direct" else _switched(cluster)))


@dataclass(frozen=True)
class _Cluster:
    node: Topology
    fabric: Fabric
    nodes: int
    extra: int

    @property
    def size(self) -> int:
        """Devices of a node."""
        return len(self.node.devices)

    @property
    def wiring(self) -> list[Switch]:
        """Level, plane and group of each of the fabric's devices."""
        return switches(self.fabric, self.nodes)

    @property
    def switches(self) -> range:
        """The fabric's devices."""
        first = self.nodes * self.size
        return range(first, first + self.extra)

    def reordered(self, order: Sequence[int], switches: Sequence[int]) -> Permutation:
        """Node i goes to where node order[i] is, and the fabric's devices to `switches`."""
        return (*(i * self.size + place for i in order for place in range(self.size)), *switches)

    def carried(self, order: Sequence[int], widths: Sequence[int]) -> list[int]:
        """The fabric's devices after groups of nodes move as `order`: the levels with these `widths` go with them."""
        place = dict(zip(self.wiring, self.switches, strict=True))
        moved = []
        for level, plane, group in self.wiring:
            goes = order[group * widths[level]] // widths[level] if level < len(widths) else group
            moved.append(place[level, plane, goes])
        return moved

    def in_planes(self, goes: Sequence[Mapping[int, int]]) -> list[int]:
        """The fabric's devices after the planes of each level move as `goes` says."""
        place = dict(zip(self.wiring, self.switches, strict=True))
        return [place[level, goes[level][plane], group] for level, plane, group in self.wiring]

    def in_every_node(self, inside: Sequence[int], switches: Sequence[int]) -> Permutation:
        """The permutation `inside` of a node's devices in every node at once."""
        return (*(i * self.size + place for i in range(self.nodes) for place in inside), *switches)

    def in_one_node(self, number: int, inside: Sequence[int]) -> Permutation:
        """The permutation `inside` of a node's devices in one node; all other devices stay."""
        start = number * self.size
        after = range(start + self.size, self.nodes * self.size + self.extra)
        return (*range(start), *(start + place for place in inside), *after)


def _direct(cluster: _Cluster) -> list[Permutation]:
    """Ports wired back to back: two nodes can be exchanged, and both changed inside in the same way.

    Two nodes of two GPUs: (2, 3, 0, 1) exchanges the nodes, (1, 0, 3, 2) the GPUs of both. Among more than two nodes
    the port of a wire distinguishes the nodes: no symmetries.
    """
    if cluster.nodes > 2:
        return []
    ports = {cluster.node.index[port] for port in cluster.fabric.ports}
    alike = [inside for inside in cluster.node.symmetries if all(inside[port] in ports for port in ports)]
    return [cluster.reordered((1, 0), ()), *(cluster.in_every_node(inside, ()) for inside in alike)]


def _switched(cluster: _Cluster) -> list[Permutation]:
    """Levels of switches: nodes below one switch can be exchanged, and full groups of nodes with their switches.

    Two nodes of two GPUs around one switch, device 4: (2, 3, 0, 1, 4) exchanges the nodes, (1, 0, 2, 3, 4) the GPUs of
    the first. On two rails, devices 4 and 5, GPUs are exchanged in all nodes with their rails: (1, 0, 3, 2, 5, 4). With
    a leaf each, 5 and 6, below the spine 4: (2, 3, 0, 1, 4, 6, 5) exchanges the leaves with their nodes.
    """
    nodes = cluster.nodes
    widths = [level.nodes or nodes for level in cluster.fabric.tiers()]
    # Exchanges carry what is known of a node to all nodes of full groups; a last group that is not full stays apart.
    firsts = sorted({0, *(nodes - nodes % width for width in widths)} - {nodes})
    found = [
        cluster.reordered(order, cluster.switches)
        for first in firsts
        for order in _turn_and_swap(range(nodes), first, min(first + widths[0], nodes), 1)
    ]
    for level, width in enumerate(widths):
        above = widths[level + 1] if level + 1 < len(widths) else nodes
        for first in firsts:
            last = min(first + above, nodes)
            if first % above == 0:
                for order in _turn_and_swap(range(nodes), first, last - (last - first) % width, width):
                    found.append(cluster.reordered(order, cluster.carried(order, widths[: level + 1])))
    return [*found, *_inside(cluster, firsts)]


def _inside(cluster: _Cluster, firsts: Sequence[int]) -> list[Permutation]:
    """The symmetries of a single node that respect the planes of its ports.

    One that keeps every port in its planes applies to a single node: to those in `firsts`. One that moves planes
    applies to all nodes at once, together with the switches of the planes.
    """
    ports = [cluster.node.index[port] for port in cluster.fabric.ports]
    planes = {port: cluster.fabric.planes_of(number) for number, port in enumerate(ports)}
    found = []
    for inside in cluster.node.symmetries:
        if any(inside[port] not in planes for port in ports):
            continue  # it mixes ports with other devices
        goes: list[dict[int, int]] = []
        for level, tier in enumerate(cluster.fabric.tiers()):
            images = {(planes[port][level], planes[inside[port]][level]) for port in ports}
            if len(images) == tier.planes == len(dict(images)):
                goes.append(dict(images))
        if len(goes) < len(cluster.fabric.tiers()):
            continue  # it tears the ports of a plane apart
        if all(to == own for images_of in goes for own, to in images_of.items()):
            found += [cluster.in_one_node(first, inside) for first in firsts]
        else:
            found.append(cluster.in_every_node(inside, cluster.in_planes(goes)))
    return found


def _turn_and_swap(order: Sequence[int], first: int, last: int, width: int) -> list[list[int]]:
    """`order` with its blocks of `width` between `first` and `last` turned by one, and with the first two exchanged.

    The two generate every order of the blocks. Empty for fewer than two blocks.
    """
    if last - first < 2 * width:
        return []
    blocks, end = order[first:last], first + 2 * width
    turned = [*order[:first], *blocks[width:], *blocks[:width], *order[last:]]
    swapped = [*order[:first], *order[first + width : end], *order[first : first + width], *order[end:]]
    return [turned, swapped]
