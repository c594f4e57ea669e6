"""Collective calls compiled for the fixed memory of a group: segments, and the parts a long call moves in.

A segment is the memory that a rank lends to the others: of fixed size, used by every program in its turn.
Each part of a call (`Launch`) is a staged program of one rank's view, fitted to it.

A segment has notes (what went wrong, and the heralds: two words per rank for the launches that it has begun
and what it called), flags, the rounds that blocks have begun, inboxes for packets and inboxes for data with
flags behind them. Flags and inboxes have two halves, for even and odd rounds. Data and packets never share a
byte: data might look like the number of a round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import ClassVar

import numpy as np

from blinksim.errors import InfeasibleError, InputError
from blinksim.gpu.execution.emulate import emulate, wire_piece
from blinksim.gpu.execution.tables import CACHE_WORDS, OP_WORDS, inbox_bytes
from blinksim.gpu.jobs.job_plan import Call, JobPlan, say, signature_of
from blinksim.gpu.programs.compile import compile_schedule
from blinksim.gpu.programs.fit import fit
from blinksim.gpu.programs.program import BY_KEY, INPUT, OUTPUT, READY, SCRATCH, Program
from blinksim.textio.text_table import count

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
    # Behind the notes.
    flags_at: ClassVar[int] = 4096

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


@dataclass(frozen=True)
class Launch:
    """What one launch does.

    program: with the places of INPUT and OUTPUT where they are in the caller's vectors. by: the algorithm and
    the protocol. says, signature: what is called. input_at, output_at: bytes to add to the caller's
    addresses. written: (parts, bytes of each, bytes from one to the next) of what this rank's output gets.
    rounds: how often the program runs, each time `step` bytes further on in the caller's vectors.
    """

    program: Program
    by: str
    says: str
    signature: int
    input_at: int
    output_at: int
    written: tuple[int, int, int]
    rounds: int = 1
    step: int = 0


class Planner:
    """Makes the launches of calls for one rank.

    blocks: how many thread blocks a launch has at most, long ones beside computing and those of wires half as
    many. packets: False if the links may split the lines of packets.
    """

    def __init__(self, plan: JobPlan, rank: int, segment: Segment, blocks: int, packets: bool = True) -> None:
        self.plan, self.rank, self.segment, self.blocks, self.packets = plan, rank, segment, blocks, packets

    def launches(self, call: Call) -> list[Launch]:
        """The launches of a call, the same on all ranks but for the addresses.

        Raises `InputError` for a call that cannot be, `InfeasibleError` if its schedule does not fit the
        memory.
        """
        parts = call.parts(self.plan.ranks)
        most = min(call.nbytes, self.segment.data)
        while True:
            stretches = list(call.stretches(self.plan.ranks, most))
            longest = max(length for _, length in stretches)
            program = self._program(call, longest, parts)
            if self.segment.holds(program):
                break
            if longest <= 1 or len(stretches) > _MOST_SEGMENTS:
                raise InfeasibleError(f"{call}: its schedule needs more inboxes or flags than the group has")
            most = most * 3 // 4
        programs = {longest: program}
        for length in {length for _, length in stretches} - {longest}:
            programs[length] = self._program(call, length, parts)
        launches = []
        for length, alike in groupby(stretches, key=itemgetter(1)):
            firsts = [first for first, _ in alike]
            rounds = len(firsts) if self.segment.repeats(programs[length]) else 1
            for first in firsts[::rounds]:
                launches.append(self._launch(call, programs[length], first, length, parts, rounds))
        return launches

    def _program(self, call: Call, length: int, parts: int) -> Program:
        choice = self.plan.choose(call)
        if choice.lane_blocks is not None:
            elements, schedule = length * parts, choice.schedule
            piece, most = wire_piece(schedule, elements * call.kind.itemsize), max(1, self.blocks // 2)
            return emulate(
                schedule,
                elements,
                call.kind,
                choice.lane_blocks,
                piece,
                in_place=parts == 1,
                staged=True,
                most_blocks=most,
            )[0]
        packets = choice.protocol == "ll128" and self.packets
        program = compile_schedule(
            choice.schedule, length * parts, call.kind, in_place=parts == 1, packets=packets, staged=True
        )
        program = without_unread(program)
        fewer = not packets and call.collective in _BESIDE_COMPUTING
        fitted = fit(program, max(1, self.blocks // 2) if fewer else self.blocks)
        if packets and program.order == BY_KEY:
            split = split_queues(program)
            most = max(len(split.queues_of(device)) for device in range(len(split.devices)))
            if most * fitted.slices <= self.blocks:
                fitted = fit(split, self.blocks, fitted.slices)
        if not fitted.staged and len(fitted.destinations) and self.plan.ranks > 1:
            raise InfeasibleError(f"{call}: {choice.schedule.algorithm} moves nothing between the ranks")
        return fitted

    def _launch(self, call: Call, program: Program, first: int, length: int, parts: int, rounds: int) -> Launch:
        size = call.kind.itemsize
        whole = call.count // parts
        spread = _spread(program, call.collective, length, whole)
        moved = rounds * length
        written = (1, moved * size, 0)
        if call.collective == "allgather":
            written = (parts, moved * size, whole * size)
        elif (call.collective == "reduce" and self.rank != call.root) or (
            call.collective == "broadcast" and self.rank == call.root
        ):
            written = (0, 0, 0)
        says = say(call, first, moved, self.plan.ranks)
        choice = self.plan.choose(call)
        by = f"{choice.schedule.algorithm} by {'ll128' if program.packets else 'simple'}"
        if choice.lane_blocks is not None:
            by = f"{choice.schedule.algorithm} on lanes of {count(choice.lane_blocks, 'block')}"
        # What must be the same on all ranks, for their parts to fit together.
        names = "key", "length", "queue_start", "sources", "destinations", "waits", "waits", "signals"
        cut = np.array([program.slices, program.piece_units, program.order, program.packets])
        content = b"".join(array.tobytes() for array in (*(getattr(program, name) for name in names), cut))
        signature = signature_of(call, first, moved, content)
        at, step = first * size, length * size
        return Launch(spread, by, says, signature, at, at, written, rounds, step)


def split_queues(program: Program) -> Program:
    """The same ops, those that store to their own device only in queues of their own.

    Every op waits for what it needs by flags, so queues may be split anywhere. A small message takes as long
    as the longest queue.
    """
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


def _spread(program: Program, collective: str, length: int, whole: int) -> Program:
    """The program for parts that lie `whole` elements apart in the caller's vector, and not `length`."""
    buffer = {"allgather": OUTPUT, "reducescatter": INPUT}.get(collective)
    if buffer is None or length == whole:
        return program
    sources, destinations = program.sources.copy(), program.destinations.copy()
    for rows in (sources, destinations):
        there = rows[:, -2] == buffer
        at = rows[there, -1]
        rows[there, -1] = at + at // length * np.int64(whole - length)
    return replace(program, sources=sources, destinations=destinations)
