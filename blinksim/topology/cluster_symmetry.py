"""The symmetries of a cluster of equal nodes, by the shape of its fabric.

The permutations are generators: their products map any node onto any other in an equivalent place, and do inside nodes
what the symmetries of the single node do (orbits of a permutation group: D. F. Holt, Handbook of Computational Group
Theory, 2005, section 4.1). A permutation p is a sequence: device i goes to device p[i]. The devices of the nodes come
first, node by node, those of the fabric last. `blinksim.topology.symmetry` checks every permutation before use.

In the examples, a node has two GPUs that are its ports, and the symmetry (1, 0), which exchanges them; of two nodes,
n0.gpu0 is device 0, n0.gpu1 is 1, n1.gpu0 is 2, n1.gpu1 is 3, and the fabric's devices begin at 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blinksim.topology.cluster import Fabric
    from blinksim.topology.graph import Topology

Permutation = tuple[int, ...]


def cluster_symmetries(node: Topology, fabric: Fabric, nodes: int, extra: int) -> tuple[Permutation, ...]:
    """Permutations of the devices of `nodes` copies of `node`, joined by `fabric`, that map the cluster onto itself.

    extra: how many devices the fabric adds behind those of the nodes.
    """
    shape = {"direct": _direct, "switch": _switch, "tree": _tree}[fabric.shape]
    return tuple(dict.fromkeys(shape(_Cluster(node, fabric, nodes, extra))))


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
    def switches(self) -> range:
        """The fabric's devices, plane by plane."""
        first = self.nodes * self.size
        return range(first, first + self.extra)

    def reordered(self, order: Sequence[int], switches: Sequence[int]) -> Permutation:
        """Node i goes to where node order[i] is, and the fabric's devices to `switches`."""
        return (*(i * self.size + place for i in order for place in range(self.size)), *switches)

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


def _switch(cluster: _Cluster) -> list[Permutation]:
    """One switch per plane: any two nodes can be exchanged.

    Two nodes of two GPUs around one switch, device 4: (2, 3, 0, 1, 4) exchanges the nodes, (1, 0, 2, 3, 4) the GPUs of
    the first. On two rails, devices 4 and 5, GPUs are exchanged in all nodes with their rails: (1, 0, 3, 2, 5, 4).
    """
    orders = _turn_and_swap(range(cluster.nodes), 0, cluster.nodes, 1)
    return [*(cluster.reordered(order, cluster.switches) for order in orders), *_inside(cluster, [0])]


def _tree(cluster: _Cluster) -> list[Permutation]:
    """Leaf switches under a spine: nodes of a leaf can be exchanged, and full leaves with all their nodes.

    Two nodes of two GPUs with a leaf each, spine 4, leaves 5 and 6: (2, 3, 0, 1, 4, 6, 5) exchanges the leaves with
    their nodes, (1, 0, 2, 3, 4, 5, 6) the GPUs of the first node. Under one leaf, spine 4, leaf 5: (2, 3, 0, 1, 4, 5)
    exchanges the nodes.
    """
    nodes, width = cluster.nodes, cluster.fabric.leaf_nodes
    full = nodes - nodes % width
    # Exchanges carry what is known of a node to all nodes of full leaves; a last leaf that is not full stays apart.
    firsts = [first for first in dict.fromkeys((0, full)) if first < nodes]
    found = [
        cluster.reordered(order, cluster.switches)
        for first in firsts
        for order in _turn_and_swap(range(nodes), first, min(first + width, nodes), 1)
    ]
    leaves = -(-nodes // width)
    block = 1 + leaves
    for order, leaf_order in zip(
        _turn_and_swap(range(nodes), 0, full, width),
        _turn_and_swap(range(leaves), 0, nodes // width, 1),
        strict=True,
    ):
        # In every plane the spine stays, and the leaves move like their nodes.
        moved = [0, *(1 + leaf for leaf in leaf_order)]
        switches = [
            cluster.switches[plane * block] + place for plane in range(cluster.fabric.planes) for place in moved
        ]
        found.append(cluster.reordered(order, switches))
    return [*found, *_inside(cluster, firsts)]


def _inside(cluster: _Cluster, firsts: Sequence[int]) -> list[Permutation]:
    """The symmetries of a single node that respect the planes of its ports.

    One that keeps every port in its plane applies to a single node: to those in `firsts`. One that moves planes applies
    to all nodes at once, together with the switches of the planes.
    """
    planes = cluster.fabric.planes
    ports = [cluster.node.index[port] for port in cluster.fabric.ports]
    plane = {port: number % planes for number, port in enumerate(ports)}
    block = cluster.extra // planes
    found = []
    for inside in cluster.node.symmetries:
        images = {(plane[port], plane.get(inside[port], -1)) for port in ports}
        if len(images) != planes or any(to < 0 for _, to in images):
            continue  # it mixes ports with other devices, or tears the ports of a plane apart
        goes = dict(images)
        if all(to == own for own, to in images):
            found += [cluster.in_one_node(first, inside) for first in firsts]
        else:
            switches = [cluster.switches[goes[p] * block] + place for p in range(planes) for place in range(block)]
            found.append(cluster.in_every_node(inside, switches))
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
