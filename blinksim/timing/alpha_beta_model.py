"""Alpha-beta as a timing model: sums of loads and latencies of a schedule (`blinksim.timing.alpha_beta`)."""

from __future__ import annotations

from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import Schedule
from blinksim.timing.alpha_beta import cost
from blinksim.timing.timing_model import Breakdown, ScheduleModel

ENTRIES = ({"name": "alpha-beta", "class": "AlphaBeta", "schedules": True, "place": 1},)


class AlphaBeta(ScheduleModel):
    """Every step costs its latencies and its busiest resource; a pipeline its busiest resource and its longest path."""

    name = "alpha-beta"

    def breakdown(self, schedule: Schedule, size: int, gamma: float) -> Breakdown:
        return _broken_down(Candidate(schedule), size, gamma)

    def breakdown_of(self, candidate: Candidate, size: int, gamma: float) -> Breakdown:
        if type(self).breakdown is not AlphaBeta.breakdown:  # a subclass has its own, which takes schedules
            return super().breakdown_of(candidate, size, gamma)
        return _broken_down(candidate, size, gamma)


def _broken_down(candidate: Candidate, size: int, gamma: float) -> Breakdown:
    found = cost(candidate, size, gamma)
    details = {"bottleneck_busy": max(found.busy.values(), default=0.0), "busy_by_class": found.busy}
    details |= {"bottleneck_starts": found.starts, "steps": found.steps, "pieces": found.pieces}
    return Breakdown(found.terms, found.bottleneck, details)
