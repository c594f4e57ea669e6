"""The bound that a schedule is measured against, and how far below it its loads stay."""

from __future__ import annotations

from blinksim.bounds.bound_result import BoundResult
from blinksim.schedule.loads import rate
from blinksim.schedule.model import Schedule


def with_gap(schedule: Schedule, bound: BoundResult) -> Schedule:
    """The schedule with the headline of `bound` and `gap_exact`: 1 - rate/bound as "p/q", ``"0"`` at the bound."""
    achieved = rate(schedule)
    if achieved is None:
        return schedule
    headline = bound.headline.to_dict(schedule.topology, schedule.collective)
    return schedule.with_bound(headline | {"gap_exact": str(1 - achieved / bound.rate)})
