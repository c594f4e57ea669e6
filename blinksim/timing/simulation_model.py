"""The simulator as a timing model: every piece at every link (`blinksim.simulation`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from blinksim.simulation.time_terms import check_sends, facts, projected, terms
from blinksim.timing.timing_model import Breakdown, ScheduleModel

if TYPE_CHECKING:
    from blinksim.schedule.candidate import Candidate
    from blinksim.schedule.model import Schedule


class Simulated(ScheduleModel):
    """A discrete-event simulation of the schedule, with the piece size that takes the least time."""

    name = "simulate"
    # Each step of the search for a crossover costs two simulations, and their times jump with the number of pieces.
    crossover_precision: ClassVar[int | None] = 50

    def check_schedule(self, entrant: Candidate) -> None:
        check_sends(entrant.compact, entrant.sends)

    def breakdown(self, schedule: Schedule, size: int, gamma: float) -> Breakdown:
        timeline = projected(schedule, size, gamma)
        details = {**facts(timeline), "engine": timeline.engine}
        return Breakdown(terms(timeline), timeline.uses[0].resource, details)
