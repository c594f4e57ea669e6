"""Does a schedule by symmetry keep its promise? Proved from one chunk of each sort, without writing the others out.

A symmetry takes a right chunk to a right one, since it takes ranks to ranks and links to equal links; so the chunks of
`base` are followed one by one, as in `blinksim.schedule.verify`. That the generators are symmetries was checked when
the group was made (`Turns.of`). What all chunks have in common is counted: their labels and shares image by image, or
in an alltoall by orbits of blocks; the loads and what devices hold by orbits too. In a forest every image has channels
of its own, so what waits inside a connection waits inside one image. In steps images join; there no sends wait for each
other in a circle if none of `base` could whatever shared its connection, and else all images are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from blinksim.errors import InputError
from blinksim.schedule import chunk_ends
from blinksim.schedule.contents import describe, wrong_contents
from blinksim.schedule.loads import resource_loads
from blinksim.schedule.model import Schedule
from blinksim.schedule.pipeline import Scratch, most_held, stays
from blinksim.schedule.switch_work import wrong_operations
from blinksim.schedule.turned.blocks import overwritten_in_place, wrong_exchange
from blinksim.schedule.turned.symmetric import SymmetricSchedule
from blinksim.schedule.verify import Facts, Verdict, listed_reasons, wrong_copies, wrong_routes
from blinksim.schedule.waits import crowd, deadlock, passes_on
from blinksim.structures.arrays import distinct
from blinksim.topology.symmetry import orbit_labels


def verify_symmetric(
    whole: SymmetricSchedule, *, slots: int = 1, in_place: bool = False, shares: Sequence[Fraction] | None = None
) -> Verdict:
    """As `blinksim.schedule.verify.verify` of the schedule written out, in time and memory of its `base`."""
    if slots < 1:
        raise InputError(f"{slots} slots: a connection needs at least 1")
    base = whole.base
    aliased = overwritten_in_place(whole)
    stuck = stuck_sends(whole, slots)
    checks: tuple[Callable[[], Iterator[str]], ...] = (
        lambda: wrong_routes(base),
        lambda: wrong_copies(base),
        lambda: (f"{describe(base, send)} {says}" for send, says in wrong_operations(base)),
        lambda: wrong_chunks(whole, shares),
        lambda: wrong_contents(base),
        lambda: iter(() if stuck is None else (stuck,)),
        lambda: iter((aliased,) if in_place and aliased is not None else ()),
    )
    reasons = listed_reasons(checks)
    return Verdict(not reasons, reasons, _facts(whole, slots, in_place=aliased is None))


def wrong_chunks(whole: SymmetricSchedule, shares: Sequence[Fraction] | None) -> Iterator[str]:
    """As `chunk_ends.wrong_chunks` of every image."""
    if whole.collective.name == "alltoall" and shares is None:
        return wrong_exchange(whole)
    return chunk_ends.wrong_chunks(_labelled(whole), shares)


def _labelled(whole: SymmetricSchedule) -> Schedule:
    """All chunks with their labels and shares, and no sends."""
    base, none = whole.base, np.zeros(0, dtype=np.int32)
    chunk, exponents = whole.elements()
    return replace(
        base,
        share_num=base.share_num[chunk],
        origin=whole.labels_of(base.origin, chunk, exponents),
        target=whole.labels_of(base.target, chunk, exponents),
        chunk=none,
        src=none,
        dst=none,
        op=none.astype(np.uint8),
        step=none,
        route=none,
        channel=none,
    )


def _facts(whole: SymmetricSchedule, slots: int, *, in_place: bool) -> Facts:
    pool = whole.pooled
    loads = resource_loads(whole.weighted, pool.shared)
    busy = [
        (rate / load, number) for number, (rate, load) in enumerate(zip(pool.shared.rate, loads, strict=True)) if load
    ]
    rate, worst = min(busy, default=(None, -1))
    return Facts(
        rate=rate,
        busiest=pool.shared.names[worst] if busy else "",
        busiest_load=loads[worst] / int(pool.size[worst]) if busy else Fraction(0),
        busiest_count=sum(int(pool.size[number]) for other, number in busy if other == rate),
        in_flight=most_in_flight(whole),
        slots=slots,
        scratch=scratch_of(whole),
        in_place=in_place,
    )


def stuck_sends(whole: SymmetricSchedule, slots: int) -> str | None:
    """As `blinksim.schedule.waits.deadlock` of every image."""
    if whole.base.form == "forest":
        return deadlock(whole.base, slots)
    return deadlock(whole.schedule, slots) if passes_on(whole.base) else None


def most_in_flight(whole: SymmetricSchedule) -> int:
    """The most sends that one connection has in one step: in steps those of all images that share it."""
    base, turns = whole.base, whole.turns
    if base.form == "forest" or not base.sends:
        return crowd(base)[0]
    src, dst = base.src.astype(np.int64), base.dst.astype(np.int64)
    a, b, _ = turns.between(src, dst)
    channels, count = int(base.channel.max()) + 1, len(whole.topology.devices)
    key = ((base.step.astype(np.int64) * channels + base.channel) * count + a) * count + b
    _, first, where = np.unique(key, return_index=True, return_inverse=True)
    sends = np.bincount(where, whole.times[base.chunk])
    return int((sends / turns.images(src[first], dst[first])).max())


def scratch_of(whole: SymmetricSchedule) -> dict[str, Scratch]:
    """The scratch space of every device that needs any, by name, as `blinksim.schedule.pipeline.scratch` has it.

    Devices of an orbit hold the same: together all that images of chunks hold at any of them.
    """
    base, devices = whole.base, whole.topology.devices
    device, chunk, first, last = stays(base)
    label = orbit_labels(len(devices), whole.turns.generators)
    size = np.bincount(label)
    found: dict[int, Scratch] = {}
    for orbit in distinct(label[device]).tolist():
        rows = np.flatnonzero(label[device] == orbit)
        if devices[int(device[rows[0]])].in_network:
            continue  # data passes switches, which keep none of it
        times = whole.times[chunk[rows]]
        a, length = first[rows], last[rows] - first[rows] + 1
        held = most_held(base.share_num[chunk[rows]] * times, a, length, 1)
        # A chunk that comes to a device again and again needs one place there, for as many as are there at once.
        _, where, count = np.unique(chunk[rows] * len(devices) + device[rows], return_inverse=True, return_counts=True)
        places = int((times * (count[where] == 1)).sum())
        for again in np.flatnonzero(count > 1):
            here = where == again
            ones = np.ones(int(count[again]), dtype=np.int64)
            places += int(times[here][0]) * most_held(ones, a[here], length[here], 1)
        found[orbit] = Scratch(Fraction(held, base.share_den * int(size[orbit])), places // int(size[orbit]))
    orbits = label.tolist()
    return {one.name: found[orbit] for one, orbit in zip(devices, orbits, strict=True) if orbit in found}
