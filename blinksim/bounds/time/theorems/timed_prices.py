"""Broadcast: what the trees of all bytes cost, with links of the root that cost most at first, and of others at last.

What the root sends late reaches few others in time, and what others send early is little. With prices for the time on
links, every byte's tree costs at least what the cheapest tree does, and all links together are worth so much.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.bounds.time.delays import Delays, delays
from blinksim.bounds.time.theorems.messages import Spreading
from blinksim.bounds.time.theorems.theorem import Theorem, block, only_ranks_hold, units
from blinksim.bounds.time.time_certificate import in_words
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Topology

Place = Iterable[Iterable[str]]
Floats = npt.NDArray[np.float64]
Prices = tuple[tuple[float, float, float], ...]
# By which part the root's price has fallen at the end; from which part of the time on others cost anything, and what at
# the end. Of 90 such triples, those of which one is within 2 % of the best on links and switches of 4 to 16 ranks.
_PRICES: Prices = (
    (0.9, 0.2, 0.1),
    (0.8, 0.4, 0.15),
    (1.0, 0.2, 0.1),
    (1.0, 0.4, 0.05),
    (1.0, 0.1, 0.06),
    (0.8, 0.1, 0.1),
    (0.9, 0.4, 0.15),
    (1.0, 0.4, 0.15),
)
# Ranks up to which the recursion is done; steps of the time, for the search among prices and for the proof.
_MOST_RANKS, _COARSE, _FINE = 16, 48, 240
# Sums of floats are off by far less than this part, and the searches for a time stop at the others.
_SAFE, _ROUGH, _CLOSE = 2.0**-30, 5, 9
# More bytes times femtoseconds than ever are.
_ENDLESS = 1e300


class TimedPrices(Theorem):
    """All links are worth less than what the cheapest trees of all bytes cost.

    A message that keeps its first link busy from s to x carries what takes x - s - o, so a byte in it costs the price's
    integral from s to x over that. A rank that has a byte sends it in one message after another on every link.
    """

    kind = "timed-prices"

    def __init__(self, facts: Delays, size: int) -> None:
        spreading = Spreading.among(facts)
        assert spreading is not None
        self.facts, self.n, self.spreading = facts, facts.topology.ranks, spreading
        root = facts.ranks[facts.collective.root]
        links = [(rank, facts.rate[e] * self.n) for rank in facts.ranks for e in facts.first_hops(rank)]
        self.rates = tuple(sum(rate for rank, rate in links if (rank == root) == own) for own in (True, False))
        self.all = block(facts, size) * self.n

    @classmethod
    def stated(cls, topology: Topology, collective: Collective, size: int, where: Place) -> TimedPrices:
        """where: nothing, it is about all ranks."""
        if [*where] or not cls.places(topology, collective):
            raise InputError(f"timed-prices says nothing about {collective} on {topology.name}")
        return cls(delays(topology, collective), size)

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> list[tuple[tuple[str, ...], ...]]:
        if collective.name != "broadcast" or not 2 < topology.ranks <= _MOST_RANKS:
            return []
        facts = delays(topology, collective)
        paid = all(facts.overhead[e] for rank in facts.ranks for e in facts.first_hops(rank))
        return [()] if paid and only_ranks_hold(facts) and Spreading.among(facts) else []

    def there(self, time: int) -> int:
        return self._brought(time, self._best(time), _FINE)

    def needed(self, time: int) -> int:
        return self.all

    def _best(self, time: int) -> Prices:
        """The prices that say the least of a time by a coarse sum."""
        found = self._found(time, _PRICES, _COARSE)
        return (_PRICES[found.index(min(found))],)

    def _found(self, time: int, prices: Prices, steps: int) -> list[float]:
        one = self.spreading
        return _worth(self.n, one.ports, time, one.spacing, one.message - one.spacing, self.rates, prices, steps)

    def _brought(self, time: int, prices: Prices, steps: int) -> int:
        """What links are worth by a time, over what a byte costs, with the best of the prices; rounded up."""
        return ceil(min(self._found(time, prices, steps)) * (1 + _SAFE))

    def latest(self, low: int = 0) -> int:
        """The latest time before which nothing ends, but for some parts in a thousand; 0 if none is after `low`."""
        if self._brought(low + 1, _PRICES, _COARSE) >= self.all:
            return 0
        good = self._last(low + 1, _PRICES, _COARSE, _ROUGH)
        good = self._last(good, self._best(good), _FINE, _CLOSE)
        rounded = good - good % 10**6
        return next((time for time in (rounded, good) if time > low and self.proves(time)), 0)

    def _last(self, good: int, prices: Prices, steps: int, close: int) -> int:
        """The last time by which too little is brought, but for a part in 2**close; `good` if that is none."""
        bad, lacks, more = good, 0, 0
        step = max(good >> (close // 2), 10**6)
        while (brought := self._brought(bad, prices, steps)) < self.all:
            good, lacks, bad, step = bad, self.all - brought, bad + step, 4 * step
        more = brought - self.all
        while bad - good > good >> close:
            # Where a line says that it is enough, on either side of it by turns.
            guess = good + (bad - good) * lacks // (lacks + more) if lacks else (good + bad) // 2
            least = max(1, good >> (close + 1))
            middle = min(max(guess + (least if guess - good > bad - guess else -least), good + least), bad - least)
            brought = self._brought(middle, prices, steps)
            if brought < self.all:
                good, lacks = middle, self.all - brought
            else:
                bad, more = middle, brought - self.all
        return good

    def unit(self) -> int:
        return units(self.facts)

    def table(self, time: int) -> dict[str, Any]:
        ((root, since, others),) = self._best(time)
        return {"root_falls_by": root, "others_rise_from": since, "others_rise_to": others, "steps": _FINE}

    def words(self, time: int) -> str:
        return (
            f"with prices for time on links that fall for those of the root and rise for others, what all links are "
            f"worth within {in_words(time)} does not pay for trees that bring all bytes to {self.n} ranks"
        )


@lru_cache(maxsize=16)
def _worth(
    n: int,
    ports: int,
    time: int,
    overhead: int,
    latency: int,
    rates: tuple[int, ...],
    prices: Prices,
    steps: int,
) -> list[float]:
    """Bytes times femtoseconds per rate: what links are worth over the cost of a byte, for each of the prices."""
    step = -(-time // steps)
    root, other = _priced(time - latency, step, prices, steps)
    worth = (rates[0] * root.sum(axis=1) + rates[1] * other.sum(axis=1)) * step
    cost = _least(n, ports, root, other, step, overhead, latency)
    # At prices by which some tree is free, everything may be brought.
    return [float(one) for one in np.divide(worth, cost, out=np.full(len(cost), _ENDLESS), where=cost > 0)]


def _priced(end: int, step: int, prices: Prices, steps: int) -> tuple[Floats, Floats]:
    """(prices, steps): what a femtosecond of a link of the root costs in every step, and of another link.

    end: nothing that is still on its first link then arrives in time.
    """
    fall, since, top = (np.array(column)[:, None] for column in zip(*prices, strict=True))
    end = max(1, end)
    middle = (np.arange(steps) + 0.5) * step
    used = np.arange(steps) * step < end
    root = np.maximum(0.0, 1.0 - fall * middle / end) * used
    return root, top * np.clip((middle - since * end) / (end - since * end), 0.0, 1.0) * used


def _least(n: int, ports: int, root: Floats, other: Floats, step: int, overhead: int, latency: int) -> Floats:
    """(prices,): the least cost of a byte that the root brings to all others, in femtoseconds."""
    late = latency // step
    paid = _trees(n, ports, _cells(other, step, overhead), late)
    return _trees(n, ports, _cells(root, step, overhead), late, paid)[:, n - 1, 0]


def _cells(price: Floats, step: int, overhead: int) -> Floats:
    """(prices, steps, steps): the least cost of a byte in a message that starts in one step and ends in another.

    The price is constant in a step, so cost is a quotient of linear functions of start and end: least at a corner.
    """
    spent = np.concatenate((np.zeros((len(price), 1)), np.cumsum(price, axis=1)), axis=1) * step
    marks = np.arange(spent.shape[1])
    data = (marks - marks[:, None]) * float(step) - overhead
    carries = data > 0
    corner = np.full((len(price), *data.shape), np.inf)
    np.divide(spent[:, None, :] - spent[:, :, None], data, out=corner, where=carries)
    return np.minimum(
        np.minimum(corner[:, :-1, :-1], corner[:, 1:, :-1]), np.minimum(corner[:, :-1, 1:], corner[:, 1:, 1:])
    )


def _trees(n: int, ports: int, cells: Floats, late: int, others: Floats | None = None) -> Floats:
    """(prices, n, steps + 1): the least cost for a rank to serve so many others from a time on.

    others: the same for whoever gets a message, if that has other prices.
    """
    count, steps, _ = cells.shape
    # served[p]: through p + 1 links at most.
    served: Floats = np.full((min(ports, n - 1), count, n, steps + 1), np.inf)
    served[:, :, 0] = 0.0
    port, total = served[0], served[-1]
    theirs = total if others is None else others
    ends = steps - late
    for r in range(1, n if ends > 0 else 1):
        both = np.full((count, steps), np.inf)
        # Whoever gets the message serves j - 1 others, the sender goes on with r - j.
        both[:, :ends] = (theirs[:, :r, late:steps] + port[:, r - 1 :: -1, :ends][:, :r]).min(axis=1)
        port[:, r, :steps] = (cells + both[:, None, :]).min(axis=2)
        port[:, r] = np.minimum.accumulate(port[:, r, ::-1], axis=1)[:, ::-1]
        for fewer, more in pairwise(served):
            more[:, r] = (fewer[:, r::-1][:, : r + 1] + port[:, : r + 1]).min(axis=1)
    return np.asarray(total)
