"""Evaluation of an event graph in arrays, for orders of service known beforehand.

With the order at every server known, x_j = max(r_j, x_{j-1} + hold_{j-1}) is a running maximum once the
prefix sums of the holds are taken off. Two orders make fronts whose arrivals are all known from earlier
fronts:

- in rounds, round k serves piece k - level of every stage, so that all trees of a forest advance together; inside a
  round a server goes by stage;
- level by level, a level serves all pieces of its stages, so that steps run one after another; inside a level a server
  goes by piece, then stage.

(Recurrence: Baccelli et al., "Synchronization and linearity", 1992, section 2.5; running maximum as a scan:
Hillis and Steele, "Data parallel algorithms", 1986.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blinksim.graphs.arrays import distinct, per_topology, places
from blinksim.timing.event_graph import EventGraph, Run, Ticks, Work


@dataclass(frozen=True, eq=False)
class _Table:
    """Stages laid out server by server, servers with equally many stages one after another.

    order (E): the stages as they are laid out. place (E): where each stage is. first, last (servers): the
    places of each server. groups: the places of all servers with equally many stages, and how many that are.
    sources, gaps (F, E): for each place the places of the stages it waits for, padded with E, where a zero
    stands, and how many rounds earlier they were served.
    """

    order: Ticks
    place: Ticks
    first: Ticks
    last: Ticks
    groups: list[tuple[slice, int]]
    sources: Ticks
    gaps: Ticks


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
    index, ready, other = np.empty(width, dtype=np.int64), np.zeros(width, dtype=np.int64), np.empty(width, np.int64)
    start = np.full((pieces, graph.count), -1, dtype=np.int64) if record else None
    earlier, calm, finish = np.zeros(width, dtype=np.int64), 0, 0
    for number in range(pieces + tall):
        row = number % depth
        if not len(origin):
            ready[:] = 0
        for nth, sources in enumerate(origin):
            np.add(sources, row * (width + 1), out=index)
            # The index is at most one whole history too low.
            into = other if nth else ready
            np.take(flat, index, out=into, mode="wrap")
            if nth:
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
            grown = bool((delivered - earlier <= work.busiest).all())
            calm = calm + 1 if grown else 0
            earlier[:] = delivered
        if number >= pieces - 1:
            # The stages that now have passed their last piece.
            finish = max(finish, int(delivered[place[stage_at[number - pieces + 1]]].max()))
    # Settled if the calm has lasted as long as the history that a round looks back on.
    return Run(finish, start, settled=watch and calm >= depth)


def _prefix(hold: Ticks, table: _Table) -> Ticks:
    """How long the stages before each one hold the same server."""
    # Sums over all servers may wrap around; their differences do so again.
    before = np.cumsum(hold) - hold
    return before - np.repeat(before[table.first], table.last - table.first + 1)


@dataclass(frozen=True, eq=False)
class _Level:
    """Stages in the order of servers, where their arrivals come from, which levels no later one needs.

    servers (rows): one per row; row and slot (stages): where each stage stands at its server, slots: places
    of a row. waits: level, stages, the stages of that level that they wait for, and where those of each
    begin. straight (stages): the only stage that each waits for, if all are of the level before. forget:
    levels that no later one needs.
    """

    stages: Ticks
    servers: Ticks
    row: Ticks
    slot: Ticks
    slots: int
    waits: list[tuple[int, Ticks, Ticks, Ticks]]
    straight: Ticks | None
    forget: list[int]
    needed: bool


@per_topology
def _levels(graph: EventGraph) -> list[_Level]:
    order = np.lexsort((graph.resource, graph.level))
    where = np.empty(graph.count, dtype=np.int64)
    tall = int(graph.level.max()) + 1
    limits = np.searchsorted(graph.level[order], np.arange(tall + 1)).tolist()
    where[order] = np.arange(graph.count) - np.repeat(limits[:-1], np.diff(limits))
    last_use = np.zeros(tall, dtype=np.int64)
    np.maximum.at(last_use, graph.level[graph.before], graph.level[graph.after])
    levels = []
    for number, edges in enumerate(graph.by_level):
        stages = order[limits[number] : limits[number + 1]]
        servers, row, counts = np.unique(graph.resource[stages], return_inverse=True, return_counts=True)
        into, source = where[graph.after[edges]], where[graph.before[edges]]
        level = graph.level[graph.before[edges]]
        straight = None
        if number and len(into) == len(stages) == len(distinct(into)) and (level == number - 1).all():
            straight = np.empty(len(stages), dtype=np.int64)
            straight[into] = source
        by_target, waits = np.argsort(into, kind="stable"), []
        for k in distinct(level).tolist():
            some = by_target[level[by_target] == k]
            targets, first = np.unique(into[some], return_index=True)
            waits.append((k, targets, source[some], first))
        forget = np.flatnonzero(last_use == number).tolist() if number else []
        found = _Level(stages, servers, row, places(counts), int(counts.max()), waits, straight, forget,
                       bool(last_use[number]))  # fmt: skip
        levels.append(found)
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
    delivered: dict[int, Ticks] = {}
    finish, piece = 0, np.arange(pieces, dtype=np.int64)[None, :, None]
    spare = np.zeros((0, pieces), dtype=np.int64)
    for number, plan in enumerate(_levels(graph)):
        # (stages, pieces): when each piece is ready for each stage, and from the end of the loop on is
        # delivered.
        ready = _arrived(plan, delivered, number, pieces, spare)
        if number == 0 and work.release.any():
            np.maximum(ready, work.release[plan.stages][:, None], out=ready)
        spare = np.zeros((0, pieces), dtype=np.int64)
        for gone in plan.forget:
            spare = delivered.pop(gone)

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
            check = bool((table[:, 0, 0] > arrived[plan.servers]).all()) and _ascending(table, plan)
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
        later = lag if (lag != lag[:1]).any() else lag[:1]
        table += ramp + later[:, None, :]
        if not alone:
            ready[:] = table[plan.row, :, plan.slot]
        finish = max(finish, int(ready[:, -1].max()))
        if plan.needed:
            delivered[number] = ready
    return Run(finish, start), check


def _arrived(plan: _Level, delivered: dict[int, Ticks], number: int, pieces: int, spare: Ticks) -> Ticks:
    """(stages, pieces): when each piece is ready for each stage of level `number`; in spare room, if any."""
    shape = (len(plan.stages), pieces)
    if plan.straight is not None:
        # Each row from one row of the level before; the level before that leaves its room.
        ready = spare if spare.shape == shape else np.empty(shape, dtype=np.int64)
        np.take(delivered[number - 1], plan.straight, axis=0, out=ready, mode="clip")
        return ready
    ready = np.zeros(shape, dtype=np.int64)
    for level, into, source, first in plan.waits:
        came = delivered[level][source]
        came = came if len(into) == len(source) else np.maximum.reduceat(came, first, axis=0)
        ready[into] = np.maximum(ready[into], came)
    return ready


def _ascending(table: Ticks, plan: _Level) -> bool:
    """True if all pieces arrive in the order in which their servers go."""
    if plan.slots == 1:
        return bool((table[:, 1:, 0] >= table[:, :-1, 0]).all())
    latest = np.maximum.accumulate(table.reshape(len(table), -1), axis=1).reshape(table.shape)
    real = np.zeros((len(table), 1, plan.slots), dtype=np.bool_)
    real[plan.row, 0, plan.slot] = True
    return bool(((latest == table) | ~real).all())
