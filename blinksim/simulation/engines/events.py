"""One event per stage and piece: first come, first served, exactly; for anything irregular, and as the oracle.

With FIFO servers a link's next free time is known when a piece becomes ready for it, so only that moment is an event;
the usual second one (the link falls free) is not needed. An event is a single integer: the time, then the piece, then
the stage, which is the order in which ties are served.

How pieces come to stand in line matters more than how links serve. If all that is there stands in line (a burst), what
others want to pass through a link waits for the last of it, links further down stand idle meanwhile, and a packed
forest never reaches its rate: on a DGX-1V it stays 8 to 45 % above the bound at any number of pieces, the more the
deeper its trees are. If only the sources are paced, deep chains still lose a third. In turns, every stream (a send of
one chunk) has one piece in line at each server, as a thread block has that copies piece after piece; then the excess
falls with the number of pieces.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from blinksim.simulation.work import Ticks, Work


@dataclass(frozen=True, eq=False)
class Run:
    """finish: ticks until the last piece is delivered. start (pieces, E): when each stage began, if recorded, -1 for
    joints. end (pieces, E): when each was over, where that is not start + hold. settled: whether more pieces are known
    to add no more than the busiest server's load each.
    """

    finish: int
    start: Ticks | None = None
    end: Ticks | None = None
    settled: bool = False


Successors = list[tuple[int, ...]]
# Of a source in a burst: (the next stage at its server, how much to add to the piece for it, the end of the pieces).
Turn = tuple[int, int, int] | None
Flags = npt.NDArray[np.bool_]


def successors(work: Work) -> Successors:
    """For each stage the stages that wait for it, in order."""
    if "successors" not in work.cache:
        order = np.lexsort((work.after, work.before))
        starts = np.searchsorted(work.before[order], np.arange(work.count + 1)).tolist()
        after = work.after[order].tolist()
        work.cache["successors"] = [tuple(after[a:b]) for a, b in pairwise(starts)]
    found: Successors = work.cache["successors"]  # type: ignore[assignment]
    return found


def fifo(work: Work, pieces: int | Sequence[int], *, turns: bool | Sequence[bool] = False, record: bool = True) -> Run:
    """Runs `pieces` of everything (or so many of each stage), first come, first served, ties by piece, then stage.

    turns: whether a stage puts its next piece in line when the one before has left, instead of when it is there; for
    all stages or for each. record: whether to return when each stage began (8 bytes for each; -1 for pieces that a
    stage does not have).
    """
    count = work.count
    if not count:
        return Run(0, np.zeros((0, 0), dtype=np.int64))
    bits = max(1, (count - 1).bit_length())
    amounts = [pieces] * count if isinstance(pieces, int) else list(pieces)
    most = max(amounts)
    shift = bits + most.bit_length()
    mask, low = (1 << shift) - 1, (1 << bits) - 1
    one = 1 << bits
    resource, hold, lag = work.resource.tolist(), work.hold.tolist(), work.lag.tolist()
    follow = successors(work)
    need, timeless = work.fan_in.tolist(), work.timeless.tolist()
    slow = [n > 1 or joint for n, joint in zip(need, timeless, strict=True)]
    free = [0] * (int(work.resource.max()) + 1)
    begin = array("q", [-1]) * ((most << bits) if record else 1)
    finish = 0
    taking = [turns] * count if isinstance(turns, bool) else list(turns)
    if any(taking):
        turn: list[Turn] = [None] * count
        roots = np.flatnonzero(work.fan_in == 0).tolist()
        offered = ((s, p) for s in roots for p in range(1 if taking[s] else amounts[s]))
        heap = [(int(work.release[s]) << shift) | (p << bits) | s for s, p in offered]
    else:
        heap, turn = _injected(work, amounts, bits, shift, free)
    heapify(heap)
    # Of stages that take turns: whether a piece is in line, what is there behind it, when the last one left.
    in_line = [pace and n == 0 for pace, n in zip(taking, need, strict=True)]
    behind: dict[int, deque[int]] = {}
    left_at = [0] * count
    # Most stages pass their piece to one other; those take the short way.
    single = [t[0] if len(t) == 1 and not slow[t[0]] else -1 for t in follow]
    waiting: dict[int, int] = {}
    left: dict[int, int] = {}
    while heap:
        code = heap[0]
        time = code >> shift
        key = code & mask
        stage = key & low
        used = False
        following = turn[stage]
        if following is None:
            server = resource[stage]
            start = free[server]
            if time > start:
                start = time
            gone = free[server] = start + hold[stage]
            if taking[stage]:
                if need[stage]:
                    line = behind.get(stage)
                    if line:
                        code = line.popleft()
                        if code >> shift < gone:
                            code = (gone << shift) | (code & mask)
                        heapreplace(heap, code)
                        used = True
                    else:
                        in_line[stage] = False
                        left_at[stage] = gone
                elif (key >> bits) + 1 < amounts[stage]:
                    heapreplace(heap, (gone << shift) | (key + one))
                    used = True
        else:
            # All of a server's initial pieces are in front of it from the beginning; their starts are known.
            start = time
            after, step, last = following
            again = (key - stage) + step
            if again >> bits < last:
                heapreplace(heap, ((time + hold[stage]) << shift) | (again + after))
                used = True
        if record:
            begin[key] = start
        done = start + lag[stage]
        base = key - stage
        target = single[stage]
        ready: Sequence[tuple[int, int]] = ()
        if target >= 0:
            ready = ((done, base + target),)
        elif not follow[stage]:
            if done > finish:
                finish = done
        else:
            found: list[tuple[int, int]] = []
            for target in follow[stage]:
                if slow[target]:
                    found += _collected(target, done, base, need, timeless, follow, waiting, left)
                else:
                    found.append((done, base + target))
            ready = found
        for when, item in ready:
            target = item & low
            if taking[target]:
                if in_line[target]:
                    line = behind.get(target)
                    if line is None:
                        line = behind[target] = deque()
                    line.append((when << shift) | item)
                    continue
                in_line[target] = True
                if left_at[target] > when:
                    when = left_at[target]
            if used:
                heappush(heap, (when << shift) | item)
            else:
                heapreplace(heap, (when << shift) | item)
                used = True
        if not used:
            heappop(heap)
    assert not waiting, "every wait must come to an end"
    if not record:
        return Run(finish)
    table = np.frombuffer(begin, dtype=np.int64).reshape(most, one)[:, :count]
    return Run(finish, table)


def _injected(work: Work, amounts: list[int], bits: int, shift: int, free: list[int]) -> tuple[list[int], list[Turn]]:
    """The first events, and for stages that wait for nothing how their servers go on: (next stage, next piece, end).

    A server that starts with many pieces in front of it needs one event at a time for them, not a heap full.
    """
    turn: list[Turn] = [None] * work.count
    roots: dict[int, list[int]] = {}
    for stage in np.flatnonzero(work.fan_in == 0).tolist():
        roots.setdefault(int(work.resource[stage]), []).append(stage)
    heap: list[int] = []
    for server, stages in roots.items():
        times, counts = {int(work.release[s]) for s in stages}, {amounts[s] for s in stages}
        if len(times) > 1 or len(counts) > 1:
            # Collectives that start at different times or in different pieces.
            heap += [(int(work.release[s]) << shift) | (p << bits) | s for s in stages for p in range(amounts[s])]
            continue
        release, end = times.pop(), counts.pop()
        for place, stage in enumerate(stages):
            wraps = place + 1 == len(stages)
            turn[stage] = (stages[0], 1 << bits, end) if wraps else (stages[place + 1], 0, end)
        free[server] = release + end * int(work.hold[stages].sum())
        heap.append((release << shift) | stages[0])
    return heap, turn


def _collected(
    target: int,
    done: int,
    base: int,
    need: list[int],
    timeless: list[bool],
    follow: Successors,
    waiting: dict[int, int],
    left: dict[int, int],
) -> list[tuple[int, int]]:
    """(time, piece and stage) of what becomes ready when `target` has one arrival more; joints pass on at once."""
    item = base + target
    latest = waiting.get(item, 0)
    if done > latest:
        latest = done
    missing = left.get(item, need[target]) - 1
    if missing:
        waiting[item], left[item] = latest, missing
        return []
    if item in left:
        del waiting[item], left[item]
    if not timeless[target]:
        return [(latest, item)]
    ready = []
    for behind in follow[target]:
        ready += _collected(behind, latest, base, need, timeless, follow, waiting, left)
    return ready


def in_order(work: Work, order: npt.NDArray[np.int64], count: int) -> Run:
    """Runs with a given order of service at every server.

    order: items (piece * E + stage) such that the items of each server appear in the order in which it serves them.
    count: pieces of everything. A server waits for the next item of its order, whatever else is ready.
    """
    stages = work.count
    resource, hold, lag = work.resource.tolist(), work.hold.tolist(), work.lag.tolist()
    follow, need, release = successors(work), work.fan_in.tolist(), work.release.tolist()
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


def bounded(work: Work, pieces: int, connection: Ticks, first: Flags, last: Flags, slots: int) -> Run:
    """First come, first served, with room for `slots` pieces in each connection.

    connection (E): the connection of each stage. first, last (E): the stages with which a send begins and ends; a piece
    enters the first when there is a slot, and leaves its slot when it has passed the last.
    """
    stages = work.count
    resource, hold, lag = work.resource.tolist(), work.hold.tolist(), work.lag.tolist()
    follow, need, timeless = successors(work), work.fan_in.tolist(), work.timeless.tolist()
    owner, opens, ends = connection.tolist(), first.tolist(), last.tolist()
    room = [slots] * (int(connection.max(initial=-1)) + 1)
    queue: list[deque[int]] = [deque() for _ in room]
    free = [0] * (int(work.resource.max(initial=-1)) + 1)
    start = np.full((pieces, stages), -1, dtype=np.int64)
    waiting: dict[int, int] = {}
    left: dict[int, int] = {}
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
        for target in follow[stage]:
            for when, then in _collected(target, done, piece * stages, need, timeless, follow, waiting, left):
                heappush(heap, (when, 1, then))
    assert not waiting, "every wait must come to an end"
    assert not any(queue), "a slot is always taken in the end"
    return Run(finish, start)
