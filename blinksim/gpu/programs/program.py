"""The one program that all executors interpret: flat arrays of ops.

An op works on one chunk on one device. For every piece of the chunk, in this order, it

1. waits until each of its wait flags (on its own device) counts that piece,
2. loads the piece from each of its sources (in its own memory) and reduces them from first to last,
3. stores the outcome to each of its destinations (in any device's memory),
4. signals: raises each of its signal flags (on any device) to that piece.

So a copy is an op with one source and one destination, a reduction has several sources, a multicast several
destinations, and an op with neither just waits. An op with destinations and no source stores poison: the schedule
sends what the device does not have.

Ops of one queue run one after another, queues run concurrently. A queue stands for one connection and channel: the ops
of a device, of one channel, that store to the same devices. Two orders follow dependencies (an op
depends only on ops with a smaller key, and each piece only on the same piece): by key, all pieces of an op together;
or in waves, key + piece = 0, 1, 2, …, so that the pieces of a tree follow each other. Ops that only wait come last in
their queue, and only for the last piece: flags rise piece by piece. A third order takes what is ready, first the op
with the smallest share of its pieces done; its queues stand for wires (`blinksim.gpu.execution.emulate`).

Slices multiply the queues: slice s of every op works on its own part of the chunk, with its own flags, and never
meets another slice. Parts are counted in units of 128 bytes, the lines in which memory moves.

In a staged program, whatever goes to another device lands in the INBOX there, which has two halves on GPUs, used in
turn: a sender need not wait until the receiver has begun the same launch and so is done with its output of the one
before (NCCL's protocols all stage data in such buffers). A program of packets is staged, and a unit is 480 bytes of
data, which a GPU stores as four lines that each hold the number of the launch as well, so that a reader that sees the
number has the data (NCCL calls this LL128). The data then carry the flags between devices; executors without such
lines raise them all the same, and need to know nothing of packets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.errors import BlinksimError, InputError
from blinksim.gpu.programs.dtypes import ElementType
from blinksim.gpu.programs.layout import BUFFERS, INBOX, LINE_BYTES, PACKET_BYTES, SCRATCH, Layout

Longs = npt.NDArray[np.int64]
BY_KEY, WAVES, READY = 0, 1, 2


def unit_of(kind: ElementType, packets: bool = False) -> int:
    """Elements of one unit."""
    return (PACKET_BYTES if packets else LINE_BYTES) // kind.itemsize


class ExecutionError(BlinksimError):
    """A program is stuck: an op waits for a signal that never comes."""

    exit_code = 1


@dataclass(frozen=True)
class Program:
    """Arrays of ops, with N ops in Q queues on D devices; all offsets and lengths count elements.

    devices: their names; ranks come first, in rank order. sizes (D, 4): elements of the INPUT, OUTPUT, SCRATCH
    and INBOX buffers. flags (D): number of flags. slices, piece_units, order, packets: see the module.
    queue_device (Q), queue_start (Q + 1): queue q holds the ops queue_start[q] to queue_start[q + 1], by key.
    queue_name (Q): for people. key, chunk, length (N). Sources (buffer, offset), destinations (device, buffer,
    offset), waits (flag) and signals (device, flag) are rows of two-dimensional arrays; op i owns the rows
    x_start[i] to x_start[i + 1].
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
        end = min(begin + self.piece_units, last)
        return begin * self.unit, min(end * self.unit, length)

    def turns(self, queue: int, part: int) -> Iterator[tuple[int, int]]:
        """(op, piece) in the order in which slice `part` of a queue runs them; READY has no fixed order."""
        ops = range(int(self.queue_start[queue]), int(self.queue_start[queue + 1]))
        count = {op: self.pieces(int(self.length[op]), part) for op in ops}
        moving = [op for op in ops if self.destination_start[op] < self.destination_start[op + 1]]
        if self.order == BY_KEY:
            for op in moving:
                for piece in range(count[op]):
                    yield op, piece
        else:
            for wave in range(max((int(self.key[op]) + count[op] for op in moving), default=0)):
                for op in moving:
                    piece = wave - int(self.key[op])
                    if 0 <= piece < count[op]:
                        yield op, piece
        for op in ops:
            if self.destination_start[op] == self.destination_start[op + 1] and count[op]:
                yield op, count[op] - 1

    def cut(self, slices: int, piece_bytes: int) -> Program:
        """The same program with another number of slices, and pieces of about `piece_bytes` bytes."""
        if slices < 1 or piece_bytes < 1:
            raise InputError("slices and piece_bytes must be at least 1")
        return replace(self, slices=slices, piece_units=max(1, piece_bytes // (self.unit * self.kind.itemsize)))

    def rows(self, what: str, op: int) -> list[list[int]]:
        """The rows of an op in `sources`, `destinations`, `waits` or `signals`."""
        start: Longs = getattr(self, what.removesuffix("s") + "_start")
        table: Longs = getattr(self, what)
        rows: list[list[int]] = table[start[op] : start[op + 1]].tolist()
        return rows

    def describe(self, op: int) -> str:
        """One line about an op, for people."""
        at = self.devices[int(self.op_device[op])]
        sources = " + ".join(f"{BUFFERS[b]}[{o}]" for b, o in self.rows("sources", op))
        targets = ", ".join(f"{self.devices[d]}.{BUFFERS[b]}[{o}]" for d, b, o in self.rows("destinations", op))
        waits = ", ".join(str(flag) for (flag,) in self.rows("waits", op))
        signals = ", ".join(f"{self.devices[d]}.{flag}" for d, flag in self.rows("signals", op))
        body = f"{sources or 'nothing'} -> {targets}" if targets else "wait"
        return (
            f"op {op} on {at}, chunk {self.chunk[op]} ({self.length[op]} elements), key {self.key[op]}: {body}"
            f"{f'; waits for flags {waits}' if waits else ''}{f'; signals {signals}' if signals else ''}"
        )

    def __repr__(self) -> str:
        order = ("by key", "in waves", "what is ready first")[self.order]
        # An inbox has two halves on GPUs.
        scratch = int((self.sizes[:, SCRATCH] + 2 * self.sizes[:, INBOX]).max(initial=0)) * self.kind.itemsize
        return (
            f"<Program: {self.ops} ops in {self.queues} queues on {len(self.devices)} devices, {self.slices} slices\n"
            f"  {self.layout.count} elements of {self.kind.name}, pieces of {self.piece_units} units, {order}\n"
            f"  {len(self.waits)} waits, {len(self.signals)} signals; at most {scratch} bytes beside its data>"
        )

    def replace(self, **changes: Any) -> Program:
        """A copy with other arrays (for tests that break a program on purpose)."""
        return replace(self, **changes)
