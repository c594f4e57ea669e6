"""Programs from schedules and of a group's calls: cut for its memory, in parts that launches move, in rounds.

Without an import of what runs them, as the model ``execution`` makes the same programs.

Reductions are put off until the op that sends their value on. A device's view of a chunk is a list of places
whose reduction is the current value: its own input, received data not yet added, or a stored result. The op
that needs the value reduces it and sends it to all receivers of that step at once (receive + reduce + send in
one pass over the data, as NCCL's fused primitives do). A copy lands directly in the receiver's output if no
op can still be reading what it overwrites; everything else lands in a place of its own in the receiver's
scratch buffer, or, in a staged program and so in one of packets, in an inbox. So no two writes meet, and no
credits are needed. Dependencies go from piece to piece of one chunk only.

The sources of an op are folded in the order of the devices that wrote them, so that all ranks of a one-step
allreduce add in the same order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import lru_cache
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import ClassVar

import numpy as np

from blinksim.collective import ON_TREES, OWN, REDUCING, ROOTED, Collective
from blinksim.errors import InfeasibleError, InputError, one_of
from blinksim.gpu.programs import program
from blinksim.gpu.programs.dtypes import REDUCTIONS, ElementType
from blinksim.gpu.programs.fit import fit
from blinksim.gpu.programs.program import BY_KEY, INBOX, READY, SCRATCH, WAVES, Layout, Longs, Place, Program
from blinksim.gpu.programs.tables import CACHE_WORDS, OP_WORDS, inbox_bytes
from blinksim.graphs.arrays import distinct, scattered
from blinksim.graphs.connectivity import grouped
from blinksim.schedule.model import COPY, Schedule, sends_by_chunk

# Blocks of a launch, at most. Many have half the threads: small blocks fill the links better than few large
# ones, and those of two groups fit on an H200 together.
BLOCKS = 128


@dataclass(frozen=True, slots=True)
class Call:
    """One collective on real data.

    collective: one of `ON_TREES`. count: elements of the whole vector, for allgather and reducescatter a
    multiple of the number of ranks. op: how contributions are combined, one of
    `blinksim.gpu.programs.dtypes.REDUCTIONS`. root: a rank. Raises `InputError` for a name that it does not
    know.
    """

    collective: str
    count: int
    kind: ElementType
    op: str = "sum"
    root: int = 0
    # Asked for in every call of a job.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.collective, self.count, self.kind, self.op, self.root)))
        one_of("collective of a group", self.collective, ON_TREES)
        one_of("reduction", self.op, REDUCTIONS)
        if self.count < 1:
            raise InputError(f"a {self.collective} of {self.count} elements moves nothing")

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        how = f", {self.op}" if self.collective in REDUCING else ""
        root = f", root {self.root}" if self.collective in ROOTED else ""
        return f"{self.collective} of {self.count} {self.kind.name}{how}{root}"

    @property
    def nbytes(self) -> int:
        """Bytes of the whole vector."""
        return self.count * self.kind.itemsize

    @property
    def what(self) -> Collective:
        return Collective(self.collective, self.root if self.collective in ROOTED else 0)

    def parts(self, ranks: int) -> int:
        """How many parts of equal length the vector has, one for each rank or a single one.

        Raises `InputError` if the ranks would get different numbers of elements.
        """
        if OWN not in (self.what.starts, self.what.ends):
            return 1
        if self.count % ranks:
            raise InputError(f"{self}: {ranks} ranks need equal parts, and {self.count} is no multiple of {ranks}")
        return ranks

    def stretches(self, ranks: int, most_bytes: int) -> Iterator[tuple[int, int]]:
        """(first, length): the elements of every part that one launch moves, at most `most_bytes` in all.

        Launches have equal lengths but for the last one, and begin at multiples of 128 bytes where that is
        possible.
        """
        parts = self.parts(ranks)
        whole = self.count // parts
        most = max(1, most_bytes // parts // self.kind.itemsize)
        launches = -(-whole // most)
        line = 128 // self.kind.itemsize
        length = -(-whole // launches)
        if launches > 1 and length >= line:
            length = min(-(-length // line) * line, max(line, most // line * line))
        for first in range(0, whole, length):
            yield first, min(length, whole - first)


# A job makes the same ones again and again.
call_of = lru_cache(maxsize=1024)(Call)


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
    # Behind the notes.
    flags_at: ClassVar[int] = 4096

    def __post_init__(self) -> None:
        sizes: tuple[int, ...] = astuple(self)
        if min(sizes) < 4096 or any(size % 4096 for size in sizes):
            raise InputError("the areas of a segment are multiples of 4096 bytes, and at least that")

    @classmethod
    def of(cls, most_bytes: int) -> Segment:
        """About `most_bytes` in all, divided as the default is."""
        standard = cls()
        pages = [part * most_bytes // standard.total // 4096 for part in astuple(standard)]
        return cls(*(4096 * max(1, page) for page in pages))

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

        Then flags tell when an inbox is free; nothing tells when scratch memory is. Queues are kept in shared
        memory twice. Wires stay as they are: what they emulate has no rounds.
        """
        starts = (program.source_start, program.destination_start, program.wait_start, program.signal_start)
        rows = OP_WORDS * np.arange(program.ops + 1) + sum(starts)
        words = 1 + OP_WORDS + int(np.diff(rows[program.queue_start]).max(initial=0))
        announced = 8 * program.slices * max(program.queue_counts) * len(program.devices)
        free = not program.packets and program.order != READY and not program.sizes[:, SCRATCH].any()
        return free and words <= CACHE_WORDS // 2 and announced <= self.rounds


