"""Lower trees from the same arcs: two trees that both enter a vertex exchange the arcs by which they do.

A packing at the best rate often leaves no capacity over, so that its last trees are what the others left, and high.
Exchanges keep what every arc carries. Each one lifts the farthest vertex of the tree on which a piece of the data is on
its way longest, and takes none of the other tree as far, so that fewer and fewer are that far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from blinksim.graphs.digraph import Digraph
from blinksim.graphs.rooted_trees import RootedTree, from_parents

# Vertices of all trees up to which they are compared, and trees that are looked at for exchanges, again and again.
_MOST_VERTICES, _MOST_LOOKS = 2_000_000, 1_000_000
# An arc between hosts is as long as so many inside one, as a NIC takes longer than a GPU's links do.
_ACROSS = 8
# One of so many trees may be divided: more trees make more messages.
_DIVIDED = 8
_SPARE = -1


class _Move(NamedTuple):
    """A tree enters `vertex` from `parent`, by the arc of another tree or by a spare one (`_SPARE`).

    divides: True if the amounts differ. after, depth: how far the other tree then ends there, and how far this vertex
    is. Less is better.
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
        By tree and vertex: -1 for the root and outside of the tree; how far the root is; how far down what hangs below
        goes.
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
            move = self._best(tree, int(worst[tree]))
            if move is None:
                done[tree] = True
            else:
                self._do(move)
                done, moved = np.append(done, [False] * (len(self.roots) - len(done))), True
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

    def _best(self, tree: int, top: int) -> _Move | None:
        """What lifts the farthest vertex of a tree, by itself or with those above it."""
        vertex, moves = int(self.depth[tree].argmax()), list[_Move]()
        while vertex != self.roots[tree]:
            move = self._unused(tree, vertex) or self._exchanged(tree, vertex, top)
            moves += [move] if move else []
            vertex = int(self.parent[tree, vertex])
        return min(moves, default=None)

    def _unused(self, tree: int, vertex: int) -> _Move | None:
        """Over a spare arc."""
        new, found = self.depth[tree] + self.length[:, vertex], list[_Move]()
        for tail in np.flatnonzero(self.inside[tree] & (new < self.depth[tree, vertex])).tolist():
            if self.spare.out[tail].get(vertex, 0) >= self.amounts[tree]:
                found.append(_Move(False, 0, int(new[tail]), tree, vertex, tail, _SPARE))
        return min(found, default=None)

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
            if not self._hangs(other, above, vertex):
                parent = int(parents[other])
                return _Move(bool(divides[other]), int(after[other]), int(new[other]), tree, vertex, parent, other)
        return None

    def _hangs(self, tree: int, vertex: int, below: int) -> bool:
        """Whether a vertex hangs below another one of a tree, or is it."""
        while vertex not in (-1, below):
            vertex = int(self.parent[tree, vertex])
        return vertex == below

    def _do(self, move: _Move) -> None:
        vertex, above = move.vertex, int(self.parent[move.tree, move.vertex])
        if move.other == _SPARE:
            amount = int(self.amounts[move.tree])
            self.spare.take(move.parent, vertex, amount)
            self.spare.give(above, vertex, amount)
        else:
            if move.divides:
                self._divide(*sorted((move.tree, move.other), key=lambda tree: int(self.amounts[tree])))
            self.parent[move.other, vertex] = above
            self._measure(move.other)
        self.parent[move.tree, vertex] = move.parent
        self._measure(move.tree)

    def _divide(self, small: int, large: int) -> None:
        """Leaves as much of the large tree as the small one has, and makes the rest another one."""
        self.divisions -= 1
        self.roots = np.append(self.roots, self.roots[large])
        self.amounts = np.append(self.amounts, self.amounts[large] - self.amounts[small])
        self.amounts[large] = self.amounts[small]
        self.parent, self.depth, self.below, self.inside = (
            np.concatenate([rows, rows[large : large + 1]])
            for rows in (self.parent, self.depth, self.below, self.inside)
        )
