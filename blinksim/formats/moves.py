"""Moves between buffers, counted in equal units of the vector: a schedule for runtimes that execute plans.

Every rank has an input, an output and a scratch buffer. A rank's own data is read from the input until
something overwrites it; what arrives goes to the output if it belongs there, else to scratch. A send over a
route through another rank becomes one move per hop, since a runtime only sends from one rank to the next.

Every chunk is a whole number of units, of which programs allow some thousands. Where exact shares need more,
they are rounded to as few units as cost next to nothing: messages must be multiples of a unit, and long moves
take many steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from itertools import pairwise
from math import gcd, inf, lcm
from typing import Any

import numpy as np

from blinksim.errors import InfeasibleError
from blinksim.graphs.connectivity import grouped
from blinksim.schedule import verify_contents
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.timing.alpha_beta import cost

MOST_UNITS = 32767
# By which part of the time of large messages rounding may slow a schedule down, if fewer parts are to do.
_SLOWER = 5e-3
# Bytes for which latency does not matter.
_LARGE = 2**40


@dataclass(frozen=True)
class Units:
    """Equal parts of the vector: how many, and how many each chunk has.

    slower: by which part of the time of large messages the schedule takes longer with them than with its own
    shares; None where they are these shares exactly.
    """

    count: int
    lengths: tuple[int, ...]
    slower: float | None = None


def units(schedule: Schedule) -> Units:
    """The parts that a schedule is written in; raises `InfeasibleError` if runtimes have too few for any rounding."""
    part = gcd(schedule.share_den, *map(int, schedule.share_num))
    if (exact := schedule.share_den // part) <= MOST_UNITS:
        return Units(exact, tuple(int(share) // part for share in schedule.share_num))
    # What chunks of the same ends have together stays exact.
    labelled = map(schedule.collective.labels, schedule.origin.tolist(), schedule.target.tolist())
    groups = grouped((labels, chunk) for chunk, labels in enumerate(labelled))
    shares, den = schedule.share_num.tolist(), schedule.share_den
    totals = {ends: Fraction(sum(shares[chunk] for chunk in mine), den) for ends, mine in groups.items()}
    count = lcm(*(total.denominator for total in totals.values()))
    best: Units | None = None
    # Plans send what a step sends as one.
    timed = partial(cost, size=_LARGE, whole_messages=schedule.form == "steps")
    slower, least = inf, timed(schedule).time_s
    # Numbers of parts, each twice the one before.
    while count <= MOST_UNITS and slower > _SLOWER:
        lengths = [share * count // den for share in shares]
        for ends, mine in groups.items():
            left = int(totals[ends] * count) - sum(lengths[chunk] for chunk in mine)
            # Those that lost most get what is left.
            for chunk in sorted(mine, key=lambda chunk: -(shares[chunk] * count % den))[:left]:
                lengths[chunk] += 1
        rounded = replace(schedule, share_num=np.array(lengths, dtype=np.int64), share_den=count)
        slower = timed(rounded).time_s / least - 1
        best, count = Units(count, tuple(lengths), slower), 2 * count
    if best is None:
        why = f"the shares cut the vector into {exact} equal parts; plans hold {MOST_UNITS}"
        raise InfeasibleError(f"{why}. Build it with algorithm=chains or algorithm=rings, whose shares are simple")
    return best


INPUT, OUTPUT, SCRATCH = "i", "o", "s"


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a rank's buffers: `INPUT`, `OUTPUT` or `SCRATCH`, and the first unit."""

    buffer: str
    start: int

    def after(self, units: int) -> Place:
        """So many units further on."""
        return Place(self.buffer, self.start + units)


