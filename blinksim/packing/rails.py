"""Rails: chains of nodes for broadcast and reduce, and the rails by which the bytes of an alltoall cross.

Broadcast and reduce: the root hands a part of its data to the member of each index; the parts go from node to
node, each on its own rail, and every member that receives one passes it on in its node as well. So each
adapter carries its part once in and once out, and all adapters of a node together carry the whole (a
pipelined chain, Chan et al., CCPE 2007, for each rail). Between groups of nodes, such as those of a
dragonfly, chains take different routes, so that no link between two groups carries them all.

Alltoall, in whole units and few pieces: for two nodes the indices get what suits their adapters
(`blinksim.bounds.rail_flows`). Data for a receiver crosses by its own index as far as that has room, which
saves a hop inside its node, and else by those with room left; the sender of that index goes first, which
saves the other hop. Both are transportation problems between totals; after the diagonal, the northwest-corner
rule solves them with as few pieces as there are totals (Dantzig 1951).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import cycle, pairwise
from math import gcd

import numpy as np
import numpy.typing as npt

from blinksim.bounds.rail_flows import place_parts
from blinksim.bounds.rails import Floats, Rails, Table, read_rails, turned_rails
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import expand, transport
from blinksim.graphs.rooted_trees import depths
from blinksim.topology.graph import Topology

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RailTree:
    """The sends (M) of one tree, in their order: devices src and dst, step.

    start (M + 1), links: send i takes links[start[i]:start[i + 1]].
    """

    share: Fraction
    src: Ints
    dst: Ints
    step: Ints
    start: Ints
    links: Ints


def rail_chains(topology: Topology, root: int, *, collects: bool) -> list[RailTree] | None:
    """A tree for each rail, from the member of rank `root`; towards it if `collects`.

    None for a machine that is no cluster of alike nodes, or in which a member lacks an adapter.
    """
    rails = _rails(topology)
    if rails is None:
        return None
    start = next((a, i) for a, row in enumerate(rails.ranks.tolist()) for i, rank in enumerate(row) if rank == root)
    ways = rails.exit.shape[2]
    share = Fraction(1, rails.local * ways)
    orders = _orders(rails, start[0])
    return [
        _Chain(rails, np.array(next(orders)), start, (k, way), collects).tree(share)
        for k in range(rails.local)
        for way in range(ways)
    ]


def _rails(topology: Topology) -> Rails | None:
    """Those by symmetry, where the nodes are in the order of their ranks; else those of all nodes, if all are open."""
    turned = turned_rails(topology)
    if turned is not None and np.array_equal(turned.ranks.ravel(), np.arange(topology.ranks)):
        return turned
    rails = read_rails(topology)
    return None if rails is None or not rails.open.all() or (rails.ranks < 0).any() else rails


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


class _Chain:
    """One tree: inside the first node, which is that of the root, then from node to node and in each of them.

    order: the nodes, from that of the root on. start: node and place of the root. rail: the place and the way.
    """

    def __init__(
        self, rails: Rails, order: Ints, start: tuple[int, int], rail: tuple[int, int], collects: bool
    ) -> None:
        self.rails, self.order, self.start, self.collects = rails, order, start, collects
        self.k, self.way = rail
        self.device = rails.topology.member_places[rails.ranks]

    def tree(self, share: Fraction) -> RailTree:
        """Edges from the root down; or, if it collects, the same the other way round and in the reverse order."""
        first, rest = self._first(), self._rest()
        above, below = (np.concatenate([a, b]) for a, b in zip(first[:2], rest[:2], strict=True))
        lengths = np.concatenate([np.diff(first[2][0]), np.diff(rest[2][0])])
        ends, links = np.concatenate([[0], np.cumsum(lengths)]), np.concatenate([first[2][1], rest[2][1]])
        if not self.collects:
            return RailTree(share, above, below, self._falls(above, below, len(first[0])), ends, links)
        back = np.arange(len(above))[::-1]
        _, turned = expand(ends, links, back)
        start = np.concatenate([[0], np.cumsum(lengths[::-1])])
        steps = self._rises(above, below, len(first[0]))
        return RailTree(share, below[back], above[back], steps[back], start, turned)

    def _first(self) -> tuple[Ints, Ints, Table]:
        """The edges in the node of the root: above and below, and the routes."""
        (node, root), k = self.start, self.k
        others = [j for j in range(self.rails.local) if j not in (k, root)]
        # Where the root has sent every other part to somebody here, its own goes from hand to hand.
        pairs = list(pairwise((k, *others))) if root == k else [(root, k), *((k, j) for j in others)]
        tables = [self._inside(np.array([node]), i, j) for i, j in pairs]
        ends = np.array([(self.device[node, i], self.device[node, j]) for i, j in pairs], dtype=np.int64).reshape(-1, 2)
        lengths = [0, *(len(links) for _, links in tables)]
        links = np.concatenate([np.zeros(0, dtype=np.int64), *(links for _, links in tables)])
        return ends[:, 0], ends[:, 1], (np.cumsum(lengths), links)

    def _rest(self) -> tuple[Ints, Ints, Table]:
        """For every further node the edge that leads there, and those inside."""
        before, node, k = self.order[:-1], self.order[1:], self.k
        others = [j for j in range(self.rails.local) if j != k]
        above = np.stack([self.device[before, k], *(self.device[node, k] for _ in others)], axis=1)
        below = np.stack([self.device[node, k], *(self.device[node, j] for j in others)], axis=1)
        tables = [self._across(before, node), *(self._inside(node, k, j) for j in others)]
        return above.ravel(), below.ravel(), _side_by_side(tables)

    def _inside(self, node: Ints, i: int, j: int) -> Table:
        """The routes from the member at place i of nodes to that at place j, towards it if the tree collects."""
        x, y = (j, i) if self.collects else (i, j)
        local = self.rails.local
        return self.rails.routes(self.rails.inside, (node * local + x) * local + y, i + j)

    def _across(self, before: Ints, node: Ints) -> Table:
        rails, (a, b) = self.rails, (node, before) if self.collects else (before, node)
        out, into = rails.exit[a, self.k, self.way], rails.entry[b, self.k, self.way]
        pairs, which = np.unique(np.stack([out, into], axis=1), axis=0, return_inverse=True)
        trunks = [rails.topology.router.ways(x, y)[0] if x != y else () for x, y in pairs.tolist()]
        start = np.cumsum([0, *map(len, trunks)])
        flat = np.array([link for trunk in trunks for link in trunk], dtype=np.int64)
        lengths, middle = np.diff(start)[which.ravel()], expand(start, flat, which.ravel())[1]
        up = rails.routes(rails.up, a * rails.local + self.k, self.way)
        down = rails.routes(rails.down, b * rails.local + self.k, self.way)
        parts = [up, (np.concatenate([[0], np.cumsum(lengths)]), middle), down]
        start, links = _side_by_side(parts)
        return start[:: len(parts)], links

    def _falls(self, above: Ints, below: Ints, first: int) -> Ints:
        """The steps of sends down the tree. first: how many of its edges are in the node of the root."""
        local, edges = self.rails.local, list(zip(above[:first].tolist(), below[:first].tolist(), strict=True))
        head = int(self.device[self.start[0], self.k])
        depth = depths(int(self.device[self.start]), edges)
        here = [depth[end] - 1 for _, end in edges]
        # The head of each further node is one below that of the node before it, and the others there below it.
        heads = depth[head] + np.arange(len(self.order) - 1)
        inside = np.repeat(heads[:, None] + 1, local - 1, axis=1)
        return np.concatenate(
            [np.array(here, dtype=np.int64), np.concatenate([heads[:, None], inside], axis=1).ravel()]
        )

    def _rises(self, above: Ints, below: Ints, first: int) -> Ints:
        """The steps of sends up the tree: a device sends once everything from below has arrived."""
        local, further = self.rails.local, len(self.order) - 1
        heads = np.arange(further)[::-1] + (local > 1)
        inside = np.zeros((further, local - 1), dtype=np.int64)
        ready = {int(self.device[self.start[0], self.k]): int(heads[0]) + 1 if further else 0}
        here = []
        for parent, child in zip(above[:first][::-1].tolist(), below[:first][::-1].tolist(), strict=True):
            here.append(ready.get(child, 0))
            ready[parent] = max(ready.get(parent, 0), here[-1] + 1)
        rest = np.concatenate([heads[:, None], inside], axis=1).ravel()
        return np.concatenate([np.array(here[::-1], dtype=np.int64), rest])


def _side_by_side(tables: Sequence[Table]) -> Table:
    """The rows of tables with as many rows, the first of all, then the second of all."""
    lengths = np.stack([np.diff(start) for start, _ in tables], axis=1)
    ends = np.concatenate([[0], np.cumsum(lengths.ravel())])
    links = np.empty(ends[-1], dtype=np.int64)
    for column, (start, values) in enumerate(tables):
        begins = np.repeat(ends[:-1][column :: len(tables)] - start[:-1], lengths[:, column])
        links[begins + np.arange(len(values))] = values
    return ends, links


# How much of what crosses goes where adapters have room; the rest keeps to the receivers' places. Tried in this order:
# where a GPU receives more than its links inside the node carry, its own adapter must be busy all the time.
_EVEN = (1.0, 0.99, 0.98, 0.96, 0.92, 0.84, 0.68, 0.36, 0.0)


@dataclass(frozen=True, eq=False)
class Pieces:
    """Units that go one way: from member `i` of node `a` over `way` of place `k` to member `j` of node `b`."""

    a: Ints
    i: Ints
    k: Ints
    way: Ints
    b: Ints
    j: Ints
    amount: Ints


def choose_places(rails: Rails, units: Ints, aim: float) -> Pieces:
    """The pieces of what goes between nodes, at the best rate found.

    units: (N, L, N, L), what member i of node a has for member j of node b. aim: units/s at which the search ends.
    Raises `InfeasibleError` where two nodes have no open place in common.
    """
    found: dict[float, list[Pieces]] = {}

    def keep(even: float, pieces: Pieces) -> None:
        found.setdefault(even, []).append(pieces)

    best, _ = _best(rails, units, aim, keep)
    columns = ("a", "i", "k", "way", "b", "j", "amount")
    return Pieces(*(np.concatenate([getattr(one, name) for one in found[best]]) for name in columns))


def place_sums(rails: Rails, units: Ints, aim: float) -> Sums:
    """What `choose_places` has members hand to each other and send across, added up; raises as it does."""
    return _best(rails, units, aim, lambda even, pieces: None)[1]


@dataclass(frozen=True, eq=False)
class Sums:
    """What pieces add up to, in units, and how many sends they have.

    before, after, within: (N, L, L), from member to member of a node before crossings, after them, and of what stays in
    its node. across: (N, N, L), from node to node over each place.
    """

    before: Ints
    across: Ints
    after: Ints
    within: Ints
    sends: int


def _best(rails: Rails, units: Ints, aim: float, keep: Callable[[float, Pieces], None]) -> tuple[float, Sums]:
    """Which of `_EVEN` is best, and its sums. keep: called with every piece of one of these, node by node."""
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
    best: tuple[float, float, Sums] | None = None
    for even in _EVEN:
        room = _room(by_node, by_receiver, parts, even)
        if even < 1 and (room[~rails.open[:, None, :] | ~rails.open[None, :, :]] > 0).any():
            continue
        sums = _summed(rails, units, room, by_receiver, within, partial(keep, even))
        moved = (sums.before + sums.after + within).astype(float)
        time = float((rails.loads(moved, sums.across.astype(float)) / rails.rate).max())
        if best is None or time < best[0]:
            best = time, even, sums
        if 1 / time >= aim * (1 - 1e-6):
            break
    assert best is not None
    return best[1:]


def _summed(
    rails: Rails, units: Ints, room: Ints, by_receiver: Ints, within: Ints, keep: Callable[[Pieces], None]
) -> Sums:
    nodes, local = rails.ranks.shape
    before, after = (np.zeros(nodes * local * local, dtype=np.int64) for _ in range(2))
    across = np.zeros(nodes * nodes * local, dtype=np.int64)
    sends = int(np.count_nonzero(within))
    for a in range(nodes):
        one = _pieces(rails, units, room, by_receiver, a)
        keep(one)
        for moved, node, x, y in ((before, one.a, one.i, one.k), (after, one.b, one.k, one.j)):
            goes = x != y
            np.add.at(moved, ((node * local + x) * local + y)[goes], one.amount[goes])
            sends += int(np.count_nonzero(goes))
        np.add.at(across, (one.a * nodes + one.b) * local + one.k, one.amount)
        sends += len(one.amount)
    inside = (nodes, local, local)
    return Sums(before.reshape(inside), across.reshape(nodes, nodes, local), after.reshape(inside), within, sends)


def _room(by_node: Ints, by_receiver: Ints, parts: Floats, even: float) -> Ints:
    """Units (N, N, L) between two nodes over each place; they add up to what goes there."""
    aligned = np.divide(
        by_receiver, by_node[:, :, None], out=np.zeros(by_receiver.shape), where=by_node[:, :, None] > 0
    )
    bounds = np.cumsum(even * parts + (1 - even) * aligned, axis=2) * by_node[:, :, None]
    whole = np.floor(bounds + 0.5).astype(np.int64)
    whole[:, :, -1] = by_node
    return np.diff(whole, axis=2, prepend=0)


def _pieces(rails: Rails, units: Ints, room: Ints, by_receiver: Ints, a: int) -> Pieces:
    """The pieces that start in node `a`."""
    over = transport(by_receiver[a], room[a])  # (node b, receiver j, place k)
    sent = units[a].transpose(1, 2, 0).copy()  # (b, j, sender i)
    sent[a] = 0
    flow = transport(sent, over)  # (b, j, i, k)
    b, j, i, k = np.nonzero(flow)
    amount = flow[b, j, i, k]
    way = np.zeros(len(amount), dtype=np.int64)
    count = rails.exit.shape[2]
    if count > 1:
        rows = _divided(amount, b * room.shape[2] + k, room[a].ravel(), count)
        piece, way, amount = (np.concatenate(column) for column in zip(*rows, strict=True))
        b, j, i, k = b[piece], j[piece], i[piece], k[piece]
    return Pieces(np.full(len(amount), a), i, k, way, b, j, amount)


def _divided(amount: Ints, group: Ints, room: Ints, count: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Pieces cut so that every group's units are divided evenly among its ways: (piece, way, units) for every way."""
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(amount[order])
    # Where every piece lies within its group.
    first = np.concatenate(([0], np.cumsum(np.bincount(group, amount, len(room)).astype(np.int64))))[group[order]]
    start, end = ends - amount[order] - first, ends - first
    whole = room[group[order]]
    for way in range(count):
        low, high = whole * way // count, whole * (way + 1) // count
        there = np.minimum(end, high) - np.maximum(start, low)
        some = np.flatnonzero(there > 0)
        yield order[some], np.full(len(some), way), there[some]
