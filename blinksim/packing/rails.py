"""Rails: chains of nodes for broadcast and reduce, and the rails by which the bytes of an alltoall cross.

Broadcast and reduce: the root hands a part of its data to the member of each index; the parts go from node to
node, each on its own rail, and every member that receives one passes it on in its node as well. So each
adapter carries its part once in and once out, and all adapters of a node together carry the whole (for each
rail a pipelined chain, Chan et al., CCPE 2007, or two binary trees, in one of which a node is a leaf).
Between groups of nodes, such as those of a dragonfly, chains take different routes, so that no link between
two groups carries them all.

Alltoall, in whole units and few pieces: for two nodes the indices get what suits their adapters
(`blinksim.bounds.rail_flows`). Data for a receiver crosses by its own index as far as that has room, which
saves a hop inside its node, and else by those with room left; the sender of that index goes first, which
saves the other hop. Both are transportation problems between totals; after the diagonal, the northwest-corner
rule solves them with as few pieces as there are totals (Dantzig 1951).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle, pairwise
from math import gcd
from typing import NamedTuple

import numpy as np

from blinksim.bounds.rail_flows import place_parts
from blinksim.bounds.rails import Rails, read_rails, symmetric_rails
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Ints, transport
from blinksim.graphs.rooted_trees import from_parents, two_trees_from
from blinksim.schedule.loads import Tree
from blinksim.topology.graph import Topology

Route = tuple[int, ...]


def rail_trees(topology: Topology, root: int, *, collects: bool, low: bool) -> list[Tree] | None:
    """A chain of nodes for each rail, or two binary trees if `low`: from `root`, or to it if `collects`.

    None for a machine that is no cluster of alike nodes, or in which a member lacks an adapter.
    """
    rails: Rails | None = symmetric_rails(topology)
    if rails is None or not np.array_equal(rails.ranks.ravel(), np.arange(topology.ranks)):
        # By symmetry only where the nodes are in the order of their ranks; else all nodes, if all are open.
        rails = read_rails(topology)
        if rails is None or not rails.open.all() or (rails.ranks < 0).any():
            return None
    start = next((a, i) for a, row in enumerate(rails.ranks.tolist()) for i, rank in enumerate(row) if rank == root)
    top, ports = int(topology.member_places[root]), rails.exit.shape[2]
    chain = tuple(pairwise(range(rails.nodes)))
    shapes = [from_parents(*tree) for tree in two_trees_from(0, rails.nodes)] if low else [chain]
    share, orders = Fraction(1, rails.local * ports * len(shapes)), _orders(rails, start[0])
    trees = [
        _tree(rails, np.array(order), start[1], (k, port), collects, np.array(arcs))
        for k in range(rails.local)
        for port, order in zip(range(ports), orders, strict=False)
        for arcs in shapes
    ]
    return [Tree(top, share, up=edges) if collects else Tree(top, share, edges) for edges in trees]


def _orders(rails: Rails, first: int) -> Iterator[list[int]]:
    """The nodes in the order of one chain after another, those below one switch together."""
    switch = rails.exit[:, 0, 0].tolist()
    groups: dict[int, list[int]] = {}
    for place in range(rails.nodes):
        node = (first + place) % rails.nodes
        groups.setdefault(switch[node], []).append(node)
    rows = list(groups.values())
    strides = [stride for stride in range(1, len(rows)) if gcd(stride, len(rows)) == 1] or [1]
    for stride in cycle(strides):
        yield [node for place in range(len(rows)) for node in rows[place * stride % len(rows)]]


def _tree(
    rails: Rails, order: Ints, root: int, rail: tuple[int, int], collects: bool, arcs: Ints
) -> tuple[tuple[int, int, Route], ...]:
    """The edges of one tree: inside the first node, which is that of the root, then from node to node and in each.

    order: the nodes, from that of the root on. root: its place there. rail: the place and its port. arcs:
    from place to place in the order, a row each.
    """
    (k, port), local, router = rail, rails.local, rails.topology.router
    device = rails.topology.member_places[rails.ranks]

    def inside(nodes: Ints, i: int, j: int) -> list[tuple[int, int, Route]]:
        x, y = (j, i) if collects else (i, j)
        routes = rails.routes(rails.inside, (nodes * local + x) * local + y, i + j)
        return list(zip(device[nodes, i].tolist(), device[nodes, j].tolist(), routes, strict=True))

    others = [j for j in range(local) if j not in (k, root)]
    # Where the root has sent every other part to somebody here, its own goes from hand to hand.
    pairs = pairwise((k, *others)) if root == k else [(root, k), *((k, j) for j in others)]
    first = [edge for i, j in pairs for edge in inside(order[:1], i, j)]
    before, node = order[arcs.T]
    a, b = (node, before) if collects else (before, node)
    switches = list(zip(rails.exit[a, k, port].tolist(), rails.entry[b, k, port].tolist(), strict=True))
    trunks = {(x, y): router.routes(x, y)[0] if x != y else () for x, y in dict.fromkeys(switches)}
    ups = rails.routes(rails.up, a * local + k, port)
    downs = rails.routes(rails.down, b * local + k, port)
    paths = [(*up, *trunks[pair], *down) for up, pair, down in zip(ups, switches, downs, strict=True)]
    across = list(zip(device[before, k].tolist(), device[node, k].tolist(), paths, strict=True))
    rest = zip(across, *(inside(node, k, j) for j in range(local) if j != k), strict=True)
    return (*first, *(edge for edges in rest for edge in edges))


# How much of what crosses goes where adapters have room; the rest keeps to the receivers' places. Tried in this order:
# where a GPU receives more than its links inside the node carry, its own adapter must be busy all the time.
_EVEN = (1.0, 0.99, 0.98, 0.96, 0.92, 0.84, 0.68, 0.36, 0.0)


class Pieces(NamedTuple):
    """Units on one route: from member `i` of node `a` over `port` of place `k` to member `j` of node `b`."""

    a: Ints
    i: Ints
    k: Ints
    port: Ints
    b: Ints
    j: Ints
    amount: Ints


def choose_places(rails: Rails, units: Ints, aim: float) -> Pieces:
    """The pieces of what goes between nodes, at the best rate found.

    units: (N, L, N, L), what member i of node a has for member j of node b. aim: units/s at which the search
    ends. Raises `InfeasibleError` where two nodes have no open place in common.
    """
    parts = place_sums(rails, units, aim, keep=True).pieces
    return Pieces(*map(np.concatenate, zip(*parts, strict=True)))


@dataclass(frozen=True, eq=False)
class Sums:
    """What pieces add up to, in units, and how many sends they have.

    before, after, within: (N, L, L), from member to member of a node before crossings, after them, and of
    what stays in its node. across: (N, N, L), from node to node over each place. pieces: those of each node,
    where they are kept.
    """

    before: Ints
    across: Ints
    after: Ints
    within: Ints
    sends: int
    pieces: tuple[Pieces, ...] = ()


def place_sums(rails: Rails, units: Ints, aim: float, *, keep: bool = False) -> Sums:
    """What `choose_places` has members hand to each other and send across, added up; raises as it does.

    keep: the pieces that are added up as well.
    """
    nodes, local = rails.ranks.shape
    own = np.arange(nodes)
    within = units[own, :, own, :].copy()
    within[:, np.arange(local), np.arange(local)] = 0
    by_receiver = units.sum(axis=1)
    by_receiver[own, own] = 0
    by_node = by_receiver.sum(axis=2)
    parts = place_parts(rails, by_node.astype(float))
    if parts is None:
        raise InfeasibleError("some nodes have no adapters of equal place in common")
    some = by_node[:, :, None] > 0
    aligned = np.divide(by_receiver, by_node[:, :, None], out=np.zeros(by_receiver.shape), where=some)
    best: tuple[float, Sums] | None = None
    for even in _EVEN:
        # Units (N, N, L) between two nodes over each place; they add up to what goes there.
        bounds = np.cumsum(even * parts + (1 - even) * aligned, axis=2) * by_node[:, :, None]
        whole = np.floor(bounds + 0.5).astype(np.int64)
        whole[:, :, -1] = by_node
        room = np.diff(whole, axis=2, prepend=0)
        if even < 1 and (room[~rails.open[:, None, :] | ~rails.open[None, :, :]] > 0).any():
            continue
        before, after = np.zeros((2, nodes, local, local), dtype=np.int64)
        across, pieces = np.zeros((nodes, nodes, local), dtype=np.int64), list[Pieces]()
        sends = int(np.count_nonzero(within))
        for a in range(nodes):
            part = _pieces(rails, units, room, by_receiver, a)
            pieces += [part] if keep else []
            for moved, node, x, y in ((before, part.a, part.i, part.k), (after, part.b, part.k, part.j)):
                goes = x != y
                np.add.at(moved.reshape(-1), ((node * local + x) * local + y)[goes], part.amount[goes])
                sends += int(np.count_nonzero(goes))
            np.add.at(across.reshape(-1), (part.a * nodes + part.b) * local + part.k, part.amount)
            sends += len(part.amount)
        loads = rails.loads((before + after + within).astype(float), across.astype(float))
        time = float((loads / rails.resources.rates).max())
        if best is None or time < best[0]:
            best = time, Sums(before, across, after, within, sends, tuple(pieces))
        if 1 / time >= aim * (1 - 1e-6):
            break
    assert best is not None
    return best[1]


def _pieces(rails: Rails, units: Ints, room: Ints, by_receiver: Ints, a: int) -> Pieces:
    """The pieces that start in node `a`."""
    over = transport(by_receiver[a], room[a])  # (node b, receiver j, place k)
    sent = units[a].transpose(1, 2, 0).copy()  # (b, j, sender i)
    sent[a] = 0
    flow = transport(sent, over)  # (b, j, i, k)
    b, j, i, k = np.nonzero(flow)
    amount = flow[b, j, i, k]
    port = np.zeros(len(amount), dtype=np.int64)
    count = rails.exit.shape[2]
    if count > 1:
        # Pieces are cut so that the units of every group are even over its ports.
        group = b * room.shape[2] + k
        order = np.argsort(group, kind="stable")
        ends, sizes = np.cumsum(amount[order]), np.bincount(group, amount, room[a].size).astype(np.int64)
        # Where every piece lies within its group.
        first = np.concatenate(([0], np.cumsum(sizes)))[group[order]]
        start, end = ends - amount[order] - first, ends - first
        whole = room[a].ravel()[group[order]]
        numbers = np.arange(count)[:, None]
        low, high = whole * numbers // count, whole * (numbers + 1) // count
        there = np.minimum(end, high) - np.maximum(start, low)
        port, some = np.nonzero(there > 0)
        piece, amount = order[some], there[port, some]
        b, j, i, k = b[piece], j[piece], i[piece], k[piece]
    return Pieces(np.full(len(amount), a), i, k, port, b, j, amount)
