"""One event per stage and piece: first come, first served, exactly; for anything irregular, and as the oracle.

With FIFO servers a link's next free time is known when a piece becomes ready for it, so only that moment is an event;
the usual second one (the link falls free) is not needed. `blinksim.simulation.engines.plain_events` does the same in
the plainest form; here are the same rules, written for speed.

**Ties.** Of events at one time the one with the lower piece comes first, then the one with the lower stage.

**Events** are single integers that sort like the tuple (time, piece, stage). `Encoding` writes and reads them; the
loops do the same inline, since a call for each event would cost a third of the speed. The low bits of an event are its
item (piece and stage), and an item without its stage is the base of its piece::

    | time | piece | stage |        event >> time_shift    the time
           |     item      |        event & item_mask      the item
                   | stage |        item & stage_mask      the stage; item - stage is the base

**Lists** of a run:

    resource, hold, lag   by stage   the server, ticks that a piece holds it, ticks until what waits may start
    amount                by stage   the number of its pieces
    only                  by stage   the only stage that waits for it, and for nothing else; negative if there is none
    in_line, left_at      by stage   in turns: True while a piece stands in line; when the last one left the server
    is_source             by stage   in turns: True if it waits for no other stage
    behind                by stage   in turns: the events of the pieces that are there but not yet in line
    next_source           by stage   in a burst: of a stage that waits for nothing, who follows it at its server
    free                  by server  when it has passed everything that it accepted so far
    begin                 by item    when the stage began with the piece, if that is recorded

**Turns or bursts.** How pieces come to stand in line matters more than how links serve. If all that is there stands in
line (a burst), what others want to pass through a link waits for the last of it, links further down stand idle
meanwhile, and a packed forest never reaches its rate: on a DGX-1V it stays 8 to 45 % above the bound at any number of
pieces, the more the deeper its trees are. If only the sources are paced, deep chains still lose a third. In turns,
every stream (a send of one chunk) has one piece in line at each server, as a thread block has that copies piece after
piece; then the excess falls with the number of pieces.
"""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heappushpop
from itertools import pairwise

import numpy as np

from blinksim.simulation.engines.arrivals import SEVERAL, Arrivals
from blinksim.simulation.work import Run, Ticks, Work

# No event: what a loop holds when there is nothing new to push.
_NONE = -1
# Of a source in a burst: (the next source at its server, how much to add to the base for it, the end of the pieces).
Next = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Encoding:
    """How many bits the stage has in an event, and how many the stage and the piece have together."""

    stage_bits: int
    time_shift: int

    @classmethod
    def of(cls, stages: int, pieces: int) -> Encoding:
        stage_bits = max(1, (stages - 1).bit_length())
        return cls(stage_bits, stage_bits + pieces.bit_length())

    @property
    def item_mask(self) -> int:
        return (1 << self.time_shift) - 1

    @property
    def stage_mask(self) -> int:
        return (1 << self.stage_bits) - 1

    def encode(self, time: int, piece: int, stage: int) -> int:
        return (time << self.time_shift) | (piece << self.stage_bits) | stage

    def decode(self, event: int) -> tuple[int, int, int]:
        """(time, piece, stage)."""
        item = event & self.item_mask
        return event >> self.time_shift, item >> self.stage_bits, item & self.stage_mask


class _State:
    """The lists of a run (see the head of the module) that both loops use."""

    def __init__(self, work: Work, amount: list[int], record: bool) -> None:
        self.work, self.amount, self.record = work, amount, record
        self.code = Encoding.of(work.count, max(amount))
        self.resource, self.hold, self.lag = work.resource.tolist(), work.hold.tolist(), work.lag.tolist()
        self.arrivals = Arrivals(work)
        self.free = [0] * (int(work.resource.max()) + 1)
        self.begin = array("q", [-1]) * ((max(amount) << self.code.stage_bits) if record else 1)
        self.sources: list[int] = np.flatnonzero(work.fan_in == 0).tolist()

    def released(self, stage: int, pieces: int) -> list[int]:
        """The events of the first pieces of a source."""
        release = int(self.work.release[stage])
        return [self.code.encode(release, piece, stage) for piece in range(pieces)]

    def starts(self) -> Ticks | None:
        """(pieces, E): when each stage began each piece; -1 for joints and for pieces that a stage does not have."""
        if not self.record:
            return None
        table = np.frombuffer(self.begin, dtype=np.int64).reshape(max(self.amount), 1 << self.code.stage_bits)
        return table[:, : self.work.count]


def fifo(work: Work, pieces: int | Sequence[int], *, turns: bool | Sequence[bool] = False, record: bool = True) -> Run:
    """Runs `pieces` of everything (or a number for each stage), first come, first served, ties by piece, then stage.

    turns: True if a stage puts its next piece in line when the one before has left, False if when the piece is there;
    for all stages or for each. record: True to return when each stage began (8 bytes for each piece of each stage).
    """
    if not work.count:
        return Run(0, np.zeros((0, 0), dtype=np.int64))
    state = _State(work, [pieces] * work.count if isinstance(pieces, int) else list(pieces), record)
    takes_turns = [turns] * work.count if isinstance(turns, bool) else list(turns)
    finish = _in_turns(state, takes_turns) if any(takes_turns) else _in_bursts(state)
    state.arrivals.check_complete()
    return Run(finish, state.starts())


