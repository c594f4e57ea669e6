"""Trees as arcs from parent to child: depths, height, centre, and how to move the root.

A tree is the sequence of its arcs, parents before their children, and its root; a single vertex has no arcs.
A centre is the middle of a longest path (Jordan, "Sur les assemblages de lignes", 1869): rooted there, a tree
is lowest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from blinksim.graphs.arrays import Ints
from blinksim.graphs.connectivity import breadth_first, cycles, grouped, path_to

Arc = tuple[int, int]
# The parent of every vertex but the root.
Parents = dict[int, int]


@dataclass(frozen=True, slots=True)
class RootedTree:
    """`amount` equal trees from `root`: arcs (parent, child), parents before their children."""

    root: int
    amount: int
    edges: tuple[Arc, ...]


def depths(root: int, arcs: Iterable[Arc], start: int = 0) -> dict[int, int]:
    """The number of arcs between the root and every vertex, plus `start`."""
    found = {root: start}
    for parent, child in arcs:
        found[child] = found[parent] + 1
    return found


def height(root: int, arcs: Iterable[Arc]) -> int:
    """The most arcs between the root and a leaf."""
    return max(depths(root, arcs).values())


def from_parents(parents: Mapping[int, int], root: int) -> tuple[Arc, ...]:
    """The arcs of the tree in which every vertex but the root has a parent: level by level, each in rising order."""
    above, below, _ = by_levels(parents, root)
    return tuple(zip(above.tolist(), below.tolist(), strict=True))


def by_levels(parents: Mapping[int, int], root: int) -> tuple[Ints, Ints, Ints]:
    """The same arcs in arrays: parents, children, and the depths of the children.

    Depths double on the way to the root (J. C. Wyllie, The complexity of parallel computations, 1979: pointer
    jumping).

    >>> [column.tolist() for column in by_levels({2: 0, 1: 2, 3: 0}, 0)]
    [[0, 0, 2], [2, 3, 1], [1, 1, 2]]
    """
    child = np.fromiter(parents.keys(), dtype=np.int64, count=len(parents))
    parent = np.fromiter(parents.values(), dtype=np.int64, count=len(parents))
    above = np.arange(max(int(child.max(initial=0)), root) + 1)
    above[child] = parent
    far = (above != np.arange(len(above))).astype(np.int64)
    while (far[above] > 0).any():
        far += far[above]
        above = above[above]
    order = np.lexsort((child, far[child]))
    return parent[order], child[order], far[child][order]


def two_trees(positions: int) -> list[tuple[Parents, int]]:
    """Two trees and their roots: the in-order tree and its mirror image, or its shift by one if odd.

    In the in-order tree over 0 … positions-1, odd positions are leaves, and 0 is the root with one child.
    """
    first = {}
    for place in range(1, positions):
        low = place & -place
        above = (place ^ low) | (low << 1)
        first[place] = above if above < positions else place ^ low

    def moved(place: int) -> int:
        return positions - 1 - place if positions % 2 == 0 else (place + 1) % positions

    return [(first, 0), ({moved(a): moved(b) for a, b in first.items()}, moved(0))]


def trees_over_ports(ports: int, vertices: int) -> list[list[tuple[int, int, int]]]:
    """A tree from vertex 0 for each port: (parent, child, port by which it is entered), level by level.

    All trees together enter every vertex once by each port, and leave it at most once by each. So every
    vertex is inside one tree and has a child there by each port; the few that are left over have one child in
    every tree. Two trees of two children are the double binary tree (Sanders, Speck and Träff, Parallel
    Computing 2009), one of one is a chain. For p ports there are more than p (p - 1) others, for one at least
    one.
    """
    each = (vertices - 1) // ports
    # Vertices of one line enter by the same port, which is the next one in the next tree.
    lines = [list(range(1 + line, vertices, ports)) for line in range(ports)]
    tops = lines[0][:ports]
    others = sorted({*range(1, vertices)} - {*tops})
    helpers, found = others[ports * (each - 1) :], []
    for number, top in enumerate(tops):
        inner = {*others[number * (each - 1) : (number + 1) * (each - 1)]}
        waiting = [sorted({*line} - {top}, key=lambda v: (v in inner, v in helpers, -v)) for line in lines]
        arcs, senders = [(0, top, number)], [top]
        for sender in senders:
            last = [(sender, line.pop(), (number + at) % ports) for at, line in enumerate(waiting) if line]
            senders += [child for _, child, _ in last if child in inner]
            arcs += last
        left = ((at, child) for at, line in enumerate(waiting) for child in line)
        arcs += [(helpers[at - 1], child, (number + at) % ports) for at, child in left]
        found.append(arcs)
    return found


def hops_over_ports(most: int, vertices: int, parts: int = 0) -> Ints:
    """(hops, 4): parent, child, number of the tree and the parent's depth of `trees_over_ports`.

    most: ports; there are as many as the vertices allow and as share so many parts evenly.
    """
    alike = (many for many in range(1, most + 1) if many * (many - 1) < max(1, vertices - 1) and not parts % many)
    hops = list[tuple[int, int, int, int]]()
    for tree, arcs in enumerate(trees_over_ports(max(alike), vertices)):
        depth = depths(0, [arc[:2] for arc in arcs])
        hops += [(a, b, tree, depth[a]) for a, b, _ in arcs]
    return np.array(hops, dtype=np.int64).reshape(-1, 4)


def hops_by_levels(groups: Sequence[int]) -> Ints:
    """(hops, 4) as `hops_over_ports`, of one tree over as many vertices as the product of the groups.

    What a vertex stands for falls into so many groups in each level, and it sends to the first vertex of every other
    one: with groups of 2 a binomial tree.

    >>> hops_by_levels((2, 2)).tolist()
    [[0, 2, 0, 0], [0, 1, 0, 1], [2, 3, 0, 1]]
    """
    hops = list[tuple[int, int, int, int]]()
    for level, many in enumerate(groups):
        span = prod(groups[level + 1 :])
        firsts = range(0, prod(groups), many * span)
        hops += [(first, first + number * span, 0, level) for first in firsts for number in range(1, many)]
    return np.array(hops, dtype=np.int64).reshape(-1, 4)


# Times that each of `low_trees` is grown again around the others. The busiest link of a torus of 4 x 4 carries 5 of
# 3.75 trees after the first time and 4 after the fifth.
_TIMES = 5


def low_trees(width: Mapping[Arc, int], vertices: int, roots: Sequence[int], hop: float) -> Ints:
    """(hops, 4): parent, child, number of the tree and the parent's depth of the hops of a tree from each of the roots.

    width: of the links. Every tree takes those that others use least, and is low. hop: what one more is worth, of what
    a link carries in the mean. No rows where links do not join all vertices.
    """
    tail, head = np.array([*width], dtype=np.int64).reshape(-1, 2).T
    wide, load, trees = np.array([*width.values()]), np.zeros(len(width)), dict[int, tuple[list[int], Ints]]()
    worth = hop * len(roots) * (vertices - 1) / max(1, wide.sum())
    for number, root in [*enumerate(roots)] * _TIMES:
        load[trees[number][0] if number in trees else []] -= 1
        depth, links = np.full(vertices, -1), list[int]()
        depth[root] = 0
        while len(near := np.flatnonzero((depth[tail] >= 0) & (depth[head] < 0))):
            link = near[np.argmin((load[near] + 1) / wide[near] + worth * depth[tail[near]])]
            depth[head[link]] = depth[tail[link]] + 1
            links.append(link)
        if (depth < 0).any():
            return np.zeros((0, 4), dtype=np.int64)
        load[links] += 1
        trees[number] = links, depth[tail[links]]
    hops = [(tail[links], head[links], np.full(len(links), tree), depth) for tree, (links, depth) in trees.items()]
    return np.concatenate(hops, axis=1).T


def hung_from(root: int, arcs: Iterable[Arc]) -> tuple[Arc, ...]:
    """The same tree with its arcs away from `root`, parents first."""
    near = grouped(pair for a, b in arcs for pair in ((a, b), (b, a)))
    came = breadth_first(root, lambda vertex: near.get(vertex, ()))
    return tuple((parent, child) for child, parent in came.items() if child != root)


def longest_path(arcs: Sequence[Arc], start: int | None = None) -> list[int]:
    """The vertices of a longest path; empty without arcs.

    Where there are several, its ends are those that walks in rising order find last, the first of them from
    `start` (default: the tail of the first arc).
    """
    if not arcs:
        return []
    pairs = grouped(pair for a, b in arcs for pair in ((a, b), (b, a)))
    near = {vertex: sorted(others) for vertex, others in pairs.items()}
    *_, end = breadth_first(arcs[0][0] if start is None else start, near.__getitem__)
    came = breadth_first(end, near.__getitem__)
    *_, last = came
    return path_to(came, last)


def centre(arcs: Sequence[Arc], start: int | None = None) -> int:
    """The vertex whose farthest other vertex is nearest; the later one on `longest_path` where there are two."""
    path = longest_path(arcs, start)
    return path[len(path) // 2]


def cheapest_parents(cost: Ints, root: int) -> list[int]:
    """The parent of every vertex in a cheapest out-tree from `root`, which is its own (Chu and Liu 1965; Edmonds 1967).

    cost: of the arc from each vertex (row) to each other one (column); the diagonal does not count. Arcs that
    cannot be used cost more than any tree.

    Examples
    --------
    >>> cheapest_parents(np.array([[0, 9, 5], [9, 0, 1], [9, 2, 0]]), 0)
    [0, 2, 0]
    """
    count = len(cost)
    work = cost.astype(np.int64)
    np.fill_diagonal(work, np.iinfo(np.int64).max // 4)
    parent = work.argmin(axis=0)
    parent[root] = root
    if not (groups := cycles(parent.tolist(), root)):
        return [int(above) for above in parent]
    inside = {vertex for group in groups for vertex in group}
    groups += [[vertex] for vertex in range(count) if vertex not in inside]
    # What is paid for a vertex already is saved when it is entered from elsewhere.
    work -= work[parent, np.arange(count)]
    # The best arc from every vertex into each group, then from each group.
    into = np.stack([np.array(group)[work[:, group].argmin(axis=1)] for group in groups], axis=1)
    least = np.take_along_axis(work, into, axis=1)
    start = np.stack([np.array(group)[least[group].argmin(axis=0)] for group in groups])
    merged = np.take_along_axis(least, start, axis=0)
    top = next(number for number, group in enumerate(groups) if root in group)
    for number, above in enumerate(cheapest_parents(merged, top)):
        if number != top:
            tail = int(start[above, number])
            parent[into[tail, number]] = tail
    return [int(above) for above in parent]
