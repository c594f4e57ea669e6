"""Push-pulls of a training program: MXNet's name for the allreduce of one key (array of parameters).

A program issues some number of them before it waits, and those overlap (MXNet multi-tree wiki page, figures 6 and 7: 1
and 150 before a wait).
"""

from __future__ import annotations

from collections.abc import Sequence

from blinksim.errors import InputError
from blinksim.schedule.model import Schedule
from blinksim.simulation.together import Job, together


def push_pulls(
    schedules: Schedule | Sequence[Schedule],
    sizes: Sequence[int],
    *,
    before_wait: int = 1,
    launch: float = 0.0,
    pieces: int | None = None,
) -> float:
    """Seconds for one allreduce per key of `sizes` bytes, with `before_wait` of them issued before the program waits.

    schedules: what runs; several take turns (parameter servers on different ranks). launch: seconds that issuing one
    takes; they are issued one after another. pieces: of every chunk, as in `Job`. Raises `InputError`
    for no keys or less than one before a wait.
    """
    if not sizes or before_wait < 1:
        raise InputError("give at least one key, and at least one push-pull before a wait")
    turns = [schedules] if isinstance(schedules, Schedule) else list(schedules)
    total = 0.0
    known: dict[tuple[int, int], float] = {}
    for first in range(0, len(sizes), before_wait):
        batch = range(first, min(first + before_wait, len(sizes)))
        jobs = [Job(turns[k % len(turns)], sizes[k], pieces, start_s=(k - first + 1) * launch) for k in batch]
        key = (first % len(turns), sizes[first])
        if before_wait == 1 and key in known:
            total += known[key]
            continue
        found = together(jobs, alone=False)
        spent = max(end + job.start_s for end, job in zip(found.finish_s, jobs, strict=True))
        known[key] = spent
        total += spent
    return total
