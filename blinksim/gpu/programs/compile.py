"""Compiler from schedule to program: reductions are put off until the op that sends their value on.

A device's view of a chunk is a list of places whose reduction is the current value: its own input, received
data not yet added, or a stored result. The op that needs the value reduces it and sends it to all receivers
of that step at once (receive + reduce + send in one pass over the data, as NCCL's fused primitives do). A
copy lands directly in the receiver's output if no op can still be reading what it overwrites; everything else
lands in a place of its own in the receiver's scratch buffer, or, in a staged program and so in one of
packets, in an inbox. So no two writes meet, and no credits are needed. Dependencies go from piece to piece of
one chunk only.

The sources of an op are folded in the order of the devices that wrote them, so that all ranks of a one-step
allreduce add in the same order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise
from operator import itemgetter

import numpy as np

from blinksim.errors import InputError
from blinksim.gpu.programs import program
from blinksim.gpu.programs.dtypes import ElementType
from blinksim.gpu.programs.program import BY_KEY, INBOX, SCRATCH, WAVES, Layout, Longs, Place, Program, Tenant
from blinksim.graphs.connectivity import grouped
from blinksim.schedule.model import COPY, Schedule, repeated_reads

# The CUDA kernel keeps the sources of an op in registers, 16 bytes of each at a time.
MOST_SOURCES = 8
# And it keeps the addresses to store to in shared memory.
MOST_TARGETS = 32
FIRST_PIECE = 1 << 18
# In waves, an op runs this many pieces behind the ops it depends on: a queue that holds both does not stall while a
# piece travels from one to the other.
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
    count: int | Sequence[Tenant],
    kind: ElementType,
    *,
    in_place: bool = False,
    packets: bool = False,
    staged: bool = False,
    most_sources: int = MOST_SOURCES,
) -> Program:
    """The program of a schedule for a vector of `count` elements, on request of packets or staged
    (`blinksim.gpu.programs.program`; packets are always staged).

    count: of schedules of several groups side by side, these groups; they do not run in place.

    It has one slice and pieces of 256 KiB; `Program.cut` changes both. Raises `InputError` for shares that do
    not fill the vector and for an alltoall in place. A schedule that sends what a device does not have still
    compiles, and spreads poison.
    """
    if most_sources < 2:
        raise InputError("most_sources must be at least 2")
    if isinstance(count, int):
        layout = program.lay_out(schedule, count, kind.itemsize, in_place)
    else:
        layout, _ = program.lay_out_tenants(schedule, count, kind.itemsize)
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
        schedule = self.schedule
        number = np.full(len(schedule.topology.devices), -1)
        number[self.order] = np.arange(len(self.order))
        by_chunk = np.argsort(schedule.chunk, kind="stable")
        by_chunk = by_chunk[~repeated_reads(schedule)[by_chunk]]
        ends = np.searchsorted(schedule.chunk[by_chunk], np.arange(schedule.chunks + 1))
        columns = number[schedule.src], number[schedule.dst], schedule.op, schedule.step, schedule.channel
        sends: list[_Send] = list(zip(*(column[by_chunk].tolist() for column in columns), strict=True))
        for chunk, (first, last) in enumerate(pairwise(ends.tolist())):
            _ChunkCompiler(self, chunk, sends[first:last]).run()
        # The program of all ops, queue by queue.
        ops, layout, schedule = self.ops, self.layout, self.schedule
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
        # Moves ops that only wait to another queue of their device: nothing comes after them, and a block is saved.
        for name in [name for name, queue in queues.items() if all(not ops[i].destinations for i in queue)]:
            others = [other for other in queues if other[0] == name[0] and other != name]
            if others:
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
            # By device where the order is no matter: a vertex of a tree serves its children in one, and so do sends to
            # a place to which something is copied.
            sends = list(together)
            arrivals = Counter(send[1] for send in sends)
            matters = any(send[2] == COPY and arrivals[send[1]] > 1 for send in sends)
            self._step(step, sends if matters or self.compiler.schedule.form == "forest" else sorted(sends))
        # Brings every value into the result, or waits for what lands there.
        last = 2 * self.compiler.schedule.steps
        for device, target in sorted(self.result.items()):
            values = self.value[device]
            if not values or device in self.done:
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
