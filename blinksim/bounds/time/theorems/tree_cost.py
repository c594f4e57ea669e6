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
_MOST_RANKS, _STEPS = 16, 192
# Sums of floats are off by far less than this part, and the search for a time stops at the other one.
_SAFE, _CLOSE = 2.0**-30, 11
_KINDS = ("allgather", "allreduce")


class TreeCost(Theorem):
    """All ports together have no more time than what the messages of all bytes cost.

    Allreduce: what one rank contributes must reach all, and the other messages, of 2(n - 1) or more (Harary and
    Schwenk 1974), cost something too; a byte has one message on each port at a time, so not all of them can be long.
    And take the rank that is last to have a message with what it contributes out: all n first such messages are short
    where this one is out early, and all else that tells others of that rank starts later.
    """

    kind = "tree-cost"

    def __init__(self, facts: Delays, size: int) -> None:
        topology = facts.topology
        self.facts, self.n, self.name = facts, topology.ranks, facts.collective.name
        spreading = Spreading.among(facts)
        assert spreading is not None
        self.overhead, self.latency = spreading.spacing, spreading.message - spreading.spacing
        self.rates = {rank: sum(facts.rate[e] for e in facts.first_hops(rank)) for rank in facts.ranks}
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
        cost = float(trees[self.n, -1])
        if self.name == "allreduce":
            cost = max(self._twice(time, cost), self._in_turn(time, step, trees))
        return _down(cost)

    def _in_turn(self, time: int, step: int, trees: Any) -> float:
        """The least cost of n first messages and of what tells of the last one's rank, whenever that one arrives."""
        import numpy as np

        n, late = self.n, min(-(-self.latency // step), _STEPS)
        # Within i steps after that message arrives: of its receiver, and of the rank itself, which is free earlier.
        own = np.concatenate((trees[:, late:], np.repeat(trees[:, -1:], late, axis=1)), axis=1)
        rest = (trees[1:n] + own[n - 1 : 0 : -1]).min(axis=0)
        # It arrives after more than a - 1 steps and within a, so that at most steps - a + 1 are left.
        first = np.array([_stretch(a * step - self.latency, self.overhead) for a in range(1, _STEPS + 1)])
        return float((n * first + rest[_STEPS:0:-1]).min())

    def _twice(self, time: int, cost: float) -> float:
        left = time - self.latency
        n, best = self.n, float("inf")
        for messages in range(2 * n - 2, n * n):
            short = _stretch(n * left / messages, self.overhead)
            best = min(best, max(messages * short, cost + (messages - n + 1) * _stretch(left, self.overhead)))
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
    """C (n + 1, steps + 1): the least cost from one rank to k within i steps of time, rounded down.

    The first message keeps the port busy for more than a - 1 steps and up to a.
    """
    import numpy as np

    late = min(latency // step, _STEPS + 1)
    stretch = np.array([_stretch(a * step, overhead) for a in range(1, _STEPS + 1)])
    cost, theirs = np.full((2, n + 1, _STEPS + 1), np.inf)
    padded = np.full(2 * _STEPS + 1, np.inf)
    # With i steps and a message of a steps, i - a + 1 are left.
    left = np.lib.stride_tricks.sliding_window_view(padded, _STEPS)[1:, ::-1]
    cost[1] = 0.0
    for k in range(2, n + 1):
        theirs[k - 1, late:] = cost[k - 1, : _STEPS + 1 - late]
        # What both cost with m steps left for the sender, and as many less the latency for the other one.
        padded[_STEPS:] = (cost[k - 1 : 0 : -1] + theirs[1:k]).min(axis=0)
        cost[k] = (left + stretch).min(axis=1)
    return cost