# A vector is tried in as many launches as this at most.
_MOST_SEGMENTS = 1 << 20
# What training calls while it computes. On four H200 half of the blocks reach NCCL's rate in long rings, and
# leave more of the GPU: a step of FSDP takes 0.8 % longer than with NCCL, and with all blocks 2.3 %.
_BESIDE_COMPUTING = ("allreduce", "allgather", "reducescatter")


def launched(
    call: Call, ranks: int, segment: Segment, program_of: Callable[[int], Program]
) -> Iterator[tuple[Program, int, int, int]]:
    """The launches of a call: the program, its first element, the elements of every part in a round, and the rounds.

    program_of: the program for parts of so many elements. Raises `InfeasibleError` if a schedule does not fit
    the memory.
    """
    most = min(call.nbytes, segment.data)
    while True:
        stretches = list(call.stretches(ranks, most))
        longest = max(length for _, length in stretches)
        program = program_of(longest)
        if segment.holds(program):
            break
        if longest <= 1 or len(stretches) > _MOST_SEGMENTS:
            raise InfeasibleError(f"{call}: its schedule needs more inboxes or flags than the group has")
        most = most * 3 // 4
    for length, alike in groupby(stretches, key=itemgetter(1)):
        firsts, cut = [first for first, _ in alike], program if length == longest else program_of(length)
        rounds = len(firsts) if segment.repeats(cut) else 1
        yield from ((cut, first, length, rounds) for first in firsts[::rounds])


def call_program(call: Call, schedule: Schedule, packets: bool, blocks: int, length: int) -> Program:
    """The program of a schedule for parts of `length` elements, in at most so many blocks.

    Raises `InfeasibleError` for one that moves nothing between the ranks.
    """
    whole = uncut(call, schedule, packets, length)
    fitted = fit(whole, blocks_of(call, packets, blocks))
    split = split_queues(whole)
    if split is not None and max(split.queue_counts) * fitted.slices <= blocks:
        fitted = fit(split, blocks, fitted.slices)
    if not fitted.staged and len(fitted.destinations) and schedule.topology.ranks > 1:
        raise InfeasibleError(f"{call}: {schedule.algorithm} moves nothing between the ranks")
    return fitted


def uncut(call: Call, schedule: Schedule, packets: bool, length: int) -> Program:
    """The same before it is cut."""
    parts = call.parts(schedule.topology.ranks)
    program = compile_schedule(schedule, length * parts, call.kind, in_place=parts == 1, packets=packets, staged=True)
    return without_unread(program)


