"""Back from the graph between members to links: every unit of capacity has one physical path.

Each arc carries pieces (path, amount). Splitting off joins the pieces of two arcs one by one (the two lists are laid
side by side), so that a tree's arc is one path or, rarely, several; then the tree becomes several with equal edges.
Two paths that meet before their ends leave out the circle between: no route passes a device twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blinksim.graphs.rooted_trees import RootedTree
from blinksim.packing.exact.splitting import Split

Path = tuple[int, ...]
Pieces = list[tuple[Path, int]]


@dataclass(frozen=True, slots=True)
class RoutedTree:
    """`amount` equal trees from `root`: edges (parent, child, arcs of the path), parents before their children."""

    root: int
    amount: int
    edges: tuple[tuple[int, int, Path], ...]


class Routes:
    """The pieces of every arc of the graph that is left after `split_off`."""

    def __init__(self, tail: Sequence[int], head: Sequence[int], capacity: Sequence[int], log: Iterable[Split]) -> None:
        self._pieces: dict[tuple[int, int], Pieces] = {}
        self._tail, self._head = tail, head
        for arc, (a, b, amount) in enumerate(zip(tail, head, capacity, strict=True)):
            if amount:
                self._pieces.setdefault((a, b), []).append(((arc,), amount))
        for split in log:
            first = self._take((split.start, split.via), split.amount)
            second = self._take((split.via, split.end), split.amount)
            if split.start != split.end:
                into = self._pieces.setdefault((split.start, split.end), [])
                for way, amount in _joined(first, second):
                    path = self._without_circles(way)
                    if into and into[-1][0] == path:
                        amount += into.pop()[1]
                    into.append((path, amount))

    def _without_circles(self, way: Path) -> Path:
        """The same ends, and no vertex twice."""
        kept: list[int] = []
        met = {self._tail[way[0]]: 0}
        for arc in way:
            vertex = self._head[arc]
            if vertex in met:
                for circling in kept[met[vertex] :]:
                    del met[self._head[circling]]
                del kept[met[vertex] :]
            else:
                kept.append(arc)
                met[vertex] = len(kept)
        return tuple(kept)

    def _take(self, arc: tuple[int, int], amount: int) -> Pieces:
        """Remove `amount` from an arc's pieces; first the smallest piece that alone is enough, else the largest."""
        pieces = self._pieces[arc]
        path, size = pieces[0]
        if len(pieces) == 1 and size >= amount:
            if size > amount:
                pieces[0] = (path, size - amount)
            else:
                pieces.clear()
            return [(path, amount)]
        found: Pieces = []
        while amount:
            enough = [number for number, (_, size) in enumerate(pieces) if size >= amount]
            if enough:
                number = min(enough, key=lambda i: pieces[i][1])
            else:
                number = max(range(len(pieces)), key=lambda i: pieces[i][1])
            path, size = pieces[number]
            part = min(size, amount)
            found.append((path, part))
            if part == size:
                pieces.pop(number)
            else:
                pieces[number] = (path, size - part)
            amount -= part
        return found

    def route(self, trees: Iterable[RootedTree]) -> list[RoutedTree]:
        """The trees with paths, those that need several paths on an edge cut up."""
        found = []
        for tree in trees:
            parts = [self._take(edge, tree.amount) for edge in tree.edges]
            if all(len(pieces) == 1 for pieces in parts):
                whole = tuple((a, b, pieces[0][0]) for (a, b), pieces in zip(tree.edges, parts, strict=True))
                found.append(RoutedTree(tree.root, tree.amount, whole))
                continue
            # Where any edge's path ends, a new tree begins.
            ends = sorted({end for pieces in parts for end in _ends(pieces)} or {tree.amount})
            places = [0] * len(parts)
            lefts = [_ends(pieces) for pieces in parts]
            start = 0
            for end in ends:
                edges = []
                for number, (edge, pieces) in enumerate(zip(tree.edges, parts, strict=True)):
                    edges.append((*edge, pieces[places[number]][0]))
                    if lefts[number][places[number]] == end:
                        places[number] += 1
                found.append(RoutedTree(tree.root, end - start, tuple(edges)))
                start = end
        return found


def _ends(pieces: Pieces) -> list[int]:
    total, ends = 0, []
    for _, amount in pieces:
        total += amount
        ends.append(total)
    return ends


def _joined(first: Pieces, second: Pieces) -> Iterable[tuple[Path, int]]:
    a, b = list(reversed(first)), list(reversed(second))
    while a and b:
        (one, m), (two, n) = a.pop(), b.pop()
        amount = min(m, n)
        if m > amount:
            a.append((one, m - amount))
        if n > amount:
            b.append((two, n - amount))
        yield one + two, amount
