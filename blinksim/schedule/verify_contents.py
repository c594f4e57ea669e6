"""Contents of every device after every step, and deadlock among the sends: the schedule carried out.

Chunks are sets of contributions. A copy replaces what the receiver has of a chunk, a reduction merges with
it; a device without data has the neutral element. All sends of a step read what was there when the step
began, so each chunk is followed on its own. Contributions must be disjoint: merging overlapping sets counts a
rank twice, which sum and prod would show, so it is refused for every operation.

Deadlock: a connection (src, dst, channel) is a queue of `slots` buffers, filled by its sender and emptied by
its receiver, both in the order of the schedule. A send is *put* when its data is read into a slot, and
*taken* when the receiver applies it. It is put after the previous send of its connection was put and the one
`slots` before it was taken, and after everything that earlier steps bring to its chunk at its source was
taken. It is taken after it was put, after the previous send of its connection was taken, after every send of
the same or an earlier step that reads the chunk at the receiver was put, and after what earlier steps bring
there was taken. A circle of such waits is a deadlock, and without one everything runs (the events of a finite
acyclic order).

Only the wait for a slot can close a circle: all others lead from a step to a later one, or from puts to takes
of one step. So a circle lies inside one step, in which a connection has more sends than slots and some device
both sends and receives the same chunk. (Coffman, Elphick and Shoshani, "System deadlocks", 1971: circular
wait.)

Every rank that reduces starts with its own contribution to every chunk; in a combine, those that the chunk's
tokens went to do. A chunk that is not reduced starts in
one place: at its origin, or at the root. The buffers are those of NCCL (user guide, "Collective Operations"
and "In-place Operations"): in place, the input of an allgather or gather is the rank's own block of the
output, the output of a reducescatter or scatter is the rank's own block of the input, and everything else has
one buffer for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby, pairwise

import numpy as np

from blinksim.collective import EVERY, OWN, ROOT, SOME
from blinksim.errors import InputError
from blinksim.graphs.arrays import Bools, Ints, Ints32, by_place, distinct, fronts, occurrences, scattered
from blinksim.graphs.connectivity import cycles
from blinksim.results import count
from blinksim.schedule.model import COPY, REDUCE, Schedule, sends_by_chunk


def starts_with(schedule: Schedule, device: Ints32, chunk: Ints32) -> Bools:
    """True where a device (index into topology.devices) has original data of the chunk beside it, before any send."""
    return _among(schedule, schedule.collective.starts, schedule.rank_of[device], schedule.origin[chunk])


def ends_with(schedule: Schedule, device: Ints32, chunk: Ints32) -> Bools:
    """True where a device must have the chunk beside it, complete, after the last send."""
    return _among(schedule, schedule.collective.ends, schedule.rank_of[device], schedule.target[chunk])


def _among(schedule: Schedule, who: str, rank: Ints32, own: Ints32) -> Bools:
    if who == EVERY:
        return rank >= 0
    if who == SOME:
        return (rank >= 0) & (own >= 0) & schedule.collective.routed.classes.holds[own, rank]
    return np.asarray((rank >= 0) & (rank == (schedule.collective.root if who == ROOT else own)))


def end_ranks(schedule: Schedule) -> tuple[Ints, Ints]:
    """Pairs of a chunk and a rank that must end with it, by chunk, where not every rank must."""
    to_root = schedule.collective.ends == ROOT
    rank = np.full(schedule.chunks, schedule.collective.root) if to_root else schedule.target.astype(np.int64)
    chunk = np.flatnonzero(rank >= 0)
    if schedule.collective.routing is not None and schedule.collective.ends == SOME:
        place, rank = np.nonzero(schedule.collective.routing.classes.holds[rank[chunk]])
        return chunk[place], rank
    return chunk, rank[chunk]


# --- labels and shares --------------------------------------------------------------------------------------------


def wrong_chunks(schedule: Schedule, shares: Sequence[Fraction] | None = None) -> Iterator[str]:
    """What is wrong with the chunks' origins, targets and shares, in sentences.

    shares: the part of the size that each rank's block has, in rank order; None for 1/n each. They bind
    allgather and gather (by origin), reducescatter and scatter (by target); the blocks of an alltoall are
    equal, and those of an alltoallv are what its traffic says, classes of tokens what their routing says.
    Raises `InputError` unless there is one share for every rank and they add up to 1.
    """
    n = schedule.topology.ranks
    if shares is not None and (len(shares) != n or sum(shares) != 1 or min(shares) < 0):
        raise InputError(f"{n} ranks need {n} shares that are not negative and add up to 1")
    faults = list(wrong_labels(schedule))
    yield from faults
    total = Fraction(sum(schedule.share_num.tolist()), schedule.share_den)
    promised = schedule.collective.promised(n)
    if total != promised:
        yield f"the chunks hold {total} of the size, not {promised}: their shares do not add up"
    ends = {schedule.collective.starts: "starts with", schedule.collective.ends: "ends with"}
    if faults or OWN not in ends:
        return
    traffic, routing = schedule.collective.traffic, schedule.collective.routing
    if schedule.collective.exchanges or routing is not None:
        count = n * n if traffic is None else int(np.count_nonzero(traffic.matrix))
        if routing is None and schedule.chunks < count:
            yield f"{n} ranks have {count} blocks to exchange, but there are only {schedule.chunks} chunks"
            return
        blocks = Blocks.single(schedule) if routing is None else Blocks.of_tokens(schedule)
        yield from wrong_blocks(schedule, blocks, schedule.share_num)
        return
    holder = schedule.origin if ends[OWN] == "starts with" else schedule.target
    for rank, held in enumerate(by_place(np.add, holder, schedule.share_num, n).tolist()):
        found, share = Fraction(held, schedule.share_den), Fraction(1, n) if shares is None else shares[rank]
        if found != share:
            yield f"rank {rank} {ends[OWN]} {found} of the size, not its share {share}"
            return


def wrong_labels(schedule: Schedule) -> Iterator[str]:
    """The first chunk with a wrong origin, and the first with a wrong target, in sentences."""
    starts, ends = schedule.collective.starts, schedule.collective.ends
    labels = (("origin", schedule.origin, starts), ("target", schedule.target, ends))
    for what, ranks, who in labels:
        # Where it is the root, -1 and the root say the same.
        allowed = ranks >= 0 if who in (OWN, SOME) else (ranks == -1)
        if who == ROOT:
            allowed |= ranks == schedule.collective.root
        for chunk in np.flatnonzero(~allowed)[:1]:
            verb = "starts from" if what == "origin" else "ends at"
            found = f"rank {ranks[chunk]}" if ranks[chunk] >= 0 else "no rank in particular"
            yield f"chunk {chunk} has {what} {found}, but in {schedule.collective.name} a chunk {verb} {who}"


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of an exchange that chunks belong to, or orbits of them: B of them.

    of (chunks): which one. twin (B): the one of the blocks that go the other way, -1 if no chunk belongs to
    it. size (B): how many blocks each has. first (B, 2): the ranks of one of them.
    """

    of: Ints
    twin: Ints
    size: Ints
    first: Ints

    @classmethod
    def single(cls, schedule: Schedule) -> Blocks:
        """Of every rank for every rank, in the order of their numbers."""
        n = schedule.topology.ranks
        ranks = np.indices((n, n)).reshape(2, -1).T
        of = schedule.origin.astype(np.int64) * n + schedule.target
        return cls(of, ranks[:, 1] * n + ranks[:, 0], np.ones(n * n, dtype=np.int64), ranks)

    @classmethod
    def of_tokens(cls, schedule: Schedule) -> Blocks:
        """Of every class of tokens; -1 for chunks of none."""
        classes = schedule.collective.routed.classes
        ones = np.ones_like(classes.own)
        return cls(schedule.token_class, -ones, ones, np.stack([classes.own, classes.which], axis=1))


