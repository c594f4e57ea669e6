"""First come, first served, in the plainest form: what `blinksim.timing.events` must equal, start by start.

The vocabulary is that of process simulation: a stage is a process that takes piece after piece, its server a resource
that serves requests in the order of time, then piece, then stage. A run takes one event after another from a heap of
(time, priority, piece, stage).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from blinksim.timing.event_graph import Run, Work

# The priorities of events at one time: everything that arrives then is there before a resource chooses.
ARRIVAL, REQUEST = range(2)


def plain_fifo(work: Work, pieces: int | Sequence[int], *, turns: bool | Sequence[bool] = False) -> Run:
    """As `blinksim.timing.events.first_come`, with a heap entry for every arrival and every request."""
    amounts = [pieces] * work.count if isinstance(pieces, int) else list(pieces)
    timeless = work.graph.timeless
    in_turns = np.asarray(turns) & ~timeless
    start = np.full((max(amounts, default=0), work.count), -1, dtype=np.int64)
    follow, free, finish = work.graph.followers, dict[int, int](), 0
    events: list[tuple[int, int, int, int]] = []
    missing: dict[tuple[int, int], int] = {}
    for stage, fan_in in enumerate(work.graph.fan_in.tolist()):
        for piece in range(amounts[stage]):
            # In turns a process also waits until its resource has passed the piece before.
            missing[piece, stage] = max(1, fan_in) + bool(in_turns[stage] and piece)
            if not fan_in:
                heappush(events, (int(work.release[stage]), ARRIVAL, piece, stage))
    while events:
        time, event, piece, stage = heappop(events)
        if event == ARRIVAL:
            missing[piece, stage] -= 1
            if not missing[piece, stage] and not timeless[stage]:
                heappush(events, (time, REQUEST, piece, stage))
            if missing[piece, stage] or not timeless[stage]:
                continue
            delivery = time
        else:
            resource = int(work.graph.resource[stage])
            start[piece, stage] = max(time, free.get(resource, 0))
            free[resource] = int(start[piece, stage] + work.hold[stage])
            delivery = int(start[piece, stage] + work.lag[stage])
            if in_turns[stage] and piece + 1 < amounts[stage]:
                heappush(events, (free[resource], ARRIVAL, piece + 1, stage))
        finish = max(finish, delivery)
        for target in follow[stage]:
            heappush(events, (delivery, ARRIVAL, piece, target))
    return Run(finish, start)
