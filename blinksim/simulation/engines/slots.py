"""First come, first served, where a connection has room for a limited number of pieces."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush

import numpy as np

from blinksim.simulation.engines.arrivals import Arrivals
from blinksim.simulation.stages import Flags
from blinksim.simulation.work import Run, Ticks, Work


def bounded(work: Work, pieces: int, connection: Ticks, first: Flags, last: Flags, slots: int) -> Run:
    """First come, first served, with room for `slots` pieces in each connection.

    connection (E): the connection of each stage. first, last (E): the stages with which a send begins and ends; a piece
    enters the first when there is a slot, and leaves its slot when it has passed the last.
    """
    stages = work.count
    resource, hold, lag = work.resource.tolist(), work.hold.tolist(), work.lag.tolist()
    arrivals = Arrivals(work)
    owner, opens, ends = connection.tolist(), first.tolist(), last.tolist()
    room = [slots] * (int(connection.max(initial=-1)) + 1)
    queue: list[deque[int]] = [deque() for _ in room]
    free = [0] * (int(work.resource.max(initial=-1)) + 1)
    start = np.full((pieces, stages), -1, dtype=np.int64)
    release = work.release.tolist()
    # (time, 0 for a slot that falls free or 1 for a piece that is ready, item)
    heap = [(release[s], 1, p * stages + s) for s in np.flatnonzero(work.fan_in == 0).tolist() for p in range(pieces)]
    heapify(heap)
    finish = 0
    while heap:
        time, ready, item = heappop(heap)
        if not ready:
            line = queue[item]
            if not line:
                room[item] += 1
                continue
            item = line.popleft()
        elif opens[item % stages]:
            mine = owner[item % stages]
            if not room[mine]:
                queue[mine].append(item)
                continue
            room[mine] -= 1
        piece, stage = divmod(item, stages)
        server = resource[stage]
        begun = max(time, free[server])
        free[server] = begun + hold[stage]
        start[piece, stage] = begun
        done = begun + lag[stage]
        if ends[stage]:
            heappush(heap, (done, 0, owner[stage]))
            finish = max(finish, done)
        for when, then in arrivals.after(stage, piece * stages, done):
            heappush(heap, (when, 1, then))
    arrivals.check_complete()
    assert not any(queue), "a slot is always taken in the end"
    return Run(finish, start)
