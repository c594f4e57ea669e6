"""Hamiltonian paths and cycles of a small graph, one after another, by depth-first search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Order = tuple[int, ...]


def hamiltonian(next_to: Sequence[Sequence[int]], *, closed: bool, both: bool) -> Iterator[Order]:
    """Orders of the vertices in which each is next to the one before, and the last to the first if `closed`.

    next_to: for each vertex those that may follow it. both: neighbours are mutual, and of an order and its reverse
    only one is given; otherwise orders are directed. Closed orders start at vertex 0.
    """
    n = len(next_to)

    def extend(path: list[int], seen: int) -> Iterator[Order]:
        if len(path) == n:
            ends = (path[1], path[-1]) if closed else (path[0], path[-1])
            if (not closed or path[0] in next_to[path[-1]]) and (not both or n < 3 or ends[0] < ends[1]):
                yield tuple(path)
            return
        for b in next_to[path[-1]]:
            if not seen >> b & 1:
                path.append(b)
                yield from extend(path, seen | 1 << b)
                path.pop()

    for first in range(1 if closed or (both and n < 3) else n):
        yield from extend([first], 1 << first)
