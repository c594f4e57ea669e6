"""Does a schedule keep its promise, and prove its bound? The public interface of `blinksim.schedule.verify`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING

from blinksim.answers.checks.read_schedule import read_compact
from blinksim.errors import BlinksimError
from blinksim.schedule.model import Schedule, ScheduleLike
from blinksim.schedule.switch_work import abilities_used, own_copies
from blinksim.schedule.symmetric import SymmetricSchedule, as_compact
from blinksim.schedule.tree import moves_along_trees
from blinksim.schedule.verify import Verdict
from blinksim.schedule.verify import verify as verify_schedule

if TYPE_CHECKING:
    from blinksim.bounds import Bound
    from blinksim.collective import Collective
    from blinksim.topology.graph import Topology

# Ranks up to which schedules are built to see if one attains a bound.
_MOST_RANKS = 256


def verify(
    schedule: ScheduleLike | str | os.PathLike[str],
    *,
    slots: int = 1,
    in_place: bool = False,
    shares: Sequence[Fraction] | None = None,
) -> Verdict:
    """Checks that a schedule does what its collective promises, chunk by chunk.

    Parameters
    ----------
    schedule : Schedule, Synthesis, str or path
        A schedule, or the file of one.
    slots : int
        Buffers of each connection; more let a sender run further ahead.
    in_place : bool
        Input and output are one buffer.
    shares : sequence of Fraction, optional
        The part of the size that each rank's block has, if not 1/n.

    Returns
    -------
    Verdict
        ``ok``, the reasons if it is wrong, and what was counted on the way. The bound that the schedule comes with is
        derived anew from the witness in its certificate; what is claimed without proof is listed in ``unproved``.

    Raises
    ------
    InputError
        For slots below 1, shares that do not fit the ranks, and anything that is no schedule. Faults of the schedule
        itself are in the verdict.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.verify(bs.synthesize("dgx1-v100", "allgather", "ring").schedule).ok
    True
    """
    found = read_compact(schedule) if isinstance(schedule, (str, os.PathLike)) else as_compact(schedule)
    verdict = verify_schedule(found, slots=slots, in_place=in_place, shares=shares)
    if not found.bound:
        return verdict
    return _with_claim(found.base if isinstance(found, SymmetricSchedule) else found, verdict, _weights(shares))


def _with_claim(schedule: Schedule, verdict: Verdict, weights: Sequence[int]) -> Verdict:
    """The verdict, with what the schedule's bound is worth; of one by symmetry, its `base` says that too."""
    from blinksim.bounds.claims import judge_schedule

    rate = verdict.facts.rate
    found = judge_schedule(
        schedule.bound,
        schedule.topology,
        schedule.collective,
        rate,
        keeps=lambda assumed: verdict.ok and keeps(schedule, assumed),
        shares=weights,
    )
    facts = verdict.facts
    if found.bound is not None and rate is not None and found.bound.rate:
        facts = replace(facts, bound=found.bound.rate, gap=1 - rate / found.bound.rate)
    reasons = (*verdict.reasons, *(f"its bound: {reason}" for reason in found.wrong))
    return Verdict(not reasons, reasons, facts, found.unproved)


def keeps(schedule: Schedule, assumed: str) -> bool:
    """True if a schedule that is right keeps what a bound assumes (`blinksim.bounds.assumptions`).

    No schedule codes: a send is a chunk or a reduction of one. What is not looked into counts as not kept.
    """
    from blinksim.bounds.assumptions import NO_CODING, NOTHING, ONLY_TREES, TREES_BRANCH, grants_in

    used = abilities_used(schedule)
    if assumed in (NOTHING, NO_CODING):
        return True
    if assumed != ONLY_TREES and not assumed.endswith(TREES_BRANCH):
        return False
    # Data that is only copied or only reduced takes trees.
    trees = schedule.collective.name != "allreduce" or moves_along_trees(schedule, own_copies(schedule))
    return trees and used <= grants_in(assumed)


def attained_in_network(topology: Topology, collective: Collective, bound: Bound) -> bool:
    """True if a schedule whose switches do what a bound grants attains it: those that need such switches are built."""
    from blinksim.algorithms.registry import REGISTRY
    from blinksim.schedule.loads import rate

    if topology.ranks > _MOST_RANKS:
        return False
    for entry in REGISTRY.values():
        if entry.in_network and entry.supports(collective.name):
            try:
                schedule = entry.build(topology, collective)
            except BlinksimError:
                continue
            if rate(schedule) == bound.rate and keeps(schedule, bound.assumes) and verify_schedule(schedule).ok:
                return True
    return False


def _weights(shares: Sequence[Fraction] | None) -> tuple[int, ...]:
    """Shares of the size as whole weights."""
    if shares is None:
        return ()
    common = lcm(*(Fraction(share).denominator for share in shares))
    return tuple(int(share * common) for share in shares)