def wrong_blocks(schedule: Schedule, blocks: Blocks, share_num: Ints) -> Iterator[str]:
    """The first block that is not what a rank has for another. share_num: of each chunk, for all of its images."""
    data, routing = schedule.collective.data, schedule.collective.routing
    for chunk in np.flatnonzero(blocks.of < 0)[:1]:
        yield f"chunk {chunk} is of tokens that the routing does not have: no such ranks are wanted from there"
        return
    sums = by_place(np.add, blocks.of, share_num, len(blocks.size))
    # bytes / size = share_num / share_den, in lowest terms of the constants so that products stay small.
    unit = Fraction(schedule.share_den, schedule.topology.ranks if data is None else data.size)
    wanted = blocks.size if data is None else data.amounts
    if max(int(sums.max()), 1) * unit.denominator >= 2**63 or int(wanted.max()) * unit.numerator >= 2**63:
        sums, wanted = sums.astype(object), wanted.astype(object)
    for wrong in np.flatnonzero(sums * unit.denominator != wanted * unit.numerator)[:1].tolist():
        a, b = blocks.first[wrong].tolist()
        whole = schedule.share_den * int(blocks.size[wrong])
        found, due = Fraction(int(sums[wrong]), whole), int(wanted[wrong]) * unit / whole
        who = f"for rank {b}"
        if routing is not None:
            who = f"with ranks {', '.join(map(str, np.flatnonzero(routing.classes.holds[b])))}"
        yield f"rank {a} has {found} of its size {who}, not {due}"


