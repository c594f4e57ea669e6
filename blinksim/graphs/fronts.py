"""Topological order of dependent events, a whole front at a time (Kahn 1962, in arrays)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from blinksim.structures.arrays import distinct, expand

Indices = npt.NDArray[np.int64]


def fronts(before: Indices, after: Indices, events: int) -> Iterator[npt.NDArray[np.int32]]:
    """The events in fronts: those that wait for nothing, then those that wait only for events of earlier fronts.

    Event after[i] waits for before[i]. Events on a circle of waits, or behind one, are in no front.
    """
    order = np.argsort(before, kind="stable")
    starts = np.searchsorted(before[order], np.arange(events + 1)).astype(np.int32)
    successors = after[order].astype(np.int32)
    waiting = np.bincount(after, minlength=events)
    front = np.flatnonzero(waiting == 0).astype(np.int32)
    while len(front):
        yield front
        _, reached = expand(starts, successors, front)
        # A bincount goes over all events: it is the quicker way only where many are reached.
        if len(reached) < events // 16:
            reached, times = np.unique(reached, return_counts=True)
            waiting[reached] -= times
        else:
            waiting -= np.bincount(reached, minlength=events)
            reached = distinct(reached)
        front = reached[waiting[reached] == 0]
