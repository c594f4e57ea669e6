"""Alpha-beta time of a schedule in steps form, by its outline (`blinksim.schedule.outlines`)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from blinksim.cost.alpha_beta import Cost, Floats
from blinksim.cost.pipelines.paced import Step, paced
from blinksim.cost.terms import Term
from blinksim.schedule.model import REDUCE
from blinksim.schedule.outlines.link_uses import LinkUse
from blinksim.schedule.outlines.outline import Exchange, Outline, Round


def outlined_cost(outline: Outline, size: int, gamma: float = 0.0, *, whole_messages: bool = False) -> Cost:
    """As `blinksim.cost.alpha_beta.cost` of the schedule itself, for `size` bytes."""
    shared, uses = outline.shared, outline.uses
    seconds = size / shared.rates
    runs: list[tuple[Step, int]] = []
    reduction = 0.0
    last: tuple[Exchange, Fraction] | None = None
    for one, use in zip(outline.rounds, uses, strict=True):
        key = one.exchange, one.message
        if key == last:
            # A ring that gathers what it has reduced goes on with the same step.
            runs[-1] = runs[-1][0], runs[-1][1] + one.times
        else:
            runs.append((_step(outline, one, use, seconds), one.times))
        last = key
        if one.op == REDUCE:
            into = one.exchange.most_into_one(outline.topology.ranks)
            reduction += one.times * gamma * size * float(one.message) * into
    total, whole = outline.loads(uses)
    busy = total / whole * seconds
    place = int(np.argmax(busy))
    drain = Term(f"bandwidth of {shared.kinds[place]}", float(busy[place]), shared.kinds[place])
    terms, pieces = paced(runs, shared.kinds, drain, outline.steps, whole_messages)
    terms += (Term("reduction", reduction, "gamma"),) if reduction else ()
    time = sum(term.time_s for term in terms)
    return Cost(terms, shared.names[place], float(busy[place] / time), outline.steps, pieces)


def _step(outline: Outline, one: Round, use: LinkUse, seconds: Floats) -> Step:
    """A round as a step; seconds: of the size, on every resource."""
    shared, overhead, count = outline.shared, outline.topology.link_columns.overhead, len(seconds)
    load = shared.of_links(use.units) * (float(one.message) / use.parts) * seconds
    alpha, longest = np.zeros(count), np.zeros(count)
    np.maximum.at(alpha, shared.members, np.repeat(use.alpha, np.diff(shared.starts)))
    resource = shared.of_link
    messages = outline.messages(use)
    started = np.flatnonzero(messages)
    np.maximum.at(longest, resource[started], overhead[started])
    each = np.bincount(resource, overhead * messages, count)
    return Step.of(load, alpha, np.asarray(each, dtype=np.float64), longest, one.channels)
