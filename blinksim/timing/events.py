"""Evaluation of an event graph: by formula where its pattern has one, else in arrays, else event by event.

Event by event it is exact for any order of service: first come, or given.

With first come, first served, a link's next free time is known when a piece becomes ready for it, so only
that moment is an event; the usual second one (the link falls free) is not needed.
`tests/simulation/plain_events.py` does the same in the plainest form; here are the same rules, written for
speed.

**Ties.** Of events at one time the one with the lower piece comes first, then the one with the lower stage.

**Events** are single integers that sort like the tuple (time, piece, stage). The low bits of an event are its
item (piece and stage), and an item without its stage is the base of its piece::

    | time | piece | stage |        event >> time_shift    the time
           |     item      |        event & item_mask      the item
                   | stage |        item & stage_mask      the stage; item - stage is the base

**Turns or bursts.** The order in which pieces queue matters more than the service of links. If all ready
pieces queue at once (a burst), other traffic through a link waits for the last of them, links further down
stand idle meanwhile, and a packed forest never reaches its rate: on a DGX-1V it stays 8 to 45 % above the
bound at any number of pieces, the more the deeper its trees are. If only the sources are paced, deep chains
still lose a third. In turns, every stream (a send of one chunk) has one piece queued at each server, like a
thread block that copies piece after piece; then the excess falls with the number of pieces.

**In arrays**, for orders of service known beforehand. With the order at every server known, x_j = max(r_j,
x_{j-1} + hold_{j-1}) is a running maximum once the prefix sums of the holds are taken off. Two orders make
fronts whose arrivals are all known from earlier fronts:

- in rounds, round k serves piece k - level of every stage, so that all trees of a forest advance together;
  inside a round a server goes by stage;
- level by level, a level serves all pieces of its stages, so that steps run one after another; inside a level
  a server goes by piece, then stage.

(Recurrence: Baccelli et al., "Synchronization and linearity", 1992, section 2.5; running maximum as a scan:
Hillis and Steele, "Data parallel algorithms", 1986.)
"""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush, heappushpop

import numpy as np

from blinksim.budget import check_events, most_events
from blinksim.errors import InputError
from blinksim.graphs.arrays import Ints, by_place, distinct, per_topology, places, scattered
from blinksim.timing.event_graph import EventGraph, Run, ScheduleGraph, Work
from blinksim.timing.simulation_options import Options


@dataclass(frozen=True, eq=False)
class _Table:
    """Stages laid out server by server, servers with equally many stages one after another.

    order (E): the stages as they are laid out. place (E): where each stage is. first, last (servers): the
    places of each server. groups: the places of all servers with equally many stages, and how many that are.
    sources, gaps (F, E): for each place the places of the stages it waits for, padded with E, where a zero
    stands, and how many rounds earlier they were served.
    """

    order: Ints
    place: Ints
    first: Ints
    last: Ints
    groups: list[tuple[slice, int]]
    sources: Ints
    gaps: Ints


@per_topology
def _table(graph: EventGraph) -> _Table:
    many = np.bincount(graph.resource)[graph.resource]
    order = np.lexsort((graph.resource, many))
    place, width, server = np.argsort(order), graph.count, graph.resource[order]
    limits = np.flatnonzero(np.diff(server, prepend=-1, append=-1))
    sizes, begins = np.unique(many[order], return_index=True)
    spans = map(slice, begins, np.append(begins[1:], width))
    groups = [(span, size) for span, size in zip(spans, sizes.tolist(), strict=True) if size > 1]
    by_target = np.argsort(graph.after, kind="stable")
    target, source = graph.after[by_target], graph.before[by_target]
    nth, depth = places(graph.fan_in), int(graph.fan_in.max(initial=0))
    sources, gaps = np.full((depth, width), width, dtype=np.int64), np.ones((depth, width), dtype=np.int64)
    sources[nth, place[target]] = place[source]
    gaps[nth, place[target]] = graph.level[target] - graph.level[source]
    return _Table(order, place, limits[:-1], limits[1:] - 1, groups, sources, gaps)


