"""Servers that share their rate among the streams in front of them, as links do between kernels or channels.

A stream is one chunk (one tree); its pieces follow each other. Every server divides its rate among the streams that
have a piece there, in proportion to their weights: generalized processor sharing, with virtual time (A. Parekh and
R. Gallager, "A generalized processor sharing approach to flow control", IEEE/ACM Transactions on Networking 1993). With
weights as the shares a packed forest reaches its rate; with equal weights it does not, however small the pieces are.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush

import numpy as np

from blinksim.simulation.engines.arrivals import Arrivals
from blinksim.simulation.work import Run, Work


class _Server:
    """One server: the virtual time up to which every active stream was served per unit of weight."""

    __slots__ = ("ends", "last", "lines", "version", "virtual", "weight")

    def __init__(self) -> None:
        self.virtual, self.last, self.weight, self.version = 0.0, 0.0, 0.0, 0
        self.lines: dict[int, deque[int]] = {}
        self.ends: list[tuple[float, int, int]] = []

    def advance(self, now: float) -> None:
        if self.weight > 0:
            self.virtual += (now - self.last) / self.weight
        self.last = now


def shared(work: Work, pieces: int, *, weighted: bool) -> Run:
    """Runs `pieces` of everything on servers that share; weights are the shares of the streams, or equal.

    Between stages a piece is stored and forwarded: a share of a link has no fixed rate that a next one could follow.
    The start that is returned is when the service of a piece began; it ends when all of it was served. In floating
    point, so times are exact to about 1e-12 of the whole, and rounded up to ticks.
    """
    stages = work.count
    resource, hold = work.resource.tolist(), work.hold.astype(np.float64).tolist()
    after = (work.lag - work.hold).tolist()
    arrivals = Arrivals(work)
    stream = work.stream.tolist()
    weight = np.maximum(work.weight, 1).astype(np.float64) if weighted else np.ones(stages)
    weights = (weight / weight.max(initial=1.0)).tolist()
    servers = [_Server() for _ in range(int(work.resource.max(initial=-1)) + 1)]
    start, end_of = (np.full((pieces, stages), -1, dtype=np.int64) for _ in range(2))
    roots = np.flatnonzero(work.fan_in == 0).tolist()
    # (time, 1 for an arrival or 0 for the end of a service, item or server, version)
    heap = [(float(work.release[s]), 1, p * stages + s, 0) for s in roots for p in range(pieces)]
    heapify(heap)
    finish = 0

    def begin(server: _Server, item: int, now: float) -> None:
        start[divmod(item, stages)] = round(now)
        stage = item % stages
        heappush(server.ends, (server.virtual + hold[stage] / weights[stage], stream[stage], item))

    def announce(number: int, server: _Server, now: float) -> None:
        server.version += 1
        if server.ends:
            then = now + max(0.0, server.ends[0][0] - server.virtual) * server.weight
            heappush(heap, (then, 0, number, server.version))

    while heap:
        now, arrival, item, version = heappop(heap)
        if arrival:
            stage = item % stages
            number = resource[stage]
            server = servers[number]
            server.advance(now)
            line = server.lines.setdefault(stream[stage], deque())
            line.append(item)
            if len(line) == 1:
                server.weight += weights[stage]
                begin(server, item, now)
                announce(number, server, now)
            continue
        server = servers[item]
        if version != server.version:
            continue
        number = item
        server.advance(now)
        end, name, done_item = heappop(server.ends)
        server.virtual = end
        line = server.lines[name]
        line.popleft()
        if line:
            begin(server, line[0], now)
        else:
            server.weight -= weights[done_item % stages]
            del server.lines[name]
            if not server.lines:
                server.weight = 0.0
        announce(number, server, now)
        piece, stage = divmod(done_item, stages)
        end_of[piece, stage] = -int(-now // 1)
        done = int(end_of[piece, stage]) + after[stage]
        finish = max(finish, done)
        for ready, then in arrivals.after(stage, piece * stages, done):
            heappush(heap, (float(ready), 1, then, 0))
    # Rounding must not take the time below what no run can beat.
    least = max(work.critical, work.busiest * pieces)
    assert finish >= least * (1 - 1e-9), "shared servers cannot beat the loads or the longest path"
    return Run(max(finish, least), start, end_of)
