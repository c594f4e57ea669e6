"""Patterns whose makespan is a formula: no simulation, for any number of pieces.

With pieces of equal size on first-come-first-served servers (P. Fraigniaud and E. Lazard, "Methods and problems of
communication in usual networks", 1994, and common practice):

- every server has one stage: a pipeline; piece after piece leaves a path at the pace of its slowest stage, so the time
  is the largest of (longest path through a stage) + (C - 1) hold of the stage;
- every server has one stage in each of K levels, all alike (rings, one for each channel): a level takes C holds, or the
  lag of one piece where that is longer: (K - 1) max(lag, C hold) + (C - 1) hold + lag;
- nothing waits for anything (direct exchanges, a star): the busiest server, and what follows its last piece.
"""

from __future__ import annotations

import numpy as np

from blinksim.simulation.work import Work


def makespan(work: Work, pieces: int, *, turns: bool = False) -> int | None:
    """Ticks of `pieces` of everything under first-come-first-served, None if it is none of the patterns.

    turns: True if a stage puts its next piece in line when the one before has left; levels then mix.
    """
    if not work.count:
        return 0
    pattern = work.once(_pattern)
    if pattern == "private":
        return int((work.head + work.tail + (pieces - 1) * work.hold).max())
    real = ~work.timeless
    if not real.all() or (work.release != work.release[0]).any():
        return None
    start = int(work.release[0])
    if not len(work.after):
        return _unlinked(work, pieces, start)
    hold, lag = int(work.hold[0]), int(work.lag[0])
    if (turns and pieces > 1) or (work.hold != hold).any() or (work.lag != lag).any():
        return None
    if pattern != "lock step":
        return None
    rounds = int(work.level.max()) + 1
    return start + (rounds - 1) * max(lag, pieces * hold) + (pieces - 1) * hold + lag


def _pattern(work: Work) -> str:
    """``private``: every server has one stage; ``lock step``: one in each level; or ``other``."""
    rounds = int(work.level.max()) + 1
    at_server = np.bincount(work.resource)
    if int(at_server.max()) == 1:
        return "private"
    if int(np.count_nonzero(at_server)) * rounds != work.count:
        return "other"
    slots = np.zeros(len(at_server) * rounds, dtype=np.bool_)
    slots[work.resource * rounds + work.level] = True
    return "lock step" if int(slots.sum()) == work.count else "other"


def _unlinked(work: Work, pieces: int, start: int) -> int | None:
    after = work.lag - work.hold
    most = np.zeros(len(work.load), dtype=np.int64)
    np.maximum.at(most, work.resource, after)
    if (after != most[work.resource]).any():
        # Then the last piece served need not be the last delivered.
        return None
    return start + int((work.load * pieces + most).max())
