"""The bound that a schedule is compared with, and the gap of its loads to it."""

from __future__ import annotations

from fractions import Fraction
from typing import TypeVar

from blinksim.bounds.bound_result import BoundResult
from blinksim.collective import Collective
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import Schedule
from blinksim.schedule.switch_work import abilities_used
from blinksim.schedule.symmetric import SymmetricSchedule
from blinksim.topology.graph import Topology

# Members from which on a schedule close to the bound is accepted, and no better one searched for.
LARGE = 384
NEARLY, _FAIRLY = Fraction(1, 100), Fraction(1, 20)


def accepted_gap(topology: Topology, collective: Collective) -> Fraction:
    """The share of the bound that trees of single hosts may miss, so that no better ones are searched for."""
    # Where a program of flows is too large, all that remains for an exchange is one route for each pair.
    return Fraction(0) if topology.ranks < LARGE else _FAIRLY if collective.exchanges else NEARLY


Form = TypeVar("Form", Schedule, SymmetricSchedule)


def with_gap(schedule: Form, bound: BoundResult, *, divided: bool = True) -> Form:
    """The schedule with the headline of `bound` and `gap_exact`: 1 - rate/bound as "p/q", ``"0"`` at the bound.

    If it has switches multicast or reduce, with the bound that grants that instead.


    The kind is ``exact`` where the schedule attains the bound, whatever was known before. Elsewhere it is
    ``upper``: a schedule claims no more than it proves. divided: the rate is that of the sends once they are
    divided among all equal ways, as the registry gives them.
    """
    base = schedule if isinstance(schedule, Schedule) else schedule.base
    achieved = (Candidate.of(base) if divided and base is schedule else Candidate(schedule)).rate
    held = bound.holding(abilities_used(base))
    headline = held.to_dict(schedule.topology, schedule.collective)
    if achieved is None:
        return schedule.with_bound(headline | {"kind": "upper"})
    gap = 1 - achieved / held.rate
    return schedule.with_bound(headline | {"kind": "upper" if gap else "exact", "gap_exact": str(gap)})


def in_two_phases(topology: Topology, collective: Collective, bound: BoundResult) -> bool:
    """Whether the first trees that are packed for an allreduce are those of an allgather: one root for every rank.

    How long these take can be stated before the network of thousands of ranks is cut.
    """
    plain = not topology.link_columns.shared and all(device.capacity is None for device in topology.devices)
    switched = len(topology.devices) > len(topology.members) + len(topology.relays)
    return collective.name == "allreduce" and plain and switched and not phases_lose(bound)


def phases_lose(bound: BoundResult) -> bool:
    """Whether a reducescatter and an allgather together cannot attain the bound."""
    return any(each.scope == "reduce-scatter + allgather" and each.rate < bound.rate for each in bound.bounds)
