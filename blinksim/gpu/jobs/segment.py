"""The memory that a rank lends to the others: of fixed size, whatever is called, and used by every program in turn.

It has notes (what went wrong, and the heralds: two words of every rank, which say the launches that it has begun and
what it called), flags, the rounds that blocks have begun, inboxes for packets and inboxes for data with flags behind
them. Flags and inboxes have two halves, for rounds with even and odd numbers. Data and packets never share a byte: data
might look like the number of a round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blinksim.errors import InputError
from blinksim.gpu.execution.tables import CACHE_WORDS, OP_WORDS, inbox_bytes
from blinksim.gpu.programs.layout import SCRATCH
from blinksim.gpu.programs.program import READY, Program

# Words of the notes: what went wrong, then two heralds of each rank.
FIRST_HERALD, MOST_RANKS = 8, 64
NOTES_BYTES = 8 * (FIRST_HERALD + 2 * MOST_RANKS)
# Codes in the first word, as in calls.cu.
GAVE_UP, MISMATCH, TOLD_SO = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Segment:
    """Sizes in bytes: of half the flags, the rounds, half the inboxes for packets and for data, and the scratch memory.

    Scratch memory is a rank's own. `lent` is what the others map, `total` what a rank allocates.
    """

    flags: int = 1 << 19
    rounds: int = 1 << 16
    packets: int = 16 << 20
    data: int = 64 << 20
    scratch: int = 32 << 20

    def __post_init__(self) -> None:
        sizes = (self.flags, self.rounds, self.packets, self.data, self.scratch)
        if min(sizes) < 4096 or any(size % 4096 for size in sizes):
            raise InputError("the areas of a segment are multiples of 4096 bytes, and at least that")

    @classmethod
    def of(cls, most_bytes: int) -> Segment:
        """About `most_bytes` in all, divided as the default is."""
        standard = cls()
        parts = (standard.flags, standard.rounds, standard.packets, standard.data, standard.scratch)
        return cls(*(max(4096, part * most_bytes // standard.total // 4096 * 4096) for part in parts))

    @property
    def flags_at(self) -> int:
        return 4096

    @property
    def rounds_at(self) -> int:
        return self.flags_at + 2 * self.flags

    @property
    def packets_at(self) -> int:
        return self.rounds_at + self.rounds

    @property
    def data_at(self) -> int:
        return self.packets_at + 2 * self.packets

    @property
    def lent(self) -> int:
        return self.data_at + 2 * self.data

    @property
    def total(self) -> int:
        return self.lent + self.scratch

    def inbox(self, packets: bool) -> tuple[int, int]:
        """Where the inboxes of programs of packets, or of others, begin, and the bytes of one half."""
        return (self.packets_at, self.packets) if packets else (self.data_at, self.data)

    def holds(self, program: Program) -> bool:
        """True if a program finds room for its inboxes, flags and scratch."""
        most_flags = int(program.flags.max(initial=0)) * program.slices * 8
        scratch = int(program.sizes[:, SCRATCH].max(initial=0)) * program.kind.itemsize
        fits = inbox_bytes(program) <= self.inbox(program.packets)[1]
        return fits and most_flags <= self.flags and scratch <= self.scratch

    def repeats(self, program: Program) -> bool:
        """True if a launch can run a program in several rounds.

        Then flags tell when an inbox is free; nothing tells when scratch memory is. Queues are kept in shared memory
        twice. Wires stay as they are: what they emulate has no rounds.
        """
        counts = [len(program.queues_of(device)) for device in range(len(program.devices))]
        starts = (program.source_start, program.destination_start, program.wait_start, program.signal_start)
        rows = OP_WORDS * np.arange(program.ops + 1) + sum(starts)
        words = 1 + OP_WORDS + int(np.diff(rows[program.queue_start]).max(initial=0))
        announced = 8 * program.slices * max(counts) * len(counts)
        free = not program.packets and program.order != READY and not program.sizes[:, SCRATCH].any()
        return free and words <= CACHE_WORDS // 2 and announced <= self.rounds
