"""Clusters whose nodes can be exchanged as one likes, so that routes between any two nodes are those between two.

That holds if the turn of all nodes and the exchange of the first two are symmetries that leave the fabric in place:
the two generate every order of the nodes. It has the interface of `blinksim.topology.symmetries.commuting.Turns` that
routes need: the image of a pair, the element that takes it there, and images of routes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import ref

import numpy as np

from blinksim.structures.arrays import expand
from blinksim.topology.symmetries.commuting import Turns, node_turns
from blinksim.topology.symmetry import encoded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from blinksim.topology.graph import Topology

    Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Exchangeable:
    """Nodes that any permutation may exchange. table (node, place): the devices of every node, in the same order.

    An element takes the nodes in its first two columns to those in the last two; they are -2 where unused. Pairs with a
    device of the fabric stand for themselves.
    """

    topology: Topology
    table: Ints
    node: Ints
    place: Ints

    def between(self, src: Ints, dst: Ints) -> tuple[Ints, Ints, Ints]:
        """For pairs of devices (M): the pair in the first two nodes that stands for it, and what takes it there."""
        a, b = self.node[src], self.node[dst]
        inside, apart = (a >= 0) & (b >= 0), a != b
        # The router looks at devices in their order: what comes first stays first.
        here, there = (a > b).astype(np.int64), (a < b).astype(np.int64)
        elements = np.stack([here, np.where(apart, there, -2), a, np.where(apart, b, -2)], axis=1)
        elements[~inside] = -2
        first, second = self.table[here, self.place[src]], self.table[there, self.place[dst]]
        return np.where(inside, first, src), np.where(inside, second, dst), elements

    def inverse(self, elements: Ints) -> Ints:
        """What undoes elements."""
        return elements[:, [2, 3, 0, 1]]

    def route_images(self, elements: Ints, start: Ints, links: Ints, which: Ints) -> tuple[Ints, Ints]:
        """Where elements (M, 4) take routes `which` (M): route r has the links links[start[r]:start[r + 1]].

        Their start (M + 1) and links.
        """
        owner, old = expand(start, links, which)
        ends = np.concatenate([[0], np.cumsum(np.diff(start)[which])])
        own, of, place = self.links
        found, node = old.copy(), of[old]
        for source, target in ((0, 2), (1, 3)):
            # Links of the fabric, whose node is -1, are in no element.
            here = np.flatnonzero(node == elements[:, source][owner])
            found[here] = own[elements[:, target][owner[here]], place[old[here]]]
        return ends, found

    @cached_property
    def links(self) -> tuple[Ints, Ints, Ints]:
        """The links of every node in the same order, as (node, place); of every link its node, or -1, and its place."""
        known, count = encoded(self.topology), len(self.node)
        of = np.maximum(self.node[known.src], self.node[known.dst])
        model = np.flatnonzero(of == 0)
        kinds = int(known.kind.max(initial=0)) + 1
        src, dst = (
            np.where(self.node[side] >= 0, self.table[:, self.place[side]], side)
            for side in (known.src[model], known.dst[model])
        )
        own = known.order[np.searchsorted(known.keys, (src * count + dst) * kinds + known.kind[model])]
        place = np.zeros(len(of), dtype=np.int64)
        place[own] = np.arange(len(model))
        return own, of, place


def find_exchangeable(topology: Topology) -> Exchangeable | None:
    """The nodes of a cluster, None if they are not all alike, or if the fabric tells them apart, or links join two."""
    node = topology.device_nodes
    count = int(node.max(initial=-1)) + 1
    sizes = np.bincount(node[node >= 0], minlength=count)
    if count < 3 or len(set(sizes.tolist())) > 1:
        return None
    a, b = (node[side] for side in topology.ends)
    if bool(((a >= 0) & (b >= 0) & (a != b)).any()):
        return None
    inside = np.flatnonzero(node >= 0)
    table = inside[np.argsort(node[inside], kind="stable")].reshape(count, -1)
    place = np.zeros(len(node), dtype=np.int64)
    place[table] = np.arange(table.shape[1])
    turn, swap = np.arange(len(node)), np.arange(len(node))
    turn[table] = np.roll(table, -1, axis=0)
    swap[table[:2]] = table[1::-1]
    known = encoded(topology)
    if known.image(turn) is None or known.image(swap) is None:
        return None
    return Exchangeable(topology, table, node, place)


# That of the last topology.
_last: list[tuple[ref[Topology], Exchangeable | None]] = []


def alike_nodes(topology: Topology) -> Exchangeable | Turns | None:
    """What takes routes to routes that the router would find itself: any order of the nodes, or turns of them."""
    if not _last or _last[0][0]() is not topology:
        _last[:] = [(ref(topology), find_exchangeable(topology))]
    return _last[0][1] or node_turns(topology)
