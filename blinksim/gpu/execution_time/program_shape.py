"""The shape of a program, the same for all sizes: ops, dependences, order of pieces; and its ops at one size.

A block of the kernel runs the pieces of an op one after another, so the first and the last piece say when an
op begins and ends to hand on data. These moments, each after those that it depends on, are what
`blinksim.gpu.execution_time.closed_form` walks. At one size each op has the bytes of its pieces and rounds,
and the time that a block spends on them.
"""

from __future__ import annotations

from collections import Counter
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from blinksim.gpu.programs.program import INBOX, PACKET_WIRE, WAVES, ExecutionError, Program, by_flag, receivers
from blinksim.timing.measured_constants import ExecutionRates, FlagRates, PacketRates

# Bytes of data that the threads of a block move at once, a cell of a packet or a line of 16 bytes each;
# without packets a warp of the sixteen moves none.
ROW_BYTES = 7680
# In place of a device: the block's own, or no flag.
HERE = NONE = -1


class Kind(NamedTuple):
    """What ops have in common that take equally long: how much of the vector, from how many sources, to how many, and
    whether they wait for flags."""

    share: float
    inboxes: int
    others: int
    targets: int
    waits: bool


class Op(NamedTuple):
    """An op.

    number, queue, device, kind: numbers. targets: devices, `HERE` for its own. away: how many are others.
    arrival: the number of what arrives at its first target; the others follow. waits: ops whose flags it
    waits for, and whether each is on its own device. needs: arrivals of the packets that it reads. flagged:
    another op waits for its flag.
    """

    number: int
    queue: int
    device: int
    kind: int
    targets: tuple[int, ...]
    away: int
    arrival: int
    waits: tuple[tuple[int, bool], ...]
    needs: tuple[int, ...]
    flagged: bool


class Moment(NamedTuple):
    """The first piece of an op or its last, and what its block does between the moment before and this one.

    looks: ops that it looks at. others: (op, pieces) of other ops.
    """

    op: int
    last: bool
    looks: int
    others: tuple[tuple[int, int], ...] = ()


class Shape:
    """A program without its size. It was compiled for some size, the larger the more exact are its shares.

    ops, kinds: of the program. author: the op that an arrival comes from. device, queue_ops: of each queue
    its device, and its ops in order. receivers: the other devices that each device stores to. buffers: bytes
    of all buffers of the device with the most, for a byte of the vector.
    """

    def __init__(self, program: Program) -> None:
        self.program, self.packets, self.keys = program, program.packets, program.key.tolist()
        self.receivers, self.device = receivers(program), program.queue_device.tolist()
        devices = program.op_device.tolist()
        sources, targets = _rows(program, "source"), _rows(program, "destination")
        waited, signalled = by_flag(program)
        waits, signals = _rows(program, "wait", waited.tolist()), _rows(program, "signal", signalled.tolist())
        first = program.destination_start.tolist()
        self.author = np.repeat(np.arange(program.ops), np.diff(first)).tolist()
        author = {
            (device, offset): arrival
            for arrival, (device, buffer, offset) in enumerate(program.destinations.tolist())
            # Chunks that are empty lie where the next one begins.
            if buffer == INBOX and program.length[self.author[arrival]]
        }
        raiser = {(device, flag): op for op, rows in enumerate(signals) for device, flag in rows}
        self.queue_ops = [range(*ends) for ends in pairwise(program.queue_start.tolist())]
        shares = (program.length / program.layout.count).tolist()
        kinds: dict[Kind, int] = {}
        self.ops: list[Op] = []
        queues = np.repeat(np.arange(program.queues), np.diff(program.queue_start)).tolist()
        for number, (queue, here) in enumerate(zip(queues, devices, strict=True)):
            inboxes = [offset for buffer, offset in sources[number] if buffer == INBOX]
            others, waiting = len(sources[number]) - len(inboxes), bool(waits[number])
            kind = Kind(round(shares[number], 6), len(inboxes), others, len(targets[number]), waiting)
            to = tuple(HERE if device == here else device for device, _, _ in targets[number])
            awaited = list[tuple[int, bool]]()
            for (flag,) in waits[number]:
                if (here, flag) not in raiser:
                    raise ExecutionError(f"no op raises the flag {flag} that op {number} waits for")
                awaited.append((other := raiser[here, flag], devices[other] == here))
            reads = program.packets and program.length[number]
            read = tuple(author[here, offset] for offset in inboxes) if reads else ()
            stored = here, kinds.setdefault(kind, len(kinds)), to, len(to) - to.count(HERE), first[number]
            self.ops.append(Op(number, queue, *stored, tuple(awaited), read, bool(signals[number])))
        self.kinds = tuple(kinds)
        elements = program.sizes.sum(axis=1) + program.sizes[:, INBOX]  # an inbox has two halves
        self.buffers = float(elements.max(initial=0) / program.layout.count)
        # The moments, where the kinds have so many pieces; and what each queue looks at after its last one.
        self.walk = cache(partial(_in_waves if program.order == WAVES else _by_key, self))


