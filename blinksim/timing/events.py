"""Evaluation of an event graph: by formula where its pattern has one, else in arrays, else event by event.

Event by event it is exact for any order of service: first come, or given.

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
from dataclasses import replace
from heapq import heapify, heappop, heappush, heappushpop

import numpy as np

from blinksim.budget import check_events, most_events
from blinksim.errors import InputError
from blinksim.graphs.arrays import distinct, per_topology
from blinksim.timing.event_graph import EventGraph, Run, ScheduleGraph, Ticks, Work
from blinksim.timing.rounds import in_levels, in_rounds
from blinksim.timing.simulation_options import Options

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


def evaluated(graph: ScheduleGraph, work: Work, pieces: int, options: Options, *, record: bool = False) -> Run:
    """The run of `pieces` of everything: by a formula where the pattern has one, in arrays where the order of service
    is known, event by event otherwise. All agree to the tick, so the choice only affects the running time.

    In rounds, once the pipe is full, every further piece adds the load of one piece on the busiest server,
    unless latencies are longer than rounds (max-plus linear systems become periodic: Baccelli et al.,
    "Synchronization and linearity", 1992, theorem 3.109); such runs are cut short as soon as that is certain.
    First come, first served is not linear: there the growth can settle at that value for dozens of pieces and
    leave it again, so nothing is cut short.

    record: True to keep the starts, of all pieces.
    """
    steps = graph.schedule.form == "steps"
    turns = options.offered(graph.schedule.form) == "turns"
    if options.service == "static" and not steps and not record:
        short = _cut_short(work, pieces)
        if short is not None:
            return short
    elif options.service == "fifo":
        known = None if record else makespan(work, pieces, turns=turns)
        if known is not None:
            return Run(known, engine="closed-form")
        # Two pieces cost little and usually settle whether levels are served in the order of arrival.
        if not turns and in_levels(work, min(pieces, 2))[1]:
            check_events("waves", pieces, graph.count)
            run, agrees = in_levels(work, pieces, record=record)
            if agrees:
                return replace(run, engine="waves", pieces=pieces)
    engine = "waves" if options.service == "static" else "heap"
    check_events(engine, pieces, graph.count)
    if options.service == "ordered":
        if not steps:
            raise InputError("service ordered is for schedules in steps; take static for trees")
        run = in_order(work, step_order(graph, np.append(graph.schedule.step, -1)[graph.send], pieces), pieces)
    elif options.service == "fifo":
        run = first_come(work, pieces, turns=turns, record=record)
    elif steps:
        run = in_levels(work, pieces, record=record, check=False)[0]
    else:
        run = in_rounds(work, pieces, record=record)
    return replace(run, engine=engine, pieces=pieces)


def _cut_short(work: Work, pieces: int) -> Run | None:
    """The run in rounds, of the first pieces alone; None where the growth is not certain before too many of them."""
    few = int(work.graph.level.max(initial=0)) + 6
    while 2 * few + 1 < min(pieces, most_events("waves") // max(1, work.count)):
        before, after = (in_rounds(work, count, watch=True) for count in (few, few + 1))
        if before.settled and after.finish - before.finish == work.busiest:
            finish = after.finish + (pieces - few - 1) * work.busiest
            return replace(after, finish=finish, engine="waves", pieces=few + 1)
        few *= 2
    return None


def makespan(work: Work, pieces: int, *, turns: bool = False) -> int | None:
    """Ticks of `pieces` of everything first come, first served, by a formula; None where the pattern has none.

    With pieces of equal size (P. Fraigniaud and E. Lazard, "Methods and problems of communication in usual
    networks", 1994, and common practice):

    - every server has one stage: a pipeline; piece after piece leaves a path at the pace of its slowest stage, so the
      time is the largest of (longest path through a stage) + (C - 1) hold of the stage;
    - every server has one stage in each of K levels, all alike (rings, one for each channel): a level takes C holds, or
      the lag of one piece where that is longer: (K - 1) max(lag, C hold) + (C - 1) hold + lag;
    - nothing waits for anything (direct exchanges, a star): the busiest server, and what follows its last piece.

    turns: True if a stage puts its next piece in line when the one before has left; levels then mix.
    """
    graph = work.graph
    if not graph.count:
        return 0
    pattern = _pattern(graph)
    if pattern == "pipeline":
        return int((work.head + work.tail + (pieces - 1) * work.hold).max())
    if graph.timeless.any() or (work.release != work.release[0]).any():
        return None
    start, hold, lag = int(work.release[0]), int(work.hold[0]), int(work.lag[0])
    if not len(graph.after):
        after = work.lag - work.hold
        most = np.zeros(len(work.load), dtype=np.int64)
        np.maximum.at(most, graph.resource, after)
        # If these differ, the last piece served need not be the last delivered.
        return None if (after != most[graph.resource]).any() else start + int((work.load * pieces + most).max())
    alike = (work.hold == hold).all() and (work.lag == lag).all() and not (turns and pieces > 1)
    if pattern != "lock step" or not alike:
        return None
    return start + int(graph.level.max()) * max(lag, pieces * hold) + (pieces - 1) * hold + lag


@per_topology
def _pattern(graph: EventGraph) -> str:
    """``pipeline``: every server has one stage; ``lock step``: one in each level; or ``other``."""
    rounds, at_server = int(graph.level.max()) + 1, np.bincount(graph.resource)
    if int(at_server.max()) == 1:
        return "pipeline"
    full = int(np.count_nonzero(at_server)) * rounds == graph.count
    return "lock step" if full and len(distinct(graph.resource * rounds + graph.level)) == graph.count else "other"
