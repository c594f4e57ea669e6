"""A schedule as moves between buffers: where each send reads and writes, for runtimes that execute plans of their own.

Every rank has an input, an output and a scratch buffer, all counted in units, equal parts of the vector small enough
that every chunk is a whole number of them. A rank's own data is read from the input until something is written over
it; what arrives goes to the output if it belongs there, else to scratch. A send over a route through another rank is
taken apart into one move for each hop, since a runtime sends from one rank to the next and nowhere further.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

import numpy as np

from blinksim.errors import InfeasibleError
from blinksim.schedule import promises
from blinksim.schedule.model import REDUCE, Schedule

INPUT, OUTPUT, SCRATCH = "i", "o", "s"
Slot = tuple[int, str]
MOST_UNITS = 32767


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a rank's buffers: `INPUT`, `OUTPUT` or `SCRATCH`, and the first unit."""

    buffer: str
    start: int


@dataclass(frozen=True, slots=True)
class Move:
    """Data that goes from one rank to another.

    round: moves of a round read what was there before it; rounds follow each other. units: how many. reads: at the
    sender. slot_read, slot_written: names of the data at either end, for what must wait for what. into: at the
    receiver. operand: what the receiver adds to it, None for a copy.
    """

    round: int
    src: int
    dst: int
    channel: int
    units: int
    reads: Place
    into: Place
    operand: Place | None
    slot_read: str
    slot_written: str


@dataclass(frozen=True, slots=True)
class Moves:
    """All moves of a schedule, in order of their rounds.

    units: of the vector (`size`). inputs, outputs, scratch: units of each rank's buffers. copies: (rank, from, to,
    units) inside a rank: what ends where it started. aliased: whether input and output may be one buffer.
    """

    collective: str
    ranks: int
    root: int
    units: int
    inputs: int
    outputs: int
    scratch: tuple[int, ...]
    moves: tuple[Move, ...]
    copies: tuple[tuple[int, Place, Place, int], ...]
    aliased: bool


@dataclass
class _State:
    """Where every rank has every chunk, and how much scratch is given out."""

    scratch: list[int]
    at: dict[tuple[int, int], Place] = field(default_factory=dict)
    homes: dict[tuple[int, int], Place] = field(default_factory=dict)


