"""A program as its blocks spend time on it: piece by piece, in the rounds in which the kernel moves data.

The order in which a block of the kernel comes to its pieces, with every op that it looks at on the way.

One slice stands for all. Slices never meet, and the last one has what rounding leaves over, so it is the longest;
what it sends counts at the ports for the whole chunk. Ports do not share out evenly what they carry, so slices drift
apart: then two slices stand for a half of them each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from blinksim.cost.execution_rates import ExecutionRates, FlagRates, PacketRates
from blinksim.errors import InputError
from blinksim.gpu.programs.program import (
    INBOX,
    LINE_BYTES,
    PACKET_BYTES,
    PACKET_LINES,
    READY,
    WAVES,
    ExecutionError,
    Program,
    by_flag,
    receivers,
)

# In place of an op and a piece: nothing is left.
END = -1


def walk(program: Program, queue: int, part: int) -> Iterator[tuple[int, int, int]]:
    """(op, piece, looks) in the order in which slice `part` of a queue runs them.

    looks: ops that the block has looked at since the piece before, this one included. In waves it looks at every op in
    every wave, also at one whose first piece comes waves later; by key it looks once at each. What it looks at after
    the last piece comes with op and piece `END`. Raises `InputError` for a program whose order is not fixed.
    """
    if program.order == READY:
        raise InputError("queues that take what is ready have no fixed order")
    ops = range(int(program.queue_start[queue]), int(program.queue_start[queue + 1]))
    pieces = {op: program.pieces(int(program.length[op]), part) for op in ops}
    moving = [op for op in ops if program.destination_start[op] < program.destination_start[op + 1]]
    looks = 0
    if program.order == WAVES:
        keys = {op: int(program.key[op]) for op in moving}
        wave, more = 0, bool(moving)
        while more:
            more = False
            for op in moving:
                looks += 1
                piece = wave - keys[op]
                more |= piece + 1 < pieces[op]
                if 0 <= piece < pieces[op]:
                    yield op, piece, looks
                    looks = 0
            wave += 1
    else:
        for op in moving:
            looks += 1
            for piece in range(pieces[op]):
                yield op, piece, looks
                looks = 0
    moved = set(moving)
    for op in ops:
        if op not in moved:
            looks += 1
            if pieces[op]:
                yield op, pieces[op] - 1, looks
                looks = 0
    if looks:
        yield END, END, looks


# Bytes of data that the threads of a block move at once, a cell of a packet or a line of 16 bytes each; without packets
# a warp of the sixteen moves none.
ROW_BYTES = 7680
# In place of a device: the block's own, or no flag.
HERE = NONE = -1


class Round(NamedTuple):
    """What a block does at once.

    looks_s, wait_for, lead_s: before a piece, what it looks at, the flags that it waits for, and what follows them.
    work_s: moving the data. needs: arrivals of the packets that it reads. load: bytes for each target, of all slices,
    on the wire. targets: devices, `HERE` for its own. arrival: the number of its first target's arrival; the others
    follow. flag: the number of the arrival of its flag at other devices, the next one being that at its own; `NONE`.
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

    def moved(self, arrivals: int, load: float) -> Round:
        """The same round with another load; its arrivals come after so many of others."""
        return self._replace(
            wait_for=tuple(number + arrivals for number in self.wait_for),
            needs=tuple(number + arrivals for number in self.needs),
            load=load,
            arrival=self.arrival + arrivals,
            flag=self.flag if self.flag == NONE else self.flag + arrivals,
        )


@dataclass(frozen=True)
class Blocks:
    """The blocks of one slice, with D devices and Q queues.

    rounds (Q): of each block. tail_s (Q): what it looks at after them. device (Q). share (Q): what it gets of a port
    that is shared. receivers (D): the other devices that each stores to. arrivals: how many there are in a launch.
    """

    rounds: tuple[tuple[Round, ...], ...]
    tail_s: tuple[float, ...]
    device: tuple[int, ...]
    share: tuple[float, ...]
    receivers: tuple[tuple[int, ...], ...]
    arrivals: int
    staged: bool
    packets: bool