def in_rounds(work: Work, pieces: int, *, record: bool = False, watch: bool = False) -> Run:
    """Runs `pieces` of everything in rounds.

    record: True to return when each stage began. watch: True to find out whether the run is settled: in the
    last whole rounds nothing has grown by more than the load of a round on the busiest server. As the rounds
    are one monotone map that commutes with adding a constant, nothing ever will again (Baccelli et al.,
    section 3.7).
    """
    graph = work.graph
    if not graph.count:
        return Run(0, np.zeros((pieces, 0), dtype=np.int64))
    table = _table(graph)
    order, place, width, tall = table.order, table.place, graph.count, int(graph.level.max())
    all_hold, lag, level = work.hold[order], work.lag[order], graph.level[order]
    all_prefix = _prefix(all_hold, table)
    release = np.where(graph.fan_in == 0, work.release, 0)[order] if work.release.any() else None
    stage_at = [np.flatnonzero(graph.level == k) for k in range(tall + 1)]
    free = np.zeros(len(table.first), dtype=np.int64)
    # Deliveries of the last rounds, with a zero behind each row.
    depth = int(table.gaps.max(initial=1))
    history = np.zeros((depth, width + 1), dtype=np.int64)
    flat, origin = history.reshape(-1), table.sources - table.gaps * (width + 1)
    index, ready, other = np.empty((3, width), dtype=np.int64)
    start = np.full((pieces, graph.count), -1, dtype=np.int64) if record else None
    earlier, calm, finish = np.zeros(width, dtype=np.int64), 0, 0
    for number in range(pieces + tall):
        row = number % depth
        ready[:] = 0
        for sources in origin:
            np.add(sources, row * (width + 1), out=index)
            # The index is at most one whole history too low.
            np.take(flat, index, out=other, mode="wrap")
            np.maximum(ready, other, out=ready)
        if release is not None:
            np.maximum(ready, release, out=ready)
        whole = tall <= number < pieces
        hold, prefix = all_hold, all_prefix
        if not whole:
            active = (level <= number) & (level > number - pieces)
            ready *= active
            hold = all_hold * active
            prefix = _prefix(hold, table)
        ready -= prefix
        # The running maximum along every server, from when it is free.
        ready[table.first] = np.maximum(ready[table.first], free)
        for span, size in table.groups:
            block = ready[span].reshape(-1, size)
            np.maximum.accumulate(block, axis=1, out=block)
        ready += prefix
        free = (ready + hold)[table.last]
        delivered = np.add(ready, lag, out=history[row, :width])
        if start is not None:
            for at in range(max(0, number - pieces + 1), min(tall, number) + 1):
                start[number - at, stage_at[at]] = ready[place[stage_at[at]]]
        if watch and whole:
            calm = calm + 1 if (delivered - earlier <= work.busiest).all() else 0
            earlier[:] = delivered
        if number >= pieces - 1:
            # The stages that now have passed their last piece.
            finish = max(finish, int(delivered[place[stage_at[number - pieces + 1]]].max()))
    # Settled if the calm has lasted as long as the history that a round looks back on.
    return Run(finish, start, settled=watch and calm >= depth)


def _prefix(hold: Ints, table: _Table) -> Ints:
    """How long the stages before each one hold the same server."""
    # Sums over all servers may wrap around; their differences do so again.
    before = np.cumsum(hold) - hold
    return before - np.repeat(before[table.first], table.last - table.first + 1)


@dataclass(frozen=True, eq=False)
class _Level:
    """Stages in the order of servers, where their arrivals come from, which levels no later one needs.

    servers (rows): one per row; row and slot (stages): where each stage stands at its server, slots: places
    of a row. waits: level, stages, the stages of that level that they wait for, and where those of each
    begin. forget: levels that no later one needs.
    """

    stages: Ints
    servers: Ints
    row: Ints
    slot: Ints
    slots: int
    waits: list[tuple[int, Ints | slice, Ints, Ints]]
    forget: list[int]
    needed: bool


