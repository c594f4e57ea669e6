"""How long the program of an emulated machine takes: every thread block a server, as the kernel runs it.

The simulator of `bs.simulate` knows the schedule alone: it serves what comes first, and a sum is time that
passes on the way. Here the program itself is run, op by op and piece by piece: a block takes the ready op with the
smallest share of its pieces done, sums occupy blocks of their own, and flags take their time. The numbers are those of
the lane (`calibration.py`) and what a further source of a sum costs (`ways.py`); nothing is fitted to the cases.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush

import numpy as np

from blinksim.gpu.programs.program import Program
from validate.recipes.lane import Lane

# In place of a signal: the piece ends.
ENDS = -1


def program_time(program: Program, lane: Lane, size: int, source: float) -> float:
    """Seconds that `program` (from `blinksim.gpu.execution.emulate`, one block a lane) takes for a vector of
    `size` bytes.

    source: what every source of a sum beyond the first costs, as a share of moving one.
    """
    blocks = _Blocks(program, lane, size, source)
    return blocks.run()


class _Blocks:
    def __init__(self, program: Program, lane: Lane, size: int, source: float) -> None:
        self.program = program
        ops = range(program.ops)
        here = program.op_device.tolist()
        self.queue = np.repeat(np.arange(program.queues), np.diff(program.queue_start)).tolist()
        self.count = [program.pieces(int(length), 0) for length in program.length]
        self.done = [0] * program.ops
        self.seconds = [self._piece(op, lane, size, source) for op in ops]
        # Flags are (device, number); a flag reaches another GPU a latency later, and its own after what a turn takes
        # beyond the block's own overhead.
        inside = max(0.0, lane.turn_s - lane.overhead_s)
        self.signals = [
            [((d, f), inside if d == here[op] else lane.latency_s) for d, f in program.rows("signals", op)]
            for op in ops
        ]
        self.waits = [[(here[op], flag) for (flag,) in program.rows("waits", op)] for op in ops]
        self.flags: dict[tuple[int, int], int] = defaultdict(int)
        self.waiters: dict[tuple[int, int], set[int]] = defaultdict(set)
        # Ops that store nothing only wait: the end is when their flags have risen.
        self.moving: list[list[int]] = [[] for _ in range(program.queues)]
        for op in ops:
            if program.destination_start[op] < program.destination_start[op + 1]:
                self.moving[self.queue[op]].append(op)
            for flag in self.waits[op]:
                self.waiters[flag].add(self.queue[op])
        self.busy = [False] * program.queues
        # (seconds, the place of a signal of the op that arrives, or ENDS; op, piece).
        self.events: list[tuple[float, int, int, int]] = []
        self.launch = lane.launch_s

    def _piece(self, op: int, lane: Lane, size: int, source: float) -> float:
        """Seconds that a whole piece of an op occupies its block."""
        program = self.program
        begin, end = program.span(int(program.length[op]), 0, 0)
        nbytes = (end - begin) * program.kind.itemsize
        device = program.op_device[op]
        if any(row[0] != device for row in program.rows("destinations", op)):
            passing = lane.passing_s if program.rows("waits", op) else 0.0
            return lane.overhead_s + passing + nbytes / lane.rate(size)
        further = max(0, len(program.rows("sources", op)) - 1)
        return lane.overhead_s + nbytes * (1 + source * further) / (1 + source) / lane.sum_rate

    def run(self) -> float:
        end = self.launch
        for queue in range(self.program.queues):
            self._go_on(queue, end)
        while self.events:
            end, signal, op, piece = heappop(self.events)
            if signal == ENDS:
                self.busy[self.queue[op]] = False
                for place, (_, after) in enumerate(self.signals[op]):
                    heappush(self.events, (end + after, place, op, piece))
                self._go_on(self.queue[op], end)
            else:
                flag, _ = self.signals[op][signal]
                self.flags[flag] = max(self.flags[flag], piece + 1)
                for queue in sorted(self.waiters[flag]):
                    self._go_on(queue, end)
        assert all(self.done[op] == self.count[op] for ops in self.moving for op in ops), "every op must come to an end"
        return end

    def _go_on(self, queue: int, now: float) -> None:
        """Has an idle block begin the next piece of the ready op with the smallest share of its pieces done."""
        if self.busy[queue]:
            return
        ready = [
            ((self.done[op] << 20) // self.count[op], op)
            for op in self.moving[queue]
            if self.done[op] < self.count[op] and all(self.flags[flag] > self.done[op] for flag in self.waits[op])
        ]
        if ready:
            _, op = min(ready)
            self.busy[queue] = True
            heappush(self.events, (now + self.seconds[op], ENDS, op, self.done[op]))
            self.done[op] += 1
