"""Arborescences (out-trees) packed into whole-number capacities, k(v) from every root v, then made lower.

They exist if no set is short (Edmonds 1973; multiplicities: Schrijver, Combinatorial Optimization, 2003,
theorem 53.10). Trees are grown breadth first against a pool of known sets, which keeps them low and costs no
flow. A tree that can be completed has an arc by which it may grow (Lovasz 1976, On two minimax theorems in
graph), so if growing ends too early, a set outside the pool is short already. Flows find such sets (cut
generation), and the trees that violate them are taken back. Where there are very many of them, a tree grows
by the arcs that flows allow.

A packing at the best rate often leaves no capacity over, so its last trees consist of leftovers and are high.
To lower them, two trees that both enter a vertex exchange the arcs by which they do, which keeps the load of
every arc. Each exchange lifts the farthest vertex of the tree with the longest delay, and takes no vertex of
the other tree as far, so that ever fewer vertices are that far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from blinksim.errors import InfeasibleError
from blinksim.graphs.connectivity import distances
from blinksim.graphs.digraph import CutPool, Digraph
from blinksim.graphs.rooted_trees import RootedTree, from_parents

Edge = tuple[int, int]

# Trees that are grown, at least, before flows check them.
_BATCH = 4
# Dead ends after which a tree is grown by flows: on 6 DGX-1 P100 a broadcast ends after 770 of them and takes 2.3 s,
# on 8 after more than 30,000; a tree by flows takes 0.1 s there.
_MOST_SETS = 64


@dataclass
class _Growth:
    """A tree while it grows. extra: how often each pool set (by its bit) is entered, beyond the first time.

    missing: how many members it does not reach.
    """

    root: int
    missing: int
    edges: list[Edge] = field(default_factory=list)
    extra: dict[int, int] = field(default_factory=dict)
    height: int = 0


def pack(graph: Digraph, pool: CutPool, progress: Callable[[int, int], None] | None = None) -> list[RootedTree]:
    """Trees that span the members of `graph`, whose other vertices must have no arcs; takes them out of `graph`.

    No set may be short at the start; raises `InfeasibleError` otherwise. progress: called after every check
    by flows with trees done, fewer than before if some were taken back, and wanted.
    """
    wanted = graph.trees
    grown: list[RootedTree] = []
    # The most arcs that a shortest path from each root takes: no tree is lower.
    low = {root: max(distances(root, graph.out.__getitem__).values()) for root in graph.roots}
    batch, sure = wanted, 0
    pool.measure(graph)
    dead_ends = 0
    while True:
        if dead_ends == _MOST_SETS:
            while graph.short_sets(most=1):
                _take_back(graph, grown)
            grown.append(grown_by_flows(graph, next(iter(graph.roots))))
            pool.measure(graph)
            dead_ends = 0
        end = _fill(graph, pool, grown, low, len(grown) + batch)
        if end is None and not graph.roots:
            return grown
        # If a tree is growing, sets that are short for the other trees or for what this one lacks.
        rest = graph if end is None else _without(graph, end.root, end.edges)
        sets = [side[: graph.count] for side in rest.short_sets()]
        if end is None and not sets:
            batch, sure = 2 * batch, len(grown)
        else:
            # Growing respects every known set, so what is short now is new, unless it was short from the start.
            if not pool.add(sets):
                raise InfeasibleError("these capacities do not hold the requested trees")
            # Give the last trees of `grown` back to `graph` until none of `sets` is short.
            rows = np.array(sets)
            slack = graph.slack(rows)
            while (slack < 0).any():
                tree = _take_back(graph, grown)
                ends = np.array(tree.edges)
                enters = (rows[:, ends[:, 1]] & ~rows[:, ends[:, 0]]).sum(axis=1)
                slack += tree.amount * (enters - ~rows[:, tree.root])
            batch, sure = max(_BATCH, (len(grown) - sure) // 2), min(sure, len(grown))
            dead_ends += 1
            pool.measure(graph)
        if progress:
            progress(wanted - graph.trees, wanted)


def _take_back(graph: Digraph, grown: list[RootedTree]) -> RootedTree:
    """Give the last tree back to `graph`; raises `InfeasibleError` if there is none."""
    if not grown:
        raise InfeasibleError("these capacities do not hold the requested trees")
    tree = grown.pop()
    graph.roots[tree.root] = graph.roots.get(tree.root, 0) + tree.amount
    for a, b in tree.edges:
        graph.give(a, b, tree.amount)
    return tree


def _fill(graph: Digraph, pool: CutPool, grown: list[RootedTree], low: Mapping[int, int], most: int) -> _Growth | None:
    """Grow trees, the roots round-robin, until there are `most`; the tree that meets a dead end if one does."""
    while graph.roots:
        for root in list(graph.roots):
            if len(grown) == most:
                return None
            # The lowest of the trees that halving the copies asked for finds; of equally low ones the first, which
            # has the most copies, so that few trees suffice.
            ask = graph.roots[root]
            best = _grow(graph, pool, root, ask)
            while ask > 1 and (best.missing or best.height > low[root]):
                ask //= 2
                growth = _grow(graph, pool, root, ask)
                if best.missing or (not growth.missing and growth.height < best.height):
                    best = growth
            if best.missing:
                return best
            # As many copies of it as fit are taken out of `graph`.
            amount = min([graph.roots[root], *(graph.out[a][b] for a, b in best.edges)])
            amount = min([amount, *(pool.slack[bit.bit_length() - 1] // times for bit, times in best.extra.items())])
            for bit, times in best.extra.items():
                pool.pay(bit, times * amount)
            grown.append(_taken_out(graph, root, amount, best.edges))
    return None


def _taken_out(graph: Digraph, root: int, amount: int, edges: Sequence[Edge]) -> RootedTree:
    """Take so many equal trees out of `graph`, as `_take_back` gives them back."""
    for a, b in edges:
        graph.take(a, b, amount)
    graph.roots[root] -= amount
    if not graph.roots[root]:
        del graph.roots[root]
    return RootedTree(root, amount, tuple(edges))


def _grow(graph: Digraph, pool: CutPool, root: int, ask: int) -> _Growth:
    """Breadth first from `root` over arcs of `ask` or more, entering no pool set more often than its slack allows."""
    inside, slack, out = pool.inside, pool.slack, graph.out
    missing = len(graph.members) - (root in graph.members)
    growth = _Growth(root, missing)
    here = [vertex == root for vertex in range(graph.count)]
    extra, edges = growth.extra, growth.edges
    touched = inside[root]
    # A set without slack for `ask` more entries counts as tight; it is blocked if it was entered already.
    poor = pool.below(ask)
    blocked = touched & poor
    level = [root]
    # What is blocked stays blocked, so every arc is asked once, when its tail has just been reached.
    while missing:
        done = len(edges)
        for tail in level:
            arcs = [(-capacity, head) for head, capacity in out[tail].items() if not here[head] and capacity >= ask]
            outside = ~inside[tail]
            for _, head in sorted(arcs):
                enters = inside[head] & outside
                if enters & blocked:
                    continue
                again = enters & touched
                while again:
                    bit = again & -again
                    times = extra.get(bit, 0) + 1
                    extra[bit] = times
                    if slack[bit.bit_length() - 1] < (times + 1) * ask:
                        blocked |= bit
                    again ^= bit
                touched |= enters
                blocked |= enters & poor
                here[head] = True
                edges.append((tail, head))
                missing -= 1
        level = [head for _, head in edges[done:]]
        if not level:
            break
        growth.height += 1
    growth.missing = missing
    return growth


def grown_by_flows(graph: Digraph, root: int) -> RootedTree:
    """A tree taken out of `graph`, in which no set is short, and an arc at a time, each of which leaves it so."""
    rest, edges, queue = _without(graph, root), list[Edge](), [root]
    reached = rest.out[-1]
    for tail in queue:
        for head in sorted(rest.out[tail], key=rest.out[tail].__getitem__, reverse=True):
            if head in reached:
                continue
            rest.take(tail, head, 1)
            reached[head] = 1
            # Only sets around the head have lost anything.
            rest.members = [head]
            if rest.short_sets():
                rest.give(tail, head, 1)
                del reached[head]
            else:
                queue.append(head)
                edges.append((tail, head))
    return _taken_out(graph, root, 1, edges)


def _without(graph: Digraph, root: int, edges: Sequence[Edge] = ()) -> Digraph:
    """What is left beside a tree that grows: in place of its root, a vertex hands on to all that it has reached."""
    roots = {vertex: trees - (vertex == root) for vertex, trees in graph.roots.items()} | {graph.count: 1}
    rest = Digraph([*graph.out, dict.fromkeys((root, *(head for _, head in edges)), 1)], roots, graph.members)
    for a, b in edges:
        rest.take(a, b, 1)
    return rest


# Vertices of all trees up to which they are compared, and trees that are looked at for exchanges, again and again.
_MOST_VERTICES, _MOST_LOOKS = 2_000_000, 1_000_000
# An arc between hosts is as long as so many inside one, as a NIC takes longer than a GPU's links do.
_ACROSS = 8
# One of so many trees may be divided: more trees make more messages.
_DIVIDED = 8
_SPARE = -1


class _Move(NamedTuple):
    """A tree enters `vertex` from `parent`, by the arc of another tree or by a spare one (`_SPARE`).

    divides: True if the amounts differ. after, depth: how far the other tree then ends there, and how far
    this vertex is. Less is better.
    """

    divides: bool
    after: int
    depth: int
    tree: int
    vertex: int
    parent: int
    other: int


def lowered(trees: Sequence[RootedTree], spare: Digraph, host: Sequence[int]) -> list[RootedTree]:
    """Trees that carry as much from every root, and together load arcs as these do but for spare ones.

    spare: capacities that are left over; what is used of them is taken out. host: by vertex.
    """
    if not trees or len(trees) * spare.count > _MOST_VERTICES:
        return [*trees]
    return _Exchange(trees, spare, host).run()


def longest(trees: Sequence[RootedTree], host: Sequence[int]) -> int:
    """How long a piece of the data is on its way, at most, in units of an amount of 1 over an arc inside a host."""
    worst = 0
    for tree in trees:
        depth = {tree.root: 0}
        for above, vertex in tree.edges:
            depth[vertex] = depth[above] + (1 if host[above] == host[vertex] else _ACROSS)
        worst = max(worst, tree.amount * max(depth.values()))
    return worst


class _Exchange:
    """Trees by their parents.

    parent, depth, below : array (T, n)
        By tree and vertex: -1 for the root and outside of the tree; how far the root is; how far down what
        hangs below goes.
    inside : array (T, n)
        True if the vertex is in the tree.
    """

    def __init__(self, trees: Sequence[RootedTree], spare: Digraph, host: Sequence[int]) -> None:
        self.spare, self.looks, self.divisions = spare, 0, len(trees) // _DIVIDED
        self.length = np.where(np.equal.outer(host, host), 1, _ACROSS)
        self.roots = np.array([tree.root for tree in trees])
        self.amounts = np.array([tree.amount for tree in trees])
        shape = len(trees), spare.count
        self.parent = np.full(shape, -1)
        self.depth, self.below = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for number, tree in enumerate(trees):
            for above, vertex in tree.edges:
                self.parent[number, vertex] = above
            self._measure(number)
        self.inside = self.parent >= 0
        self.inside[np.arange(len(trees)), self.roots] = True

    def run(self) -> list[RootedTree]:
        """Until no exchange helps any tree, or it has taken long."""
        done, moved = np.zeros(len(self.roots), dtype=bool), False
        while self.looks < _MOST_LOOKS:
            if done.all():
                if not moved:
                    break
                done, moved = np.zeros(len(self.roots), dtype=bool), False
            worst = np.where(done, -1, self.depth.max(axis=1) * self.amounts)
            tree = int(worst.argmax())
            vertex, moves = int(self.depth[tree].argmax()), list[_Move]()
            # What lifts the farthest vertex of the tree, by itself or with those above it.
            while vertex != self.roots[tree]:
                # Over a spare arc, or in exchange for one of another tree.
                new = self.depth[tree] + self.length[:, vertex]
                tails = np.flatnonzero(self.inside[tree] & (new < self.depth[tree, vertex])).tolist()
                wide = [tail for tail in tails if self.spare.out[tail].get(vertex, 0) >= self.amounts[tree]]
                unused = [_Move(False, 0, int(new[tail]), tree, vertex, tail, _SPARE) for tail in wide]
                move = min(unused, default=None) or self._exchanged(tree, vertex, int(worst[tree]))
                moves += [move] if move else []
                vertex = int(self.parent[tree, vertex])
            if moves:
                self._do(min(moves))
                done, moved = np.append(done, [False] * (len(self.roots) - len(done))), True
            else:
                done[tree] = True
        return [
            RootedTree(root, amount, self._arcs(tree))
            for tree, (root, amount) in enumerate(zip(self.roots.tolist(), self.amounts.tolist(), strict=True))
        ]

    def _arcs(self, tree: int) -> tuple[tuple[int, int], ...]:
        above = self.parent[tree].tolist()
        return from_parents({vertex: one for vertex, one in enumerate(above) if one >= 0}, int(self.roots[tree]))

    def _measure(self, tree: int) -> None:
        depth, below = [0] * self.spare.count, [0] * self.spare.count
        arcs = self._arcs(tree)
        lengths = [int(self.length[arc]) for arc in arcs]
        for (above, vertex), length in zip(arcs, lengths, strict=True):
            depth[vertex] = depth[above] + length
        for (above, vertex), length in zip(reversed(arcs), reversed(lengths), strict=True):
            below[above] = max(below[above], below[vertex] + length)
        self.depth[tree], self.below[tree] = depth, below

    def _exchanged(self, tree: int, vertex: int, top: int) -> _Move | None:
        """Over the arc by which another tree enters the vertex, which takes the arc of this one."""
        self.looks += len(self.roots)
        above, parents = int(self.parent[tree, vertex]), self.parent[:, vertex]
        after = self.depth[:, above] + self.length[above, vertex] + self.below[:, vertex]
        new = self.depth[tree, parents] + self.length[parents, vertex]
        # What hangs below the vertex is farther than it is already, so that no parent which lifts it does.
        fits = self.inside[:, above] & (parents >= 0) & (after * np.minimum(self.amounts, self.amounts[tree]) < top)
        fits &= self.inside[tree, parents] & (new < self.depth[tree, vertex])
        divides = self.amounts != self.amounts[tree]
        if not self.divisions:
            fits &= ~divides
        places = np.flatnonzero(fits)
        for other in places[np.lexsort((new[places], after[places], divides[places]))].tolist():
            # The arc that it would take must not come from below the vertex.
            ancestor = above
            while ancestor not in (-1, vertex):
                ancestor = int(self.parent[other, ancestor])
            if ancestor != vertex:
                parent = int(parents[other])
                return _Move(bool(divides[other]), int(after[other]), int(new[other]), tree, vertex, parent, other)
        return None

    def _do(self, move: _Move) -> None:
        vertex, above = move.vertex, int(self.parent[move.tree, move.vertex])
        if move.other == _SPARE:
            amount = int(self.amounts[move.tree])
            self.spare.take(move.parent, vertex, amount)
            self.spare.give(above, vertex, amount)
        else:
            if move.divides:
                # As much of the large tree is left as the small one has; the rest is another one.
                small, large = sorted((move.tree, move.other), key=lambda tree: int(self.amounts[tree]))
                self.divisions -= 1
                self.roots = np.append(self.roots, self.roots[large])
                self.amounts = np.append(self.amounts, self.amounts[large] - self.amounts[small])
                self.amounts[large] = self.amounts[small]
                self.parent, self.depth, self.below, self.inside = (
                    np.concatenate([rows, rows[large : large + 1]])
                    for rows in (self.parent, self.depth, self.below, self.inside)
                )
            self.parent[move.other, vertex] = above
            self._measure(move.other)
        self.parent[move.tree, vertex] = move.parent
        self._measure(move.tree)
