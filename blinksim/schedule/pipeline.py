"""Pipelining of a forest into steps: chunks cut into pieces, and the scratch that devices need.

In the wave form a send of step s moves piece p in step s + p, so each piece is one step behind the one before
it and a tree of height h with P pieces takes h + P - 1 steps (pipelining of a vector along a tree: S. L.
Johnsson and C.-T. Ho, "Optimum broadcasting and personalized communication in hypercubes", 1989, section 3).
The best number of pieces is chosen by `climbed`, for `timing.alpha_beta` and `timing.simulator`.
A device that only passes pieces on needs room for as many as are between their arrival and their departure,
not for the whole chunk: a circular buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd
from typing import Any

import numpy as np

from blinksim.errors import InputError
from blinksim.graphs.arrays import Ints, distinct
from blinksim.schedule import verify_contents
from blinksim.schedule.model import COPY, MOST_DENOMINATOR, Schedule

MOST_SENDS = 2 * 10**8
MOST_PIECES = 65_536
_MOST_INDEX = 2**31 - 1


def cut(schedule: Schedule, pieces: int) -> Schedule:
    """`schedule` in steps form, every chunk in `pieces` equal pieces that follow each other (wave form).

    Chunk c becomes the pieces c * pieces + p, each with 1/pieces of its share; a send of step s moves piece p
    in step s + p. The result keeps the promises of the schedule, since the pieces do not depend on each other
    and each keeps the order of its chunk. Raises `InputError` for less than one piece, or more sends, chunks
    or steps than arrays hold.
    """
    if pieces < 1:
        raise InputError(f"{pieces} pieces: a chunk needs at least 1")
    sends = schedule.sends * pieces
    if sends > MOST_SENDS or max(schedule.chunks * pieces, schedule.steps + pieces) > _MOST_INDEX:
        raise InputError(f"{pieces} pieces of {schedule.chunks} chunks make {sends} sends; take fewer pieces")
    common = gcd(schedule.share_den * pieces, *map(int, distinct(schedule.share_num)))
    den = schedule.share_den * pieces // common
    if den > MOST_DENOMINATOR:
        raise InputError(f"{pieces} pieces need shares with the denominator {den}, more than 2^40; take another number")
    piece = np.tile(np.arange(pieces, dtype=np.int32), schedule.sends)
    step = np.repeat(schedule.step, pieces) + piece
    order = np.argsort(step, kind="stable")
    which = (order // pieces).astype(np.int32)
    parts: dict[str, Any] = {key: np.repeat(getattr(schedule, key), pieces) for key in ("origin", "target")}
    parts |= {key: getattr(schedule, key)[which] for key in ("src", "dst", "op", "route", "channel")}
    parts |= {"chunk": schedule.chunk[which] * np.int32(pieces) + piece[order], "step": step[order]}
    shares = np.repeat(schedule.share_num // common, pieces)
    return replace(schedule, form="steps", share_num=shares, share_den=den, **parts)


def climbed(time: Callable[[int], float], count: int, factor: float, most: int = MOST_PIECES) -> int:
    """The number of pieces from `count` on, times `factor` as often as that saves 0.1 % of the time."""
    while 1 <= (further := round(count * factor)) <= most and time(further) < time(count) * 0.999:
        count = further
    return count


# --- what devices hold beside their ranks' buffers ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scratch:
    """What one device needs beside its rank's input and output buffers.

    share: the most that it holds at once, as a share of the size. slots: the pieces of one chunk that are
    there at once, added up over the chunks: the room when each chunk has a circular buffer of its own.
    """

    share: Fraction
    slots: int


def scratch(
    schedule: Schedule, pieces: int = 1, *, times: Ints | None = None, orbit: Ints | None = None
) -> dict[str, Scratch]:
    """The scratch space of every device that needs any, by name, if the chunks are cut into `pieces` (wave form).

    Data needs scratch from the step in which it arrives to the last one in which it is sent on, both
    included, unless it belongs in the output of the device's rank; so a relay, a partial sum that ends
    elsewhere, a gathered block on its way. A piece that arrives does not take the place of one that leaves in
    the same step.

    times (chunks), orbit (devices): of the base of a schedule by symmetry, how many images each chunk has,
    and which devices hold the same: together all that the images hold at any of them.
    """
    devices = schedule.topology.devices
    device, chunk, first, last = stays(schedule)
    length = last - first + 1
    many = np.ones(schedule.chunks, dtype=np.int64) if times is None else times
    label = np.arange(len(devices)) if orbit is None else orbit
    size = np.bincount(label)
    found: dict[int, Scratch] = {}
    order = np.argsort(label[device], kind="stable")
    numbers, starts = np.unique(label[device][order], return_index=True)
    for number, rows in zip(numbers.tolist(), np.split(order, starts[1:]), strict=False):
        if devices[int(device[rows[0]])].in_network:
            continue  # data passes switches, which keep none of it
        alike, a, n = many[chunk[rows]], first[rows], length[rows]
        held = most_held(schedule.share_num[chunk[rows]] * alike, a, n, pieces)
        # A chunk that comes to a device again and again needs one place there, for as many as are there at
        # once.
        _, where, count = np.unique(chunk[rows] * len(devices) + device[rows], return_inverse=True, return_counts=True)
        slots = int((alike * np.minimum(n, pieces))[count[where] == 1].sum())
        for again in np.flatnonzero(count > 1):
            here = where == again
            ones = np.ones(int(count[again]), dtype=np.int64)
            slots += int(alike[here][0]) * most_held(ones, a[here], n[here], pieces)
        share = Fraction(held, schedule.share_den * pieces * int(size[number]))
        found[number] = Scratch(share, slots // int(size[number]))
    return {one.name: found[number] for one, number in zip(devices, label.tolist(), strict=True) if number in found}


def most_held(weight: Ints, first: Ints, length: Ints, pieces: int) -> int:
    """The largest sum, over time, of the weights of the pieces in residence; each piece of a chunk stays `length`."""
    # One chunk's pieces in residence rise from 0 by one a step, stay, and fall: four kinks, and between kinks
    # the sum is linear, so its maximum is at one of them.
    kink = np.concatenate((first, first + pieces, first + length, first + length + pieces))
    bend = np.concatenate((weight, -weight, -weight, weight))
    when, where = np.unique(kink, return_inverse=True)
    if int(weight.sum()) * pieces >= 2**62:
        bend = bend.astype(object)
    slope = np.zeros(len(when), dtype=bend.dtype)
    np.add.at(slope, where, bend)
    return int(np.cumsum(np.cumsum(slope)[:-1] * np.diff(when)).max())


def stays(schedule: Schedule) -> tuple[Ints, Ints, Ints, Ints]:
    """(device, chunk, first step, last step) of every stay of data in scratch space.

    A stay begins with the first arrival, or with a copy that replaces what was there, and lasts until the
    last send of it; what leaves before anything arrived is the rank's own input.
    """
    devices = len(schedule.topology.devices)
    reads = schedule.chunk.astype(np.int64) * devices + schedule.src
    writes = schedule.chunk.astype(np.int64) * devices + schedule.dst
    passing = ~verify_contents.ends_with(schedule, schedule.dst, schedule.chunk)
    mine = np.isin(reads, writes[passing])
    step = schedule.step.astype(np.int64)
    place = np.concatenate((reads[mine], writes[passing]))
    when = np.concatenate((step[mine], step[passing]))
    # In a step, what is read is what was there before.
    is_write = np.repeat(np.array([0, 1]), (int(mine.sum()), int(passing.sum())))
    is_copy = np.concatenate((np.zeros(int(mine.sum()), dtype=np.bool_), schedule.op[passing] == COPY))
    if not len(place):
        return place, place, place, place
    order = np.lexsort((is_write, when, place))
    place, when, is_write, is_copy = place[order], when[order], is_write[order], is_copy[order]
    start = np.diff(place, prepend=-1) != 0
    begins = start | is_copy
    # The first write after reads of the rank's own input begins a stay too: none came before it at its place.
    earlier = np.cumsum(is_write) - is_write
    before = earlier[np.maximum.accumulate(np.where(start, np.arange(len(start)), 0))]
    begins[1:] |= (is_write[1:] == 1) & (is_write[:-1] == 0) & (earlier <= before)[1:]
    heads = np.flatnonzero(begins)
    tails = np.append(heads[1:], len(place)) - 1
    real = is_write[heads] == 1
    return place[heads[real]] % devices, place[heads[real]] // devices, when[heads[real]], when[tails[real]]
