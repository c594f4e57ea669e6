"""A static order of service, many stages at a time: max-plus arithmetic on arrays, no event at all.

With the order at every server known, x_j = max(r_j, x_{j-1} + hold_{j-1}) is a running maximum once the prefix sums of
the holds are taken off. Two orders make rounds whose arrivals are all known from earlier rounds:

- `in_rounds` (forests): round k serves piece k - level of every stage, so all trees advance together;
- `in_steps` (steps that run one after another): all stages of one level with all their pieces, piece by piece.

Inside a round a server goes by piece, then stage. (Recurrence: Baccelli et al., "Synchronization and linearity", 1992,
section 2.5; running maximum as a scan: Hillis and Steele, "Data parallel algorithms", 1986.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blinksim.simulation.work import Run, Ticks, Work

# Below this, index tables for every phase of the history are kept.
_KEPT = 4_000_000
# Below this, a table is one class of servers whatever the padding.
_PADDED = 4096


# --- rounds: piece k - level of everything ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Table:
    """Stages laid out server by server, padded to powers of two within classes of servers.

    place (E): position of each stage in the table. groups: (first position, servers, width) of each class. width: of
    the whole table. sources (F, width), gaps (F, width): for each place the places of the stages it waits for, padded
    with `width`, where a zero stands, and how many rounds earlier they were served.
    """

    place: Ticks
    groups: list[tuple[int, int, int]]
    width: int
    sources: Ticks
    gaps: Ticks


def _table(work: Work) -> _Table:
    order = np.argsort(work.resource, kind="stable")
    _, first, counts = np.unique(work.resource[order], return_index=True, return_counts=True)
    slot = np.arange(work.count) - np.repeat(first, counts)
    padded = 1 << np.ceil(np.log2(counts)).astype(np.int64)
    place = np.empty(work.count, dtype=np.int64)
    if int(padded.max()) * len(counts) <= max(_PADDED, 2 * int(padded.sum())):
        # One class costs padding and saves calls.
        padded[:] = padded.max()
    groups, width = [], 0
    for size in np.unique(padded).tolist():
        chosen = padded == size
        row = np.cumsum(chosen) - 1
        mine = np.repeat(chosen, counts)
        place[order[mine]] = width + np.repeat(row, counts)[mine] * size + slot[mine]
        groups.append((width, int(chosen.sum()), size))
        width += int(chosen.sum()) * size
    by_target = np.argsort(work.after, kind="stable")
    target, source = work.after[by_target], work.before[by_target]
    fan = np.bincount(target, minlength=work.count)
    turn = np.arange(len(target)) - np.repeat(np.cumsum(fan) - fan, fan)
    depth = int(fan.max(initial=0))
    sources = np.full((depth, width), width, dtype=np.int64)
    gaps = np.ones((depth, width), dtype=np.int64)
    sources[turn, place[target]] = place[source]
    gaps[turn, place[target]] = work.level[target] - work.level[source]
    return _Table(place, groups, width, sources, gaps)


def in_rounds(works: Work | Sequence[Work], pieces: int, *, record: bool = False, watch: bool = False) -> list[Run]:
    """Runs `pieces` of everything in rounds, for one work or several that differ only in their times (sizes).

    record: whether to return when each stage began. watch: whether to find out if the runs are settled: in the last
    whole rounds nothing has grown by more than the load of a round on the busiest server. As the rounds are one
    monotone map that commutes with adding a constant, nothing ever will again (Baccelli et al., section 3.7).
    """
    batch = [works] if isinstance(works, Work) else list(works)
    first = batch[0]
    if not first.count:
        return [Run(0, np.zeros((pieces, 0), dtype=np.int64)) for _ in batch]
    table = first.once(_table)
    place, width, rows = table.place, table.width, len(batch)

    def spread(values: Sequence[Ticks]) -> Ticks:
        result = np.zeros((rows, width), dtype=np.int64)
        for row, value in enumerate(values):
            result[row, place] = value
        return result

    hold, lag = spread([w.hold for w in batch]), spread([w.lag for w in batch])
    level = np.zeros(width, dtype=np.int64)
    level[place] = first.level
    real = np.zeros(width, dtype=np.bool_)
    real[place] = True
    release = spread([np.where(w.fan_in == 0, w.release, 0) for w in batch]) if first.release.any() else None
    tall = int(first.level.max())
    prefix = _prefix(hold, table.groups)
    behind, free = prefix + lag, [np.zeros((rows, n), dtype=np.int64) for _, n, _ in table.groups]
    history = np.zeros((int(table.gaps.max(initial=1)), rows, width + 1), dtype=np.int64)
    lookup = _Lookup(table, history)
    ready = np.empty((rows, width), dtype=np.int64)
    other = np.empty((rows, width), dtype=np.int64) if len(table.sources) > 1 else ready
    starts = [np.full((pieces, first.count), -1, dtype=np.int64) for _ in batch] if record else []
    finish = np.zeros(rows, dtype=np.int64)
    at_level = [place[first.level == k] for k in range(tall + 1)]
    stage_at = [np.flatnonzero(first.level == k) for k in range(tall + 1)]
    most = np.array([[w.busiest] for w in batch])
    calm = np.zeros(rows, dtype=np.int64)
    earlier = np.zeros((rows, width), dtype=np.int64)
    for k in range(pieces + tall):
        whole = tall <= k < pieces
        lookup.arrivals(k, ready, other)
        if release is not None:
            np.maximum(ready, release, out=ready)
        if whole:
            now_prefix, now_behind, now_hold = prefix, behind, hold
        else:
            active = real & (level <= k) & (level > k - pieces)
            ready *= active
            now_hold = hold * active
            now_prefix = _prefix(now_hold, table.groups)
            now_behind = now_prefix + lag
        ready -= now_prefix
        for (start, servers, size), gone in zip(table.groups, free, strict=True):
            block = ready[:, start : start + servers * size].reshape(rows, servers, size)
            np.maximum(block[:, :, 0], gone, out=block[:, :, 0])
            if size > 1:
                np.maximum.accumulate(block, axis=2, out=block)
            end = slice(start + size - 1, start + servers * size, size)
            np.add(ready[:, end], now_prefix[:, end], out=gone)
            gone += now_hold[:, end]
        if record:
            begun = ready + now_prefix
            for j in range(max(0, k - pieces + 1), min(tall, k) + 1):
                for row in range(rows):
                    starts[row][k - j, stage_at[j]] = begun[row, at_level[j]]
        delivered = history[k % len(history)]
        np.add(ready, now_behind, out=delivered[:, :width])
        if watch and whole:
            grown = ((delivered[:, :width] - earlier <= most) | ~real).all(axis=1)
            calm = np.where(grown, calm + 1, 0)
            earlier[:] = delivered[:, :width]
        if k >= pieces - 1:
            ended = delivered[:, at_level[k - pieces + 1]]
            np.maximum(finish, ended.max(axis=1), out=finish)
    settled = (calm >= len(history)).tolist()
    return [Run(int(finish[row]), starts[row] if record else None, settled=settled[row]) for row in range(rows)]


def _prefix(hold: Ticks, groups: Sequence[tuple[int, int, int]]) -> Ticks:
    """What the stages before each one at the same server hold it for."""
    result = np.zeros_like(hold)
    for start, servers, size in groups:
        if size > 1:
            block = hold[:, start : start + servers * size].reshape(len(hold), servers, size)
            out = result[:, start : start + servers * size].reshape(len(hold), servers, size)
            np.cumsum(block[:, :, :-1], axis=2, out=out[:, :, 1:])
    return result


class _Lookup:
    """Arrivals from the rounds before: the latest delivery among what each stage waits for."""

    def __init__(self, table: _Table, history: Ticks) -> None:
        self.history, self.table = history, table
        self.depth, self.rows, self.span = history.shape
        self.flat = history.reshape(-1)
        self.kept: dict[tuple[int, int], Ticks] = {}
        self.keep = self.depth * table.sources.size <= _KEPT

    def arrivals(self, k: int, ready: Ticks, other: Ticks) -> None:
        if not len(self.table.sources):
            ready[:] = 0
        for i in range(len(self.table.sources)):
            into = ready if i == 0 else other
            # mode="clip" lets take write straight into its target; the indices are in range by construction.
            if self.depth == 1:
                np.take(self.history[0], self.table.sources[i], axis=1, out=into, mode="clip")
            else:
                index = self._index(k % self.depth, i)
                for row in range(self.rows):
                    np.take(self.flat[row * self.span :], index, out=into[row], mode="clip")
            if i:
                np.maximum(ready, other, out=ready)

    def _index(self, phase: int, i: int) -> Ticks:
        if (phase, i) not in self.kept:
            then: Ticks = (phase - self.table.gaps[i]) % self.depth
            index: Ticks = then * (self.rows * self.span) + self.table.sources[i]
            if not self.keep:
                return index
            self.kept[phase, i] = index
            return index
        return self.kept[phase, i]


# --- steps: one level after another ---------------------------------------------------------------------------------


def in_steps(work: Work, pieces: int, *, record: bool = False, check: bool = True) -> tuple[Run, bool]:
    """Runs `pieces` of everything level by level, and says whether every server was then served first come first.

    If it was, this is what FIFO service gives, start by start: the order of service and of arrival are the same.
    record: whether to return when each stage began. check: whether to look; without, the answer is no.
    """
    if not work.count:
        return Run(0, np.zeros((pieces, 0), dtype=np.int64)), True
    plans = work.once(_plans)
    free = np.zeros(len(work.load), dtype=np.int64)
    arrived = np.full(len(work.load), -1, dtype=np.int64)
    start = np.full((pieces, work.count), -1, dtype=np.int64) if record else None
    delivered: dict[int, Ticks] = {}
    finish, came_in_order, released = 0, check, bool(work.release.any())
    turn = np.arange(pieces, dtype=np.int64)
    spare = nothing = np.zeros((0, pieces), dtype=np.int64)
    for number, plan in enumerate(plans):
        stages = len(plan.stages)
        if plan.straight is not None:
            # Each row from one row of the level before; the level before that leaves its room.
            ready = spare if spare.shape == (stages, pieces) else np.empty((stages, pieces), dtype=np.int64)
            spare = nothing
            np.take(delivered[number - 1], plan.straight, axis=0, out=ready, mode="clip")
        else:
            ready = np.zeros((stages, pieces), dtype=np.int64)
            for level, into, source in plan.waits:
                if plan.unique:
                    ready[into] = np.maximum(ready[into], delivered[level][source])
                else:
                    np.maximum.at(ready, into, delivered[level][source])
        holds, lags = work.hold[plan.stages], work.lag[plan.stages]
        if released and number == 0:
            np.maximum(ready, work.release[plan.stages][:, None], out=ready)
        for gone in plan.forget:
            spare = delivered.pop(gone)
        if plan.slots == 1:
            if came_in_order:
                came_in_order = bool((ready[:, 0] > arrived[plan.servers]).all()) and bool(
                    (ready[:, 1:] >= ready[:, :-1]).all()
                )
                arrived[plan.servers] = ready[:, -1]
            ramp = turn * (holds[0] if (holds == holds[0]).all() else holds[:, None])
            np.maximum(ready[:, 0], free[plan.servers], out=ready[:, 0])
            ready -= ramp
            np.maximum.accumulate(ready, axis=1, out=ready)
            free[plan.servers] = ready[:, -1] + holds + ramp[..., -1]
            later = lags[0] if (lags == lags[0]).all() else lags[:, None]
            if start is not None:
                start[:, plan.stages] = (ready + ramp).T
            # One pass over the table instead of two.
            ready += ramp + later
        else:
            came_in_order = _shared_servers(plan, holds, ready, turn, free, arrived) and came_in_order
            if start is not None:
                start[:, plan.stages] = ready.T
            ready += lags[:, None]
        finish = max(finish, int(ready[:, -1].max()))
        if plan.needed:
            delivered[number] = ready
    return Run(finish, start), came_in_order


@dataclass(frozen=True, eq=False)
class _Plan:
    """One level: stages in the order of servers, where their arrivals come from, which levels nobody needs any more.

    servers (rows): one per row; row and slot (stages): where each stage stands at its server.
    """

    stages: Ticks
    servers: Ticks
    row: Ticks
    slot: Ticks
    slots: int
    waits: list[tuple[int, Ticks, Ticks]]
    unique: bool
    straight: Ticks | None
    forget: list[int]
    needed: bool


def _plans(work: Work) -> list[_Plan]:
    order = np.lexsort((work.resource, work.level))
    where = np.empty(work.count, dtype=np.int64)
    tall = int(work.level.max()) + 1
    limits = np.searchsorted(work.level[order], np.arange(tall + 1)).tolist()
    where[order] = np.arange(work.count) - np.repeat(limits[:-1], np.diff(limits))
    waits, wait_limits = work.by_level
    last_use = np.zeros(tall, dtype=np.int64)
    np.maximum.at(last_use, work.level[work.before], work.level[work.after])
    plans = []
    for number in range(tall):
        stages = order[limits[number] : limits[number + 1]]
        server = work.resource[stages]
        servers, row, counts = np.unique(server, return_inverse=True, return_counts=True)
        slot = np.arange(len(stages)) - np.repeat(np.cumsum(counts) - counts, counts)
        edges = waits[wait_limits[number] : wait_limits[number + 1]]
        into, source = where[work.after[edges]], where[work.before[edges]]
        level = work.level[work.before[edges]]
        groups = [(int(k), into[level == k], source[level == k]) for k in np.unique(level)]
        unique = all(len(np.unique(g[1])) == len(g[1]) for g in groups)
        straight = None
        if len(groups) == 1 and groups[0][0] == number - 1 and unique and len(into) == len(stages):
            straight = np.empty(len(stages), dtype=np.int64)
            straight[into] = source
        plan = _Plan(
            stages=stages,
            servers=servers,
            row=row,
            slot=slot,
            slots=int(counts.max()),
            waits=groups,
            unique=unique,
            straight=straight,
            forget=np.flatnonzero(last_use == number).tolist() if number else [],
            needed=bool(last_use[number]),
        )
        plans.append(plan)
    return plans


def _shared_servers(plan: _Plan, holds: Ticks, ready: Ticks, turn: Ticks, free: Ticks, arrived: Ticks) -> bool:
    """The scan where servers have several stages in one level; `ready` becomes the starts. Whether arrival agrees."""
    rows, slots, pieces = len(plan.servers), plan.slots, len(turn)
    table = np.zeros((rows, pieces, slots), dtype=np.int64)
    hold = np.zeros((rows, slots), dtype=np.int64)
    hold[plan.row, plan.slot] = holds
    real = np.zeros((rows, 1, slots), dtype=np.bool_)
    real[plan.row, 0, plan.slot] = True
    table[plan.row, :, plan.slot] = ready
    flat = table.reshape(rows, pieces * slots)
    latest = np.maximum.accumulate(flat, axis=1).reshape(table.shape)
    ordered = bool(((latest == table) | ~real).all()) and bool((table[:, 0, 0] > arrived[plan.servers]).all())
    arrived[plan.servers] = latest[:, -1, -1]
    before = np.cumsum(hold, axis=1) - hold
    ramp = turn[None, :, None] * hold.sum(axis=1)[:, None, None] + before[:, None, :]
    np.maximum(table[:, 0, 0], free[plan.servers], out=table[:, 0, 0])
    table -= ramp
    np.maximum.accumulate(flat, axis=1, out=flat)
    table += ramp
    free[plan.servers] = table[:, -1, -1] + hold[:, -1]
    ready[:] = table[plan.row, :, plan.slot]
    return ordered
