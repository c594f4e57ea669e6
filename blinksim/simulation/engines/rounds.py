"""A static order of service, many stages at a time: max-plus arithmetic on arrays, no events.

With the order at every server known, x_j = max(r_j, x_{j-1} + hold_{j-1}) is a running maximum once the prefix sums of
the holds are taken off. Two orders make rounds whose arrivals are all known from earlier rounds: here round k serves
piece k - level of every stage, so that all trees of a forest advance together; `blinksim.simulation.engines.steps` has
the other.

Inside a round a server goes by piece, then stage. (Recurrence: Baccelli et al., "Synchronization and linearity", 1992,
section 2.5; running maximum as a scan: Hillis and Steele, "Data parallel algorithms", 1986.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blinksim.simulation.work import Run, Ticks, Work
from blinksim.structures.arrays import distinct, places

# Below this, index tables for every phase of the history are kept.
_KEPT = 4_000_000
# Below this, a table is one class of servers whatever the padding.
_PADDED = 4096


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
    for size in distinct(padded).tolist():
        chosen = padded == size
        row = np.cumsum(chosen) - 1
        mine = np.repeat(chosen, counts)
        place[order[mine]] = width + np.repeat(row, counts)[mine] * size + slot[mine]
        groups.append((width, int(chosen.sum()), size))
        width += int(chosen.sum()) * size
    by_target = np.argsort(work.after, kind="stable")
    target, source = work.after[by_target], work.before[by_target]
    fan = np.bincount(target, minlength=work.count)
    turn = places(fan)
    depth = int(fan.max(initial=0))
    sources = np.full((depth, width), width, dtype=np.int64)
    gaps = np.ones((depth, width), dtype=np.int64)
    sources[turn, place[target]] = place[source]
    gaps[turn, place[target]] = work.level[target] - work.level[source]
    return _Table(place, groups, width, sources, gaps)


def in_rounds(works: Work | Sequence[Work], pieces: int, *, record: bool = False, watch: bool = False) -> list[Run]:
    """Runs `pieces` of everything in rounds, for one work or several that differ only in their times (sizes).

    record: True to return when each stage began. watch: True to find out whether the runs are settled: in the last
    whole rounds nothing has grown by more than the load of a round on the busiest server. As the rounds are one
    monotone map that commutes with adding a constant, nothing ever will again (Baccelli et al., section 3.7).
    """
    batch = [works] if isinstance(works, Work) else list(works)
    first = batch[0]
    if not first.count:
        return [Run(0, np.zeros((pieces, 0), dtype=np.int64)) for _ in batch]
    lanes = _Lanes(batch, pieces)
    starts = [np.full((pieces, first.count), -1, dtype=np.int64) for _ in batch] if record else []
    finish = np.zeros(len(batch), dtype=np.int64)
    watcher = _Watcher(lanes, [work.busiest for work in batch]) if watch else None
    for number in range(pieces + lanes.tall):
        delivered = lanes.round(number)
        if starts:
            lanes.record(number, starts)
        if watcher is not None and lanes.whole(number):
            watcher.look(delivered)
        if number >= pieces - 1:
            ended = delivered[:, lanes.at_level[number - pieces + 1]]
            np.maximum(finish, ended.max(axis=1), out=finish)
    settled = [False] * len(batch) if watcher is None else watcher.settled
    return [Run(int(finish[row]), starts[row] if record else None, settled=settled[row]) for row in range(len(batch))]


class _Lanes:
    """A row of the table for each work, advanced round by round.

    prefix: what the stages before each one at the same server hold it for. free: when each server is free, by class.
    history: deliveries of the last rounds, with a zero behind each row. ready, other: arrivals, and room for a second
    array of them. begun: when each stage started in the last round.
    """

    def __init__(self, works: Sequence[Work], pieces: int) -> None:
        first = works[0]
        self.pieces, self.tall = pieces, int(first.level.max())
        self.table = table = first.once(_table)
        place, width, rows = table.place, table.width, len(works)
        self.hold, self.lag = self._spread([w.hold for w in works]), self._spread([w.lag for w in works])
        self.release = None
        if first.release.any():
            self.release = self._spread([np.where(w.fan_in == 0, w.release, 0) for w in works])
        self.level = np.zeros(width, dtype=np.int64)
        self.level[place] = first.level
        self.real = np.zeros(width, dtype=np.bool_)
        self.real[place] = True
        self.at_level = [place[first.level == k] for k in range(self.tall + 1)]
        self.stage_at = [np.flatnonzero(first.level == k) for k in range(self.tall + 1)]
        self.prefix = self.now_prefix = _prefix(self.hold, table.groups)
        self.behind = self.prefix + self.lag
        self.free = [np.zeros((rows, servers), dtype=np.int64) for _, servers, _ in table.groups]
        self.history = np.zeros((int(table.gaps.max(initial=1)), rows, width + 1), dtype=np.int64)
        self.lookup = _Lookup(table, self.history)
        self.ready = np.empty((rows, width), dtype=np.int64)
        self.other = np.empty((rows, width), dtype=np.int64) if len(table.sources) > 1 else self.ready

    def _spread(self, values: Sequence[Ticks]) -> Ticks:
        result = np.zeros((len(values), self.table.width), dtype=np.int64)
        for row, value in enumerate(values):
            result[row, self.table.place] = value
        return result

    def whole(self, number: int) -> bool:
        """True if every stage has a piece in this round."""
        return self.tall <= number < self.pieces

    def round(self, number: int) -> Ticks:
        """Serves piece number - level of every stage; returns the deliveries."""
        ready, width = self.ready, self.table.width
        self.lookup.arrivals(number, ready, self.other)
        if self.release is not None:
            np.maximum(ready, self.release, out=ready)
        if self.whole(number):
            self.now_prefix, behind, hold = self.prefix, self.behind, self.hold
        else:
            active = self.real & (self.level <= number) & (self.level > number - self.pieces)
            ready *= active
            hold = self.hold * active
            self.now_prefix = _prefix(hold, self.table.groups)
            behind = self.now_prefix + self.lag
        ready -= self.now_prefix
        _scan(self.table.groups, ready, self.now_prefix, hold, self.free)
        delivered: Ticks = self.history[number % len(self.history)][:, :width]
        np.add(ready, behind, out=delivered)
        return delivered

    def record(self, number: int, starts: Sequence[Ticks]) -> None:
        """Writes when the stages began in the last round, `number`."""
        begun = self.ready + self.now_prefix
        for level in range(max(0, number - self.pieces + 1), min(self.tall, number) + 1):
            for row, start in enumerate(starts):
                start[number - level, self.stage_at[level]] = begun[row, self.at_level[level]]


def _scan(
    groups: Sequence[tuple[int, int, int]], ready: Ticks, prefix: Ticks, hold: Ticks, free: Sequence[Ticks]
) -> None:
    """The running maximum along every server, from when it is free; `ready` and `free` become the new ones."""
    for (start, servers, size), gone in zip(groups, free, strict=True):
        block = ready[:, start : start + servers * size].reshape(len(ready), servers, size)
        np.maximum(block[:, :, 0], gone, out=block[:, :, 0])
        if size > 1:
            np.maximum.accumulate(block, axis=2, out=block)
        end = slice(start + size - 1, start + servers * size, size)
        np.add(ready[:, end], prefix[:, end], out=gone)
        gone += hold[:, end]


class _Watcher:
    """Counts, for each row, the last rounds in which no delivery grew by more than the busiest server's load."""

    def __init__(self, lanes: _Lanes, busiest: Sequence[int]) -> None:
        self.most, self.real, self.needed = np.array(busiest)[:, None], lanes.real, len(lanes.history)
        self.calm = np.zeros(len(busiest), dtype=np.int64)
        self.earlier = np.zeros((len(busiest), lanes.table.width), dtype=np.int64)

    def look(self, delivered: Ticks) -> None:
        grown = ((delivered - self.earlier <= self.most) | ~self.real).all(axis=1)
        self.calm = np.where(grown, self.calm + 1, 0)
        self.earlier[:] = delivered

    @property
    def settled(self) -> list[bool]:
        """True where the calm has lasted as long as the history that a round looks back on."""
        found: list[bool] = (self.calm >= self.needed).tolist()
        return found


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
