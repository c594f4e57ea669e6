"""How far a schedule's rate is from the bound, by the claim that `blinksim.synthesize` adds."""

from __future__ import annotations

from blinksim.algorithms.building.plan import claim
from blinksim.algorithms.registry import algorithm
from blinksim.bounds.compute import bound
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import Schedule


def proved(schedule: Schedule) -> Schedule:
    """The schedule with its bound, its sends divided among all equal ways if they may be."""
    divided = schedule if algorithm(schedule.algorithm).routes else Candidate.of(schedule).schedule
    known = bound(schedule.topology, schedule.collective, in_network=True)
    return divided.with_bound(claim(divided, known))


def gap(schedule: Schedule) -> str:
    """1 - rate/bound as a fraction."""
    return str(proved(schedule).bound["gap_exact"])
