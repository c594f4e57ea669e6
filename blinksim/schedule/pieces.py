"""Pipelining of a forest into pieces: how many, and the scratch that devices need for whole chunks.

In the wave form a send of step s moves piece p in step s + p, so each piece is one step behind the one before
it and a tree of height h with P pieces takes h + P - 1 steps (pipelining of a vector along a tree: S. L.
Johnsson and C.-T. Ho, "Optimum broadcasting and personalized communication in hypercubes", 1989, section 3).
The best number of pieces is chosen by `climbed`, for `timing.alpha_beta` and `timing.simulator`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from blinksim.graphs.arrays import Ints
from blinksim.schedule import verify_contents
from blinksim.schedule.model import COPY, Schedule

MOST_PIECES = 65_536


def climbed(time: Callable[[int], float], count: int, factor: float, most: int = MOST_PIECES) -> int:
    """The number of pieces from `count` on, times `factor` as often as that saves 0.1 % of the time."""
    while 1 <= (further := round(count * factor)) <= most and time(further) < time(count) * 0.999:
        count = further
    return count


# --- what devices hold beside their ranks' buffers ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scratch:
    """What one device needs beside its rank's input and output buffers.

    share: the most that it holds at once, as a share of the size. slots: the chunks that come there, each as
    often as it is there at once.
    """

    share: Fraction
    slots: int


def scratch(schedule: Schedule, times: Ints | None = None, orbit: Ints | None = None) -> dict[str, Scratch]:
    """The scratch space of every device that needs any, by name.

    Data needs scratch from the step in which it arrives to the last one in which it is sent on, both
    included, unless it belongs in the output of the device's rank; so a relay, a partial sum that ends
    elsewhere, a gathered block on its way. A chunk that arrives does not take the place of one that leaves in
    the same step.

    times (chunks), orbit (devices): of the base of a schedule by symmetry, how many images each chunk has,
    and which devices hold the same: together all that the images hold at any of them.
    """
    devices = schedule.topology.devices
    device, chunk, first, last = stays(schedule)
    many = np.ones(schedule.chunks, dtype=np.int64) if times is None else times
    label = np.arange(len(devices)) if orbit is None else orbit
    size = np.bincount(label)
    found: dict[int, Scratch] = {}
    order = np.argsort(label[device], kind="stable")
    numbers, starts = np.unique(label[device][order], return_index=True)
    for number, rows in zip(numbers.tolist(), np.split(order, starts[1:]), strict=False):
        if devices[int(device[rows[0]])].in_network:
            continue  # data passes switches, which keep none of it
        alike, begin, end = many[chunk[rows]], first[rows], last[rows] + 1
        held = most_held(schedule.share_num[chunk[rows]] * alike, begin, end)
        # A chunk that comes to a device again and again needs one place there, for as many as are there at
        # once.
        _, where, count = np.unique(chunk[rows] * len(devices) + device[rows], return_inverse=True, return_counts=True)
        slots = int(alike[count[where] == 1].sum())
        for again in np.flatnonzero(count > 1):
            here = where == again
            ones = np.ones(int(count[again]), dtype=np.int64)
            slots += int(alike[here][0]) * most_held(ones, begin[here], end[here])
        share = Fraction(held, schedule.share_den * int(size[number]))
        found[number] = Scratch(share, slots // int(size[number]))
    return {one.name: found[number] for one, number in zip(devices, label.tolist(), strict=True) if number in found}


def most_held(weight: Ints, first: Ints, end: Ints) -> int:
    """The largest sum, over time, of the weights of what comes at `first` and is gone at `end`."""
    when, where = np.unique(np.concatenate((first, end)), return_inverse=True)
    change = np.zeros(len(when), dtype=np.int64)
    np.add.at(change, where, np.concatenate((weight, -weight)))
    return int(np.cumsum(change).max())


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
