"""Broadcast: what the trees of all bytes cost, with links of the root that cost most at first, and of others at last.

In an allreduce the data of every rank is broadcast, with that of others in the same messages.
What the root sends late reaches few others in time, and what others send early is little. With prices for the time on
links, every byte's tree costs at least what the cheapest tree does, and all links together are worth so much.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.bounds.time.delays import SECOND, Delays, delays
from blinksim.bounds.time.theorems.messages import Spreading
from blinksim.bounds.time.theorems.searched import Choice, Searched
from blinksim.bounds.time.time_certificate import in_words
from blinksim.collective import Collective
from blinksim.topology.graph import Topology

Floats = npt.NDArray[np.float64]
# More bytes times femtoseconds than ever are.
_ENDLESS = 1e300


class TimedPrices(Searched):
    """All links are worth less than what the cheapest trees of all bytes cost.

    A message that keeps its first link busy from s to x carries what takes x - s - o, so a byte in it costs the price's
    integral from s to x over that. A rank that has a byte sends it in one message after another on every link.
    """

    kind = "timed-prices"
    # By which part the root's price has fallen at the end; from which part of the time on others cost anything, and
    # what at the end. Of 90 such triples, those of which one is within 2 % of the best on links and switches of 4 to 16
    # ranks.
    choices = (
        (0.9, 0.2, 0.1),
        (0.8, 0.4, 0.15),
        (1.0, 0.2, 0.1),
        (1.0, 0.4, 0.05),
        (1.0, 0.1, 0.06),
        (0.8, 0.1, 0.1),
        (0.9, 0.4, 0.15),
        (1.0, 0.4, 0.15),
    )
    coarse, fine = 48, 208

    def __init__(self, facts: Delays, size: int, part: Sequence[str]) -> None:
        super().__init__(facts, size, part)
        (source,) = (facts.topology.index[name] for name in part)
        spreading = Spreading.among(facts)
        assert spreading is not None
        self.spreading = spreading
        firsts = [(rank, e) for rank in facts.ranks for e in facts.first_hops(rank)]
        self.rates = tuple(
            sum(facts.rate[e] * self.n for rank, e in firsts if (rank == source) == own) for own in (True, False)
        )
        # No message with more than `size` bytes is of use, and the link is busy so long for one of them.
        self.longest = max(facts.overhead[e] + -(-size * facts.scale * SECOND // facts.rate[e]) for _, e in firsts)

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> list[tuple[tuple[str, ...], ...]]:
        return super().places(topology, collective) if Spreading.among(delays(topology, collective)) else []

    def brings(self, time: int, choices: Sequence[Choice], steps: int) -> list[float]:
        """What all links are worth by a time over what a byte costs."""
        one = self.spreading
        late = one.message - one.spacing
        return _worth(self.n, one.ports, time, (one.spacing, late, self.longest), self.rates, tuple(choices), steps)

    def table(self, time: int) -> dict[str, Any]:
        root, since, others = self.best(time)
        return {"root_falls_by": root, "others_rise_from": since, "others_rise_to": others, "steps": self.fine}

    def words(self, time: int) -> str:
        return (
            f"with prices for time on links that fall for those of the root and rise for others, what all links are "
            f"worth within {in_words(time)} does not pay for trees that bring all bytes to {self.n} ranks"
        )


def _worth(
    n: int,
    ports: int,
    time: int,
    message: tuple[int, int, int],
    rates: tuple[int, ...],
    prices: tuple[Choice, ...],
    steps: int,
) -> list[float]:
    """Bytes times femtoseconds per rate: what links are worth over the cost of a byte, for each of the prices.

    message: the overhead and the latency of one, and how long it keeps a link busy at the most.
    """
    step = -(-time // steps)
    root, other = _priced(time - message[1], step, prices, steps)
    worth = (rates[0] * root.sum(axis=1) + rates[1] * other.sum(axis=1)) * step
    cost = _least(n, ports, root, other, step, message)
    # At prices by which some tree is free, everything may be brought.
    return [float(one) for one in np.divide(worth, cost, out=np.full(len(cost), _ENDLESS), where=cost > 0)]


def _priced(end: int, step: int, prices: tuple[Choice, ...], steps: int) -> tuple[Floats, Floats]:
    """(prices, steps): what a femtosecond of a link of the root costs in every step, and of another link.

    end: nothing that is still on its first link then arrives in time.
    """
    fall, since, top = (np.array(column)[:, None] for column in zip(*prices, strict=True))
    end = max(1, end)
    middle = (np.arange(steps) + 0.5) * step
    used = np.arange(steps) * step < end
    root = np.maximum(0.0, 1.0 - fall * middle / end) * used
    return root, top * np.clip((middle - since * end) / (end - since * end), 0.0, 1.0) * used


def _least(n: int, ports: int, root: Floats, other: Floats, step: int, message: tuple[int, int, int]) -> Floats:
    """(prices,): the least cost of a byte that the root brings to all others, in femtoseconds."""
    overhead, longest, late = message[0], message[2], message[1] // step
    paid = _trees(n, ports, _cells(other, step, overhead, longest), late)
    return _trees(n, ports, _cells(root, step, overhead, longest), late, paid)[:, n - 1, 0]


def _cells(price: Floats, step: int, overhead: int, longest: int) -> Floats:
    """(prices, steps, steps): the least cost of a byte in a message that starts in one step and ends in another.

    longest: it takes no longer than that. The price is constant in a step, so cost is a quotient of linear functions of
    start and end: least at a corner.
    """
    spent = np.concatenate((np.zeros((len(price), 1)), np.cumsum(price, axis=1)), axis=1) * step
    marks = np.arange(spent.shape[1])
    data = (marks - marks[:, None]) * float(step) - overhead
    carries = data > 0
    corner = np.full((len(price), *data.shape), np.inf)
    np.divide(spent[:, None, :] - spent[:, :, None], data, out=corner, where=carries)
    cells = np.minimum(
        np.minimum(corner[:, :-1, :-1], corner[:, 1:, :-1]), np.minimum(corner[:, :-1, 1:], corner[:, 1:, 1:])
    )
    # From the end of the step in which it starts to the beginning of the one in which it ends.
    cells[:, (marks[:-1] - marks[:-1, None] - 1) * float(step) > longest] = np.inf
    return cells


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
