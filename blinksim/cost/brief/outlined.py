"""Alpha-beta time of a schedule in steps form, by its outline (`blinksim.schedule.outlines`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from blinksim.cost.alpha_beta import FURTHER, Cost, Floats
from blinksim.cost.terms import Term
from blinksim.schedule.loads import Resources
from blinksim.schedule.model import REDUCE
from blinksim.schedule.outlines.link_uses import LinkUse
from blinksim.schedule.outlines.outline import Outline, Round
from blinksim.textio.text_table import count as counted

Ints = npt.NDArray[np.int64]


def outlined_cost(outline: Outline, size: int, gamma: float = 0.0) -> Cost:
    """As `blinksim.cost.alpha_beta.cost` of the schedule itself, for `size` bytes."""
    shared, uses = outline.shared, outline.uses
    seconds = size / shared.rates
    starts = _Starts(outline, shared)
    alpha, further, reduction = 0.0, 0.0, 0.0
    by_kind: dict[str, float] = {}
    for one, use in zip(outline.rounds, uses, strict=True):
        worst, time, more = _busiest(one, use, shared, seconds, starts)
        alpha += one.times * use.alpha
        further += one.times * more
        by_kind[shared.kinds[worst]] = by_kind.get(shared.kinds[worst], 0.0) + one.times * time
        if one.op == REDUCE:
            into = one.exchange.most_into_one(outline.topology.ranks)
            reduction += one.times * gamma * size * float(one.message) * into
    terms = [Term(f"latency of {counted(outline.steps, 'step')}", alpha, "alpha")]
    terms += [Term(FURTHER, further, "alpha")] if further else []
    terms += [Term(f"bandwidth of {kind}", time, kind) for kind, time in by_kind.items()]
    terms += [Term("reduction", reduction, "gamma")] if reduction else []
    total, whole = outline.loads(uses)
    busy = total / whole * seconds
    place = int(np.argmax(busy))
    time = sum(term.time_s for term in terms)
    return Cost(tuple(terms), shared.names[place], float(busy[place] / time), outline.steps)


class _Starts:
    """Which resource every link belongs to as the first of a message, and the overhead of that."""

    def __init__(self, outline: Outline, shared: Resources) -> None:
        self.resource, self.plain = shared.members[shared.starts[:-1]], shared.plain
        self.overhead = outline.topology.link_columns.overhead

    def further(self, use: LinkUse, count: int) -> Floats:
        """Seconds of overhead on each resource, without the longest one there."""
        if self.plain:
            found = np.zeros(count)
            found[: len(self.overhead)] = self.overhead * np.maximum(use.started - 1, 0)
            return found
        longest = np.zeros(count)
        started = np.flatnonzero(use.started)
        np.maximum.at(longest, self.resource[started], self.overhead[started])
        return np.asarray(np.bincount(self.resource, self.overhead * use.started, count) - longest)


def _busiest(one: Round, use: LinkUse, shared: Resources, seconds: Floats, starts: _Starts) -> tuple[int, float, float]:
    """The resource that is busy longest in a step, how long with bytes, and how long with further overheads."""
    load = shared.of_links(use.units) * (float(one.message) / use.parts) * seconds
    more = starts.further(use, len(load))
    both = load + more
    worst = len(load) - 1 - int(np.argmax(both[::-1]))
    return worst, float(load[worst]), float(more[worst])
