"""The simulator as a timing model: every piece at every link (`blinksim.timing.simulator`)."""

from __future__ import annotations

from typing import ClassVar

from blinksim.errors import InfeasibleError
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import Schedule
from blinksim.timing.simulator import simulate
from blinksim.timing.timing_model import Breakdown, ScheduleModel

ENTRIES = ({"name": "simulate", "class": "Simulated", "schedules": True, "place": 4},)

# Sends, and events of one run, up to which a simulation is an answer within seconds.
MOST_SENDS = 100_000
MOST_EVENTS = 2_000_000


class Simulated(ScheduleModel):
    """A discrete-event simulation of the schedule, with the piece size that takes the least time."""

    name = "simulate"
    # Each step of the search for a crossover costs two simulations, and their times jump with the number of
    # pieces.
    crossover_precision: ClassVar[int | None] = 50

    def check_schedule(self, candidate: Candidate) -> None:
        schedule, sends = candidate.compact, candidate.sends
        if sends > MOST_SENDS:
            fewer = "double_binary, fewer ranks" if schedule.collective.name == "allreduce" else "fewer ranks"
            who = f"{schedule.algorithm} on {schedule.topology.ranks} ranks has {sends:,} sends"
            most = f"model='simulate' takes at most {MOST_SENDS:,}; take {fewer} or model='alpha-beta'"
            raise InfeasibleError(f"{who}, and {most}, or synthesize the schedule and simulate it with chunk=")

    def breakdown(self, schedule: Schedule, size: int, gamma: float) -> Breakdown:
        self.check_schedule(Candidate(schedule))
        timeline = simulate(schedule, size, gamma=gamma, most_events=MOST_EVENTS)
        return Breakdown(timeline.terms, timeline.uses[0].resource, {**timeline.facts, "engine": timeline.engine})
