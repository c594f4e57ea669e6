"""Balanced binary trees of greatest weight, n vertices in ceil(log2 n) levels, by bisection or by search.

A tree is the list of its 2^depth leaves. In round i (from 0) the vertex at position j + 2^i sends to the one
at j, for every j that 2^(i+1) divides; a vertex next to itself sends nothing. Halving the graph and joining
halves by their heaviest link finds such a tree fast; searching all leaf lists finds the best (MXNet
multi-tree wiki page; Apache MXNet, kvstore `gpu_topology.h`). Weights are 32-bit, as there, so that ties fall
alike.

Halving keeps heavy links inside the halves: start from any halves, swap pairs of vertices, best gain first,
each vertex once, keep the best prefix of the swaps, and repeat until nothing is gained (Kernighan and Lin,
"An efficient heuristic procedure for partitioning graphs", Bell System Technical Journal 1970).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import numpy.typing as npt

from blinksim.graphs.arrays import Floats, Ints

Weights = npt.NDArray[np.float32]


def bisect(weights: Weights, vertices: Sequence[int], random: Random) -> tuple[list[int], list[int]]:
    """Two halves of `vertices`, of floor(s/2) and the rest, in increasing order.

    weights: matrix over all vertices, 0 where there is no link; a pair counts with the mean of its two
    directions. random: gives the first halves.
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
        # A pass of swaps, undone behind its best prefix; the last one gains nothing.
        trial = side.copy()
        difference = differences(inner, side)
        locked: list[int] = []
        total, best, better = 0.0, 0.0, None
        while (found := best_swap(inner, trial, difference, locked)) is not None:
            a, b, gain = found
            # The cost to a and b counts the other way for all others once they have changed sides.
            difference += 2 * trial * (inner[:, a] * trial[a] + inner[:, b] * trial[b])
            trial[a], trial[b] = trial[b], trial[a]
            locked += [a, b]
            total += gain
            # Rounding must not turn a swap back and forth without end.
            if total > best + 1e-9:
                best, better = total, trial.copy()
        if better is None:
            break
        side = better
    left = [vertex for vertex, here in zip(order, side.tolist(), strict=True) if here == 1]
    return left, [vertex for vertex, here in zip(order, side.tolist(), strict=True) if here == -1]


def differences(weights: npt.NDArray[np.floating], side: Ints) -> Floats:
    """External minus internal cost of every vertex: weight to the other half less weight to its own; side: 1 or -1."""
    return np.asarray(-side * (weights @ side), dtype=np.float64)


def best_swap(
    weights: npt.NDArray[np.floating], side: Ints, difference: Floats, locked: Sequence[int] = ()
) -> tuple[int, int, float] | None:
    """The pair on different sides whose swap gains most, and the gain; None if no swap gains anything."""
    gain = difference[:, None] + difference[None, :] - 2 * weights
    gain[side[:, None] == side[None, :]] = 0
    gain[list(locked), :] = 0
    gain[:, list(locked)] = 0
    a, b = divmod(int(gain.argmax()), len(side))
    return (a, b, float(gain[a, b])) if gain[a, b] > 0 else None


# Up to this number of vertices all trees are compared; beyond, the first that fits is taken.
EXACT = 8
_TRIES = 200_000
_RETRIES = 10
_SAME_LINK, _SAME_VERTEX = np.float32(100), np.float32(10)


def depth_of(count: int) -> int:
    """Rounds that `count` vertices need: ceil(log2 count)."""
    return (count - 1).bit_length()


def sends(leaves: Sequence[int]) -> list[tuple[int, int, int]]:
    """(round, from, to) of every send, towards the root, in the order in which they run."""
    rounds = ((i, *pair) for i in range(depth_of(len(leaves))) for pair in _pairs(len(leaves), 1 << i))
    return [(i, leaves[near], leaves[far]) for i, near, far in rounds if leaves[near] != leaves[far]]


# --- halving ------------------------------------------------------------------------------------------------------


def halved(weights: Weights, root: int, random: Random) -> list[int] | None:
    """The leaves of a tree from `root` by halving all vertices again and again; None if that gets stuck."""
    heads, clusters = [root], [list(range(len(weights)))]
    for _ in range(depth_of(len(weights))):
        for _ in range(_RETRIES):
            if (level := next_level(weights, heads, clusters, random)) is not None:
                break
        else:
            return None
        heads, clusters = level
    return heads


def next_level(
    weights: Weights, heads: Sequence[int], clusters: Sequence[Sequence[int]], random: Random
) -> tuple[list[int], list[list[int]]] | None:
    """Every cluster as two, each with the vertex that heads it; None if two halves have no link from the head.

    The head of a cluster heads the half that it is in; the other half's is the end of the heaviest link from
    there.
    """
    new_heads: list[int] = []
    new_clusters: list[list[int]] = []
    for head, cluster in zip(heads, clusters, strict=True):
        if len(cluster) > 2:
            halves = bisect(weights, cluster, random)
            near, far = halves if head_of(halves[0], heads) is not None else halves[::-1]
        else:
            child = child_of(cluster, head)
            near, far = [head], [head if child is None else child]
        ends = far if near == far else heaviest(weights, head, far)
        if not ends:
            return None
        new_heads += [head, random.choice(ends)]
        new_clusters += [near, far]
    return new_heads, new_clusters