@dataclass(frozen=True, slots=True)
class Move:
    """Data that goes from one rank to another.

    round: moves of a round read what was there before it; rounds follow each other. units: how many. reads:
    at the sender. slot_read, slot_written: names of the data at either end, for what must wait for what.
    into: at the receiver. operand: what the receiver adds to it, None for a copy.
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

    def part(self, start: int, longest: int) -> Move:
        """The data from unit `start` on, at most `longest` units, as data of its own."""
        reads, into = self.reads.after(start), self.into.after(start)
        operand = None if self.operand is None else self.operand.after(start)
        given: dict[str, Any] = {"units": min(longest, self.units - start), "operand": operand}
        given |= {key: f"{getattr(self, key)} from {start}" for key in ("slot_read", "slot_written")}
        return replace(self, reads=reads, into=into, **given)


@dataclass(frozen=True, slots=True)
class Moves:
    """All moves of a schedule, in order of their rounds.

    units: of the vector (`size`). inputs, outputs, scratch: units of each rank's buffers. copies: (rank,
    from, to, units) inside a rank: what ends where it started. aliased: whether input and output may be one
    buffer. joined: True if what a connection carries in a round can be one message, as in a schedule in
    steps. notes: on rounded shares.
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
    joined: bool
    notes: tuple[str, ...] = ()


class _Buffers:
    """Where every rank has every chunk as the schedule goes on, and how much scratch is allocated."""

    def __init__(self, schedule: Schedule, cut: Units) -> None:
        self.lengths = cut.lengths
        self.scratch = [0] * schedule.topology.ranks
        self.at: dict[tuple[int, int], Place] = {}
        self.home = cache(self.first_home)
        # Where each chunk starts in the input of ranks that start with it, and in the output of those that
        # end with it.
        block = cut.count // schedule.topology.ranks
        filled: dict[tuple[int, int], int] = {}
        starts_in, self._starts_out = list[int](), list[int]()
        for origin, target, length in zip(schedule.origin.tolist(), schedule.target.tolist(), cut.lengths, strict=True):
            # An input holds a block for every target that the collective names, an output one for every
            # origin.
            owner = start, end = schedule.collective.labels(origin, target)
            inside = filled.get(owner, 0)
            filled[owner] = inside + length
            starts_in.append(max(end, 0) * block + inside)
            self._starts_out.append(max(start, 0) * block + inside)
        chunks = np.arange(schedule.chunks, dtype=np.int32)
        self._ends: list[set[int]] = []
        for rank in range(schedule.topology.ranks):
            device = np.full(schedule.chunks, schedule.device_of[rank], dtype=np.int32)
            self._ends.append(set(np.flatnonzero(verify_contents.ends_with(schedule, device, chunks)).tolist()))
            for chunk in np.flatnonzero(verify_contents.starts_with(schedule, device, chunks)).tolist():
                self.at[rank, chunk] = Place(INPUT, starts_in[chunk])

    def room(self, rank: int, chunk: int) -> Place:
        """Scratch for a chunk that passes through a rank."""
        place = Place(SCRATCH, self.scratch[rank])
        self.scratch[rank] += self.lengths[chunk]
        return place

    def first_home(self, rank: int, chunk: int) -> Place:
        """Where a rank keeps what arrives of a chunk: in its output if it belongs there, else in scratch."""
        return Place(OUTPUT, self._starts_out[chunk]) if chunk in self._ends[rank] else self.room(rank, chunk)

    def copies(self) -> Iterator[tuple[int, Place, Place, int]]:
        """What ends where it started: (rank, from, to, units)."""
        for rank, chunks in enumerate(self._ends):
            for chunk in sorted(chunks):
                place, length = self.at[rank, chunk], self.lengths[chunk]
                if length and place.buffer == INPUT:
                    yield rank, place, Place(OUTPUT, self._starts_out[chunk]), length


