"""Programs that all executors interpret: flat arrays of ops, with the places of their data in ranks' buffers.

An op works on one chunk on one device. For each piece of it, in order, it waits until its wait flags (on its
own device) count that piece, loads the piece from its sources (in its own memory) and reduces them from first
to last, stores the outcome to its destinations (in any device's memory), and raises its signal flags (on any
device). So a copy has one source and one destination, a reduction several sources, a multicast several
destinations; an op with neither just waits. An op with destinations and no source stores poison: the schedule
sends what the device does not have.

Ops of one queue run one after another, queues run concurrently. A queue stands for one connection and
channel: the ops of a device, of one channel, that store to the same devices. Two orders follow dependencies
(an op depends only on ops with a smaller key, and each piece only on the same piece): by key, all pieces of
an op together; or in waves, key + piece = 0, 1, 2, ..., so that the pieces of a tree follow each other. Ops
that only wait come last in their queue, and only for the last piece: flags rise piece by piece. A third order
takes what is ready, first the op with the smallest share of its pieces done; its queues stand for wires
(`blinksim.gpu.execution.emulate`).

Layout: the vector of `count` elements is cut at floor(r * count / ranks) into one slice per rank; allgather,
reducescatter, gather, scatter and alltoall send or receive such slices. Chunks are cut by their exact shares
inside the vector, or inside the slice of their origin or target, and may be empty. Slices of a program
multiply the queues: slice s of every op works on its own part of the chunk, with its own flags, and never
meets another slice. Parts are counted in units of 128 bytes, the lines in which memory moves.

Protocols, by NCCL's names: flags behind the data, and packets that carry the flag. In a staged program all
data for another device lands in its INBOX, which on GPUs has two halves, used alternately: a sender need not
wait until the receiver has begun the same launch and so is done with its output of the one before (NCCL's
protocols all stage data in such buffers). A program of packets is staged, and its unit is 480 bytes of data,
which a GPU stores as four lines that each hold the number of the launch as well, so that a reader that sees
the number has the data (NCCL's LL128). Executors without such lines raise flags all the same, and need to
know nothing of packets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain, pairwise, product
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from blinksim.collective import EVERY, OWN, ROOT
from blinksim.errors import BlinksimError, InputError
from blinksim.gpu.programs.dtypes import ElementType
from blinksim.graphs.connectivity import grouped
from blinksim.schedule.model import Schedule
from blinksim.traffic import block_bounds, class_bounds

INPUT, OUTPUT, SCRATCH, INBOX = 0, 1, 2, 3
BUFFERS = ("input", "output", "scratch", "inbox")
# Memory moves in lines of this many bytes; on H200, stores to a peer that straddle them took up to 16 %
# longer.
LINE_BYTES = 128
# A packet is four such lines, of which the last 8 bytes each say which launch they are from (as in NCCL's
# LL128).
PACKET_LINES = 4
PACKET_BYTES = PACKET_LINES * (LINE_BYTES - 8)
# Bytes that go over a link for a byte of data in packets.
PACKET_WIRE = PACKET_LINES * LINE_BYTES / PACKET_BYTES
# Boundaries between chunks fall on multiples of a line, or else of 16 bytes, once chunks have this many on
# average.
_ALIGNED_FROM = 32
Place = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """Buffers of one run; all numbers count elements.

    length (chunk). source, result: (rank, chunk) -> (buffer, offset) of the chunk in what the rank has
    before, and in what it must have after. sizes: per rank, elements of INPUT and OUTPUT. input_place,
    output_place: per rank, (buffer, offset, elements) of its data; in place both lie in one buffer.
    """

    count: int
    length: tuple[int, ...]
    source: dict[tuple[int, int], Place]
    result: dict[tuple[int, int], Place]
    sizes: tuple[tuple[int, int], ...]
    input_place: tuple[tuple[int, int, int], ...]
    output_place: tuple[tuple[int, int, int], ...]
    in_place: bool


def slice_bounds(count: int, ranks: int) -> list[int]:
    """Where the ranks' slices begin in a vector of `count` elements; the last entry is `count`."""
    return [rank * count // ranks for rank in range(ranks + 1)]


def lay_out(schedule: Schedule, count: int, itemsize: int, in_place: bool = False) -> Layout:
    """The buffers of a schedule for a vector of `count` elements of `itemsize` bytes.

    Raises `InputError` if the shares do not fill the vector, and for blocks and tokens in place.
    """
    ranks, collective = schedule.topology.ranks, schedule.collective
    starts, ends, root = collective.starts, collective.ends, collective.root
    if collective.exchanges or collective.routing is not None:
        if in_place:
            what, why = collective.name, "every rank still needs what it would overwrite"
            if collective.routing is not None:
                what, why = str(collective), "ranks end with other tokens than they have"
            raise InputError(f"{what} cannot run in place: {why}")
        return _lay_out_parts(schedule, count, itemsize)
    slices = list(pairwise(slice_bounds(count, ranks)))
    parts = [("", [*range(schedule.chunks)], (0, count), Fraction(1))]
    if OWN in (starts, ends):
        owner = schedule.origin if starts == OWN else schedule.target
        owned = _chunks_of(owner, ranks, f"{collective} belongs to no rank")
        names = [f"of rank {rank} " if ranks > 1 else "" for rank in range(ranks)]
        parts = [*zip(names, owned, slices, [Fraction(1, ranks)] * ranks, strict=True)]
    offset, length = _cut(schedule, itemsize, parts)
    source: dict[tuple[int, int], Place] = {}
    result: dict[tuple[int, int], Place] = {}
    sizes, inputs, outputs = [], [], []
    for rank in range(ranks):
        spans = {EVERY: (0, count), ROOT: (0, count if rank == root else 0), OWN: slices[rank]}
        begin, end = spans[starts], spans[ends]
        a, b = begin[1] - begin[0], end[1] - end[0]
        first, last, own = (INPUT, -begin[0]), (OUTPUT, -end[0]), (a, b)
        if in_place and a and b:
            # The larger of the two buffers holds both: the output, unless only a part of the input remains.
            joint, own = (OUTPUT, (0, b)) if b >= a else (INPUT, (a, 0))
            first = last = joint, -min(begin[0], end[0])
        both = (source, a, schedule.origin, first), (result, b, schedule.target, last)
        for places, size, owner, (buffer, at) in both:
            mine = np.flatnonzero((owner == -1) | (owner == rank)).tolist() if size else []
            places |= {(rank, chunk): (buffer, at + offset[chunk]) for chunk in mine}
        sizes.append(own)
        inputs.append((first[0], first[1] + begin[0], a))
        outputs.append((last[0], last[1] + end[0], b))
    return Layout(count, tuple(length), source, result, tuple(sizes), tuple(inputs), tuple(outputs), in_place)


def lay_out_side_by_side(
    schedule: Schedule, counts: Sequence[int], itemsize: int
) -> tuple[Layout, list[list[tuple[int, int, int, int, int]]]]:
    """The buffers of schedules side by side (`Schedule.groups`), the data of each device together.

    counts: elements of each group's vector. Also, for every rank of every group: its number among all, and
    where its input begins and how long it is, and its output. Raises `InputError` as `lay_out`.
    """
    number = {name: place for place, name in enumerate(schedule.topology.members)}
    sizes, line = np.zeros((len(number), 2), dtype=np.int64), LINE_BYTES // itemsize
    length, places = list[int](), list[list[tuple[int, int, int, int, int]]]()
    source, result = dict[tuple[int, int], Place](), dict[tuple[int, int], Place]()
    for group, count in enumerate(counts):
        one = schedule.alone(group)
        own, first = lay_out(one, count, itemsize), len(length)
        ranks = [number[name] for name in one.topology.members]
        for found, joint in ((own.source, source), (own.result, result)):
            for (rank, chunk), (buffer, offset) in found.items():
                joint[ranks[rank], first + chunk] = buffer, int(sizes[ranks[rank], buffer]) + offset
        data = zip(ranks, sizes[ranks].tolist(), own.sizes, strict=True)
        places.append([(rank, at[0], size[0], at[1], size[1]) for rank, at, size in data])
        sizes[ranks] += -(-np.array(own.sizes) // line) * line
        length += own.length
    pairs = [(int(a), int(b)) for a, b in sizes]
    inputs, outputs = (tuple((buffer, 0, row[buffer]) for row in pairs) for buffer in (INPUT, OUTPUT))
    return Layout(sum(counts), tuple(length), source, result, tuple(pairs), inputs, outputs, False), places


def _chunks_of(number: npt.NDArray[Any], parts: int, lacks: str) -> list[list[int]]:
    """The chunks of every part. number: of each chunk's part; if negative, `lacks` says what is wrong."""
    if (number < 0).any():
        raise InputError(f"chunk {np.argmax(number < 0)} of the {lacks}")
    own = grouped(zip(number.tolist(), range(len(number)), strict=True))
    return [own.get(part, []) for part in range(parts)]


def _cut(
    schedule: Schedule, itemsize: int, parts: Iterable[tuple[str, list[int], tuple[int, int], Fraction]]
) -> tuple[list[int], list[int]]:
    """Offset and length of each chunk in the vector.

    parts: what each is, its chunks, the elements that they are cut from, and what their shares must add up
    to.
    """
    offset, length = [0] * schedule.chunks, [0] * schedule.chunks
    for what, chunks, (start, stop), whole in parts:
        shares = schedule.share_num[chunks].tolist()
        total = sum(shares)
        if Fraction(total, schedule.share_den) != whole:
            raise InputError(f"the chunks {what}hold {Fraction(total, schedule.share_den)} of the vector, not {whole}")
        units = (max(1, bytes_ // itemsize) for bytes_ in (LINE_BYTES, 16))
        unit = next((unit for unit in units if stop - start >= _ALIGNED_FROM * unit * len(chunks)), 1)
        before, at = 0, start
        for position, (chunk, share) in enumerate(zip(chunks, shares, strict=True)):
            before += share
            end = start + (stop - start) * before // total
            if position + 1 < len(chunks):
                end = max(at, end // unit * unit)
            offset[chunk], length[chunk] = at, end - at
            at = end
    return offset, length


def _lay_out_parts(schedule: Schedule, count: int, itemsize: int) -> Layout:
    """As `lay_out`, where every buffer has its parts one after another.

    These are blocks of an alltoall or alltoallv, by origin and target, or classes of tokens.
    """
    ranks, collective, routing = schedule.topology.ranks, schedule.collective, schedule.collective.routing
    # What every part is, its elements in what all ranks have, its share, who begins and who ends with it.
    parts = list[tuple[str, tuple[int, int], Fraction, tuple[list[int], list[int]]]]()
    if routing is None:
        number, lacks = schedule.origin * ranks + schedule.target, "lacks its origin or target"
        number[(schedule.origin < 0) | (schedule.target < 0)] = -1
        rows: Sequence[Sequence[int]] = [slice_bounds(count, ranks)] * ranks
        if collective.traffic is not None:
            rows = block_bounds(collective.traffic, count)
        for a, b in product(range(ranks), repeat=2):
            span, share = (rows[a][b], rows[a][b + 1]), collective.share(a, b, ranks)
            parts.append((f"from rank {a} to rank {b} ", span, share, ([a], [b])))
    else:
        number, lacks = schedule.token_class, "is of tokens that the routing does not have"
        classes, spans = routing.classes, pairwise(class_bounds(routing, count))
        for one, (span, amount) in enumerate(zip(spans, routing.amounts.tolist(), strict=True)):
            own, others = [int(classes.own[one])], np.flatnonzero(classes.holds[classes.which[one]]).tolist()
            ends = (own, others) if collective.starts == OWN else (others, own)
            parts.append((f"of class {one} of tokens ", span, Fraction(amount, routing.size), ends))
    chunks = _chunks_of(number, len(parts), f"{collective} {lacks}")
    cuts = ((what, mine, span, share) for mine, (what, span, share, _) in zip(chunks, parts, strict=True))
    offset, length = _cut(schedule, itemsize, cuts)
    places: tuple[dict[tuple[int, int], Place], dict[tuple[int, int], Place]] = {}, {}
    filled = [0] * ranks, [0] * ranks
    for mine, (_, (start, stop), _, ends) in zip(chunks, parts, strict=True):
        for buffer, rank in (*product([INPUT], ends[INPUT]), *product([OUTPUT], ends[OUTPUT])):
            at = filled[buffer][rank] - start
            places[buffer].update({(rank, chunk): (buffer, at + offset[chunk]) for chunk in mine})
            filled[buffer][rank] += stop - start
    sizes = tuple(zip(*filled, strict=True))
    inputs, outputs = (tuple((buffer, 0, own[buffer]) for own in sizes) for buffer in (INPUT, OUTPUT))
    return Layout(count, tuple(length), *places, sizes, inputs, outputs, False)


Longs = npt.NDArray[np.int64]
BY_KEY, WAVES, READY = 0, 1, 2
# In place of an op and a piece: nothing is left.
END = -1


def unit_of(kind: ElementType, packets: bool = False) -> int:
    """Elements of one unit."""
    return (PACKET_BYTES if packets else LINE_BYTES) // kind.itemsize


def starts(lengths: Iterable[int]) -> Longs:
    """Where each of some lists begins that follow each other, and where the last one ends."""
    return np.cumsum([0, *lengths]).astype(np.int64)


def rows_of(name: str, rows: Sequence[Sequence[Sequence[int]]], width: int) -> dict[str, Longs]:
    """The table `name` of a program, such as ``source``, from the rows of each op."""
    flat = np.array([row for group in rows for row in group], dtype=np.int64)
    return {f"{name}_start": starts(map(len, rows)), f"{name}s": flat.reshape(-1, width)}


class ExecutionError(BlinksimError):
    """A program is stuck: an op waits for a signal that never comes."""

    exit_code = 1


@dataclass(frozen=True, repr=False)
class Program:
    """Arrays of ops, with N ops in Q queues on D devices; all offsets and lengths count elements.

    devices: their names; ranks come first, in rank order. sizes (D, 4): elements of the INPUT, OUTPUT,
    SCRATCH and INBOX buffers. flags (D): number of flags. slices, piece_units, order, packets: see the
    module. queue_device (Q), queue_start (Q + 1): queue q holds the ops queue_start[q] to queue_start[q + 1],
    by key. queue_name (Q): for people. key, chunk, length (N). Sources (buffer, offset), destinations
    (device, buffer, offset), waits (flag) and signals (device, flag) are rows of two-dimensional arrays; op i
    owns the rows x_start[i] to x_start[i + 1].
    """

    devices: tuple[str, ...]
    kind: ElementType
    layout: Layout
    sizes: Longs
    flags: Longs
    slices: int
    piece_units: int
    order: int
    queue_device: Longs
    queue_start: Longs
    queue_name: tuple[str, ...]
    key: Longs
    chunk: Longs
    length: Longs
    source_start: Longs
    sources: Longs
    destination_start: Longs
    destinations: Longs
    wait_start: Longs
    waits: Longs
    signal_start: Longs
    signals: Longs
    packets: bool = False

    @property
    def ops(self) -> int:
        return len(self.key)

    @property
    def queues(self) -> int:
        return len(self.queue_device)

    @property
    def unit(self) -> int:
        """Elements of one unit."""
        return unit_of(self.kind, self.packets)

    @cached_property
    def staged(self) -> bool:
        """True if everything that comes from another device is stored to an INBOX."""
        away = np.repeat(self.op_device, np.diff(self.destination_start)) != self.destinations[:, 0]
        return bool(away.any() and (self.destinations[away, 1] == INBOX).all())

    @cached_property
    def op_device(self) -> Longs:
        """The device of each op."""
        return np.repeat(self.queue_device, np.diff(self.queue_start))

    @cached_property
    def queue_counts(self) -> list[int]:
        """How many queues each device has."""
        return [*np.bincount(self.queue_device, minlength=len(self.devices)).tolist()]

    def queues_of(self, device: int) -> Longs:
        """The queues of a device, in order."""
        return np.flatnonzero(self.queue_device == device)

    def part(self, length: int, part: int) -> tuple[int, int]:
        """First and last + 1 unit of slice `part` of a chunk with `length` elements."""
        units = -(-length // self.unit)
        return units * part // self.slices, units * (part + 1) // self.slices

    def pieces(self, length: int, part: int) -> int:
        """Pieces of slice `part` of a chunk with `length` elements; 0 if the slice is empty."""
        first, last = self.part(length, part)
        return -(-(last - first) // self.piece_units)

    def span(self, length: int, part: int, piece: int) -> tuple[int, int]:
        """The elements of one piece, relative to the chunk's beginning."""
        first, last = self.part(length, part)
        begin = first + piece * self.piece_units
        return begin * self.unit, min(min(begin + self.piece_units, last) * self.unit, length)

    def walk(self, queue: int, part: int) -> Iterator[tuple[int, int, int]]:
        """(op, piece, looks) in the order in which slice `part` of a queue runs them.

        looks: ops that the block has looked at since the piece before, this one included. In waves it looks
        at every op in every wave, also at one whose first piece comes waves later; by key it looks once at
        each. Last come op and piece `END`, with what it looks at after the last piece. Of what is READY,
        waves are one order among others.
        """
        ops = range(int(self.queue_start[queue]), int(self.queue_start[queue + 1]))
        pieces = {op: self.pieces(int(self.length[op]), part) for op in ops}
        moving = [op for op in ops if self.destination_start[op] < self.destination_start[op + 1]]
        # What is due whenever the block looks at an op, if the op has so many pieces.
        visits = ((op, range(pieces[op])) for op in moving)
        if self.order != BY_KEY:
            keys = {op: int(self.key[op]) for op in moving}
            waves = range(max([1, *(keys[op] + pieces[op] for op in moving)]))
            visits = ((op, range(wave - keys[op], wave - keys[op] + 1)) for wave in waves for op in moving)
        last = ((op, range(pieces[op] - 1, pieces[op])) for op in sorted({*ops}.difference(moving)))
        looks = 0
        for op, due in chain(visits, last):
            looks += 1
            for piece in due:
                if 0 <= piece < pieces[op]:
                    yield op, piece, looks
                    looks = 0
        yield END, END, looks

    def op_pieces(self, queue: int, part: int) -> Iterator[tuple[int, int]]:
        """(op, piece) of `walk`."""
        return ((op, piece) for op, piece, _ in self.walk(queue, part) if op != END)

    def cut(self, slices: int, piece_bytes: int) -> Program:
        """The same program with another number of slices, and pieces of about `piece_bytes` bytes."""
        if slices < 1 or piece_bytes < 1:
            raise InputError("slices and piece_bytes must be at least 1")
        return replace(self, slices=slices, piece_units=max(1, piece_bytes // (self.unit * self.kind.itemsize)))

    def rows(self, what: str, op: int) -> list[list[int]]:
        """The rows of an op in `sources`, `destinations`, `waits` or `signals`."""
        start: Longs = getattr(self, what.removesuffix("s") + "_start")
        rows: list[list[int]] = getattr(self, what)[start[op] : start[op + 1]].tolist()
        return rows

    def describe(self, op: int) -> str:
        """One line about an op, for people."""
        at = self.devices[int(self.op_device[op])]
        sources = " + ".join(f"{BUFFERS[b]}[{o}]" for b, o in self.rows("sources", op))
        targets = ", ".join(f"{self.devices[d]}.{BUFFERS[b]}[{o}]" for d, b, o in self.rows("destinations", op))
        waits = ", ".join(str(flag) for (flag,) in self.rows("waits", op))
        signals = ", ".join(f"{self.devices[d]}.{flag}" for d, flag in self.rows("signals", op))
        body = f"{sources or 'nothing'} -> {targets}" if targets else "wait"
        body += (f"; waits for flags {waits}" if waits else "") + (f"; signals {signals}" if signals else "")
        chunk = f"chunk {self.chunk[op]} ({self.length[op]} elements)"
        return f"op {op} on {at}, {chunk}, key {self.key[op]}: {body}"


ProtocolName = Literal["simple", "ll128"]
PROTOCOLS: tuple[ProtocolName, ...] = get_args(ProtocolName)


def receivers(program: Program) -> list[list[int]]:
    """For each device, the other devices that it stores to."""
    source = np.repeat(program.op_device, np.diff(program.destination_start)).tolist()
    ways = grouped(sorted({*zip(source, program.destinations[:, 0].tolist(), strict=True)}))
    devices = range(len(program.devices))
    return [[other for other in ways.get(device, ()) if other != device] for device in devices]


def by_flag(program: Program) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which rows of `waits` and of `signals` a GPU needs: all, or the local ones where packets signal the rest."""
    waited, signalled = np.ones(len(program.waits), dtype=bool), np.ones(len(program.signals), dtype=bool)
    if program.packets:
        most = int(program.flags.max(initial=0)) + 1
        signalled = program.signals[:, 0] == np.repeat(program.op_device, np.diff(program.signal_start))
        inside = program.signals[signalled] @ np.array([most, 1])
        awaited = np.repeat(program.op_device, np.diff(program.wait_start)) * most + program.waits[:, 0]
        waited = np.isin(awaited, inside)
    return waited, signalled
