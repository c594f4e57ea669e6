"""Time of thread blocks on a program: piece by piece, in the rounds in which the kernel moves data.

One slice stands for all. Slices never meet, and the last one has what rounding leaves over, so it is the
longest; what it sends counts at the ports for the whole chunk. Ports do not share out evenly what they carry,
so slices drift apart: then two slices stand for a half of them each.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from blinksim.errors import InputError
from blinksim.gpu.program_time import program_shape
from blinksim.gpu.programs.program import READY, Program
from blinksim.timing.measured_constants import ExecutionRates


class Round(NamedTuple):
    """What a block does at once.

    looks_s, wait_for, lead_s: before a piece, what it looks at, the flags that it waits for, and what follows
    them. work_s: moving the data. needs: arrivals of the packets that it reads. load: bytes for each target,
    of all slices, on the wire. targets: devices, `HERE` for its own. arrival: the number of its first
    target's arrival; the others follow. flag: the number of the arrival of its flag at other devices, the
    next one being that at its own; `NONE`.
    """

    looks_s: float
    wait_for: tuple[int, ...]
    lead_s: float
    work_s: float
    needs: tuple[int, ...]
    load: float
    targets: tuple[int, ...]
    arrival: int
    flag: int


class Blocks:
    """The blocks of one slice of a program that was cut for a machine with these rates: the last, or two halves.

    Of each block, by queue and half: rounds; tail_s: what it looks at after them; device; half: 0 or 1; share:
    what it gets of a port that is shared. arrivals: how many there are in a launch, of each half.
    """

    def __init__(self, program: Program, rates: ExecutionRates) -> None:
        if program.order == READY:
            raise InputError("queues that take what is ready have no fixed order")
        self.program, self.rates, self.shape = program, rates, program_shape.Shape(program)
        self.part, ops = program.slices - 1, self.shape.ops
        # Two slices, each with half of the load; of any two blocks, one gets more of a port than the other.
        uneven = rates.ports.uneven if program.slices > 1 else 0.0
        self.halves = 2 if uneven else 1
        self.far = program_shape.cached_share(program, rates.flags)
        self.ends: dict[tuple[int, int], list[int]] = {}
        self.first: dict[tuple[int, int], int] = {}
        self.flag: dict[tuple[int, int], int] = {}
        self.arrivals = 0
        walks, tails = list[list[tuple[int, int, int]]](), list[float]()
        for queue in range(program.queues):
            *visits, (_, _, looks) = program.walk(queue, self.part)
            walks.append(visits)
            tails.append(looks * rates.visit_s)
            for number, piece, _ in visits:
                op = ops[number]
                if op.targets:
                    kind = self.shape.kinds[op.kind]
                    begin, end = program.span(int(program.length[number]), self.part, piece)
                    sizes = program_shape.round_bytes(
                        (end - begin) * program.kind.itemsize, kind.inboxes + kind.others, program.packets
                    )
                    self.ends[number, piece] = list(accumulate(sizes))
                    self.first[number, piece] = self.arrivals
                    self.flag[number, piece] = self.arrivals + len(sizes) * len(op.targets)
                    self.arrivals = self.flag[number, piece] + 2
        rounds = [[entry for op, *visit in walk for entry in self._rounds(ops[op], *visit)] for walk in walks]
        self.rounds, self.tail_s = rounds * self.halves, tails * self.halves
        self.device = self.shape.device * self.halves
        places = [divmod(number, program.queues) for number in range(len(rounds) * self.halves)]
        self.half = [half for half, _ in places]
        self.share = [1 - uneven * (-1) ** sum(place) for place in places]

    def _rounds(self, op: program_shape.Op, piece: int, looks: int) -> Iterator[Round]:
        program, rates, packets = self.program, self.rates, self.program.packets
        before = looks * rates.visit_s
        if not packets:
            before += rates.flags.before_s + (rates.flags.look_s if op.waits else 0.0)
        lead = rates.packets.piece_s if packets else rates.flags.piece_s
        wait_for = tuple(self.flag[other, piece] + own for other, own in op.waits)
        if not op.targets:
            # Constants that do not say what looking at flags takes count it here.
            lead = 0.0 if rates.flags.look_s and not packets else lead
            yield Round(before, wait_for, lead, 0.0, (), 0.0, (), program_shape.NONE, program_shape.NONE)
            return
        kind, ends = self.shape.kinds[op.kind], self.ends[op.number, piece]
        # Bytes on the wire for all slices, for a byte of data of this one.
        length = int(program.length[op.number])
        first, last = program.part(length, self.part)
        own = min(last * program.unit, length) - first * program.unit
        scale = (program_shape.wire(rates.packets) if packets else 1.0) * length / own / self.halves
        begin = 0
        for number, end in enumerate(ends):
            yield Round(
                looks_s=before,
                wait_for=wait_for,
                lead_s=lead,
                work_s=program_shape.round_seconds(end - begin, kind, packets, self.far, rates),
                needs=tuple(self._arrival(needed, piece, end) for needed in op.needs),
                load=(end - begin) * scale,
                targets=op.targets,
                arrival=self.first[op.number, piece] + number * len(op.targets),
                flag=self.flag[op.number, piece] if number + 1 == len(ends) and op.flagged else program_shape.NONE,
            )
            before, wait_for, lead, begin = 0.0, (), 0.0, end

    def _arrival(self, needed: int, piece: int, end: int) -> int:
        """The arrival of the packets that hold the last byte of a round; needed: what arrives, as in `Op`."""
        author = self.shape.ops[self.shape.author[needed]]
        number = next(i for i, until in enumerate(self.ends[author.number, piece]) if until >= end)
        return self.first[author.number, piece] + number * len(author.targets) + needed - author.arrival