def blocks_of(program: Program, rates: ExecutionRates) -> Blocks:
    """The blocks of the last slice of a program that was cut for a machine with these rates."""
    blocks = _Reader(program, rates).blocks()
    return _halves(blocks, rates.ports.uneven) if rates.ports.uneven and program.slices > 1 else blocks


def _halves(blocks: Blocks, uneven: float) -> Blocks:
    """The blocks of two slices, each with half of the load; of any two, one gets more of a port than the other."""
    rounds = [
        tuple(found.moved(half * blocks.arrivals, found.load / 2) for found in queue)
        for half in range(2)
        for queue in blocks.rounds
    ]
    queues = len(blocks.rounds)
    return replace(
        blocks,
        rounds=tuple(rounds),
        tail_s=2 * blocks.tail_s,
        device=2 * blocks.device,
        share=tuple(1 + (uneven if (half + queue) % 2 else -uneven) for half in range(2) for queue in range(queues)),
        arrivals=2 * blocks.arrivals,
    )


def wire(packets: PacketRates) -> float:
    """Bytes at a port for a byte of data in packets."""
    return PACKET_LINES * LINE_BYTES / PACKET_BYTES * packets.wire


def cached_share(program: Program, flags: FlagRates) -> float:
    """Up to 1 as the data of a GPU outgrow its cache."""
    elements = program.sizes.sum(axis=1) + program.sizes[:, INBOX]  # an inbox has two halves
    return min(1.0, int(elements.max(initial=0)) * program.kind.itemsize / flags.cache_bytes)


def round_bytes(count: int, sources: int, packets: bool) -> list[int]:
    """The bytes of each round in which the kernel moves a piece of `count` bytes of so many sources."""
    if packets:
        rows = rest = 2 if 1 <= sources <= 4 else 1
    else:
        rows = 8 if sources < 2 else 4 if sources < 5 else 2
        rest = rows // 2 if sources < 2 else 1
    full, left = divmod(count, rows * ROW_BYTES)
    sizes = [rows * ROW_BYTES] * full
    while left > 0:
        sizes.append(min(left, rest * ROW_BYTES))
        left -= sizes[-1]
    return sizes


