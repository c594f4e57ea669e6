"""The table of one rank for calls.cu: that of `blinksim.gpu.execution.tables`, and behind its queues a tail.

Addresses that only a launch knows are marked: those in the caller's input and output, and those of flags, which have
two halves. The tail has the bytes of half the flags, a bit for every rank that sends to this one, the address of the
alarm (a word in the computer's memory that says that a launch has failed), what is written to the output (parts, bytes
of each, bytes from one to the next), the rounds, the bytes from one to the next, the number of gates and the addresses
of every rank's notes. In a launch of several rounds the gates follow: the words here in which the blocks of all queues
of all ranks announce a round, and for each queue the words in which it does. Both are those of slice 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from blinksim.errors import InfeasibleError
from blinksim.gpu.execution.tables import CACHE_WORDS, HEAD_WORDS, STRIDE, kernel_source, pack
from blinksim.gpu.jobs.segment import Segment
from blinksim.gpu.jobs.turns import Turn
from blinksim.gpu.programs.dtypes import ElementType
from blinksim.gpu.programs.handover import receivers
from blinksim.gpu.programs.program import Longs
from blinksim.textio import text_files

IN_INPUT, IN_OUTPUT, IN_FLAGS = 1 << 61, 1 << 60, 1 << 59
# Words of the counters: launches done, blocks that have left, what the last launch was, rounds done.
STATE_WORDS = 4
_INBOX_BYTES = 8


def call_table(turn: Turn, rank: int, segments: Sequence[int], own: tuple[int, int], segment: Segment) -> Longs:
    """The table of a rank.

    segments: where this rank sees every rank's segment. own: addresses of its scratch memory and its alarm.
    Raises `InfeasibleError` if a queue is too long for the kernel.
    """
    program = turn.program
    inbox, half = segment.inbox(program.packets)
    scratch, alarm = own
    buffers = [[IN_INPUT, IN_OUTPUT, scratch, at + inbox] for at in segments]
    flags = [IN_FLAGS + at + segment.flags_at for at in segments]
    ranks = len(segments)
    table = pack(program, buffers, flags, [0] * ranks)[rank]
    if table[STRIDE] > CACHE_WORDS:
        raise InfeasibleError(f"{turn.says}: a queue has {table[STRIDE]} words, and the kernel holds {CACHE_WORDS}")
    table[_INBOX_BYTES] = half
    end = HEAD_WORDS + int(table[0] * table[STRIDE])
    senders = sum(1 << device for device, targets in enumerate(receivers(program)) if rank in targets)
    gates, posts = _announcements(turn, rank, segments, segment) if turn.rounds > 1 else ([], [])
    tail = [segment.flags, senders, alarm, *turn.written, turn.rounds, turn.step, len(gates), *segments, *gates, *posts]
    return np.concatenate([table[:end], np.array(tail, dtype=np.int64)])


def _announcements(turn: Turn, rank: int, segments: Sequence[int], segment: Segment) -> tuple[list[int], list[int]]:
    """Addresses of the words for slice 0 in which all queues announce rounds to this rank, and its queues to all."""
    program = turn.program
    queues = [len(program.queues_of(device)) for device in range(len(program.devices))]

    def word(at: int, device: int, queue: int) -> int:
        return at + segment.rounds_at + 8 * program.slices * (max(queues) * device + queue)

    gates = [word(segments[rank], device, queue) for device, of in enumerate(queues) for queue in range(of)]
    return gates, [word(at, rank, queue) for queue in range(queues[rank]) for at in segments]


def call_source(kind: ElementType, op: str, packets: bool) -> str:
    """The kernel ``run_call`` for an element type and a reduction."""
    return (
        "#define BLINKSIM_CALLS\n"
        + kernel_source(kind, op, packets)
        + text_files.read_text(Path(__file__).with_name("calls.cu"))
    )
