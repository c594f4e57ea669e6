"""Breadth-first search, cycles, what pairs join, and groups and sums by key."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Item = TypeVar("Item", bound=Hashable)
Value = TypeVar("Value")
Amount = TypeVar("Amount", int, float, Fraction)


def grouped(pairs: Iterable[tuple[Item, Value]]) -> dict[Item, list[Value]]:
    """The values of every key, both in the order in which they come.

    >>> grouped([(1, "a"), (2, "b"), (1, "c")])
    {1: ['a', 'c'], 2: ['b']}
    """
    found: dict[Item, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def summed(pairs: Iterable[tuple[Item, Amount]]) -> dict[Item, Amount]:
    """The sum of the amounts of every key.

    >>> summed([(1, 2), (2, 3), (1, 4)])
    {1: 6, 2: 3}
    """
    found: dict[Item, Amount] = {}
    for key, amount in pairs:
        found[key] = found.get(key, 0) + amount
    return found


def joined_labels(count: int, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each of 0 … count-1 the least of what pairs (first, second) join it with; arrays, for very many of them.

    Every root with a smaller one beside it hangs itself below that, and all trees are flattened, until none
    changes (Y. Shiloach and U. Vishkin, An O(log n) parallel connectivity algorithm, J. Algorithms 1982).
    """
    import numpy as np

    label = np.arange(count)
    while (apart := label[first] != label[second]).any():
        a, b = label[first[apart]], label[second[apart]]
        np.minimum.at(label, np.maximum(a, b), np.minimum(a, b))
        while not np.array_equal(flat := label[label], label):
            label = flat
    return label


def cycles(parent: Sequence[int], root: int) -> list[list[int]]:
    """The cycles that the entries from `parent` to every vertex but the root close."""
    mark = [-1] * len(parent)
    found: list[list[int]] = []
    for start in range(len(parent)):
        at = start
        while at != root and mark[at] == -1:
            mark[at] = start
            at = parent[at]
        if at != root and mark[at] == start:
            cycle, step = [at], parent[at]
            while step != at:
                cycle.append(step)
                step = parent[step]
            found.append(cycle)
    return found


def breadth_first(start: Item, near: Callable[[Item], Iterable[Item]]) -> dict[Item, Item]:
    """Every vertex with the one it is reached from, itself for `start`, in the order in which they are reached.

    near: where the edges of a vertex lead.
    """
    came, queue = {start: start}, [start]
    for vertex in queue:
        for other in near(vertex):
            if other not in came:
                came[other] = vertex
                queue.append(other)
    return came


def joined(items: Iterable[Item], pairs: Iterable[tuple[Item, Item]]) -> dict[Item, Item]:
    """For each of the items the first one that pairs of items join it with, in their order.

    >>> joined("abcd", [("d", "b")])
    {'a': 'a', 'b': 'b', 'c': 'c', 'd': 'b'}
    """
    near = grouped((end, other) for pair in pairs for end, other in (pair, pair[::-1]))
    first = dict[Item, Item]()
    for item in (every := list(items)):
        if item not in first:
            first |= dict.fromkeys(breadth_first(item, lambda one: near.get(one, ())), item)
    return {item: first[item] for item in every}


def distances(start: Item, near: Callable[[Item], Iterable[Item]]) -> dict[Item, int]:
    """The least number of edges from `start` to all that it reaches, in the order of `breadth_first`."""
    far = dict[Item, int]()
    for vertex, before in breadth_first(start, near).items():
        far[vertex] = far[before] + 1 if far else 0
    return far


def path_to(came: Mapping[Item, Item], end: Item) -> list[Item]:
    """The vertices from `end` back to where a search of `breadth_first` started."""
    path = [end]
    while came[path[-1]] != path[-1]:
        path.append(came[path[-1]])
    return path
