"""Runs a program on the CPU: one generator per queue and slice, switched wherever an op would wait.

The order in which the queues take turns comes from a seed, so that many interleavings can be tried; a state in which
nobody can go on is an error that names the op.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Sequence

import numpy as np

from blinksim.execute.dtypes import Array, fold, poison
from blinksim.execute.program import ExecutionError, Program

# (device, flag, slice), and what a block yields: the (op, piece, flag) it waits for, or None after a finished piece.
Flag = tuple[int, int, int]
Block = Generator[tuple[int, int, Flag] | None]


def allocate(program: Program) -> list[list[Array]]:
    """Poisoned buffers: [device][INPUT, OUTPUT or SCRATCH]."""
    return [[poison(int(size), program.kind) for size in row] for row in program.sizes.tolist()]


def interpret(program: Program, inputs: Sequence[Array], op: str = "sum", seed: int | None = None) -> list[Array]:
    """What the program leaves in the output of each rank.

    inputs: for each rank its data in storage form. op: one of `REDUCTIONS`. seed: None lets every block go on for as
    long as it can; a number switches to a random block after every piece. Raises `ExecutionError` if the program gets
    stuck.
    """
    memory = allocate(program)
    for rank, (buffer, offset, size) in enumerate(program.layout.input_place):
        memory[rank][buffer][offset : offset + size] = inputs[rank]
    _Machine(program, memory, op, seed).run()
    return [memory[rank][b][o : o + size].copy() for rank, (b, o, size) in enumerate(program.layout.output_place)]


class _Machine:
    def __init__(self, program: Program, memory: list[list[Array]], op: str, seed: int | None) -> None:
        self.program, self.memory, self.op = program, memory, op
        self.random = None if seed is None else np.random.default_rng(seed)
        self.flags: dict[Flag, int] = defaultdict(int)
        self.asleep: dict[Flag, list[Block]] = defaultdict(list)
        self.ready: list[Block] = []

    def run(self) -> None:
        program = self.program
        self.ready = [self._block(queue, part) for queue in range(program.queues) for part in range(program.slices)]
        waiting: tuple[int, int, Flag] | None = None
        while self.ready:
            if self.random is not None:
                pick = int(self.random.integers(len(self.ready)))
                self.ready[pick], self.ready[-1] = self.ready[-1], self.ready[pick]
            block = self.ready.pop()
            for event in block:
                if event is not None:
                    self.asleep[event[2]].append(block)
                    waiting = event
                    break
                if self.random is not None:
                    self.ready.append(block)
                    break
        stuck = sum(len(blocks) for blocks in self.asleep.values())
        if stuck and waiting is not None:
            op, piece, (_, flag, part) = self._first_stuck()
            raise ExecutionError(
                f"the program is stuck: {stuck} of {program.queues * program.slices} blocks wait for ever; the "
                f"first for piece {piece} of slice {part} and flag {flag}, in {program.describe(op)}"
            )

    def _first_stuck(self) -> tuple[int, int, Flag]:
        """The op with the smallest key among those that wait: what it waits for is what is wrong."""
        events = [event for blocks in self.asleep.values() for block in blocks if (event := next(block)) is not None]
        return min(events, key=lambda event: (int(self.program.key[event[0]]), event[1]))

    def _block(self, queue: int, part: int) -> Block:
        program = self.program
        device = int(program.queue_device[queue])
        for op, piece in program.turns(queue, part):
            for (flag,) in program.rows("waits", op):
                name = (device, flag, part)
                while self.flags[name] <= piece:
                    yield op, piece, name
            self._move(device, op, piece, part)
            for target, flag in program.rows("signals", op):
                self._signal((target, flag, part), piece)
            yield None

    def _move(self, device: int, op: int, piece: int, part: int) -> None:
        program = self.program
        targets = program.rows("destinations", op)
        if not targets:
            return
        begin, end = program.span(int(program.length[op]), part, piece)
        sources = [self.memory[device][b][o + begin : o + end] for b, o in program.rows("sources", op)]
        values = fold(sources, self.op, program.kind) if sources else poison(end - begin, program.kind)
        for target, buffer, offset in targets:
            self.memory[target][buffer][offset + begin : offset + end] = values

    def _signal(self, name: Flag, piece: int) -> None:
        self.flags[name] = piece + 1
        self.ready.extend(self.asleep.pop(name, ()))