@per_topology
def _levels(graph: EventGraph) -> list[_Level]:
    order = np.lexsort((graph.resource, graph.level))
    where = np.empty(graph.count, dtype=np.int64)
    tall = int(graph.level.max()) + 1
    limits = np.searchsorted(graph.level[order], np.arange(tall + 1)).tolist()
    where[order] = np.arange(graph.count) - np.repeat(limits[:-1], np.diff(limits))
    last_use = by_place(np.maximum, graph.level[graph.before], graph.level[graph.after], tall)
    levels = []
    for number, edges in enumerate(graph.by_level):
        stages = order[limits[number] : limits[number + 1]]
        servers, row, counts = np.unique(graph.resource[stages], return_inverse=True, return_counts=True)
        into, source = where[graph.after[edges]], where[graph.before[edges]]
        level = graph.level[graph.before[edges]]
        by_target, waits = np.argsort(into, kind="stable"), []
        for k in distinct(level).tolist():
            some = by_target[level[by_target] == k]
            targets, first = np.unique(into[some], return_index=True)
            waits.append((k, slice(None) if len(targets) == len(stages) else targets, source[some], first))
        forget = np.flatnonzero(last_use == number).tolist() if number else []
        needed = bool(last_use[number])
        levels.append(_Level(stages, servers, row, places(counts), int(counts.max()), waits, forget, needed))
    return levels


def in_levels(work: Work, pieces: int, *, record: bool = False, check: bool = True) -> tuple[Run, bool]:
    """Runs `pieces` of everything level by level, and whether every server then served first come, first served.

    If it was, this is what FIFO service gives, start by start: the order of service and of arrival are the
    same. record: True to return when each stage began. check: False skips that test; the answer is then
    False.
    """
    graph = work.graph
    if not graph.count:
        return Run(0, np.zeros((pieces, 0), dtype=np.int64)), True
    free, arrived = np.zeros(len(work.load), dtype=np.int64), np.full(len(work.load), -1, dtype=np.int64)
    start = np.full((pieces, graph.count), -1, dtype=np.int64) if record else None
    delivered: dict[int, Ints] = {}
    finish, piece = 0, np.arange(pieces, dtype=np.int64)[None, :, None]
    for number, plan in enumerate(_levels(graph)):
        # (stages, pieces): when each piece is ready for each stage, and from the end of the loop on is
        # delivered.
        ready = np.zeros((len(plan.stages), pieces), dtype=np.int64)
        for level, into, source, first in plan.waits:
            came = delivered[level][source]
            came = came if len(first) == len(source) else np.maximum.reduceat(came, first, axis=0)
            ready[into] = np.maximum(ready[into], came)
        if number == 0 and work.release.any():
            np.maximum(ready, work.release[plan.stages][:, None], out=ready)
        for gone in plan.forget:
            del delivered[gone]

        # (servers, pieces, slots): in this order a server goes.
        alone = plan.slots == 1
        table, hold, lag = ready[:, :, None], work.hold[plan.stages][:, None], work.lag[plan.stages][:, None]
        if not alone:
            table = np.zeros((len(plan.servers), pieces, plan.slots), dtype=np.int64)
            table[plan.row, :, plan.slot] = ready
            hold, lag = np.zeros((2, len(plan.servers), plan.slots), dtype=np.int64)
            hold[plan.row, plan.slot], lag[plan.row, plan.slot] = work.hold[plan.stages], work.lag[plan.stages]
        flat = table.reshape(len(table), -1)
        if check:
            # All pieces arrive in the order in which their servers go.
            latest = np.maximum.accumulate(flat, axis=1).reshape(table.shape)[plan.row, :, plan.slot]
            check = bool((table[:, 0, 0] > arrived[plan.servers]).all() and (latest == ready).all())
            arrived[plan.servers] = flat.max(axis=1)
        # Rows that are alike need one ramp.
        before = hold if (hold != hold[:1]).any() else hold[:1]
        ramp = piece * before.sum(axis=1)[:, None, None] + (np.cumsum(before, axis=1) - before)[:, None, :]
        np.maximum(table[:, 0, 0], free[plan.servers], out=table[:, 0, 0])
        table -= ramp
        np.maximum.accumulate(flat, axis=1, out=flat)
        free[plan.servers] = table[:, -1, -1] + ramp[:, -1, -1] + hold[:, -1]
        if start is not None:
            start[:, plan.stages] = (table + ramp)[plan.row, :, plan.slot].T
        table += ramp + (lag if (lag != lag[:1]).any() else lag[:1])[:, None, :]
        if not alone:
            ready[:] = table[plan.row, :, plan.slot]
        finish = max(finish, int(ready[:, -1].max()))
        if plan.needed:
            delivered[number] = ready
    return Run(finish, start), check


