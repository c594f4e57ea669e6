"""A run in a given order of service: every server waits for the next piece of its order, whatever else is ready."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush

import numpy as np

from blinksim.simulation.engines.arrivals import successors
from blinksim.simulation.work import Run, Ticks, Work


def in_order(work: Work, order: Ticks, count: int) -> Run:
    """Runs with a given order of service at every server.

    order: items (piece * E + stage) such that the items of each server appear in the order in which it serves them.
    count: pieces of everything. A server waits for the next item of its order, whatever else is ready.
    """
    stages = work.count
    resource, hold, lag = work.resource.tolist(), work.hold.tolist(), work.lag.tolist()
    follow, need, release = work.once(successors), work.fan_in.tolist(), work.release.tolist()
    queue: list[deque[int]] = [deque() for _ in range(int(work.resource.max(initial=-1)) + 1)]
    for item in order.tolist():
        queue[resource[item % stages]].append(item)
    free = [0] * len(queue)
    ready: dict[int, int] = {}
    latest: dict[int, int] = {}
    missing: dict[int, int] = {}
    start = np.full((count, stages), -1, dtype=np.int64)
    heap = [(release[s], p * stages + s) for s in np.flatnonzero(work.fan_in == 0).tolist() for p in range(count)]
    heapify(heap)
    finish = 0
    while heap:
        time, item = heappop(heap)
        ready[item] = time
        server = resource[item % stages]
        line = queue[server]
        while line and line[0] in ready:
            now = line.popleft()
            piece, stage = divmod(now, stages)
            begun = max(ready.pop(now), free[server])
            free[server] = begun + hold[stage]
            start[piece, stage] = begun
            done = begun + lag[stage]
            finish = max(finish, done)
            for target in follow[stage]:
                then = piece * stages + target
                latest[then] = max(done, latest.get(then, 0))
                missing[then] = missing.get(then, need[target]) - 1
                if not missing[then]:
                    heappush(heap, (latest.pop(then), then))
    assert not any(queue), "the order of service must follow the waits"
    return Run(finish, start)
