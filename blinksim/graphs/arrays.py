"""Large arrays of whole numbers, transports between totals, topological order, and caches per topology.

A table in compressed form has all values one after the other, and where each row starts. `numpy.unique`
hashes whole numbers from NumPy 2.3 on unless asked for counts or places: a million keys such as chunk *
devices + device, which lie evenly, then take seconds where sorting takes hundredths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Ints32 = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Whole = TypeVar("Whole", bound=np.integer)
Number = TypeVar("Number", bound=np.number)
Key = TypeVar("Key")
Value = TypeVar("Value")
Item = TypeVar("Item")
Amount = TypeVar("Amount", int, Fraction)


def per_topology(function: Callable[[Key], Value]) -> Callable[[Key], Value]:
    """A function of a topology, or another frozen object, that keeps its answer with it as properties do."""
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def cached(topology: Key) -> Value:
        kept = vars(topology)
        if name not in kept:
            kept[name] = function(topology)
        found: Value = kept[name]
        return found

    return cached


def fixed(values: Iterable[int], count: int) -> Ints:
    """So many values as an array that cannot be written to, for those that many share.

    >>> fixed(range(3), 3).flags.writeable
    False
    """
    found = np.fromiter(values, dtype=np.int64, count=count)
    found.flags.writeable = False
    return found


def places(lengths: npt.NDArray[Whole]) -> Ints:
    """The place of every entry in its own row, of rows of these lengths one after another.

    >>> places(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    starts: Ints = ends - lengths
    return np.arange(ends[-1] if len(ends) else 0, dtype=np.int64) - np.repeat(starts, lengths)


def by_place(
    how: np.ufunc, index: npt.NDArray[Whole], amounts: npt.NDArray[Any], count: int, start: float = 0
) -> npt.NDArray[Any]:
    """What `how` makes of `start` and the amounts at each of `count` places, of whole numbers exactly.

    >>> by_place(np.add, np.array([2, 0, 2]), np.array([1, 2, 3]), 4).tolist()
    [2, 0, 4, 0]
    """
    found = np.full(count, start, dtype=np.result_type(amounts.dtype, np.int64))
    how.at(found, index, amounts)
    return found


def scattered(index: Any, values: Any, shape: int | tuple[int, ...], other: Any = -1) -> npt.NDArray[Any]:
    """An array of this shape with `values` at `index`, and `other`, whose type all have, everywhere else.

    >>> scattered([2, 0], [7, 8], 4).tolist()
    [8, -1, 7, -1]
    """
    found = np.full(shape, other)
    found[index] = values
    return found


def occurrences(values: npt.NDArray[Whole]) -> Ints:
    """How often the value of every entry came before it.

    >>> occurrences(np.array([7, 4, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(values, kind="stable")
    first = np.flatnonzero(np.append(True, np.diff(values[order]) != 0)[: len(values)])
    return scattered(order, places(np.diff(first, append=len(values))), len(values))


def expand(
    starts: npt.NDArray[np.integer[Any]], values: npt.NDArray[Whole], which: npt.NDArray[np.integer[Any]]
) -> tuple[Ints, npt.NDArray[Whole]]:
    """Rows `which` of a table in compressed form: (position in `which`, value) for every entry.

    >>> [part.tolist() for part in expand(np.array([0, 2, 5]), np.array([7, 8, 4, 5, 6]), np.array([1, 0]))]
    [[0, 0, 0, 1, 1], [4, 5, 6, 7, 8]]
    """
    first = starts[:-1][which].astype(np.int64)
    length = starts[1:][which] - first
    position = np.repeat(np.arange(len(which), dtype=np.int64), length)
    return position, values[np.repeat(first - np.cumsum(length) + length, length) + np.arange(len(position))]


def compressed(row: npt.NDArray[Whole], rows: int) -> tuple[Ints, Ints]:
    """Entries in compressed form by the row of each, of so many rows: where each row starts, and the entries.

    >>> [part.tolist() for part in compressed(np.array([1, 0, 1]), 3)]
    [[0, 1, 3, 3], [1, 0, 2]]
    """
    order = np.argsort(row, kind="stable")
    return np.searchsorted(row[order], np.arange(rows + 1)), order


def distinct(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """The values without repetitions, sorted; `numpy.unique` would load NumPy's masked arrays for that.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ordered = np.sort(values, axis=None)
    first = np.ones(len(ordered), dtype=np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def partners(tail: Ints, head: Ints, *alike: Ints) -> Ints | None:
    """For every arc one that goes back, each taken once, equal in the columns `alike`; None if one has none.

    >>> partners(np.array([0, 1, 1]), np.array([1, 2, 0])) is None
    True
    """
    ahead, back = np.lexsort((*alike, head, tail)), np.lexsort((*alike, tail, head))
    sides = ((tail, head), (head, tail), *zip(alike, alike, strict=True))
    if not all(np.array_equal(one[ahead], other[back]) for one, other in sides):
        return None
    return scattered(ahead, back, len(ahead))


def round_robin(count: int) -> tuple[Ints, Ints]:
    """Every number below `count` with every other, in rounds in which each is once on the left and once on the right.

    Whoever sends in this order never waits at a receiver that others send to as well.
    """
    shift, left = np.divmod(np.arange(count * (count - 1)), max(count, 1))
    return left, (left + shift + 1) % max(count, 1)


Amounts = TypeVar("Amounts", Ints, npt.NDArray[np.float64])


def transport(rows: Amounts, columns: Amounts) -> Amounts:
    """What goes from each row to each column (…, R, C), where totals are given (…, R) and (…, C) with equal sums.

    As much as possible stays on the diagonal; the rest follows the northwest-corner rule.

    >>> transport(np.array([5, 1]), np.array([3, 3])).tolist()
    [[3, 2], [0, 1]]
    """
    diagonal = np.minimum(rows, columns)
    left, right = rows - diagonal, columns - diagonal
    row_end, column_end = np.cumsum(left, axis=-1), np.cumsum(right, axis=-1)
    found = np.minimum(row_end[..., :, None], column_end[..., None, :])
    found -= np.maximum((row_end - left)[..., :, None], (column_end - right)[..., None, :])
    np.maximum(found, 0, out=found)
    places = np.arange(rows.shape[-1])
    found[..., places, places] += diagonal
    return found


def side_by_side(rows: Sequence[Sequence[tuple[Item, Amount]]]) -> Iterator[tuple[tuple[Item, ...], Amount]]:
    """Rows of items with amounts, laid beside each other and cut wherever any item ends, up to the shortest row.

    >>> list(side_by_side([[("a", 3), ("b", 1)], [("c", 2), ("d", 2)]]))
    [(('a', 'c'), 2), (('a', 'd'), 1), (('b', 'd'), 1)]
    """
    left = [list(reversed(row)) for row in rows]
    while left and all(left):
        amount = min(row[-1][1] for row in left)
        yield tuple(row[-1][0] for row in left), amount
        for row in left:
            item, size = row.pop()
            if size > amount:
                row.append((item, size - amount))


def fronts(before: Ints, after: Ints, events: int) -> Iterator[npt.NDArray[np.int32]]:
    """The events in fronts: those that wait for nothing, then those that wait only for events of earlier fronts.

    This is a topological order, a whole front at a time (Kahn 1962).

    Event after[i] waits for before[i]. Events on a circle of waits, or behind one, are in no front.
    """
    starts, order = compressed(before, events)
    successors = after[order].astype(np.int32)
    waiting = np.bincount(after, minlength=events)
    front = np.flatnonzero(waiting == 0).astype(np.int32)
    while len(front):
        yield front
        _, reached = expand(starts, successors, front)
        # A bincount goes over all events: it is the quicker way only where many are reached.
        if len(reached) < events // 16:
            reached, times = np.unique(reached, return_counts=True)
            waiting[reached] -= times
        else:
            waiting -= np.bincount(reached, minlength=events)
            reached = distinct(reached)
        front = reached[waiting[reached] == 0]