def describe(schedule: Schedule, send: int) -> str:
    """``send 7 (step 2, chunk 3 from gpu0 to gpu4)``"""
    src, dst = (schedule.topology.devices[ends[send]].name for ends in (schedule.src, schedule.dst))
    return f"send {send} (step {schedule.step[send]}, chunk {schedule.chunk[send]} from {src} to {dst})"


def place(schedule: Schedule, device: int) -> str:
    """``gpu3 (rank 5)``, or just the name of a device without a rank."""
    rank = schedule.rank_of[device]
    return f"{schedule.topology.devices[device].name}{f' (rank {rank})' if rank >= 0 else ''}"


# --- chunks that are reduced: sets of ranks, as the bits of an integer --------------------------------------------


# Which devices reduce, and which keep nothing.
Able = tuple[Sequence[bool], set[int]]


def wrong_sums(schedule: Schedule) -> Iterator[str]:
    """One sentence for each chunk that does not end where it must, or is read, merged or written wrongly on the way."""
    bounds, order = sends_by_chunk(schedule)
    devices, routing = schedule.topology.devices, schedule.collective.routing
    every = {int(device): 1 << rank for rank, device in enumerate(schedule.device_of)}
    starts = [every] * schedule.chunks
    if routing is not None:
        own = [{device: every[device] for device in schedule.device_of[row].tolist()} for row in routing.classes.holds]
        starts = [own[number] for number in schedule.origin.tolist()]
    reduces = [bool({"reduce", "reduce_into_reader"} & device.can) for device in devices]
    # What works for GPUs keeps nothing once it has given it out.
    forgets = {number for number, device in enumerate(devices) if device.reads}
    members = [int(device) for device in schedule.device_of]
    ends = dict.fromkeys(range(schedule.chunks), members)
    if schedule.collective.ends != EVERY:
        ends = {chunk: [members[rank]] for chunk, rank in zip(*(a.tolist() for a in end_ranks(schedule)), strict=True)}
    for chunk, (a, b) in enumerate(pairwise(bounds.tolist())):
        begin = starts[chunk].copy()
        fault = _follow(schedule, chunk, order[a:b], begin, (reduces, forgets), ends.get(chunk, ()))
        if fault:
            yield fault


def _follow(
    schedule: Schedule, chunk: int, sends: Ints, state: dict[int, int], able: Able, ends: Sequence[int]
) -> str | None:
    """Carries out the sends of one chunk on `state`; the first fault."""
    src, dst, op, step = (a[sends].tolist() for a in (schedule.src, schedule.dst, schedule.op, schedule.step))
    (reduces, forgets), full = able, sum(state.values())
    for _, of_step in groupby(range(len(sends)), step.__getitem__):
        together = [*of_step]
        senders = [src[k] for k in together]
        read = [state.get(device, 0) for device in senders]
        for device in forgets.intersection(senders):
            state.pop(device, None)
        written: dict[int, int] = {}
        for k, value in zip(together, read, strict=True):
            to = dst[k]
            if not value:
                return _absent(schedule, sends[k])
            if to in written and not (op[k] == REDUCE and op[written[to]] == REDUCE):
                return _race(schedule, sends[written[to]], sends[k])
            written[to] = k
            if op[k] == REDUCE:
                old = state.get(to, 0)
                if old & value:
                    again = f"{_ranks(old & value)} into chunk {chunk} at {place(schedule, to)} a second time"
                    return f"{describe(schedule, sends[k])} reduces {again}"
                if old and not reduces[to]:
                    return f"{describe(schedule, sends[k])} reduces at {place(schedule, to)}, which can only copy"
                value |= old
            state[to] = value
    for device in ends:
        if (value := state.get(device, 0)) != full:
            into = np.flatnonzero((schedule.chunk == chunk) & (schedule.dst == device))
            last = f"{describe(schedule, into[-1])} was the last to write" if len(into) else "nothing is sent"
            missing = f"{_ranks(full & ~value)} in chunk {chunk}"
            return f"{place(schedule, device)} ends without {missing}; {last} there"
    return None


def _absent(schedule: Schedule, send: int) -> str:
    lacks = f"{place(schedule, int(schedule.src[send]))} has nothing of chunk {schedule.chunk[send]}"
    return f"{describe(schedule, send)} sends what is not there: {lacks} before step {schedule.step[send]}"


