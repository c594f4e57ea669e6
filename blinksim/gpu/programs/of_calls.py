"""Programs of a group's calls: cut for its memory, in parts that launches move, each in one round or several.

Without an import of what runs them, as the model ``execution`` makes the same programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, field, replace
from functools import lru_cache
from itertools import groupby, pairwise
from operator import itemgetter
from typing import ClassVar

import numpy as np

from blinksim.collective import CALLED, OWN, REDUCING, ROOTED, Collective
from blinksim.errors import InfeasibleError, InputError, unknown
from blinksim.gpu.programs.compile import compile_schedule
from blinksim.gpu.programs.dtypes import ElementType, check_reduction
from blinksim.gpu.programs.fit import fit
from blinksim.gpu.programs.program import BY_KEY, READY, SCRATCH, Program
from blinksim.gpu.programs.tables import CACHE_WORDS, OP_WORDS, inbox_bytes
from blinksim.schedule.model import Schedule

# Blocks of a launch, at most. Many have half the threads: small blocks fill the links better than few large ones, and
# those of two groups fit on an H200 together.
BLOCKS = 128


@dataclass(frozen=True, slots=True)
class Call:
    """One collective on real data.

    collective: one of `CALLED`. count: elements of the whole vector, for allgather and reducescatter a
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
        if self.collective not in CALLED:
            raise unknown("collective of a group", self.collective, CALLED)
        check_reduction(self.op)
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


@lru_cache(maxsize=1024)
def call_of(collective: str, count: int, kind: ElementType, op: str = "sum", root: int = 0) -> Call:
    """The `Call` for these; a job makes the same ones again and again."""
    return Call(collective, count, kind, op, root)


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
        counts = [len(program.queues_of(device)) for device in range(len(program.devices))]
        starts = (program.source_start, program.destination_start, program.wait_start, program.signal_start)
        rows = OP_WORDS * np.arange(program.ops + 1) + sum(starts)
        words = 1 + OP_WORDS + int(np.diff(rows[program.queue_start]).max(initial=0))
        announced = 8 * program.slices * max(counts) * len(counts)
        free = not program.packets and program.order != READY and not program.sizes[:, SCRATCH].any()
        return free and words <= CACHE_WORDS // 2 and announced <= self.rounds


# A vector is tried in as many launches as this at most.
_MOST_SEGMENTS = 1 << 20
# What training calls while it computes. On four H200 half of the blocks reach NCCL's rate in long rings, and leave more
# of the GPU: a step of FSDP takes 0.8 % longer than with NCCL, and with all blocks 2.3 %.
_BESIDE_COMPUTING = ("allreduce", "allgather", "reducescatter")


def launched(
    call: Call, ranks: int, segment: Segment, program_of: Callable[[int], Program]
) -> Iterator[tuple[Program, int, int, int]]:
    """The launches of a call: the program, its first element, the elements of every part in a round, and the rounds.

    program_of: the program for parts of so many elements. Raises `InfeasibleError` if a schedule does not fit the
    memory.
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
    if split is not None and most_queues(split) * fitted.slices <= blocks:
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


def most_queues(program: Program) -> int:
    """The queues of the device that has most."""
    return max((len(program.queues_of(device)) for device in range(len(program.devices))), default=1)


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
    reading = np.unique(at[program.sources[:, 0] == SCRATCH])
    unread = (program.destinations[:, 1] == SCRATCH) & ~np.isin(program.destinations[:, 0], reading)
    op = np.repeat(np.arange(program.ops), np.diff(program.destination_start))
    targets = np.bincount(op[~unread], minlength=program.ops)
    unread &= targets[op] > 0  # an op without any target would only wait
    sizes = program.sizes.copy()
    left = program.destinations[~unread]
    sizes[~np.isin(np.arange(len(sizes)), left[left[:, 1] == SCRATCH, 0]), SCRATCH] = 0
    before = np.concatenate(([0], np.cumsum(~unread)))
    return replace(program, sizes=sizes, destinations=left, destination_start=before[program.destination_start])