# Starts that are kept of a run; the critical path of a longer one is that of fewer pieces of the same size.
MOST_KEPT = 3_000_000
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
    return Run(finish, np.frombuffer(begin, dtype=np.int64).reshape(max(amount), 1 << stage_bits)[:, :stages])


def _arrivals(graph: EventGraph) -> tuple[list[int], Callable[[int, int, int], list[tuple[int, int]]], dict[int, int]]:
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


@per_topology
def alike(work: Work) -> tuple[Work, Ints]:
    """One of the servers that do the same at the same times, and which stage there stands for each.

    Servers do the same if their stages, by number, take as long, and each waits for nothing or for one stage
    that is the same at such a server. Their parts are refined until none divides another (R. Paige and R. E.
    Tarjan, "Three partition refinement algorithms", 1987). Where stages wait for several, or deliver at once,
    all are kept, as they are where more than half of them differ.
    """
    graph, none = work.graph, work.count
    wait = scattered(graph.after, graph.before, none, none)
    # Of each stage: its place at its server, and the stage behind it there, behind the last one the first.
    order, count = np.argsort(graph.resource, kind="stable"), np.bincount(graph.resource)
    place = places(count)
    behind = order[np.arange(none) - place + (place + 1) % np.repeat(count, count)]
    kind, behind = scattered(order, place, none), scattered(order, behind, none)
    first, many, last = order[place == 0], 0, -1
    while 0 < none >= 2 * many and many > last and work.lag.min() > 0 and graph.fan_in.max() < 2:
        columns = np.stack([kind, work.hold, work.lag, work.release, kind[behind], np.append(kind, -1)[wait]])
        order = np.lexsort(columns[::-1])
        kind[order] = np.cumsum((np.diff(columns[:, order], prepend=-2) != 0).any(axis=0)) - 1
        last, many = many, int(kind.max()) + 1
    if many > last:
        return work, np.arange(none)
    kept = scattered(kind, np.arange(none), many)
    server = scattered(graph.resource[first], kind[first], len(work.load))[graph.resource[kept]]
    after = np.flatnonzero(graph.fan_in[kept])
    one = EventGraph(server, graph.timeless[kept], kind[wait[kept[after]]], after)
    return Work(one, work.hold[kept], work.lag[kept], work.release[kept], work.ticks_per_second), kind


def in_order(work: Work, order: Ints, pieces: int) -> Run:
    """Runs `pieces` of everything in a given order of service, whatever else is ready before.

    order: items (piece * E + stage), of which each comes behind all that it waits for.
    """
    stages, follow = work.count, work.graph.followers
    resource, hold, lag = work.graph.resource.tolist(), work.hold.tolist(), work.lag.tolist()
    free = [0] * (int(work.graph.resource.max(initial=-1)) + 1)
    ready = np.tile(np.where(work.graph.fan_in == 0, work.release, 0), pieces).tolist()
    start = [-1] * (pieces * stages)
    for item in order.tolist():
        stage = item % stages
        server, base = resource[stage], item - stage
        # Comparisons, as calls of max would take half of the time.
        begun = ready[item] if ready[item] > free[server] else free[server]
        free[server] = begun + hold[stage]
        start[item] = begun
        done = begun + lag[stage]
        for target in follow[stage]:
            if done > ready[base + target]:
                ready[base + target] = done
    starts = np.array(start, dtype=np.int64).reshape(pieces, stages)
    return Run(int((starts + work.lag).max(initial=0)), starts)


def step_order(graph: EventGraph, step: Ints, pieces: int) -> Ints:
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

    record: True to keep the starts, of all pieces; event by event few are kept unasked, as they cost little.
    """
    steps, turns = graph.schedule.form == "steps", options.offer == "turns"
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
        record = record or pieces * graph.count <= MOST_KEPT
        run = first_come(alike(work)[0], pieces, turns=turns, record=record)
        run = run if run.start is None else replace(run, start=run.start[:, alike(work)[1]])
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
    """Ints of `pieces` of everything first come, first served, by a formula; None where the pattern has none.

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
        most = by_place(np.maximum, graph.resource, after, len(work.load))
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
