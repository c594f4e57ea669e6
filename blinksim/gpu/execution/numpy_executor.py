"""The executor on the CPU: one generator per queue and slice, switched wherever an op would wait.

The order in which the queues take turns comes from a seed, so that many interleavings can be tried; a state
in which no block can go on is an error that names the op.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from itertools import product, starmap
from typing import Any

import numpy as np

from blinksim.errors import InputError
from blinksim.gpu.execution.task import Outcome, Task
from blinksim.gpu.programs.dtypes import Array, fold, poison
from blinksim.gpu.programs.fit import fit
from blinksim.gpu.programs.program import READY, ExecutionError, Program
from blinksim.units import format_size_about

# Thread blocks that the CPU simulates: enough for slices to matter, few enough to stay fast.
_BLOCKS = 8
_SLICES, _PIECE_BYTES = 1, 1 << 20

# (device, flag, slice), and what a block yields: the (op, piece, flag) it waits for, several where any of
# them will do, or None after a finished piece.
Flag = tuple[int, int, int]
Wait = tuple[int, int, Flag]
Block = Generator[list[Wait] | None]


def run(task: Task, check: bool) -> tuple[Program, Outcome]:
    """Runs a task on the CPU, once and untimed, and compares its outputs if `check` is set.

    Raises `InputError` if memory does not suffice, and `ExecutionError` if the program gets stuck.
    """
    options, reference = task.options, task.reference
    program = task.program(options.wanted or "simple", bool(options.staged))
    program = fit(program, _BLOCKS, options.slices or _SLICES, options.piece_bytes or _PIECE_BYTES)
    needed = int(program.sizes.sum()) * program.kind.itemsize
    try:
        # More than there is may be promised, and whoever uses it is then killed.
        if needed > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
            raise MemoryError
        inputs = map(reference.inputs, range(reference.ranks))
        outputs = interpret(program, inputs, reference.op, options.seed)
    except MemoryError:
        buffers = f"the buffers of {reference.ranks} ranks take {format_size_about(needed)}"
        raise InputError(f"{buffers}, more memory than there is: take a smaller size or fewer ranks") from None
    if not check:
        return program, Outcome()
    results = [reference.compare(rank, output) for rank, output in enumerate(outputs)]
    return program, Outcome(sum(wrong for wrong, _ in results), max((error for _, error in results), default=0.0))


def interpret(program: Program, inputs: Iterable[Array], op: str = "sum", seed: int | None = None) -> list[Array]:
    """What the program leaves in the output of each rank.

    The outputs are parts of the devices' buffers, and each of the inputs is taken once.

    inputs: for each rank its data in storage form. op: one of `REDUCTIONS`. seed: None lets every block go on
    for as long as it can; a number switches to a random block after every piece. Raises `ExecutionError` if
    the program gets stuck.
    """
    # Of every device: INPUT, OUTPUT, SCRATCH and INBOX.
    memory = [[poison(int(size), program.kind) for size in row] for row in program.sizes.tolist()]
    for own, (buffer, offset, size), data in zip(memory, program.layout.input_place, inputs, strict=False):
        own[buffer][offset : offset + size] = data
    random = None if seed is None else np.random.default_rng(seed)
    flags, asleep = defaultdict[Flag, int](int), defaultdict[Flag, list[Block]](list)
    waiting = dict[Block, list[Wait]]()

    def carry_out(number: int, piece: int, part: int) -> None:
        """Moves a piece, raises its flags, and wakes the blocks that wait for them."""
        move(program, op, number, piece, part, memory)
        for target, flag in program.rows("signals", number):
            name = (target, flag, part)
            flags[name] = piece + 1
            ready.extend(block for block in asleep.pop(name, ()) if waiting.pop(block, None) is not None)

    def started(queue: int, part: int) -> Block:
        device = int(program.queue_device[queue])
        if program.order != READY:
            for op, piece in program.op_pieces(queue, part):
                for (flag,) in program.rows("waits", op):
                    name = (device, flag, part)
                    while flags[name] <= piece:
                        yield [(op, piece, name)]
                carry_out(op, piece, part)
                yield None
            return
        # As kernels.cu does it: the ready op with the smallest share of its pieces done.
        ops = range(int(program.queue_start[queue]), int(program.queue_start[queue + 1]))
        count = {op: program.pieces(int(program.length[op]), part) for op in ops}
        done = dict.fromkeys(ops, 0)
        while left := [op for op in ops if done[op] < count[op]]:
            awaited = ((op, (device, flag, part)) for op in left for (flag,) in program.rows("waits", op))
            missing = [(op, done[op], name) for op, name in awaited if flags[name] <= done[op]]
            late = {op for op, _, _ in missing}
            if not (able := [op for op in left if op not in late]):
                yield missing
                continue
            op = min(able, key=lambda op: ((done[op] << 20) // count[op], op))
            carry_out(op, done[op], part)
            done[op] += 1
            yield None

    ready = [*starmap(started, product(range(program.queues), range(program.slices)))]
    while ready:
        if random is not None:
            pick = int(random.integers(len(ready)))
            ready[pick], ready[-1] = ready[-1], ready[pick]
        block = ready.pop()
        for waits in block:
            if waits is not None:
                waiting[block] = waits
                for _, _, awaited in waits:
                    asleep[awaited].append(block)
                break
            if random is not None:
                ready.append(block)
                break
    if waiting:
        # The op with the smallest key among those that wait: what it waits for is what is wrong.
        events = (event for events in waiting.values() for event in events)
        stuck, piece, (_, flag, part) = min(events, key=lambda event: (int(program.key[event[0]]), event[1]))
        blocks = f"{len(waiting)} of {program.queues * program.slices} blocks wait forever"
        first = f"the first for piece {piece} of slice {part} and flag {flag}, in {program.describe(stuck)}"
        raise ExecutionError(f"the program is stuck: {blocks}; {first}")
    places = zip(memory, program.layout.output_place, strict=False)
    return [own[buffer][offset : offset + size] for own, (buffer, offset, size) in places]


def move(program: Program, how: str, op: int, piece: int, part: int, memory: Sequence[Any]) -> None:
    """Moves a piece of an op as the kernel does. how: one of `REDUCTIONS`. memory: the buffers of each device."""
    if not (targets := program.rows("destinations", op)):
        return
    begin, end = program.span(int(program.length[op]), part, piece)
    own = memory[program.op_device[op]]
    sources = [own[buffer][first + begin : first + end] for buffer, first in program.rows("sources", op)]
    values = fold(sources, how, program.kind) if sources else poison(end - begin, program.kind)
    for target, buffer, first in targets:
        memory[target][buffer][first + begin : first + end] = values