def blocks_of(call: Call, packets: bool, blocks: int) -> int:
    """The blocks of a call's launch: half of them for long calls beside computing."""
    return max(1, blocks // 2) if not packets and call.collective in _BESIDE_COMPUTING else blocks


def split_queues(program: Program) -> Program | None:
    """The same ops of packets, those that store to their own device only in queues of their own.

    Every op waits for what it needs by flags, so queues may be split anywhere. A small message takes as long
    as the longest queue. None where data do not go in packets, or in waves.
    """
    if not program.packets or program.order != BY_KEY:
        return None
    away = np.repeat(program.op_device, np.diff(program.destination_start)) != program.destinations[:, 0]
    stays = np.array([not away[a:b].any() for a, b in pairwise(program.destination_start.tolist())], dtype=bool)
    queue = np.repeat(np.arange(program.queues), np.diff(program.queue_start))
    first = np.concatenate(([True], queue[1:] != queue[:-1]))
    # A queue begins where one began, at an op that stays, and behind one.
    begins = np.flatnonzero(first | stays | np.concatenate(([False], stays[:-1])))
    return replace(
        program,
        queue_device=program.queue_device[queue[begins]],
        queue_start=np.append(begins, program.ops).astype(np.int64),
        queue_name=tuple(program.queue_name[number] for number in queue[begins].tolist()),
    )


def without_unread(program: Program) -> Program:
    """The same without stores to scratch memory on devices that never read any: sums that were only passed on."""
    at = np.repeat(program.op_device, np.diff(program.source_start))
    reading = distinct(at[program.sources[:, 0] == SCRATCH])
    unread = (program.destinations[:, 1] == SCRATCH) & ~np.isin(program.destinations[:, 0], reading)
    op = np.repeat(np.arange(program.ops), np.diff(program.destination_start))
    targets = np.bincount(op[~unread], minlength=program.ops)
    unread &= targets[op] > 0  # an op without any target would only wait
    sizes = program.sizes.copy()
    left = program.destinations[~unread]
    sizes[~np.isin(np.arange(len(sizes)), left[left[:, 1] == SCRATCH, 0]), SCRATCH] = 0
    before = np.concatenate(([0], np.cumsum(~unread)))
    return replace(program, sizes=sizes, destinations=left, destination_start=before[program.destination_start])


# The CUDA kernel keeps the sources of an op in registers, 16 bytes of each at a time.
MOST_SOURCES = 8
# And it keeps the addresses to store to in shared memory.
MOST_TARGETS = 32
FIRST_PIECE = 1 << 18
# In waves, an op runs this many pieces behind the ops it depends on: a queue that holds both does not stall
# while a piece travels from one to the other.
_LEAD = 4


# (device, channel, the other devices that its ops store to).
_Queue = tuple[int, int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Value:
    """A place with data: who wrote it (`writer` is an op, -1 for the input that was there) and on which device."""

    place: Place
    writer: int
    author: int


@dataclass(slots=True)
class _Op:
    device: int
    chunk: int
    key: tuple[int, int]
    channel: int
    sources: list[_Value]
    destinations: list[tuple[int, int, int]] = field(default_factory=list)
    after: set[int] = field(default_factory=set)
    ancestors: int = 0


def compile_schedule(
    schedule: Schedule,
    count: int | Sequence[int],
    kind: ElementType,
    *,
    in_place: bool = False,
    packets: bool = False,
    staged: bool = False,
    most_sources: int = MOST_SOURCES,
) -> Program:
    """The program of a schedule for a vector of `count` elements, on request of packets or staged
    (`blinksim.gpu.programs.program`; packets are always staged).

    count: of schedules of several groups side by side, of each group's vector; they do not run in place.

    It has one slice and pieces of 256 KiB; `Program.cut` changes both. Raises `InputError` for shares that do
    not fill the vector and for an alltoall in place. A schedule that sends what a device does not have still
    compiles, and spreads poison.
    """
    if most_sources < 2:
        raise InputError("most_sources must be at least 2")
    if isinstance(count, int):
        layout = program.lay_out(schedule, count, kind.itemsize, in_place)
    else:
        layout, _ = program.lay_out_side_by_side(schedule, count, kind.itemsize)
    return _Compiler(schedule, layout, kind, packets, staged, most_sources).program()


class _Compiler:
    def __init__(
        self, schedule: Schedule, layout: Layout, kind: ElementType, packets: bool, staged: bool, most_sources: int
    ) -> None:
        self.schedule, self.layout, self.kind, self.most_sources = schedule, layout, kind, most_sources
        self.packets, self.staged, self.unit = packets, packets or staged, program.unit_of(kind, packets)
        # Ranks first, then whatever else sends or receives.
        extra = sorted({*schedule.src.tolist(), *schedule.dst.tolist()} - {*schedule.device_of.tolist()})
        self.order = [*schedule.device_of.tolist(), *extra]
        self.ranks = schedule.topology.ranks
        self.ops: list[_Op] = []
        # Elements that are taken already, by buffer and device.
        self.taken = {buffer: [0] * len(self.order) for buffer in (SCRATCH, INBOX)}

    def program(self) -> Program:
        ops, layout, schedule = self.ops, self.layout, self.schedule
        number = scattered(self.order, np.arange(len(self.order)), len(schedule.topology.devices))
        ends, by_chunk = sends_by_chunk(schedule)
        columns = number[schedule.src], number[schedule.dst], schedule.op, schedule.step, schedule.channel
        sends: list[_Send] = list(zip(*(column[by_chunk].tolist() for column in columns), strict=True))
        for chunk, (first, last) in enumerate(pairwise(ends.tolist())):
            _ChunkCompiler(self, chunk, sends[first:last]).run()
        # The program of all ops, queue by queue.
        queues = self._queues()
        line, waves = [*chain.from_iterable(queues.values())], schedule.form == "forest"
        chunk_of = np.array([ops[i].chunk for i in line], dtype=np.int64)
        # Keys as numbers, in their order.
        keys = np.array([ops[i].key for i in line], dtype=np.int64).reshape(-1, 2)
        key = np.unique(keys, axis=0, return_inverse=True)[1].ravel() * np.int64(_LEAD if waves else 1)
        devices = tuple(schedule.topology.devices[device].name for device in self.order)
        # Only ranks have an input and an output.
        own = [*layout.sizes, *[(0, 0)] * (len(self.order) - self.ranks)]
        sizes = [[*ends, *taken] for ends, *taken in zip(own, *self.taken.values(), strict=True)]
        return Program(
            devices=devices,
            kind=self.kind,
            layout=layout,
            sizes=np.array(sizes, dtype=np.int64).reshape(-1, 4),
            slices=1,
            piece_units=max(1, FIRST_PIECE // (self.unit * self.kind.itemsize)),
            order=WAVES if waves else BY_KEY,
            queue_device=np.array([device for device, _, _ in queues], dtype=np.int64),
            queue_start=program.starts(map(len, queues.values())),
            queue_name=tuple(
                f"{devices[d]} to {', '.join(devices[x] for x in away) or 'itself'}, channel {channel}"
                for d, channel, away in queues
            ),
            packets=self.packets,
            key=key,
            chunk=chunk_of,
            length=np.array(layout.length, dtype=np.int64)[chunk_of],
            **program.rows_of("source", [[value.place for value in ops[i].sources] for i in line], 2),
            **program.rows_of("destination", [ops[i].destinations for i in line], 3),
            **self._flag_tables(line),
        )

    def slot(self, device: int, chunk: int, buffer: int = SCRATCH) -> Place:
        """A new place in a device's scratch or inbox, at the same distance from a 128-byte boundary as the chunk; for
        packets in an inbox, of whole units."""
        taken, length = self.taken[buffer], self.layout.length[chunk]
        packets = self.packets and buffer == INBOX
        line, phase = program.unit_of(self.kind, packets), 0
        if not packets and self.schedule.collective.name != "alltoall":
            holders = (rank for rank in range(self.ranks) if (rank, chunk) in self.layout.result)
            phase = next((self.layout.result[rank, chunk][1] for rank in holders), 0) % line
        place = (buffer, taken[device] + phase)
        taken[device] += -(-(phase + length) // line) * line
        return place

    def _queues(self) -> dict[_Queue, list[int]]:
        """The ops of every queue by key, queues in order."""
        ops = self.ops
        queues: dict[_Queue, list[int]] = defaultdict(list)
        for index, op in enumerate(ops):
            away = sorted({device for device, _, _ in op.destinations if device != op.device})
            queues[op.device, op.channel, tuple(away)].append(index)
        # Moves ops that only wait to another queue of their device: nothing comes after them, and a block is
        # saved.
        for name in [name for name, queue in queues.items() if all(not ops[i].destinations for i in queue)]:
            if others := [other for other in queues if other[0] == name[0] and other != name]:
                queues[min(others)].extend(queues.pop(name))
        return {name: sorted(queues[name], key=lambda index: (ops[index].key, index)) for name in sorted(queues)}

    def _flag_tables(self, line: list[int]) -> dict[str, Longs]:
        """Flags of every device, and the waits and signals of the ops in `line`: an op raises one flag on each device
        where an op waits for it."""
        ops = self.ops
        waits_for = grouped((other, op.device) for op in ops for other in op.after)
        waiters = {other: sorted({*devices}) for other, devices in waits_for.items()}
        flags = [0] * len(self.order)
        flag: dict[tuple[int, int], int] = {}
        for index in line:
            for device in waiters.get(index, ()):
                flag[index, device] = flags[device]
                flags[device] += 1
        waits = [[[flag[other, ops[i].device]] for other in sorted(ops[i].after)] for i in line]
        signals = [[[device, flag[i, device]] for device in waiters.get(i, ())] for i in line]
        tables = program.rows_of("wait", waits, 1) | program.rows_of("signal", signals, 2)
        return {"flags": np.array(flags, dtype=np.int64), **tables}


_Send = tuple[int, int, int, int, int]


class _ChunkCompiler:
    """The ops of one chunk. A send is (src, dst, op, step, channel), devices numbered as in the program."""

    def __init__(self, compiler: _Compiler, chunk: int, sends: list[_Send]) -> None:
        self.compiler, self.chunk, self.sends = compiler, chunk, sends
        self.ops = compiler.ops
        self.first = len(self.ops)
        layout = compiler.layout
        self.result = {
            rank: layout.result[rank, chunk] for rank in range(compiler.ranks) if (rank, chunk) in layout.result
        }
        self.value: dict[int, list[_Value]] = defaultdict(list)
        self.readers: dict[int, set[int]] = defaultdict(set)
        self.done: dict[int, int] = {}
        self.awaited: set[tuple[int, int]] = set()
        for rank in range(compiler.ranks):
            if (rank, chunk) in layout.source:
                self.value[rank] = [_Value(layout.source[rank, chunk], -1, rank)]
        # The last step in which a device sends it, and is sent it.
        self.leaves, self.arrives = ({send[end]: send[3] for send in sends} for end in (0, 1))

    def run(self) -> None:
        for step, together in groupby(self.sends, key=itemgetter(3)):
            # By device where the order is no matter: a vertex of a tree serves its children in one, and so do
            # sends to a place to which something is copied.
            sends = list(together)
            arrivals = Counter(send[1] for send in sends)
            matters = any(send[2] == COPY and arrivals[send[1]] > 1 for send in sends)
            self._step(step, sends if matters or self.compiler.schedule.form == "forest" else sorted(sends))
        # Brings every value into the result, or waits for what lands there.
        last = 2 * self.compiler.schedule.steps
        for device, target in sorted(self.result.items()):
            if not (values := self.value[device]) or device in self.done:
                continue
            if len(values) > 1 or values[0].place != target:
                self._store_result(device, self._op(device, (last, 0), 0))
            elif values[0].writer >= 0 and (device, values[0].writer) not in self.awaited:
                self._after(self._op(device, (last, 1), 0, []), values[0].writer)

    def _step(self, step: int, sends: list[_Send]) -> None:
        out, into = (grouped((send[side], send) for send in sends) for side in (0, 1))
        senders = {device: self._op(device, (2 * step, 0), group[0][4]) for device, group in out.items()}
        for device, op in senders.items():
            self._keep(device, op, step)
        landed: dict[int, list[_Value]] = {}
        for device, group in into.items():
            # A copy replaces what was there before it, also what arrived earlier in the same step.
            last_copy = max((i for i, send in enumerate(group) if send[2] == COPY), default=None)
            values = [] if last_copy is not None else list(self.value[device])
            for position, send in enumerate(group):
                only = send[2] == COPY and position == len(group) - 1
                place = self._landing(device, senders[send[0]], step, only)
                self.ops[senders[send[0]]].destinations.append((device, *place))
                if last_copy is None or position >= last_copy:
                    values.append(_Value(place, senders[send[0]], send[0]))
            landed[device] = values
        for device, values in landed.items():
            self.value[device] = values
            addition = 0
            while len(self.value[device]) > self.compiler.most_sources:
                # Adds up the first sources of a value that has too many.
                values = self.value[device]
                number = self._op(device, (2 * step + 1, addition), 0, values[: self.compiler.most_sources])
                place = self.compiler.slot(device, self.chunk)
                self.ops[number].destinations.append((device, *place))
                self.value[device] = [_Value(place, number, device), *values[self.compiler.most_sources :]]
                addition += 1

    def _op(self, device: int, key: tuple[int, int], channel: int, sources: list[_Value] | None = None) -> int:
        """A new op on `device` that reads `sources` (default: the device's current value); returns its number."""
        values = self.value[device] if sources is None else sources
        op = _Op(device, self.chunk, key, channel, sorted(values, key=lambda v: (v.author, v.writer)))
        number = len(self.ops)
        self.ops.append(op)
        for value in op.sources:
            if value.writer >= 0:
                self._after(number, value.writer)
            if value.place == self.result.get(device):
                self.readers[device].add(number)
        return number

    def _after(self, number: int, other: int) -> None:
        op = self.ops[number]
        op.after.add(other)
        self.awaited.add((op.device, other))
        op.ancestors |= self.ops[other].ancestors | 1 << (other - self.first)

    def _keep(self, device: int, number: int, step: int) -> None:
        """Makes the op store what it computed, if that is the result or is needed again."""
        op, target = self.ops[number], self.result.get(device)
        final = self.arrives.get(device, -1) < step
        needed = self.leaves[device] > step or self.arrives.get(device, -1) >= step
        if not op.sources:
            return
        if final and target is not None and device not in self.done:
            if len(op.sources) > 1 or op.sources[0].place != target:
                self._store_result(device, number)
                self.value[device] = [_Value(target, number, device)]
        elif len(op.sources) > 1 and needed:
            place = self.compiler.slot(device, self.chunk)
            op.destinations.append((device, *place))
            self.value[device] = [_Value(place, number, device)]

    def _store_result(self, device: int, number: int) -> None:
        """The result goes where the input may still be read: after all its readers."""
        for reader in self.readers[device] - {number}:
            if not self.ops[number].ancestors >> (reader - self.first) & 1:
                self._after(number, reader)
        self.ops[number].destinations.append((device, *self.result[device]))
        self.done[device] = number

    def _landing(self, device: int, sender: int, step: int, only: bool) -> Place:
        if self.compiler.staged:
            return self.compiler.slot(device, self.chunk, INBOX)
        target = self.result.get(device)
        final = only and self.arrives[device] == step and target is not None
        ancestors = self.ops[sender].ancestors
        if final and target is not None and all(ancestors >> (r - self.first) & 1 for r in self.readers[device]):
            return target
        return self.compiler.slot(device, self.chunk)
