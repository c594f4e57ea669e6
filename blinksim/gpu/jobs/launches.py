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
from functools import partial

import numpy as np

from blinksim.gpu.execution.emulate import emulate, wire_piece
from blinksim.gpu.jobs.job_plan import JobPlan, say, signature_of
from blinksim.gpu.programs.of_calls import Call, Segment, call_program, launched
from blinksim.gpu.programs.program import INPUT, OUTPUT, Program
from blinksim.textio.text_table import count

# Words of the notes: what went wrong, then two heralds of each rank.
FIRST_HERALD, MOST_RANKS = 8, 64
NOTES_BYTES = 8 * (FIRST_HERALD + 2 * MOST_RANKS)
# Codes in the first word, as in calls.cu.
GAVE_UP, MISMATCH, TOLD_SO = 1, 2, 3


@dataclass(frozen=True)
class Launch:
    """What one launch does.

    program: with the places of INPUT and OUTPUT where they are in the caller's vectors. by: the algorithm and
    the protocol. says, signature: what is called. at: bytes to add to both addresses of the
    caller. written: (parts, bytes of each, bytes from one to the next) of what this rank's output gets.
    rounds: how often the program runs, each time `step` bytes further on in the caller's vectors.
    """

    program: Program
    by: str
    says: str
    signature: int
    at: int
    written: tuple[int, int, int]
    rounds: int = 1
    step: int = 0


@dataclass(eq=False)
class Planner:
    """Makes the launches of calls for one rank.

    blocks: how many thread blocks a launch has at most, long ones beside computing and those of wires half as
    many. packets: False if the links may split the lines of packets.
    """

    plan: JobPlan
    rank: int
    segment: Segment
    blocks: int
    packets: bool = True

    def launches(self, call: Call) -> list[Launch]:
        """The launches of a call, the same on all ranks but for the addresses.

        Raises `InputError` for a call that cannot be, `InfeasibleError` if its schedule does not fit the
        memory.
        """
        choice, size, parts = self.plan.choose(call), call.kind.itemsize, call.parts(self.plan.ranks)
        whole, found = call.count // parts, list[Launch]()
        made = launched(call, self.plan.ranks, self.segment, partial(self._program, call))
        for program, first, length, rounds in made:
            moved = rounds * length
            gathers = call.collective == "allgather"
            written = (parts, moved * size, whole * size) if gathers else (1, moved * size, 0)
            keeps = (call.collective, self.rank == call.root) in (("reduce", False), ("broadcast", True))
            if keeps or self.rank >= self.plan.ranks:
                written = (0, 0, 0)  # a relay has no output
            if len(program.devices) < self.plan.ranks + len(self.plan.relays):
                # Relays have nothing to do in it, and count it.
                idle = np.zeros((len(self.plan.relays), 4), dtype=np.int64)
                sizes, flags = np.concatenate([program.sizes, idle]), np.append(program.flags, idle[:, 0])
                devices = (*program.devices, *self.plan.relays)
                program = replace(program, devices=devices, sizes=sizes, flags=flags)
            by = f"{choice.schedule.algorithm} by {'ll128' if program.packets else 'simple'}"
            if choice.lane_blocks is not None:
                by = f"{choice.schedule.algorithm} on lanes of {count(choice.lane_blocks, 'block')}"
            # What must be the same on all ranks, for their parts to fit together.
            names = "key", "length", "queue_start", "sources", "destinations", "waits", "waits", "signals"
            cut = np.array([program.slices, program.piece_units, program.order, program.packets])
            arrays = *(getattr(program, name) for name in names), cut
            signature = signature_of(call, first, moved, b"".join(array.tobytes() for array in arrays))
            says = say(call, first, moved, self.plan.ranks)
            buffer = {"allgather": OUTPUT, "reducescatter": INPUT}.get(call.collective)
            if buffer is not None and length != whole:
                # Parts lie `whole` elements apart in the caller's vector, and not `length`.
                sources, destinations = program.sources.copy(), program.destinations.copy()
                for rows in (sources, destinations):
                    there = rows[:, -2] == buffer
                    rows[there, -1] += rows[there, -1] // length * np.int64(whole - length)
                program = replace(program, sources=sources, destinations=destinations)
            found.append(Launch(program, by, says, signature, first * size, written, rounds, length * size))
        return found

    def _program(self, call: Call, length: int) -> Program:
        choice, parts = self.plan.choose(call), call.parts(self.plan.ranks)
        if choice.lane_blocks is None:
            return call_program(call, choice.schedule, choice.protocol == "ll128" and self.packets, self.blocks, length)
        elements, schedule = length * parts, choice.schedule
        piece, most = wire_piece(schedule, elements * call.kind.itemsize), max(1, self.blocks // 2)
        lanes, in_place = choice.lane_blocks, parts == 1
        wires = emulate(schedule, elements, call.kind, lanes, piece, in_place=in_place, staged=True, most_blocks=most)
        return wires[0]
