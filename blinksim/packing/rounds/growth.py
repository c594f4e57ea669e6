"""The cheapest trees of rounds: in every round some ranks that have the data send it to some that do not.

Over all sets of ranks that may have it, after every round: 3**n cases a round.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from blinksim.packing.rounds.wires import FAR, MOST_RANKS, Floats, Ints


class Sets:
    """All sets of n ranks as bit masks, and all ways in which one can grow in a round.

    before, new : array (T), sorted by `before`. first (2^n - 2): where the ways of each set begin, from set 1 on.
    """

    def __init__(self, n: int) -> None:
        self.n, self.full = n, (1 << n) - 1
        every = np.arange(1 << n)
        before, new = (grid.ravel() for grid in np.meshgrid(every[1:-1], every[1:], indexing="ij"))
        apart = (before & new) == 0
        self.before, self.new = before[apart], new[apart]
        self.first = np.flatnonzero(np.diff(self.before, prepend=0))
        self.bits = ((self.new[:, None] >> np.arange(n)) & 1).astype(np.float64)

    def costs(self, pair: Floats) -> Floats:
        """What each way of growing costs. pair: (n, n), from rank to rank."""
        least = np.full((1 << self.n, self.n), FAR)
        for rank in range(self.n):
            least[1 << rank : 2 << rank] = np.minimum(least[: 1 << rank], pair[rank])
        return np.asarray(np.minimum((least[self.before] * self.bits).sum(axis=1), FAR))


@lru_cache(maxsize=MOST_RANKS)
def sets_of(n: int) -> Sets:
    """Those of n ranks."""
    return Sets(n)


class Growth:
    """The least cost of reaching all ranks from each set of them, from each round on.

    left (K + 1, 2^n): by round and set. pair, which: (K, n, n), of `Wires.between`.
    """

    def __init__(self, pair: Floats, which: Ints) -> None:
        self.pair, self.which, self.sets = pair, which, sets_of(pair.shape[1])
        rounds = len(pair)
        self.left = np.full((rounds + 1, self.sets.full + 1), FAR)
        self.left[:, self.sets.full] = 0.0
        self._costs = [self.sets.costs(one) for one in pair]
        for now in range(rounds - 1, -1, -1):
            least = np.minimum.reduceat(self._ways(now), self.sets.first)
            self.left[now, 1:-1] = np.minimum(self.left[now + 1, 1:-1], least)

    def _ways(self, now: int) -> Floats:
        there = self.left[now + 1, self.sets.before | self.sets.new]
        return np.asarray(self._costs[now] + there)

    def sends(self, have: int, start: int) -> list[tuple[int, int]]:
        """The sends of a cheapest tree: (round, wire). have: the set that has the data before round `start`."""
        found, sets = list[tuple[int, int]](), self.sets
        for now in range(start, len(self.pair)):
            if have == sets.full:
                break
            if self.left[now + 1, have] <= self.left[now, have]:
                continue
            first = int(sets.first[have - 1])
            last = int(sets.first[have]) if have < len(sets.first) else len(sets.before)
            ways = slice(first, last)
            best = first + int(np.argmin(self._costs[now][ways] + self.left[now + 1, have | sets.new[ways]]))
            holders = [rank for rank in range(sets.n) if have >> rank & 1]
            for rank in range(sets.n):
                if sets.new[best] >> rank & 1:
                    source = min(holders, key=lambda one: self.pair[now, one, rank])
                    found.append((now, int(self.which[now, source, rank])))
            have |= int(sets.new[best])
        return found
