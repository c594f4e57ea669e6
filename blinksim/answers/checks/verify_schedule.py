"""Does a schedule keep its promise? The public interface of `blinksim.schedule.verify`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fractions import Fraction

from blinksim.answers.checks.read_schedule import read_schedule
from blinksim.errors import InputError
from blinksim.schedule.model import Schedule
from blinksim.schedule.verify import Verdict
from blinksim.schedule.verify import verify as verify_schedule


def verify(
    schedule: Schedule | str | os.PathLike[str],
    *,
    slots: int = 1,
    in_place: bool = False,
    shares: Sequence[Fraction] | None = None,
) -> Verdict:
    """Checks that a schedule does what its collective promises, chunk by chunk.

    Parameters
    ----------
    schedule : Schedule, str or path
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
        ``ok``, the reasons if it is wrong, and what was counted on the way.

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
    if isinstance(schedule, (str, os.PathLike)):
        schedule = read_schedule(schedule)
    if not isinstance(schedule, Schedule):
        raise InputError(f"a {type(schedule).__name__} is not a schedule; give a Schedule or the path of its file")
    return verify_schedule(schedule, slots=slots, in_place=in_place, shares=shares)