def heaviest(weights: Weights, vertex: int, cluster: Sequence[int]) -> list[int]:
    """The members of `cluster` to which the heaviest link from `vertex` leads, several if they tie; empty if none."""
    best = max((weights[vertex, other] for other in cluster), default=0)
    return [other for other in cluster if best and weights[vertex, other] == best]


def head_of(cluster: Sequence[int], heads: Sequence[int]) -> int | None:
    """The one of `heads` that lies in the cluster, None if none does."""
    return next((head for head in heads if head in cluster), None)


def child_of(cluster: Sequence[int], head: int) -> int | None:
    """The other member of a cluster of two, None for any other cluster."""
    return next((other for other in cluster if other != head), None) if len(cluster) == 2 else None


# --- search -------------------------------------------------------------------------------------------------------


def search(weights: Weights, root: int) -> list[int] | None:
    """The leaves of the best tree from `root`, or of the first one for more than `EXACT` vertices; None without one.

    Best: the greatest of `tree_weights` with penalties of the settled tree, and of equal ones the first in
    the order of the leaf lists before they are settled.
    """
    count, length = len(weights), 1 << depth_of(len(weights))
    if count <= EXACT:
        states = np.full((1, 1), root, dtype=np.int64)
        joined = (weights > 0) | np.eye(count, dtype=np.bool_)
        for place in range(1, length):
            # All choices for one more place, in lexicographic order.
            choices = np.tile(np.arange(count), len(states))
            states = np.column_stack([np.repeat(states, count, axis=0), choices])
            states = states[joined[states[:, place], states[:, place & (place - 1)]]]
            missing = count - np.bitwise_count(np.bitwise_or.reduce(1 << states, axis=1)).astype(np.int64)
            states = states[missing <= length - place - 1]
        trees = settled(states)
        places = np.arange(1, length)
        trees = trees[joined[trees[:, places], trees[:, places & (places - 1)]].all(axis=1)]
        return trees[int(tree_weights(weights, trees, True).argmax())].tolist() if len(trees) else None
    if count == length and np.count_nonzero(weights[root]) < depth_of(count):
        # There is no room for repeats, so the root exchanges in every round, each time with another vertex.
        return None
    linked = [[b for b in range(count) if weights[a, b]] for a in range(count)]
    tries = 0

    def extended(leaves: list[int], unused: frozenset[int]) -> list[int] | None:
        nonlocal tries
        if (place := len(leaves)) == length:
            return leaves
        tries += 1
        above = leaves[place & (place - 1)]
        repeats = [above] if len(unused) < length - place else []
        for leaf in (*(b for b in linked[above] if b in unused), *repeats):
            if tries > _TRIES:
                break
            if (found := extended([*leaves, leaf], unused - {leaf})) is not None:
                return found
        return None

    return extended([root], frozenset(range(count)) - {root})


def _pairs(length: int, stride: int) -> list[tuple[int, int]]:
    return [(place + stride, place) for place in range(0, length, 2 * stride)]


def settled(states: Ints) -> Ints:
    """The same trees in which no vertex sends twice: one that also stands nearer to the root stays silent below."""
    states = states.copy()
    length = states.shape[1]
    for i in reversed(range(depth_of(length))):
        stride = 1 << i
        seen = np.bitwise_or.reduce(1 << states[:, :: 2 * stride], axis=1)
        for near, far in _pairs(length, stride):
            again = (seen >> states[:, near]) & 1 == 1
            states[again, near] = states[again, far]
            seen |= 1 << states[:, near]
    return states


def tree_weights(weights: Weights, states: Ints, penalties: bool = False) -> npt.NDArray[np.float32]:
    """The sum of the weights of all sends of every tree.

    penalties: less 100 for every link used again, and 10 for every vertex met again in one round after the
    first.
    """
    count, length = len(weights), states.shape[1]
    total = np.zeros(len(states), dtype=np.float32)
    rows = np.arange(len(states))
    used = np.zeros((len(states), count, count) if penalties else 0, dtype=np.bool_)
    for i in range(depth_of(length)):
        met = np.zeros(len(states), dtype=np.int64)
        for near, far in _pairs(length, 1 << i):
            a, b = states[:, near], states[:, far]
            sent = a != b
            total = total + np.where(sent, weights[a, b], np.float32(0))
            if not penalties:
                continue
            total = total - np.where(sent & used[rows, a, b], _SAME_LINK, np.float32(0))
            used[rows[sent], a[sent], b[sent]] = used[rows[sent], b[sent], a[sent]] = True
            for vertex in (b, a) if i else ():
                total = total - np.where((met >> vertex) & 1, _SAME_VERTEX, np.float32(0))
                met |= 1 << vertex
    return total
