"""Allreduce: messages that are under way together, and what that costs in overheads.

Gossip takes 2(n-1) messages one after another (Harary and Schwenk 1974); fewer in a row need more at once. Many short
messages pay many overheads.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

from blinksim.bounds.time.delays import Delays, delays
from blinksim.bounds.time.theorems.message_counts import direct
from blinksim.bounds.time.theorems.theorem import Theorem, block, units
from blinksim.bounds.time.time_certificate import in_words
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Topology

Place = Iterable[Iterable[str]]
# Ranks up to which all pairs of sets of ranks are tried: 65,536 for 8.
_MOST = 8
Row = tuple[int, int, int]
"""Messages for one element, further hops of them, and how many can be under way at once."""


class Straddling(Theorem):
    """An element's messages cannot all be long, as they cannot all be under way at once.

    At any moment let k1 of an element's M messages have arrived, k2 not have started, and q be under way. At least
    n - k1 ranks sent none that arrived, and at least n - k2 ranks get none that starts later. From each of the first to
    each of the second, other than itself, a message is under way: what the one contributes is nowhere else, and nothing
    later reaches the other. `under_way` gives the largest q for which that is possible. So all M messages together are
    under way for Q times the time at most, each for its stay on its first link, d, and the least latency. A byte of a
    message takes d/(d - o) of a link's time for a byte, which is convex in d; further hops of a route cost 1 each.
    """

    kind = "straddling"

    def __init__(self, facts: Delays, size: int) -> None:
        self.facts, self.size, self.n = facts, size, facts.topology.ranks
        self.overhead, self.latency = min(facts.overhead), min(facts.latency)
        self.links = [(rate * self.n, facts.closes(link) or 0) for link, rate in enumerate(facts.rate)]
        self.all = block(facts, size) * self.n

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        return under_way(self.facts.topology)

    @classmethod
    def stated(cls, topology: Topology, collective: Collective, size: int, where: Place) -> Straddling:
        """where: nothing, it is about all ranks."""
        if [*where] or not cls.places(topology, collective):
            raise InputError(f"straddling says nothing about {collective} on {topology.name}")
        return cls(delays(topology, collective), size)

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> list[tuple[tuple[str, ...], ...]]:
        facts = delays(topology, collective)
        applies = collective.name == "allreduce" and 2 < topology.ranks <= _MOST and direct(facts)
        return [()] if applies and min(facts.overhead) else []

    def there(self, time: int) -> int:
        return sum(rate * max(0, time - idle) for rate, idle in self.links)

    def needed(self, time: int) -> Fraction:
        """The bytes of the size times the least that each costs; more than there ever is where nothing is possible."""
        best = self._best(time)
        return Fraction(10**60) if best is None else self.all * best[0]

    def _best(self, time: int) -> tuple[Fraction, Row] | None:
        """The least byte times that a byte needs, and the messages that it takes then; None if nothing is possible."""
        best: tuple[Fraction, Row] | None = None
        for row in self.rows:
            # No message costs less than 1.
            if best is not None and row[0] + row[1] >= best[0]:
                continue
            cost = self._cost(row, time)
            if cost is not None and (best is None or cost < best[0]):
                best = cost, row
        return best

    def _cost(self, row: Row, time: int) -> Fraction | None:
        """Byte times that a byte needs on links if it takes these messages; None if they cannot be done."""
        messages, further, together = row
        spent = together * time - messages * self.latency
        data = spent - messages * self.overhead
        return Fraction(messages * spent, data) + further if data > 0 else None

    def unit(self) -> int:
        return units(self.facts)

    def table(self, time: int) -> dict[str, Any]:
        best = self._best(time)
        rows = [list(row) for row in self.rows if best is None or row[0] + row[1] <= best[0]]
        return {"messages_hops_together": rows}

    def words(self, time: int) -> str:
        best = self._best(time)
        if best is None:
            return f"the messages of an allreduce of {self.n} ranks cannot follow each other within {in_words(time)}"
        cost, row = best
        return (
            f"a byte's {row[0]} messages cannot all be under way at once: with overheads they take {float(cost):.4g} "
            f"byte times on links"
        )


@lru_cache(maxsize=64)
def under_way(topology: Topology) -> tuple[Row, ...]:
    """For every number of messages and further hops the most messages that can be under way at once.

    From 2(n-1) messages to one for every ordered pair of ranks; only rows that no other one betters, those with the
    fewest messages and hops first. Tries every two sets of ranks.
    """
    import numpy as np

    n = topology.ranks
    hops = _hops(topology)
    sets = np.arange(1, 2**n)
    bits = (sets[:, None] >> np.arange(n)) & 1
    sizes = bits.sum(axis=1)
    pairs = (sizes[:, None] * sizes[None, :] - bits @ bits.T).ravel()
    further = (bits @ hops @ bits.T).ravel()
    both = (sizes[:, None] + sizes[None, :]).ravel()
    most = n * (n - 1)
    found = list[Row]()
    for level in np.flatnonzero(np.bincount(further[further <= most])):
        best = np.zeros(most + 1, dtype=np.int64)
        fits = (further <= level) & (pairs <= most)
        np.maximum.at(best, pairs[fits], both[fits])
        # With nothing under way, either all ranks have sent something that arrived or all get something later.
        best[0] = max(best[0], n)
        lacking = np.arange(most + 1) - np.maximum.accumulate(best)
        for messages in range(2 * n - 2, most + 1):
            possible = np.flatnonzero(lacking[: messages + 1] <= messages - 2 * n)
            found += [(messages, int(level), int(possible[-1]))] if len(possible) else []
    return _not_bettered(found)


def _not_bettered(rows: list[Row]) -> tuple[Row, ...]:
    """Rows than which no other one has fewer messages, fewer hops and more under way for each message."""
    import numpy as np

    messages, hops, together = np.array(sorted(rows, key=lambda row: (row[0] + row[1], row[0])), dtype=np.int64).T
    share = together[:, None] * messages
    better = (messages[:, None] <= messages) & (hops[:, None] <= hops) & (share >= share.T)
    # Of equal ones the first is kept.
    better &= ~(better.T & (np.arange(len(hops))[:, None] >= np.arange(len(hops))))
    kept = ~better.any(axis=0)
    return tuple(zip(messages[kept].tolist(), hops[kept].tolist(), together[kept].tolist(), strict=True))


def _hops(topology: Topology) -> Any:
    """Links on the shortest way between two ranks, less 1; 0 from a rank to itself."""
    import numpy as np

    n = topology.ranks
    place = {name: rank for rank, name in enumerate(topology.members)}
    away = np.full((n, n), 10**6, dtype=np.int64)
    np.fill_diagonal(away, 0)
    for link in topology.links:
        away[place[link.src], place[link.dst]] = 1
    for middle in range(n):
        away = np.minimum(away, away[:, [middle]] + away[[middle], :])
    return np.maximum(away - 1, 0)