def _in_turns(state: _State, takes_turns: list[bool]) -> int:
    """Runs stages of which some or all take turns; returns the last delivery."""
    code, record, amount, arrivals = state.code, state.record, state.amount, state.arrivals
    resource, hold, lag, only = state.resource, state.hold, state.lag, arrivals.only
    free, begin, after = state.free, state.begin, arrivals.after
    time_shift, stage_bits, item_mask, stage_mask = code.time_shift, code.stage_bits, code.item_mask, code.stage_mask
    next_piece = 1 << stage_bits
    heap, is_source = _first_in_turns(state, takes_turns)
    heapify(heap)
    # A source has its next piece in line until there are no more.
    in_line, left_at = list(is_source), [0] * len(amount)
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
                more = (item >> stage_bits) + 1 < amount[stage]
                event = (gone << time_shift) | (item + next_piece) if more else _NONE
            elif line := behind.get(stage):
                event = line.popleft()
                event = event if event >> time_shift >= gone else (gone << time_shift) | (event & item_mask)
            else:
                in_line[stage], left_at[stage] = False, gone
        done = start + lag[stage]
        target = only[stage]
        if target >= 0:
            ready: Sequence[tuple[int, int]] = ((done, item - stage + target),)
        else:
            ready = after(stage, item - stage, done) if target == SEVERAL else ()
            # Whatever passes a piece on is followed by a later delivery.
            finish = done if done > finish else finish
        for when, item in ready:
            target = item & stage_mask
            if in_line[target]:
                behind[target].append((when << time_shift) | item)
                continue
            in_line[target] = takes_turns[target]
            left = left_at[target]
            when = when if when > left else left
            if event >= 0:
                heappush(heap, event)
            event = (when << time_shift) | item
        if event >= 0:
            event = heappushpop(heap, event)
        elif heap:
            event = heappop(heap)
        else:
            return finish


def _first_in_turns(state: _State, takes_turns: list[bool]) -> tuple[list[int], list[bool]]:
    """The first events, and by stage True for a source that takes turns."""
    heap, is_source = list[int](), [False] * len(takes_turns)
    for stage in state.sources:
        is_source[stage] = takes_turns[stage]
        heap += state.released(stage, 1 if takes_turns[stage] else state.amount[stage])
    return heap, is_source


def _in_bursts(state: _State) -> int:
    """Runs stages of which none takes turns; returns the last delivery."""
    code, record, arrivals = state.code, state.record, state.arrivals
    resource, hold, lag, only = state.resource, state.hold, state.lag, arrivals.only
    free, begin, after = state.free, state.begin, arrivals.after
    time_shift, stage_bits, item_mask, stage_mask = code.time_shift, code.stage_bits, code.item_mask, code.stage_mask
    heap, next_source = _injected(state)
    heapify(heap)
    finish, event = 0, heappop(heap)
    while True:
        time, item = event >> time_shift, event & item_mask
        stage = item & stage_mask
        base = item - stage
        source = next_source[stage]
        event = _NONE
        if source is None:
            server = resource[stage]
            start = free[server]
            start = time if time > start else start
            free[server] = start + hold[stage]
        else:
            # The server was given to its sources from the beginning.
            start = time
            following, step, end = source
            if (base + step) >> stage_bits < end:
                event = ((start + hold[stage]) << time_shift) | (base + step + following)
        if record:
            begin[item] = start
        done = start + lag[stage]
        target = only[stage]
        if target >= 0:
            if event >= 0:
                heappush(heap, event)
            event = (done << time_shift) | (base + target)
        else:
            for when, item in after(stage, base, done) if target == SEVERAL else ():
                if event >= 0:
                    heappush(heap, event)
                event = (when << time_shift) | item
            # Whatever passes a piece on is followed by a later delivery.
            finish = done if done > finish else finish
        if event >= 0:
            event = heappushpop(heap, event)
        elif heap:
            event = heappop(heap)
        else:
            return finish


def _injected(state: _State) -> tuple[list[int], list[Next | None]]:
    """The first events of a burst, and for sources how their servers go on.

    A server that starts with many pieces in front of it needs one event at a time for them, not a heap full. That holds
    where its sources start together, and where nothing else can come to it before they are all in line.
    """
    work, sources = state.work, state.sources
    next_source: list[Next | None] = [None] * work.count
    at_server: dict[int, list[int]] = {}
    for stage in sources:
        at_server.setdefault(state.resource[stage], []).append(stage)
    others = set(work.resource[work.fan_in > 0].tolist())
    all_first = len(set(work.release[sources].tolist())) == 1 and bool((work.lag[sources] > 0).all())
    heap: list[int] = []
    for server, stages in at_server.items():
        releases, ends = {int(work.release[s]) for s in stages}, {state.amount[s] for s in stages}
        if len(releases) > 1 or len(ends) > 1 or not (all_first or server not in others):
            heap += [event for stage in stages for event in state.released(stage, state.amount[stage])]
            continue
        release, end = releases.pop(), ends.pop()
        for stage, following in pairwise(stages):
            next_source[stage] = (following, 0, end)
        next_source[stages[-1]] = (stages[0], 1 << state.code.stage_bits, end)
        state.free[server] = release + end * int(work.hold[stages].sum())
        heap += state.released(stages[0], 1)
    return heap, next_source
