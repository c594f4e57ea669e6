"""Cut a weighted graph into two halves so that heavy links stay inside them.

Start from any halves and swap pairs of vertices, best gain first, each vertex once; keep the best prefix of the swaps
and start over until nothing is gained (Kernighan and Lin, "An efficient heuristic procedure for partitioning graphs",
Bell System Technical Journal 1970).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import numpy.typing as npt

Weights = npt.NDArray[np.float32]
Vector = npt.NDArray[np.float64]
Sides = npt.NDArray[np.int64]


def bisect(weights: Weights, vertices: Sequence[int], random: Random) -> tuple[list[int], list[int]]:
    """Two halves of `vertices`, of floor(s/2) and the rest, in increasing order.

    weights: matrix over all vertices, 0 where there is no link; a pair counts with the mean of its two directions.
    random: gives the first halves.
    """
    order = list(vertices)
    random.shuffle(order)
    half = set(order[: len(order) // 2])
    order.sort()
    inner = weights[np.ix_(order, order)].astype(np.float64)
    # The gains of swaps hold for cuts, which know no direction; with one-way links the passes would cycle.
    inner = (inner + inner.T) / 2
    side = np.array([1 if vertex in half else -1 for vertex in order], dtype=np.int64)
    while True:
        better = _pass(inner, side)
        if better is None:
            break
        side = better
    left = [vertex for vertex, here in zip(order, side.tolist(), strict=True) if here == 1]
    return left, [vertex for vertex, here in zip(order, side.tolist(), strict=True) if here == -1]


def differences(weights: npt.NDArray[np.floating], side: Sides) -> Vector:
    """External minus internal cost of every vertex: weight to the other half less weight to its own; side: 1 or -1."""
    return np.asarray(-side * (weights @ side), dtype=np.float64)


def best_swap(
    weights: npt.NDArray[np.floating], side: Sides, difference: Vector, locked: Sequence[int] = ()
) -> tuple[int, int, float] | None:
    """The pair on different sides whose swap gains most, and the gain; None if no swap gains anything."""
    gain = difference[:, None] + difference[None, :] - 2 * weights
    gain[side[:, None] == side[None, :]] = 0
    gain[list(locked), :] = 0
    gain[:, list(locked)] = 0
    a, b = divmod(int(gain.argmax()), len(side))
    return (a, b, float(gain[a, b])) if gain[a, b] > 0 else None


def _pass(weights: npt.NDArray[np.float64], side: Sides) -> Sides | None:
    """One pass of swaps, undone behind its best prefix; None if it gains nothing."""
    trial = side.copy()
    difference = differences(weights, side)
    locked: list[int] = []
    total, best, kept = 0.0, 0.0, None
    while (found := best_swap(weights, trial, difference, locked)) is not None:
        a, b, gain = found
        # The cost to a and b counts the other way for all others once they have changed sides.
        difference += 2 * trial * (weights[:, a] * trial[a] + weights[:, b] * trial[b])
        trial[a], trial[b] = trial[b], trial[a]
        locked += [a, b]
        total += gain
        # Rounding must not turn a swap back and forth without end.
        if total > best + 1e-9:
            best, kept = total, trial.copy()
    return kept