def moves(schedule: Schedule) -> Moves:
    """The moves of a verified schedule.

    Raises `InfeasibleError` for schedules with GPUs without a rank or with switches, which these runtimes do
    not know, or if no rounding brings the shares to few enough units.
    """
    collective, ranks = schedule.collective, schedule.topology.ranks
    if ranks < 2:
        raise InfeasibleError("a collective needs at least two ranks; there is no program to write")
    if collective.data is not None:
        raise InfeasibleError(f"programs of MSCCL and MSCCL++ move blocks of equal length; {collective} has none")
    cut = units(schedule)
    # The sends of a step may come in any order unless of several, of which one is a copy, the last one
    # counts.
    place = schedule.chunk.astype(np.int64) * len(schedule.topology.devices) + schedule.dst
    _, where, times = np.unique(place * max(1, schedule.steps) + schedule.step, return_inverse=True, return_counts=True)
    joined = schedule.form == "steps" and not bool((times[where][schedule.op == COPY] > 1).any())
    buffers = _Buffers(schedule, cut)
    listed: list[Move] = []
    first_round = 0
    ends = list(zip(schedule.src.tolist(), schedule.dst.tolist(), schedule.route.tolist(), strict=True))
    by_ends = {send: _hops(schedule, *send) for send in dict.fromkeys(ends)}
    for first, last in pairwise(np.searchsorted(schedule.step, np.arange(schedule.steps + 1)).tolist()):
        sends: Sequence[int] = range(first, last)
        if joined:
            # Those of one connection together, so that one message can bring them.
            keys = tuple(table[first:last] for table in (schedule.channel, schedule.src, schedule.dst))
            sends = (first + np.lexsort(keys)).tolist()
        stops = {send: by_ends[ends[send]] for send in sends}
        listed += _step(schedule, stops, buffers, first_round)
        first_round += max((len(passed) - 1 for passed in stops.values()), default=0)
    notes = []
    if cut.slower is not None:
        longer = f"large messages take {100 * cut.slower:.2g} % longer" if cut.slower > 0 else "this costs nothing"
        notes.append(f"shares are rounded to {cut.count:,} equal parts of the vector; {longer}")
    inputs, outputs = collective.buffers(cut.count, ranks)
    sizes = cut.count, inputs, outputs, tuple(buffers.scratch)
    data = tuple(move for move in listed if move.units), tuple(buffers.copies())
    aliased = collective.name != "alltoall"
    return Moves(collective.name, ranks, collective.root, *sizes, *data, aliased, joined, tuple(notes))


def _step(schedule: Schedule, stops: dict[int, list[int]], buffers: _Buffers, first_round: int) -> Iterator[Move]:
    """The moves of one step, hop by hop. stops: the ranks that each of its sends passes."""
    first, last = min(stops, default=0), max(stops, default=-1) + 1
    chunks, ops, own = (table[first:last].tolist() for table in (schedule.chunk, schedule.op, schedule.channel))
    # What is read is what was there when the step began.
    read = {send: buffers.at[ranks[0], chunks[send - first]] for send, ranks in stops.items()}
    channels = int(schedule.channel.max(initial=0)) + 1
    for hop in range(max((len(ranks) - 1 for ranks in stops.values()), default=0)):
        for send, ranks in stops.items():
            if hop >= len(ranks) - 1:
                continue
            chunk, receiver = chunks[send - first], ranks[hop + 1]
            whole, passing = f"{chunk}", f"{chunk} by send {send}"
            ends = hop == len(ranks) - 2
            into = (buffers.home if ends else buffers.room)(receiver, chunk)
            operand = buffers.at.get((receiver, chunk)) if ends and ops[send - first] == REDUCE else None
            if ends:
                buffers.at[receiver, chunk] = into
            # Hops of longer routes keep to connections of their own, or they would block those beside them.
            channel = own[send - first] + (0 if len(ranks) == 2 else channels * (hop + 1))
            way = first_round + hop, ranks[hop], receiver, channel
            slots = whole if hop == 0 else passing, whole if ends else passing
            yield Move(*way, buffers.lengths[chunk], read[send], into, operand, *slots)
            read[send] = into


def _hops(schedule: Schedule, src: int, dst: int, route: int) -> list[int]:
    """The ranks that a send from device `src` to device `dst` passes, both included."""
    topology = schedule.topology
    stops = [src]
    for link in schedule.links_of(route):
        device = topology.index[topology.links[link].dst]
        if topology.devices[device].kind in ("gpu", "tile") or device == dst:
            stops.append(device)
    for stop in stops:
        if schedule.rank_of[stop] < 0:
            why = f"{topology.devices[stop].name} has no rank, and these runtimes know ranks only"
            cure = "Add it with members=, build without relays=, or take format=nccl-graph-set for chains"
            raise InfeasibleError(f"{why}. {cure}")
    return [int(schedule.rank_of[stop]) for stop in stops]
