"""Evaluation of an event graph event by event, exact for any order of service: first come, or given.

With first come, first served, a link's next free time is known when a piece becomes ready for it, so only
that moment is an event; the usual second one (the link falls free) is not needed.
`tests/simulation/plain_events.py` does the same in the plainest form; here are the same rules, written for
speed.

**Ties.** Of events at one time the one with the lower piece comes first, then the one with the lower stage.

**Events** are single integers that sort like the tuple (time, piece, stage). The low bits of an event are its
item
(piece and stage), and an item without its stage is the base of its piece::

    | time | piece | stage |        event >> time_shift    the time
           |     item      |        event & item_mask      the item
                   | stage |        item & stage_mask      the stage; item - stage is the base

**Turns or bursts.** The order in which pieces queue matters more than the service of links. If all ready
pieces queue at once (a burst), other traffic through a link waits for the last of them, links further down
stand idle meanwhile, and a packed forest never reaches its rate: on a DGX-1V it stays 8 to 45 % above the
bound at any number of pieces, the more the deeper its trees are. If only the sources are paced, deep chains
still lose a third. In turns, every stream (a send of one chunk) has one piece queued at each server, like a
thread block that copies piece after piece; then the excess falls with the number of pieces.
"""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush, heappushpop

import numpy as np

from blinksim.timing.event_graph import EventGraph, Run, Ticks, Work

# What follows a stage, if it is not one stage that waits for nothing else; and no event.
_END, _SEVERAL, _NONE = -1, -2, -1


def first_come(
    work: Work, pieces: int | Sequence[int], *, turns: bool | Sequence[bool] = False, record: bool = True
) -> Run:
    """Runs `pieces` of everything (or a number for each stage), first come, first served, ties by piece, then stage.

    turns: True if a stage puts its next piece in line when the one before has left, False if when the piece
    is there; for all stages or for each. record: True to return when each stage began (8 bytes for each piece
    of each stage).
    """
    graph, stages = work.graph, work.count
    if not stages:
        return Run(0, np.zeros((0, 0), dtype=np.int64))
    amount = [pieces] * stages if isinstance(pieces, int) else list(pieces)
    takes_turns = [turns] * stages if isinstance(turns, bool) else list(turns)
    stage_bits = max(1, (stages - 1).bit_length())
    time_shift = stage_bits + max(amount).bit_length()
    item_mask, stage_mask, next_piece = (1 << time_shift) - 1, (1 << stage_bits) - 1, 1 << stage_bits
    resource, hold, lag = graph.resource.tolist(), work.hold.tolist(), work.lag.tolist()
    only, after, missing = _arrivals(graph)
    # By server: when it has passed all that it accepted. By item: when its stage began with it.
    free = [0] * (int(graph.resource.max()) + 1)
    begin = array("q", [-1]) * ((max(amount) << stage_bits) if record else 1)
    # A source, which waits for no other stage, has its next piece in line until there are no more.
    is_source = (graph.fan_in == 0).tolist()
    heap = [(int(work.release[s]) << time_shift) | s for s in np.flatnonzero(graph.fan_in == 0).tolist()]
    heapify(heap)
    # By stage, in turns: True while a piece stands in line; when the last one left; events of pieces behind
    # it.
    in_line, left_at = list(is_source), [0] * stages
    behind: defaultdict[int, deque[int]] = defaultdict(deque)
    finish, event = 0, heappop(heap)
    while True:
        time, item = event >> time_shift, event & item_mask
        stage = item & stage_mask
        server = resource[stage]
        start = free[server]
        start = time if time > start else start
        gone = free[server] = start + hold[stage]
        if record:
            begin[item] = start
        event = _NONE
        if in_line[stage]:
            if is_source[stage]:
                if (item >> stage_bits) + 1 < amount[stage]:
                    event = ((gone if takes_turns[stage] else time) << time_shift) | (item + next_piece)
            elif line := behind.get(stage):
                event = line.popleft()
                event = event if event >> time_shift >= gone else (gone << time_shift) | (event & item_mask)
            else:
                in_line[stage], left_at[stage] = False, gone
        done = start + lag[stage]
        base, target = item - stage, only[stage]
        ready: Sequence[tuple[int, int]] = ()
        if target < 0:
            # Whatever passes a piece on is followed by a later delivery.
            finish = done if done > finish else finish
            if target == _SEVERAL:
                ready = after(stage, base, done)
        elif takes_turns[target]:
            ready = ((target, done),)
        else:
            if event >= 0:
                heappush(heap, event)
            event = (done << time_shift) | (base + target)
        for target, when in ready:
            if takes_turns[target]:
                if in_line[target]:
                    behind[target].append((when << time_shift) | (base + target))
                    continue
                in_line[target] = True
                left = left_at[target]
                when = when if when > left else left
            if event >= 0:
                heappush(heap, event)
            event = (when << time_shift) | (base + target)
        if event >= 0:
            event = heappushpop(heap, event)
        elif heap:
            event = heappop(heap)
        else:
            break
    assert not missing, "every wait must come to an end"
    if not record:
        return Run(finish)
    table = np.frombuffer(begin, dtype=np.int64).reshape(max(amount), 1 << stage_bits)
    return Run(finish, table[:, :stages])


