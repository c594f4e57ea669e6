"""Groups of ranks that exchange what they have in one round: pieces of an allreduce.

All ranks of a clique send to all others of it at once. Several such rounds in a row make an allreduce if every group of
one round meets every group of the next ones in one rank: first inside four GPUs, then in pairs, as in a hypercube.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from blinksim.packing.rounds.wires import Floats, Wires

Clique = tuple[int, ...]
Partition = tuple[Clique, ...]
# Ranks of a clique that joins what trees brought, and sequences of exchanges that are tried.
_MOST_IN_CLIQUE, _MOST_SEQUENCES = 4, 4000


def cliques(wires: Wires, most: int) -> list[Clique]:
    """All sets of 1 to `most` ranks of which each has a link to each."""
    joined = _joined(wires)
    found: list[Clique] = [(rank,) for rank in range(wires.ranks)]
    for count in range(2, most + 1):
        for group in combinations(range(wires.ranks), count):
            if all(joined[a, b] and joined[b, a] for a, b in combinations(group, 2)):
                found.append(group)
    return found


def small_cliques(wires: Wires) -> list[Clique]:
    """Those in which trees may end."""
    return cliques(wires, _MOST_IN_CLIQUE)


def sequences(wires: Wires) -> list[tuple[Partition, ...]]:
    """Rounds of exchanges inside groups of one size after which every rank has what all had; the shortest first."""
    n = wires.ranks
    every = cliques(wires, n)
    by_size = {
        size: tuple(_partitions(n, [c for c in every if len(c) == size])) for size in range(2, n + 1) if n % size == 0
    }
    found: list[tuple[Partition, ...]] = []

    def extend(before: tuple[Partition, ...], known: tuple[int, ...], count: int) -> None:
        if len(found) >= _MOST_SEQUENCES:
            return
        if count == n:
            found.append(before)
            return
        for size, partitions in by_size.items():
            if n % (count * size) == 0:
                for partition in partitions:
                    after = _exchanged(known, partition)
                    if after is not None:
                        extend((*before, partition), after, count * size)

    extend((), tuple(1 << rank for rank in range(n)), 1)
    return sorted(found, key=len)


def _exchanged(known: tuple[int, ...], partition: Partition) -> tuple[int, ...] | None:
    """Whose contributions each rank has after the exchange; None if some would count twice."""
    after = list(known)
    for group in partition:
        whole = 0
        for rank in group:
            if whole & known[rank]:
                return None
            whole |= known[rank]
        for rank in group:
            after[rank] = whole
    return tuple(after)


def _partitions(n: int, groups: list[Clique], taken: frozenset[int] = frozenset()) -> list[Partition]:
    """All ways to divide the ranks among the groups."""
    free = next((rank for rank in range(n) if rank not in taken), None)
    if free is None:
        return [()]
    return [
        (group, *rest)
        for group in groups
        if free in group and not taken & {*group}
        for rest in _partitions(n, groups, taken | {*group})
    ]


def _joined(wires: Wires) -> Floats:
    joined = np.zeros((wires.ranks, wires.ranks))
    joined[wires.src, wires.dst] = 1
    return joined
