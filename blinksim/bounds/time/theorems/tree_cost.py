"""What it costs to bring a byte to all ranks where every rank sends over one port: many short messages or a few long.

A message that keeps a port busy for d carries what takes d - o: it costs d/(d - o) of the time of its bytes. A rank
that has a byte sends it in one message after another. So the least cost within a time h, from one rank to k, is the
least of d/(d - o) + C_j(h - d - L) + C_{k-j}(h - d) over d and j, and says how much time all ports need.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from blinksim.bounds.time.delays import Delays, delays
from blinksim.bounds.time.theorems.messages import Spreading
from blinksim.bounds.time.theorems.theorem import Theorem, block, only_ranks_hold, units
from blinksim.bounds.time.time_certificate import in_words
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Topology

Place = Iterable[Iterable[str]]
# Ranks up to which the recursion is done, and the steps that a time is cut into.
_MOST_RANKS, _STEPS = 16, 96
# What the messages of others than the root count, beside the root's.
_PRICES = (0.2, 0.45, 1.0)
# Sums of floats are off by far less than this part, and the search for a time stops at the other one.
_SAFE, _CLOSE = 2.0**-30, 11
_KINDS = ("allgather", "allreduce", "broadcast")


class TreeCost(Theorem):
    """All ports together have no more time than what the messages of all bytes cost.

    Broadcast: the root's port counts in full, that of another rank in part, and only from when the rank can have
    heard. Allreduce: what one rank contributes must reach all, and the other messages, of 2(n - 1) or more (Harary and
    Schwenk 1974), cost something too; a byte has one message on each port at a time, so not all of them can be long.
    """

    kind = "tree-cost"

    def __init__(self, facts: Delays, size: int) -> None:
        topology = facts.topology
        self.facts, self.n, self.name = facts, topology.ranks, facts.collective.name
        spreading = Spreading.among(facts)
        assert spreading is not None
        self.overhead, self.latency = spreading.spacing, spreading.message - spreading.spacing
        self.rates = {rank: sum(facts.rate[e] for e in facts.first_hops(rank)) for rank in facts.ranks}
        self.jumps = spreading.jumps(self.n)
        self.all = block(facts, size) * self.n

    @classmethod
    def stated(cls, topology: Topology, collective: Collective, size: int, where: Place) -> TreeCost:
        """where: nothing, it is about all ranks."""
        if [*where] or not cls.places(topology, collective):
            raise InputError(f"tree-cost says nothing about {collective} on {topology.name}")
        return cls(delays(topology, collective), size)

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> list[tuple[tuple[str, ...], ...]]:
        facts = delays(topology, collective)
        if collective.name not in _KINDS or not 2 < topology.ranks <= _MOST_RANKS or not only_ranks_hold(facts):
            return []
        spreading = Spreading.among(facts)
        ports = all(sum(src == rank for src in facts.src) == 1 for rank in facts.ranks)
        return [()] if ports and spreading is not None and spreading.spacing else []

    def there(self, time: int) -> int:
        return sum(self.rates.values()) * self.n * max(0, time - self.latency)

    def needed(self, time: int) -> Fraction:
        return self.all * self._cost(time)

    def _cost(self, time: int) -> Fraction:
        """Byte times of ports that a byte of the size needs, as if all of `there` were as good; rounded down."""
        step = max(1, -(-time // _STEPS))
        trees = _trees(self.n, time, step, self.overhead, self.latency)
        if self.name == "broadcast":
            return self._from_root(time, trees)
        cost = float(trees[self.n, -1])
        if self.name == "allreduce":
            cost = self._twice(time, cost)
        return _down(cost)

    def _twice(self, time: int, cost: float) -> float:
        left = time - self.latency
        n, best = self.n, float("inf")
        for messages in range(2 * n - 2, n * n):
            short = _stretch(n * left / messages, self.overhead)
            best = min(best, max(messages * short, cost + (messages - n + 1) * _stretch(left, self.overhead)))
        return best

    def _from_root(self, time: int, trees: Any) -> Fraction:
        root = self.facts.ranks[self.facts.collective.root]
        others = max(rate for rank, rate in self.rates.items() if rank != root)
        left = max(0, time - self.latency)
        late = sum(max(0, left - jump) for jump in self.jumps[1:])
        step = max(1, -(-time // _STEPS))
        best = Fraction(0)
        for price in _PRICES:
            cost = _rooted(self.n, time, step, self.overhead, self.latency, price)
            exact = Fraction(price)
            worth = self.rates[root] * left + exact * others * late
            if not worth:
                return Fraction(1)
            best = max(best, _down(cost) * sum(self.rates.values()) * left / worth)
        return best

    def latest(self, low: int = 0) -> int:
        """The latest time before which nothing ends, but for a part in some thousands; 0 if none is after `low`."""
        if not self.short(low + 1):
            return 0
        good, bad = low + 1, max(2 * low, 10**6)
        while self.short(bad):
            good, bad = bad, 2 * bad
        while bad - good > good >> _CLOSE:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if self.short(middle) else (good, middle)
        rounded = good - good % 10**6
        return next((time for time in (rounded, good) if time > low and self.proves(time)), 0)

    def unit(self) -> int:
        return units(self.facts)

    def table(self, time: int) -> dict[str, Any]:
        return {"byte_times_exact": str(self._cost(time))}

    def words(self, time: int) -> str:
        return (
            f"within {in_words(time)} the messages that bring a byte to {self.n} ranks take "
            f"{float(self._cost(time)):.4g} times its time on a port, with their overheads"
        )


def _down(cost: float) -> Fraction:
    """As an exact number, rounded down."""
    return Fraction(int(cost * (1 - _SAFE) * 2**30), 2**30) if cost < 2**30 else Fraction(2**30)


def _stretch(busy: float, overhead: int) -> float:
    """Port time of a message over the time of its bytes."""
    return busy / (busy - overhead) if busy > overhead else float("inf")


@lru_cache(maxsize=8)
def _trees(n: int, time: int, step: int, overhead: int, latency: int) -> Any:
    """C (n + 1, steps + 1): the least cost from one rank to k within i steps of time, rounded down."""
    import numpy as np

    cost = np.full((n + 1, _STEPS + 1), np.inf)
    cost[1] = 0.0
    for k in range(2, n + 1):
        cost[k] = _grown(cost, cost, k, step, overhead, latency, 1.0)
    return cost


def _rooted(n: int, time: int, step: int, overhead: int, latency: int, price: float) -> float:
    """As `_trees`, where messages of all but the first rank cost a part of theirs."""
    import numpy as np

    trees = _trees(n, time, step, overhead, latency)
    cost = np.full((n + 1, _STEPS + 1), np.inf)
    cost[1] = 0.0
    for k in range(2, n + 1):
        cost[k] = _grown(cost, trees, k, step, overhead, latency, price)
    return float(cost[n, -1])


def _grown(own: Any, others: Any, k: int, step: int, overhead: int, latency: int, price: float) -> Any:
    """C_k for every number of steps: the first message keeps the port busy for more than a - 1 steps and up to a.

    own: of the rank itself. others: of the rank that gets the message, which cost `price` each.
    """
    import numpy as np

    late = min(latency // step, _STEPS + 1)
    # What both cost with m steps left for the sender, and as many less the latency for the other one.
    both = np.full(_STEPS + 1, np.inf)
    for j in range(1, k):
        theirs = np.full(_STEPS + 1, np.inf)
        theirs[late:] = price * others[j][: _STEPS + 1 - late]
        both = np.minimum(both, own[k - j] + theirs)
    stretch = np.array([_stretch(a * step, overhead) for a in range(1, _STEPS + 1)])
    # With i steps and a message of a steps, i - a + 1 are left.
    padded = np.concatenate((np.full(_STEPS, np.inf), both))
    left = np.lib.stride_tricks.sliding_window_view(padded, _STEPS)[1:, ::-1]
    return (left + stretch).min(axis=1)