def _rows(program: Program, table: str, chosen: list[bool] | None = None) -> list[list[tuple[int, ...]]]:
    """The rows of each op in a table of the program, or the chosen ones."""
    start, rows = getattr(program, f"{table}_start").tolist(), getattr(program, f"{table}s").tolist()
    keep = chosen or [True] * len(rows)
    return [[tuple(rows[row]) for row in range(start[op], start[op + 1]) if keep[row]] for op in range(program.ops)]


def _by_key(shape: Shape, _: tuple[int, ...]) -> tuple[list[Moment], list[int]]:
    """Op after op in each queue; across queues by key."""
    moments: list[tuple[tuple[int, int], Moment]] = []
    for queue in shape.queue_ops:
        position: Counter[int] = Counter()
        for op in queue:
            # Ops that only wait come last, whatever their key.
            key = shape.keys[op] if shape.ops[op].targets else max(shape.keys) + 1
            moments.append(((key, 2 * position[key]), Moment(op, False, 1)))
            if shape.ops[op].targets:
                moments.append(((key, 2 * position[key] + 1), Moment(op, True, 0)))
            position[key] += 1
    return [moment for _, moment in sorted(moments, key=lambda pair: pair[0])], [0] * len(shape.queue_ops)


def _in_waves(shape: Shape, pieces: tuple[int, ...]) -> tuple[list[Moment], list[int]]:
    """A piece of each op in each wave; a block looks at all of its ops in every wave up to its last."""
    moments: list[tuple[tuple[int, int, bool], Moment]] = []
    tails = []
    for queue in shape.queue_ops:
        moving = [op for op in queue if shape.ops[op].targets]
        first = {op: shape.keys[op] for op in moving}
        last = {op: shape.keys[op] + pieces[shape.ops[op].kind] - 1 for op in moving}
        done = (0, -1)
        for wave, place in sorted({(end[op], place) for place, op in enumerate(moving) for end in (first, last)}):
            op, looks = moving[place], (wave - done[0]) * len(moving) + place - done[1]
            # Pieces of other ops, without their first and last one, that come between two moments of the
            # queue.
            others = tuple(
                (other, end - begin)
                for number, other in enumerate(moving)
                if number != place
                and (end := min(last[other], wave + 1 - (number >= place)))
                > (begin := max(first[other] + 1, done[0] + (number <= done[1])))
            )
            if wave == first[op]:
                moments.append(((wave, place, False), Moment(op, False, looks, others)))
                looks, others = 0, ()
            if wave == last[op]:
                moments.append(((wave, place, True), Moment(op, True, looks, others)))
            done = wave, place
        # It looks at all of them in its last wave, too.
        tails.append((max(last.values(), default=0) - done[0]) * len(moving) + len(moving) - 1 - done[1])
        end_of_all = max(shape.keys) + max(pieces) + 1
        moments += [((end_of_all, op, False), Moment(op, False, 1)) for op in queue if op not in first]
    return [moment for _, moment in sorted(moments, key=lambda pair: pair[0])], tails