def _arrivals(
    graph: EventGraph,
) -> tuple[list[int], Callable[[int, int, int], list[tuple[int, int]]], dict[int, int]]:
    """Successors of the stages of a graph: by stage, a function for deliveries, and what it still waits for.

    By stage: the only stage that waits for it, and for nothing else; `_END` if none waits; else `_SEVERAL`.
    """
    follow, need, timeless = graph.followers, graph.fan_in.tolist(), graph.timeless.tolist()
    several = ((graph.fan_in > 1) | graph.timeless).tolist()
    only = [
        _END if not targets else _SEVERAL if len(targets) > 1 or several[targets[0]] else targets[0]
        for targets in follow
    ]
    latest: dict[int, int] = {}
    missing: dict[int, int] = {}

    def after(stage: int, base: int, done: int) -> list[tuple[int, int]]:
        """(stage, time) of all that are ready once `stage` delivers the piece of `base`, at the time `done`."""
        ready: list[tuple[int, int]] = []
        for target in follow[stage]:
            when = done
            if several[target]:
                item = base + target
                known = latest.get(item, 0)
                when = done if done > known else known
                left = missing.get(item, need[target]) - 1
                if left:
                    latest[item], missing[item] = when, left
                    continue
                latest.pop(item, None)
                missing.pop(item, None)
                if timeless[target]:
                    # A joint takes no time, so it passes on at once.
                    ready += after(target, base, when)
                    continue
            ready.append((target, when))
        return ready

    return only, after, missing


def in_order(work: Work, order: Ticks, pieces: int) -> Run:
    """Runs `pieces` of everything in a given order of service, whatever else is ready before.

    order: items (piece * E + stage), of which each comes behind all that it waits for.
    """
    stages, follow = work.count, work.graph.followers
    resource, hold, lag = work.graph.resource.tolist(), work.hold.tolist(), work.lag.tolist()
    free = [0] * (int(work.graph.resource.max(initial=-1)) + 1)
    ready = np.tile(np.where(work.graph.fan_in == 0, work.release, 0), pieces).tolist()
    start, finish = [-1] * (pieces * stages), 0
    for item in order.tolist():
        stage = item % stages
        server, base = resource[stage], item - stage
        begun = max(ready[item], free[server])
        free[server] = begun + hold[stage]
        start[item] = begun
        done = begun + lag[stage]
        finish = max(finish, done)
        for target in follow[stage]:
            ready[base + target] = max(done, ready[base + target])
    return Run(finish, np.array(start, dtype=np.int64).reshape(pieces, stages))


def step_order(graph: EventGraph, step: Ticks, pieces: int) -> Ticks:
    """Items by step, then by piece, then by stage. step (E): of each stage; a joint follows the last that it awaits."""
    step, rank = step.copy(), np.where(graph.timeless, graph.count + graph.level, 0)
    for now in graph.by_level:
        joints = now[graph.timeless[graph.after[now]]]
        np.maximum.at(step, graph.after[joints], step[graph.before[joints]])
    piece, stage = np.divmod(np.arange(pieces * graph.count), max(graph.count, 1))
    return np.lexsort((stage, rank[stage], piece, step[stage]))
