"""A schedule from a file, on its own machine or on another one: the public interface of `formats.schedule_files`."""

from __future__ import annotations

import os
from dataclasses import replace

from blinksim.bounds.claims import bound_here
from blinksim.errors import InfeasibleError, InputError
from blinksim.formats import schedule_files
from blinksim.machines import MachineLike
from blinksim.question import Question
from blinksim.schedule.model import Schedule, rebase
from blinksim.schedule.symmetric import SymmetricSchedule


def read_schedule(
    path: str | os.PathLike[str], machine: Question | MachineLike | None = None, *, root: int = 0
) -> Schedule:
    """Reads a schedule: a file of blinksim, an algorithm of MSCCL (.xml), or an execution plan of MSCCL++ (.json).

    What the schedule of blinksim's own file does is not checked here: `blinksim.verify` does that.

    Parameters
    ----------
    path : str or path
        A file, or the name of a schedule that comes with blinksim, such as ``dgx1-v100-8-allreduce``. A file of that
        name goes first.
    machine : Question, str, path or Topology, optional
        The machine to run on. Files of MSCCL and MSCCL++ need it: they name ranks, which are the members in order, and
        no links. Default: the machine in the file.
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


def read_compact(path: str | os.PathLike[str]) -> Schedule | SymmetricSchedule:
    """The schedule of a file on its own machine, in the form that the file has; raises as `read_schedule` does."""
    return schedule_files.read_compact(path)


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
    # The figures of its bound are those of another machine, but its witness may prove something about this one.
    here = bound_here(schedule.bound, moved.topology, moved.collective)
    return moved.with_bound(here.to_dict(moved.topology, moved.collective)) if here else moved