class _Reader:
    def __init__(self, program: Program, rates: ExecutionRates) -> None:
        self.program, self.rates = program, rates
        self.part = program.slices - 1
        self.device = program.op_device.tolist()
        self.source_of, self.targets_of = _groups(program, "source"), _groups(program, "destination")
        waited, signalled = by_flag(program)
        self.waits_of, self.signals_of = _groups(program, "wait", waited), _groups(program, "signal", signalled)
        # Who stores to a place in an inbox, as which of its targets; and who raises a flag.
        self.author: dict[tuple[int, int], tuple[int, int]] = {}
        self.raiser: dict[tuple[int, int], int] = {}
        for op in range(program.ops):
            for number, (device, buffer, offset) in enumerate(self.targets_of[op]):
                # Chunks that are empty lie where the next one begins.
                if buffer == INBOX and program.length[op]:
                    self.author[device, offset] = op, number
            for device, flag in self.signals_of[op]:
                self.raiser[device, flag] = op
        far_s = rates.packets.far_s if program.packets else rates.flags.far_s
        self.far_s = far_s * cached_share(program, rates.flags)
        self.ends: dict[tuple[int, int], list[int]] = {}
        self.first: dict[tuple[int, int], int] = {}
        self.flag: dict[tuple[int, int], int] = {}

    def blocks(self) -> Blocks:
        program = self.program
        turns = [list(walk(program, queue, self.part)) for queue in range(program.queues)]
        arrivals = 0
        for op, piece, _ in (turn for queue in turns for turn in queue):
            if op != END and self.targets_of[op]:
                begin, end = program.span(int(program.length[op]), self.part, piece)
                sizes = round_bytes((end - begin) * program.kind.itemsize, len(self.source_of[op]), program.packets)
                self.ends[op, piece] = list(accumulate(sizes))
                self.first[op, piece] = arrivals
                self.flag[op, piece] = arrivals + len(sizes) * len(self.targets_of[op])
                arrivals = self.flag[op, piece] + 2
        tails = [queue[-1][2] * self.rates.visit_s if queue and queue[-1][0] == END else 0.0 for queue in turns]
        return Blocks(
            rounds=tuple(
                tuple(found for op, piece, looks in queue if op != END for found in self._rounds(op, piece, looks))
                for queue in turns
            ),
            tail_s=tuple(tails),
            device=tuple(program.queue_device.tolist()),
            share=(1.0,) * program.queues,
            receivers=tuple(map(tuple, receivers(program))),
            arrivals=arrivals,
            staged=program.staged,
            packets=program.packets,
        )

    def _rounds(self, op: int, piece: int, looks: int) -> Iterator[Round]:
        program, rates, here = self.program, self.rates, self.device[op]
        packets = program.packets
        before = looks * rates.visit_s
        if not packets:
            before += rates.flags.before_s + (rates.flags.look_s if self.waits_of[op] else 0.0)
        lead = rates.packets.piece_s if packets else rates.flags.piece_s
        for (flag,) in self.waits_of[op]:
            if (here, flag) not in self.raiser:
                raise ExecutionError(f"no op raises the flag {flag} that op {op} waits for")
        raised = [self.raiser[here, flag] for (flag,) in self.waits_of[op]]
        wait_for = tuple(self.flag[other, piece] + (self.device[other] == here) for other in raised)
        targets = tuple(HERE if device == here else device for device, _, _ in self.targets_of[op])
        if not targets:
            # Constants that do not say what looking at flags takes count it here.
            lead = 0.0 if rates.flags.look_s and not packets else lead
            yield Round(before, wait_for, lead, 0.0, (), 0.0, (), NONE, NONE)
            return
        ends = self.ends[op, piece]
        scale = self._scale(op)
        begin = 0
        for number, end in enumerate(ends):
            last = number + 1 == len(ends)
            yield Round(
                looks_s=before,
                wait_for=wait_for,
                lead_s=lead,
                work_s=self._work(op, end - begin),
                needs=self._needed(op, piece, end) if packets else (),
                load=(end - begin) * scale,
                targets=targets,
                arrival=self.first[op, piece] + number * len(targets),
                flag=self.flag[op, piece] if last and self.signals_of[op] else NONE,
            )
            before, wait_for, lead, begin = 0.0, (), 0.0, end

    def _scale(self, op: int) -> float:
        """Bytes on the wire for all slices, for a byte of data of this one."""
        program = self.program
        length = int(program.length[op])
        first, last = program.part(length, self.part)
        own = min(last * program.unit, length) - first * program.unit
        return (wire(self.rates.packets) if program.packets else 1.0) * length / own

    def _work(self, op: int, nbytes: int) -> float:
        """Seconds of a block for a round of an op."""
        if not self.program.packets:
            flags = self.rates.flags
            return flags.round_s + self.far_s + nbytes * len(self.targets_of[op]) * flags.byte_s
        rates = self.rates.packets
        inboxes = sum(buffer == INBOX for buffer, _ in self.source_of[op])
        others = len(self.source_of[op]) - inboxes
        return rates.round_s + self.far_s - (-nbytes // ROW_BYTES) * (rates.inbox_s * inboxes + rates.local_s * others)

    def _needed(self, op: int, piece: int, end: int) -> tuple[int, ...]:
        """The arrivals of the packets that hold the last byte of a round."""
        found = []
        for buffer, offset in self.source_of[op]:
            if buffer == INBOX:
                author, target = self.author[self.device[op], offset]
                number = next(i for i, until in enumerate(self.ends[author, piece]) if until >= end)
                found.append(self.first[author, piece] + number * len(self.targets_of[author]) + target)
        return tuple(found)


def _groups(program: Program, table: str, kept: object = None) -> list[list[tuple[int, ...]]]:
    """The rows of each op in a table of the program, or those that are kept."""
    start, rows = getattr(program, f"{table}_start").tolist(), getattr(program, f"{table}s").tolist()
    keep = [True] * len(rows) if kept is None else list(kept)  # type: ignore[call-overload]
    return [[tuple(rows[row]) for row in range(start[op], start[op + 1]) if keep[row]] for op in range(program.ops)]
