"""The memory that a rank lends to the others: of fixed size, whatever is called, and used by every program in turn.

It has notes (what went wrong, and the heralds: two words of every rank, which say the launches that it has begun and
what it called), flags, inboxes for packets and inboxes for data with flags behind them. Flags and inboxes have two
halves, for launches with even and odd numbers. Data and packets never share a byte: data might look like the number of
a launch.
"""

from __future__ import annotations

from dataclasses import dataclass

from blinksim.errors import InputError
from blinksim.execution.executors.tables import inbox_bytes
from blinksim.programs.layout import SCRATCH
from blinksim.programs.program import Program

# Words of the notes: what went wrong, then two heralds of each rank.
FIRST_HERALD, MOST_RANKS = 8, 64
NOTES_BYTES = 8 * (FIRST_HERALD + 2 * MOST_RANKS)
# Codes in the first word, as in calls.cu.
GAVE_UP, MISMATCH, TOLD_SO = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Segment:
    """Sizes in bytes: of half the flags, of half the inboxes for packets and for data, and of the scratch memory.

    Scratch memory is a rank's own. `lent` is what the others map, `total` what a rank allocates.
    """

    flags: int = 1 << 19
    packets: int = 16 << 20
    data: int = 64 << 20
    scratch: int = 32 << 20

    def __post_init__(self) -> None:
        sizes = (self.flags, self.packets, self.data, self.scratch)
        if min(sizes) < 4096 or any(size % 4096 for size in sizes):
            raise InputError("the areas of a segment are multiples of 4096 bytes, and at least that")

    @classmethod
    def of(cls, most_bytes: int) -> Segment:
        """About `most_bytes` in all, divided as the default is."""
        standard = cls()
        parts = (standard.flags, standard.packets, standard.data, standard.scratch)
        return cls(*(max(4096, part * most_bytes // standard.total // 4096 * 4096) for part in parts))

    @property
    def flags_at(self) -> int:
        return 4096

    @property
    def packets_at(self) -> int:
        return self.flags_at + 2 * self.flags

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
