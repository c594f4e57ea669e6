"""Verification of schedules and their bounds, and schedules from files, on their own machine or another."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import lcm

from blinksim.bounds import Bound
from blinksim.bounds.bound_result import NO_CODING, NOTHING, ONLY_TREES, TREES_BRANCH, grants_in
from blinksim.bounds.claims import bound_here, judge_schedule
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, InfeasibleError, InputError
from blinksim.formats import schedule_files
from blinksim.machines import MachineLike
from blinksim.question import Question
from blinksim.schedule.loads import moves_along_trees, rate
from blinksim.schedule.model import Schedule, ScheduleLike, rebase
from blinksim.schedule.switch_work import abilities_used, own_copies
from blinksim.schedule.symmetric import SymmetricSchedule, as_compact
from blinksim.schedule.verify import Verdict, verify as verify_schedule
from blinksim.topology.graph import Topology


def read_schedule(
    path: str | os.PathLike[str], machine: Question | MachineLike | None = None, *, root: int = 0
) -> Schedule:
    """Read a schedule: blinksim's file, an MSCCL algorithm (.xml), or an MSCCL++ plan (.json).

    What the schedule of blinksim's own file does is not checked here: `blinksim.verify` does that.

    Parameters
    ----------
    path : str or path
        A file, or the name of a schedule that comes with blinksim, such as ``dgx1-v100-8-allreduce``. A file
        of that name goes first.
    machine : Question, str, path or Topology, optional
        The machine to run on. Files of MSCCL and MSCCL++ need it: they name ranks, which are the members in
        order, and no links. Default: the machine in the file.
    root : int
        For a rooted collective of MSCCL or MSCCL++, whose files do not name the root.

    Returns
    -------
    Schedule
        On the machine; with the bound and the certificate that the file holds, as far as they hold there.

    Raises
    ------
    FileError
        If the file is none of these, or wrong; the message names the key or the line.
    InputError
        If the file needs a machine, or one with another number of members.
    InfeasibleError
        If the machine lacks devices or links of the schedule.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.write(bs.synthesize("dgx1-v100", "allgather", "ring").schedule, "ring.json")
    >>> schedule = bs.read_schedule("ring.json")
    >>> bs.write(bs.export(schedule, "msccl-xml"), "ring.xml")
    >>> again = bs.read_schedule("ring.xml", "dgx1-v100")
    >>> again.collective, again.sends == schedule.sends
    (Collective(name='allgather', root=0), True)
    """
    if machine is None:
        return schedule_files.read(path).schedule
    question = machine if isinstance(machine, Question) else Question(machine)
    if schedule_files.is_of_runtime(path):
        return schedule_files.read(path, question.part(), root).schedule
    moved = moved_to(schedule_files.read(path).schedule, question)
    if isinstance(moved, tuple):
        raise InfeasibleError(f"{os.fspath(path)} does not run on this machine: {moved[0]}")
    return moved


def moved_to(schedule: Schedule, question: Question) -> Schedule | tuple[str, ...]:
    """A schedule on the machine of a question, or in its own after the edits; or what is missing there.

    The schedule keeps its members and relays. Raises `InputError` if the question chooses others.
    """
    if question.members is not None or question.nodes != 1:
        raise InputError("members= and nodes= are for files of runtimes; a schedule names its own members")
    if question.machine:
        target = replace(question, nodes=schedule.topology.nodes, edits=()).whole()
    else:
        target = schedule.topology
    for edit in question.edits:
        target = target.edit(edit)
    moved = rebase(schedule, target)
    if isinstance(moved, tuple) or moved.bound or not schedule.bound:
        return moved
    # The figures of its bound are those of another machine, but its witness may prove something about this
    # one.
    here = bound_here(schedule.bound, moved.topology, moved.collective)
    return moved.with_bound(here.to_dict(moved.topology, moved.collective)) if here else moved


# Ranks up to which schedules are built to see if one attains a bound.
_MOST_RANKS = 256


def verify(
    schedule: ScheduleLike | str | os.PathLike[str],
    *,
    slots: int = 1,
    in_place: bool = False,
    shares: Sequence[Fraction] | None = None,
) -> Verdict:
    """Check that a schedule does what its collective promises, chunk by chunk.

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
        ``ok``, the reasons if it is wrong, and what was counted on the way. The bound that the schedule comes
        with is derived anew from the witness in its certificate; what is claimed without proof is listed in
        ``unproved``.

    Raises
    ------
    InputError
        For slots below 1, shares that do not fit the ranks, and anything that is no schedule. Faults of the
        schedule itself are in the verdict.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.verify(bs.synthesize("dgx1-v100", "allgather", "ring").schedule).ok
    True
    """
    if isinstance(schedule, (str, os.PathLike)):
        found = schedule_files.read_compact(schedule)
    else:
        found = as_compact(schedule)
    verdict = verify_schedule(found, slots=slots, in_place=in_place, shares=shares)
    if not found.bound:
        return verdict
    # What the bound is worth; of a schedule by symmetry, its base says that too.
    base = found.base if isinstance(found, SymmetricSchedule) else found
    common = lcm(*(Fraction(share).denominator for share in shares or ()))
    facts, rate = verdict.facts, verdict.facts.rate
    claim = judge_schedule(
        base.bound,
        base.topology,
        base.collective,
        rate,
        keeps=lambda assumed: verdict.ok and keeps(base, assumed),
        shares=tuple(int(share * common) for share in shares or ()),
    )
    if claim.bound is not None and rate is not None and claim.bound.rate:
        facts = replace(facts, bound=claim.bound.rate, gap=1 - rate / claim.bound.rate)
    reasons = (*verdict.reasons, *(f"its bound: {reason}" for reason in claim.wrong))
    return Verdict(not reasons, reasons, facts, claim.unproved)


def keeps(schedule: Schedule, assumed: str) -> bool:
    """True if a schedule that is right keeps what a bound assumes (`blinksim.bounds.bound_result`).

    No schedule codes: a send is a chunk or a reduction of one. What is not looked into counts as not kept.
    """
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