def moves(schedule: Schedule) -> Moves:
    """The moves of a verified schedule.

    Raises `InfeasibleError` if GPUs without a rank or switches take part, which these runtimes do not have, or if the
    shares need more than `MOST_UNITS` units.
    """
    topology = schedule.topology
    n, count = topology.ranks, schedule.chunks
    if n < 2:
        raise InfeasibleError("one rank sends nothing; there is no program to write")
    unit = gcd(schedule.share_den, *map(int, schedule.share_num))
    lengths = [int(share) // unit for share in schedule.share_num]
    units = schedule.share_den // unit
    if units > MOST_UNITS:
        raise InfeasibleError(
            f"the shares cut the vector into {units} equal parts; plans hold {MOST_UNITS}. Build it with --algorithm "
            "chains or rings, whose shares are simple"
        )
    starts_in, starts_out = _offsets(schedule, lengths, units)
    name = schedule.collective.name
    whole_in = name in ("allreduce", "broadcast", "reduce", "reducescatter", "scatter", "alltoall")
    whole_out = name in ("allreduce", "broadcast", "reduce", "allgather", "gather", "alltoall")
    state = _State([0] * n)
    chunk_numbers = np.arange(count, dtype=np.int32)
    ends = np.zeros((n, count), dtype=np.bool_)
    for rank in range(n):
        device = np.full(count, schedule.device_of[rank], dtype=np.int32)
        ends[rank] = promises.ends_with(schedule, device, chunk_numbers)
        for chunk in np.flatnonzero(promises.starts_with(schedule, device, chunk_numbers)).tolist():
            state.at[rank, chunk] = Place(INPUT, starts_in[chunk])

    def home(rank: int, chunk: int) -> Place:
        """Where a rank keeps what arrives of a chunk."""
        key = (rank, chunk)
        if key not in state.homes:
            if ends[rank, chunk]:
                state.homes[key] = Place(OUTPUT, starts_out[chunk])
            else:
                state.homes[key] = Place(SCRATCH, state.scratch[rank])
                state.scratch[rank] += lengths[chunk]
        return state.homes[key]

    found: list[Move] = []
    done, apart = 0, int(schedule.channel.max(initial=0)) + 1
    bounds = np.searchsorted(schedule.step, np.arange(schedule.steps + 1))
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        hops = {send: _hops(schedule, send) for send in range(first, last)}
        longest = max((len(ranks) - 1 for ranks in hops.values()), default=0)
        # What is read is what was there when the step began.
        before = {send: state.at[ranks[0], int(schedule.chunk[send])] for send, ranks in hops.items()}
        for number in range(longest):
            for send, ranks in hops.items():
                if number >= len(ranks) - 1:
                    continue
                chunk, a, b = int(schedule.chunk[send]), ranks[number], ranks[number + 1]
                slot_read = f"{chunk}" if number == 0 else f"{chunk} by send {send}"
                if number == len(ranks) - 2:
                    into, slot_written = home(b, chunk), f"{chunk}"
                    operand = state.at.get((b, chunk)) if schedule.op[send] == REDUCE else None
                    state.at[b, chunk] = into
                else:
                    into, slot_written, operand = Place(SCRATCH, state.scratch[b]), f"{chunk} by send {send}", None
                    state.scratch[b] += lengths[chunk]
                # Hops of longer routes keep to connections of their own, or they would block those beside them.
                channel = int(schedule.channel[send]) + (0 if len(ranks) == 2 else apart * (number + 1))
                found.append(
                    Move(
                        done + number,
                        a,
                        b,
                        channel,
                        lengths[chunk],
                        before[send],
                        into,
                        operand,
                        slot_read,
                        slot_written,
                    )
                )
                before[send] = into
        done += longest
    copies = tuple(
        (rank, state.at[rank, chunk], Place(OUTPUT, starts_out[chunk]), lengths[chunk])
        for rank in range(n)
        for chunk in np.flatnonzero(ends[rank]).tolist()
        if lengths[chunk] and state.at[rank, chunk].buffer == INPUT
    )
    return Moves(
        collective=name,
        ranks=n,
        root=schedule.collective.root,
        units=units,
        inputs=units if whole_in else units // n,
        outputs=units if whole_out else units // n,
        scratch=tuple(state.scratch),
        moves=tuple(move for move in found if move.units),
        copies=copies,
        aliased=name != "alltoall",
    )


def _hops(schedule: Schedule, send: int) -> list[int]:
    """The ranks that a send passes, from its source to its destination."""
    topology = schedule.topology
    stops = [int(schedule.src[send])]
    for link in schedule.links_of(int(schedule.route[send])):
        device = topology.index[topology.links[link].dst]
        if topology.devices[device].kind in ("gpu", "tile") or device == int(schedule.dst[send]):
            stops.append(device)
    for stop in stops:
        if schedule.rank_of[stop] < 0:
            raise InfeasibleError(
                f"{topology.devices[stop].name} takes part without a rank, and these runtimes know ranks only. Give it "
                "a rank (--members), build without --relays, or take --format nccl-graph-set for chains"
            )
    return [int(schedule.rank_of[stop]) for stop in stops]


def _offsets(schedule: Schedule, lengths: list[int], units: int) -> tuple[list[int], list[int]]:
    """Where each chunk starts in the input of ranks that start with it, and in the output of those that end with it."""
    n, name = schedule.topology.ranks, schedule.collective.name
    block = units // n
    filled: dict[tuple[int, int], int] = {}
    starts_in, starts_out = [], []
    for chunk, length in enumerate(lengths):
        origin, target = int(schedule.origin[chunk]), int(schedule.target[chunk])
        owner = {
            "allgather": (origin, 0),
            "gather": (origin, 0),
            "reducescatter": (target, 0),
            "scatter": (target, 0),
            "alltoall": (origin, target),
        }.get(name, (0, 0))
        inside = filled.get(owner, 0)
        filled[owner] = inside + length
        into, out = {
            "allgather": (0, origin),
            "gather": (0, origin),
            "reducescatter": (target, 0),
            "scatter": (target, 0),
            "alltoall": (target, origin),
        }.get(name, (0, 0))
        starts_in.append(into * block + inside)
        starts_out.append(out * block + inside)
    return starts_in, starts_out