def wire(packets: PacketRates) -> float:
    """Bytes at a port for a byte of data in packets."""
    return PACKET_WIRE * packets.wire


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
    more, end = divmod(left, rest * ROW_BYTES)
    return [rows * ROW_BYTES] * full + [rest * ROW_BYTES] * more + [end] * (end > 0)


def round_seconds(nbytes: int, kind: Kind, packets: bool, far: float, rates: ExecutionRates) -> float:
    """Seconds of a block for a round of so many bytes. far: how much of the buffers the cache does not hold."""
    if not packets:
        flags = rates.flags
        return flags.round_s + flags.far_s * far + nbytes * kind.targets * flags.byte_s
    each = rates.packets
    local_s = each.inbox_s * kind.inboxes + each.local_s * kind.others
    return each.round_s + each.far_s * far - (-nbytes // ROW_BYTES) * local_s


class Sized:
    """Ops of a kind in a vector of `size` bytes, in slices, and pieces of so many bytes; the slice stands for all.

    pieces, own: of the op, and its bytes. whole: bytes of its first piece. begin, rest: what goes at its
    first moment (a piece; in packets, a round) and at its last. round, begin_end, end: bytes of its first
    round, of the last one that goes at its first moment, and of its last one. before_s, lead_s: of the block
    before each piece. begin_s, between_s, last_s: for what goes first; between that and the last piece (in
    packets, with it); for that one. whole_s: of a piece between, in all. load_s, last_load_s: of what goes
    first, and of the last round, before data leave. last: bytes of the last piece. wire: bytes at the port,
    of all slices, for one of this slice.
    """

    def __init__(
        self, kind: Kind, shape: Shape, rates: ExecutionRates, size: int, slices: int, piece: int, unit: int
    ) -> None:
        length = max(1, int(kind.share * size))
        units = -(-length // unit)
        self.own = own = length - units * (slices - 1) // slices * unit
        self.pieces = -(-own // piece)
        self.whole, self.last = min(own, piece), own - (self.pieces - 1) * piece
        sources = kind.inboxes + kind.others
        first, last = (round_bytes(part, sources, shape.packets) for part in (self.whole, self.last))
        far = min(1.0, shape.buffers * size / rates.flags.cache_bytes)
        takes = partial(round_seconds, kind=kind, packets=shape.packets, far=far, rates=rates)
        first_s, last_s = ([*map(takes, rounds)] for rounds in (first, last))
        self.round, self.end, self.last_s = first[0], last[-1], sum(last_s)
        if shape.packets:
            self.before_s, self.lead_s = 0.0, rates.packets.piece_s
            self.begin, self.begin_s, self.begin_end = first[0], first_s[0], first[0]
            self.whole_s = sum(first_s) + self.lead_s
            self.between_s = (self.pieces - 1) * self.whole_s + self.last_s - self.begin_s
            self.load_s = self.last_load_s = 0.0
        else:
            flags = rates.flags
            self.before_s, self.lead_s = flags.before_s + kind.waits * flags.look_s, flags.piece_s
            if flags.look_s and not kind.targets:
                self.lead_s = 0.0
            self.begin, self.begin_s, self.begin_end = self.whole, sum(first_s), first[-1]
            self.whole_s = sum(first_s) + self.lead_s + self.before_s
            self.between_s = (self.pieces - 2) * self.whole_s + self.before_s
            self.load_s, self.last_load_s = flags.load * first_s[0], flags.load * last_s[0]
        self.rest = own - self.begin
        self.wire = (wire(rates.packets) if shape.packets else 1.0) * length / own