def _race(schedule: Schedule, first: int, second: int) -> str:
    what = "copy" if schedule.op[[first, second]].tolist() == [COPY, COPY] else "copy and reduce"
    at_once = f"{what} to the same place in one step; the result depends on which comes last"
    return f"{describe(schedule, first)} and {describe(schedule, second)} {at_once}"


def _ranks(bits: int) -> str:
    ranks = [i for i, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"]
    listed = ", ".join(map(str, ranks[:6])) + (f" and {len(ranks) - 6} more" if len(ranks) > 6 else "")
    return f"the contribution{'s' * (len(ranks) > 1)} of rank{'s' * (len(ranks) > 1)} {listed}"


# --- chunks that are only copied: when does each reach each device? -------------------------------------------------


def wrong_arrivals(schedule: Schedule) -> Iterator[str]:
    """As `wrong_sums`, where nothing may be merged."""
    for send in np.flatnonzero(schedule.op != COPY)[:1]:
        yield f"{describe(schedule, send)} reduces, but {schedule.collective.name} only copies"
    devices = len(schedule.topology.devices)
    into = schedule.chunk.astype(np.int64) * devices + schedule.dst
    order = np.argsort(into, kind="stable")
    into = into[order]
    fresh = np.diff(into, prepend=-1) != 0
    step = schedule.step[order]
    # A chunk has one content, so a second arrival does no harm, except that two at once have no order.
    for position in np.flatnonzero(~fresh[1:] & (step[1:] == step[:-1]))[:1]:
        yield _race(schedule, int(order[position]), int(order[position + 1]))
    arrived, when = into[fresh], step[fresh]

    out = schedule.chunk.astype(np.int64) * devices + schedule.src
    ready, found = starts_with(schedule, schedule.src, schedule.chunk), np.isin(out, arrived)
    ready[found] |= when[np.searchsorted(arrived, out[found])] < schedule.step[found]
    late = np.flatnonzero(~ready)
    _, first_of_chunk = np.unique(schedule.chunk[late], return_index=True)
    for send in np.sort(late[first_of_chunk]):
        yield _absent(schedule, send)
    # Chunks that some rank must have and neither starts with nor receives.
    if schedule.collective.ends == EVERY:
        chunk, device = (arrived // devices).astype(np.int32), (arrived % devices).astype(np.int32)
        new = (schedule.rank_of[device] >= 0) & ~starts_with(schedule, device, chunk)
        reached = np.bincount(chunk[new], minlength=schedule.chunks)
        short = np.flatnonzero(reached < schedule.topology.ranks - 1)
    else:
        ends_somewhere, rank = end_ranks(schedule)
        target = schedule.device_of[rank]
        there = starts_with(schedule, target, ends_somewhere.astype(np.int32))
        there |= np.isin(ends_somewhere * devices + target, arrived)
        short = distinct(ends_somewhere[~there])
    for number in short:
        ends = schedule.device_of if schedule.collective.ends == EVERY else target[ends_somewhere == number]
        first = np.int64(number) * devices
        have = arrived[slice(*np.searchsorted(arrived, (first, first + devices)))] - first
        begins = starts_with(schedule, ends, np.full(len(ends), number, dtype=np.int32))
        missing = ends[~begins & ~np.isin(ends, have)]
        names = ", ".join(place(schedule, device) for device in missing[:4])
        more = f" and {count(len(missing) - 4, 'more rank')}" if len(missing) > 4 else ""
        yield f"chunk {number} never reaches {names}{more}"


def connections(schedule: Schedule) -> Ints:
    """The number of each send's connection, counted from 0."""
    ends = schedule.src.astype(np.int64) * len(schedule.topology.devices) + schedule.dst
    _, pair = np.unique(ends, return_inverse=True)
    keys = pair.astype(np.int64) * (int(schedule.channel.max(initial=0)) + 1) + schedule.channel
    return np.unique(keys, return_inverse=True)[1].astype(np.int64)


def crowd(schedule: Schedule) -> tuple[int, Ints, Ints]:
    """The most sends that one connection has in one step, the connection of each send, and its place in that queue.

    With that many slots no sender ever waits for its receiver inside a step.
    """
    connection = connections(schedule)
    key = schedule.step.astype(np.int64) * (int(connection.max(initial=0)) + 1) + connection
    place = occurrences(key)
    return int(place.max(initial=-1)) + 1, connection, place


def deadlock(schedule: Schedule, slots: int = 1) -> str | None:
    """A circle of waits with `slots` buffers a connection, as a sentence; None if there is none."""
    most, connection, place = crowd(schedule)
    if most <= slots:
        return None
    for step in distinct(schedule.step[place >= slots]):
        sends = np.arange(*np.searchsorted(schedule.step, (step, step + 1)))
        if circle := _circle(schedule, sends, connection[sends], slots):
            listed = ", ".join(describe(schedule, int(sends[k])) for k in circle[:4])
            more = f" and {len(circle) - 4} more" if len(circle) > 4 else ""
            waits = f"{listed}{more} wait for each other in a circle; {most} slots avoid it"
            return f"deadlock in step {step} with {count(slots, 'slot')} a connection: {waits}"
    return None


def passes_on(schedule: Schedule) -> bool:
    """True if a device sends a chunk in a step in which it receives it; without that nothing waits in a circle."""
    places = schedule.step.astype(np.int64) * schedule.chunks + schedule.chunk
    read, written = (places * len(schedule.topology.devices) + ends for ends in (schedule.src, schedule.dst))
    return bool(np.isin(read, written).any())


def _circle(schedule: Schedule, sends: Ints, connection: Ints, slots: int) -> list[int]:
    """The sends of one step (as positions in `sends`) on a circle of waits; empty if there is none."""
    m, devices = len(sends), len(schedule.topology.devices)
    chunk = schedule.chunk[sends].astype(np.int64) * devices
    read, written = chunk + schedule.src[sends], chunk + schedule.dst[sends]
    if not len(both := distinct(read[np.isin(read, written)])):
        return []
    # Events: send k is put (k), taken (m + k); all reads of a place that is also written are done (2 m + its
    # number).
    order = np.argsort(connection, kind="stable")
    mates = connection[order]
    next_one = np.flatnonzero(mates[1:] == mates[:-1])
    behind = np.flatnonzero(mates[slots:] == mates[:-slots])
    reader, writer = np.flatnonzero(np.isin(read, both)), np.flatnonzero(np.isin(written, both))
    first, then, every = order[next_one], order[next_one + 1], np.arange(m)
    before_after = [
        (every, m + every),
        (first, then),
        (m + first, m + then),
        (m + order[behind], order[behind + slots]),
        (reader, 2 * m + np.searchsorted(both, read[reader])),
        (2 * m + np.searchsorted(both, written[writer]), m + writer),
    ]
    before, after = (np.concatenate(ends).astype(np.int64) for ends in zip(*before_after, strict=True))
    stuck = np.ones(2 * m + len(both), dtype=np.bool_)
    for front in fronts(before, after, len(stuck)):
        stuck[front] = False
    if not stuck.any():
        return []
    # Every stuck event waits for a stuck one, so the waits lead back around a circle.
    inside = stuck[before] & stuck[after]
    circle, *_ = cycles(scattered(after[inside], before[inside], len(stuck)).tolist(), -1)
    return list(dict.fromkeys(event % m for event in reversed(circle) if event < 2 * m))


# --- what devices hold beside their ranks' buffers --------------------------------------------------------


def scratch(schedule: Schedule, times: Ints | None = None, orbit: Ints | None = None) -> dict[str, Fraction]:
    """The most that every device holds at once beside its rank's buffers, as a share of the size, if it holds any.

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
    found: dict[int, Fraction] = {}
    order = np.argsort(label[device], kind="stable")
    numbers, starts = np.unique(label[device][order], return_index=True)
    for number, rows in zip(numbers.tolist(), np.split(order, starts[1:]), strict=False):
        if devices[int(device[rows[0]])].in_network:
            continue  # data passes switches, which keep none of it
        # The largest sum, over time, of what comes in its first step and is gone after its last one.
        weight = schedule.share_num[chunk[rows]] * many[chunk[rows]]
        when, where = np.unique(np.concatenate((first[rows], last[rows] + 1)), return_inverse=True)
        held = int(np.cumsum(by_place(np.add, where, np.concatenate((weight, -weight)), len(when))).max())
        found[number] = Fraction(held, schedule.share_den * int(size[number]))
    return {one.name: found[number] for one, number in zip(devices, label.tolist(), strict=True) if number in found}


def stays(schedule: Schedule) -> tuple[Ints, Ints, Ints, Ints]:
    """(device, chunk, first step, last step) of every stay of data in scratch space.

    A stay begins with the first arrival, or with a copy that replaces what was there, and lasts until the
    last send of it; what leaves before anything arrived is the rank's own input.
    """
    devices = len(schedule.topology.devices)
    reads = schedule.chunk.astype(np.int64) * devices + schedule.src
    writes = schedule.chunk.astype(np.int64) * devices + schedule.dst
    passing = ~ends_with(schedule, schedule.dst, schedule.chunk)
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
