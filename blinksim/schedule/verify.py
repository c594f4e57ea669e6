"""Verification of schedules (routes, chunks, contents, waits); faults name the chunk, the rank and the send.

Checked: sends run between participants over links that exist and join up, through devices that forward; the
chunks and their shares are those of the collective; every send has something to send; every rank ends with
each contribution exactly once, and nothing waits in a circle with bounded buffers (in `verify_contents`).
Dependences on timing are ruled out, so the verdict holds for every executor that keeps the step order of each
chunk. Claims of a bound are another matter (`blinksim.bounds.claims`).

A symmetric schedule is proved from the chunks of `base` alone: a symmetry takes ranks to ranks and links to
equal links, and so a right chunk to a right one; the group was checked when it was made
(`CommutingGroup.of`). Common properties are counted: labels and shares by image, or in an alltoall by orbits
of blocks; loads and contents of devices by orbits. In a forest every image has channels of its own, so waits
inside a connection stay inside one image. In steps images join; if no sends of `base` wait in a circle
whatever shares their connection, none do, and else all images are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import islice
from typing import Any

import numpy as np

from blinksim.errors import InputError
from blinksim.graphs.arrays import Bools, Ints32, by_place, compressed, scattered, side_by_side
from blinksim.results import Result, keyed
from blinksim.schedule import verify_contents
from blinksim.schedule.candidate import SymmetricSchedule, carried
from blinksim.schedule.model import ARRAYS, PER_SEND, Events, Schedule, wrong_operations
from blinksim.schedule.verify_contents import Blocks, crowd, deadlock, describe, passes_on, place, scratch
from blinksim.units import format_rate, in_GBps

MOST_REASONS = 20


@dataclass(frozen=True)
class Facts:
    """What was counted on the way.

    rate: algbw in bytes/s that the loads allow, exact; None if nothing is sent. busiest: the resource that
    limits it (a link, a bus, or a way into or out of a device), its load as a share of the size, and how many
    resources have the same load/rate. in_flight: the most sends of one connection in one step; with that many
    slots no sender ever waits. scratch: for each device that needs any, the most that it holds beside its
    rank's own buffers, as a share of the size. in_place: true if input and output may be one buffer
    (`verify_contents.overwritten_in_place`). bound: what the certificate that comes with the schedule proves
    to be the most, bytes/s, and gap: 1 - rate/bound; None without a proof.
    """

    rate: Fraction | None
    busiest: str
    busiest_load: Fraction
    busiest_count: int
    in_flight: int
    slots: int
    scratch: Mapping[str, Fraction] = field(default_factory=dict)
    in_place: bool = True
    bound: Fraction | None = None
    gap: Fraction | None = None

    @property
    def rate_GBps(self) -> float | None:  # noqa: N802 - GBps is the unit's name
        """rate in GB/s."""
        return None if self.rate is None else in_GBps(self.rate)


@dataclass(frozen=True, repr=False)
class Verdict(Result):
    """The verdict on a schedule, true if it does what its collective promises.

    Attributes
    ----------
    ok : bool
        Nothing is wrong.
    reasons : tuple of str
        What is wrong, most important first (at most `MOST_REASONS` sentences).
    facts : Facts
        What was counted on the way: the rate that the loads allow, the busiest link, scratch memory.
    unproved : tuple of str
        What the schedule claims about its bound, and does not prove.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.verify(bs.synthesize("dgx1-v100", "allgather").schedule)
    >>> bool(found), found.facts.gap
    (True, Fraction(0, 1))
    """

    ok: bool
    reasons: tuple[str, ...]
    facts: Facts
    unproved: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.ok

    @property
    def rate_GBps(self) -> float | None:  # noqa: N802
        """The rate that the loads allow, in GB/s; None if nothing is sent."""
        return self.facts.rate_GBps

    def to_dict(self) -> dict[str, Any]:
        """The keys ``ok``, ``reasons`` and ``rate_exact`` (GB/s)."""
        return keyed(self, "ok reasons rate_exact=facts.rate")

    def rows(self) -> list[dict[str, Any]]:
        """One row per reason; none for a schedule that is right."""
        return [{"reason": reason} for reason in self.reasons]

    def __repr__(self) -> str:
        rate = "nothing is sent" if self.facts.rate is None else f"{format_rate(self.facts.rate)} by its loads"
        texts = (*self.reasons, *self.unproved)
        lines = [f"<Verdict: {'ok' if self.ok else 'refused'}; {rate}", *(f"  {text}" for text in texts)]
        return "\n".join(lines) + ">"


def verify(
    schedule: Schedule | SymmetricSchedule,
    *,
    slots: int = 1,
    in_place: bool = False,
    shares: Sequence[Fraction] | None = None,
) -> Verdict:
    """Check that `schedule` does what its collective promises on its topology.

    slots: buffers of each connection (`contents`). in_place: true if input and output are one buffer. shares:
    the part of the size in the block of each rank, if not 1/n (`verify_contents.wrong_chunks`). One by
    symmetry is verified in time and memory of its `base`; those of several groups are one after another.
    Raises `InputError` for slots below 1, shares that do not fit the ranks, and a share denominator too large
    to add loads up exactly; every fault of the schedule itself is in the verdict.
    """
    if slots < 1:
        raise InputError(f"{slots} slots: a connection needs at least 1")
    whole = schedule if isinstance(schedule, SymmetricSchedule) else None
    base = schedule.base if isinstance(schedule, SymmetricSchedule) else schedule
    longest = int(np.diff(base.route_start).max(initial=0))
    if whole is None and int(base.share_num.max(initial=0)) * base.sends * longest >= 2**61:
        raise InputError(f"{base.algorithm}: loads with the denominator {base.share_den} do not fit in 63 bits")
    if base.groups:
        return _side_by_side(base, slots, in_place)
    aliased = overwritten_in_place(schedule)
    # In a forest every image has channels of its own; in steps they join, and may wait if any chunk could.
    if whole is None or base.form == "forest":
        stuck = deadlock(base, slots)
    else:
        stuck = deadlock(whole.schedule, slots) if passes_on(base) else None
    checks: tuple[Callable[[], Iterator[str]], ...] = (
        lambda: wrong_routes(base),
        lambda: wrong_copies(base),
        lambda: (f"{describe(base, send)} {says}" for send, says in wrong_operations(base)),
        lambda: verify_contents.wrong_chunks(base, shares) if whole is None else _wrong_images(whole, shares),
        lambda: (verify_contents.wrong_sums if base.collective.reduces else verify_contents.wrong_arrivals)(base),
        lambda: filter(None, (stuck, aliased if in_place else None)),
    )
    reasons: list[str] = []
    for check in checks:
        found = check()
        listed = list(islice(found, MOST_REASONS // 2))
        more = sum(1 for _ in islice(found, 100_000))
        reasons += [*listed, f"… and {more} more of this sort"] if more else listed
    return Verdict(not reasons, tuple(reasons[:MOST_REASONS]), _facts(base, whole, slots, aliased is None))


def _side_by_side(schedule: Schedule, slots: int, in_place: bool) -> Verdict:
    """The verdict on the schedules of several groups, each of which must be right by itself."""
    reasons = ["groups do not run in place: a GPU may be in several"] if in_place else []
    for number, one in enumerate(schedule.groups):
        try:
            reasons += [f"{one}: {reason}" for reason in verify(schedule.alone(number), slots=slots).reasons]
        except InputError as error:
            reasons.append(f"{one}: {error}")
    # Groups of a file may share a connection, and so wait for each other.
    stuck = deadlock(schedule, slots)
    reasons += [stuck] if stuck and not reasons else []
    return Verdict(not reasons, tuple(reasons[:MOST_REASONS]), _facts(schedule, None, slots, False))


def _facts(base: Schedule, whole: SymmetricSchedule | None, slots: int, in_place: bool) -> Facts:
    """What is counted; of a schedule by symmetry an orbit of resources or devices at a time."""
    shared, loads, size = carried(whole or base)
    busy = [(rate / load, number) for number, (rate, load) in enumerate(zip(shared.rate, loads, strict=True)) if load]
    rate, worst = min(busy, default=(None, -1))
    load = (shared.name(worst), loads[worst] / size[worst]) if busy else ("", Fraction(0))
    alike = sum(size[number] for other, number in busy if other == rate)
    if whole is None:
        kept = {} if base.groups else scratch(base)
        return Facts(rate, *load, alike, crowd(base)[0], slots, kept, in_place)
    kept = scratch(base, times=whole.times, orbit=whole.group.orbit)
    return Facts(rate, *load, alike, most_in_flight(whole), slots, kept, in_place)


# --- sends and routes ---------------------------------------------------------------------------------------------


def wrong_routes(schedule: Schedule) -> Iterator[str]:
    """What is wrong with the ends and routes of the sends, in sentences: the first send of each sort, and how many."""
    topology, devices = schedule.topology, schedule.topology.devices
    names = [device.name for device in devices]
    part = {*topology.members, *topology.relays}
    outsider = np.array([device.holds and device.name not in part for device in devices])
    computes = np.array([device.holds or "reduce" in device.can or bool(device.in_network) for device in devices])
    forwards = np.array(["forward" in device.can for device in devices]) & ~outsider

    def sort(wrong: Bools, says: Callable[[int], str]) -> Iterator[str]:
        if len(sends := np.flatnonzero(wrong)):
            more = f" ({len(sends)} sends like this)" if len(sends) > 1 else ""
            yield f"{describe(schedule, int(sends[0]))} {says(int(sends[0]))}{more}"

    def end(word: str, ends: Ints32) -> Iterator[str]:
        yield from sort(outsider[ends], lambda i: f"goes {word} {names[ends[i]]}, which is neither member nor relay")
        only = "which only forwards; it belongs in a route"
        yield from sort(~computes[ends], lambda i: f"goes {word} {names[ends[i]]}, {only}")

    def path(send: int) -> str:
        links = schedule.links_of(int(schedule.route[send]))
        listed = ", ".join(topology.links[link].name for link in links[:4])
        return f"{listed}{', …' if len(links) > 4 else ''}"

    yield from end("from", schedule.src)
    yield from end("to", schedule.dst)
    yield from sort(schedule.src == schedule.dst, lambda i: "goes nowhere")

    link_src, link_dst = topology.ends
    start, links = schedule.route_start, schedule.route_links
    length = np.diff(start)
    route = schedule.route
    empty = (length == 0)[route]
    yield from sort(empty & (schedule.src != schedule.dst), lambda i: "has a route without links")
    some = length > 0
    leaves = scattered(some, link_src[links[start[:-1][some]]], len(length))[route]
    ends = scattered(some, link_dst[links[start[1:][some] - 1]], len(length))[route]
    astray, short = ~empty & (leaves != schedule.src), ~empty & (ends != schedule.dst)
    yield from sort(astray, lambda i: f"has a route that leaves from {names[leaves[i]]}, over {path(i)}")
    yield from sort(short, lambda i: f"has a route that ends at {names[ends[i]]}, over {path(i)}")
    # Between links k and k + 1 of the same route the data passes the device where k ends.
    owner = np.repeat(np.arange(len(length)), length)
    inner = np.flatnonzero(owner[1:] == owner[:-1])
    every, barred = np.arange(len(length)), inner[~forwards[link_dst[links[inner]]]]
    torn = np.isin(every, owner[inner[link_dst[links[inner]] != link_src[links[inner + 1]]]])
    blocked = np.isin(every, owner[barred])
    where = dict(zip(owner[barred].tolist(), link_dst[links[barred]].tolist(), strict=True))
    yield from sort(torn[route], lambda i: f"has a route whose links do not join up: {path(i)}")
    barrier = "which does not forward for this collective"
    held = blocked[route] & ~torn[route]
    yield from sort(held, lambda i: f"passes through {names[where[int(route[i])]]}, {barrier}")
    # A device that a route passes twice, by route. Per link of a route: the route, and the devices that it
    # joins.
    begins = np.flatnonzero(np.diff(owner, prepend=-1))
    routes, passed = np.append(owner[begins], owner), np.append(link_src[links][begins], link_dst[links])
    order = np.lexsort((passed, routes))
    routes, passed = routes[order], passed[order]
    again = np.flatnonzero((routes[1:] == routes[:-1]) & (passed[1:] == passed[:-1]))
    twice = dict(zip(routes[again].tolist(), passed[again].tolist(), strict=True))
    circling, cure = np.isin(every, list(twice))[route] & ~torn[route], "leave the circle out"
    yield from sort(circling, lambda i: f"passes {names[twice[int(route[i])]]} twice, over {path(i)}; {cure}")


def wrong_copies(schedule: Schedule) -> Iterator[str]:
    """Where a device without a rank that cannot multicast sends the same data more than once, in sentences."""
    devices, able = schedule.topology.devices, {"hold", "multicast"}
    single = [i for i, device in enumerate(devices) if able.isdisjoint(device.can) and not device.reads]
    events = Events(schedule, single)
    # Of two sends in a row from a device, with no arrival between them, the second sends the same again.
    if len(first := events.start[:-1][events.away & (np.diff(events.start) > 1)]):
        earlier, again = events.send[first[np.argmin(events.send[first + 1])] :][:2].tolist()
        both = f"{describe(schedule, again)} and {describe(schedule, earlier)}"
        yield f"{both} send the same data, but {place(schedule, int(schedule.src[again]))} cannot multicast"


# --- schedules by symmetry ------------------------------------------------------------------------------------------


def _wrong_images(whole: SymmetricSchedule, shares: Sequence[Fraction] | None) -> Iterator[str]:
    """As `verify_contents.wrong_chunks` of every image; those of a rooted collective must have its root."""
    if whole.collective.rooted:
        root = int(whole.base.device_of[whole.collective.root])
        if any(int(generator[root]) != root for generator in whole.group.generators):
            return iter((f"its symmetries move the root {whole.topology.devices[root].name}",))
    if whole.collective.name == "alltoall" and shares is None:
        return wrong_exchange(whole)
    base, (chunk, exponents) = whole.base, whole.elements()
    origin, target = (whole.labels_of(label, chunk, exponents) for label in (base.origin, base.target))
    none: dict[str, Any] = {name: np.zeros(0, dtype=ARRAYS[name]) for name in PER_SEND}
    labelled = replace(base, share_num=base.share_num[chunk], origin=origin, target=target, **none)
    return verify_contents.wrong_chunks(labelled, shares)


def most_in_flight(whole: SymmetricSchedule) -> int:
    """The most sends that one connection has in one step: in steps those of all images that share it."""
    base, group = whole.base, whole.group
    if base.form == "forest" or not base.sends:
        return crowd(base)[0]
    src, dst = base.src.astype(np.int64), base.dst.astype(np.int64)
    a, b, _ = group.between(src, dst)
    channels, count = int(base.channel.max()) + 1, len(whole.topology.devices)
    key = ((base.step.astype(np.int64) * channels + base.channel) * count + a) * count + b
    _, first, where = np.unique(key, return_index=True, return_inverse=True)
    return int((np.bincount(where, whole.times[base.chunk]) / group.images(src[first], dst[first])).max())


def orbits_of_blocks(whole: SymmetricSchedule) -> Blocks:
    """The orbits of blocks that the chunks of `base` belong to, whose origins and targets must be ranks."""
    base, group = whole.base, whole.group
    device = base.device_of.astype(np.int64)
    src, dst = device[base.origin], device[base.target]
    # A number for every pair of devices, equal for those of one orbit.
    pairs = (group.between(*ends) for ends in ((src, dst), (dst, src)))
    keys, back = (a * len(whole.topology.devices) + b for a, b, _ in pairs)
    found, first, of = np.unique(keys, return_index=True, return_inverse=True)
    twin = np.minimum(np.searchsorted(found, back[first]), len(found) - 1)
    twin = np.where(found[twin] == back[first], twin, -1)
    ranks = np.stack([base.origin[first], base.target[first]], axis=1).astype(np.int64)
    return Blocks(of, twin, group.images(src[first], dst[first]), ranks)


def wrong_exchange(whole: SymmetricSchedule) -> Iterator[str]:
    """As `verify_contents.wrong_chunks` of an alltoall with every image, in sentences."""
    base, n = whole.base, whole.topology.ranks
    unlabelled = list(verify_contents.wrong_labels(base))
    yield from unlabelled
    if unlabelled:
        return
    blocks = orbits_of_blocks(whole)
    if (count := int(blocks.size.sum())) < n * n:
        yield f"{n} ranks have {n * n} blocks to exchange, but there are chunks for {count} only"
        return
    yield from verify_contents.wrong_blocks(base, blocks, whole.weighted.share_num)


def overwritten_in_place(schedule: Schedule | SymmetricSchedule) -> str | None:
    """The first original contribution that an in-place run overwrites before it is sent, as a sentence; None if safe.

    Only alltoall can go wrong: everywhere else a chunk has one place in the buffer, and what arrives there is
    what the schedule reads from then on. In an in-place alltoall block j of a rank's buffer holds what goes
    to rank j, and in the end what came from rank j, so what goes out must be read in no later step than that
    in which anything arrives on top of it. (Sends of one step read what was there when it began, and a
    symmetry keeps the steps.)
    """
    base = schedule.base if isinstance(schedule, SymmetricSchedule) else schedule
    if not (base.collective.exchanges or base.collective.routing) or not base.sends:
        return None
    if base.collective.data is not None:
        return "in place, blocks of unequal lengths arrive on top of others, which may still have to be sent"
    if min(int(base.origin.min()), int(base.target.min())) < 0:
        return None
    # A schedule without a chunk for every block is wrong in any case, which the check of its chunks says.
    # Of a schedule by symmetry, a chunk stands for several pieces in a row of its block.
    if isinstance(schedule, SymmetricSchedule):
        blocks = orbits_of_blocks(schedule)
        covered, length = int(blocks.size.sum()), base.share_num * (schedule.times // blocks.size[blocks.of])
    else:
        blocks, covered, length = Blocks.single(base), base.chunks, base.share_num
    if covered < base.topology.ranks**2:
        return None
    # Of every chunk the last step in which its origin sends it, and the first in which its target gets it.
    never = np.iinfo(np.int64).max
    mine = base.rank_of[base.src] == base.origin[base.chunk]
    last_read = by_place(np.maximum, base.chunk[mine], base.step[mine], base.chunks, -1)
    arriving = base.rank_of[base.dst] == base.target[base.chunk]
    first_write = by_place(np.minimum, base.chunk[arriving], base.step[arriving], base.chunks, never)
    read = by_place(np.maximum, blocks.of, last_read, len(blocks.twin), -1)
    write = by_place(np.minimum, blocks.twin[blocks.of], first_write, len(blocks.twin), never)
    # Blocks as a whole first; only where they overlap in time do the places inside them matter.
    late = np.flatnonzero(read > write)
    starts, by_block = compressed(blocks.of, len(blocks.twin))
    for pair in late.tolist():
        out, into = (by_block[starts[which] : starts[which + 1]] for which in (pair, int(blocks.twin[pair])))
        pieces = (list(zip(of.tolist(), length[of].tolist(), strict=True)) for of in (out, into))
        for (gone, came), overlap in side_by_side([*pieces]):
            rank = base.origin[gone]
            if overlap and rank != base.target[gone] and last_read[gone] > first_write[came]:
                arrives = f"chunk {came} arrives at rank {rank} in step {first_write[came]}"
                sent = f"chunk {gone}, which rank {rank} still sends in step {last_read[gone]}"
                return f"in place, {arrives} on top of {sent}"
    return None
