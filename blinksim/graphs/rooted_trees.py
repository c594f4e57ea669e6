"""Trees as arcs from parent to child: depths, height, centre, and how to move the root.

A tree is the sequence of its arcs, parents before their children, and its root; a single vertex has no arcs. A centre
is the middle of a longest path (Jordan, "Sur les assemblages de lignes", 1869): rooted there, a tree is lowest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Arc = tuple[int, int]


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
    children: dict[int, list[int]] = {}
    for child, parent in parents.items():
        children.setdefault(parent, []).append(child)
    arcs: list[Arc] = []
    level = [root]
    while level:
        level = sorted(child for parent in level for child in children.get(parent, ()))
        arcs += [(parents[child], child) for child in level]
    return tuple(arcs)


def hung_from(root: int, arcs: Iterable[Arc]) -> tuple[Arc, ...]:
    """The same tree with its arcs away from `root`, parents first."""
    return tuple((parent, child) for child, parent in _walk(root, _neighbours(arcs)).items() if child != root)


def longest_path(arcs: Sequence[Arc], start: int | None = None) -> list[int]:
    """The vertices of a longest path; empty without arcs.

    Where there are several, its ends are those that walks in rising order find last, the first of them from `start`
    (default: the tail of the first arc).
    """
    if not arcs:
        return []
    near = {vertex: sorted(others) for vertex, others in _neighbours(arcs).items()}
    *_, end = _walk(arcs[0][0] if start is None else start, near)
    came = _walk(end, near)
    *_, last = came
    path = [last]
    while path[-1] != end:
        path.append(came[path[-1]])
    return path


def centre(arcs: Sequence[Arc], start: int | None = None) -> int:
    """The vertex whose farthest other vertex is nearest; the later one on `longest_path` where there are two."""
    path = longest_path(arcs, start)
    return path[len(path) // 2]


def _neighbours(arcs: Iterable[Arc]) -> dict[int, list[int]]:
    near: dict[int, list[int]] = {}
    for a, b in arcs:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    return near


def _walk(start: int, near: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Every vertex with the one it is reached from (itself for `start`), breadth first."""
    came = {start: start}
    queue = [start]
    for vertex in queue:
        for other in near.get(vertex, ()):
            if other not in came:
                came[other] = vertex
                queue.append(other)
    return came
