"""Work of switches in a schedule: the sends into one and out of it, and whether it can do them.

A switch that multicasts or reduces is an end of sends, like a relay that reduces. One that reduces in flight
has the sum of what arrived, and gives it out. One that reduces into readers carries out operations, and keeps
nothing: in a *read*, GPUs send their copies to be reduced, in one step, and the sum goes to one of them as a
copy; in a *store*, a GPU sends a copy, and it goes to GPUs among which the sender is. So the reader's and the
writer's own copies are sends, and count. Both may pass further switches of this sort. Several GPUs may read
at once: every copy is sent once for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Bools, distinct, places
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.elements import BRANCHING

# Switches by how they work, and what they do where several messages are added.
_IN_FLIGHT, _READS = 1, 2
_ADDS = {_IN_FLIGHT: "reduce", _READS: "reduce_into_reader"}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a switch that reduces into readers: the sends into it, and those out of it."""

    switch: int
    arrivals: tuple[int, ...]
    departures: tuple[int, ...]


def switches(schedule: Schedule) -> set[int]:
    """The devices between which data goes and that do more to it than to forward it, GPUs and tiles left out."""
    topology = schedule.topology
    if not topology.in_network:
        return set()
    ends = np.zeros(len(topology.devices), dtype=np.bool_)
    ends[schedule.src] = ends[schedule.dst] = True
    # Of thousands of devices, most are members, which are GPUs and tiles.
    ends[topology.member_places] = False
    return {end for end in np.flatnonzero(ends).tolist() if topology.devices[end].in_network}


def abilities_used(schedule: Schedule) -> frozenset[str]:
    """What the schedule has switches do, of `blinksim.topology.elements.BRANCHING`."""
    devices, working = schedule.topology.devices, switches(schedule)
    if not working:
        return frozenset()
    sort = np.zeros(len(devices), dtype=np.int8)
    for device in working:
        sort[device] = _READS if devices[device].reads else _IN_FLIGHT
    into, out = sort[schedule.dst], sort[schedule.src] == _IN_FLIGHT
    reduces = schedule.op == REDUCE
    abilities = {word for one, word in _ADDS.items() if bool(reduces[into == one].any())}
    sent = (schedule.src[out] * np.int64(schedule.chunks) + schedule.chunk[out]) * (schedule.steps + 1)
    sent += schedule.step[out]
    # What reads keeps nothing: all that it is given to copy is for a group.
    if bool((~reduces[into == _READS]).any()) or len(distinct(sent)) < len(sent):
        abilities.add("multicast")
    return frozenset(abilities)


def refuse(schedule: Schedule, why: str) -> None:
    """Raises `InfeasibleError` with `why` if switches do more than to forward in a schedule."""
    names = sorted(schedule.topology.devices[device].name for device in switches(schedule))
    if names:
        what = " and ".join(words for ability, words in BRANCHING.items() if ability in abilities_used(schedule))
        more = f" and {len(names) - 1} more switches" if len(names) > 1 else ""
        raise InfeasibleError(f"{schedule.algorithm} has {names[0]}{more} {what or 'carry data on'}; {why}")


class _Events:
    """The sends of switches that reduce into readers (E), chunk by chunk and switch by switch, in the order of steps.

    Of one step, what leaves was there before, and what arrives comes after it. start (P + 1): where a run of
    arrivals or of departures begins. away, owner, switch (P): which of the two it is, and its chunk and
    switch as one number.
    """

    def __init__(self, schedule: Schedule) -> None:
        count = len(schedule.topology.devices)
        reading = np.zeros(count, dtype=np.bool_)
        reading[[device for device in switches(schedule) if schedule.topology.devices[device].reads]] = True
        out, into = np.flatnonzero(reading[schedule.src]), np.flatnonzero(reading[schedule.dst])
        send, away = np.concatenate([out, into]), np.arange(len(out) + len(into)) < len(out)
        switch = np.concatenate([schedule.src[out], schedule.dst[into]]).astype(np.int64)
        owner = schedule.chunk[send] * np.int64(count) + switch
        order = np.argsort((owner * (schedule.steps + 1) + schedule.step[send]) * 2 + ~away, kind="stable")
        first = np.flatnonzero(np.diff((2 * owner + away)[order], prepend=-1))
        self.send, self.start, head = send[order], np.append(first, len(send)), order[first]
        self.away, self.owner, self.switch = away[head], owner[head], switch[head]

    def answered(self) -> Bools:
        """Whether each run is of arrivals, with the departures that it is for behind it."""
        found = ~self.away
        found[:-1] &= self.owner[:-1] == self.owner[1:]
        found[-1:] = False
        return found


def operations(schedule: Schedule) -> Iterator[Operation]:
    """The operations of switches that reduce into readers, chunk by chunk: arrivals, then departures, and so on."""
    events = _Events(schedule)
    runs = [tuple(part.tolist()) for part in np.split(events.send, events.start[1:-1])] if len(events.send) else []
    answered, arrivals = events.answered().tolist(), tuple[int, ...]()
    for run, away, switch, awaits in zip(runs, events.away.tolist(), events.switch.tolist(), answered, strict=True):
        if awaits:
            arrivals = run
        else:
            yield Operation(switch, arrivals, run) if away else Operation(switch, run, ())
            arrivals = ()


def wrong_operations(schedule: Schedule) -> Iterator[tuple[int, str]]:
    """(send, what is wrong with it) for what a switch that reduces into readers does not do."""
    topology = schedule.topology
    members = set(schedule.device_of.tolist())
    for operation in operations(schedule):
        device = topology.devices[operation.switch]
        first = (*operation.arrivals, *operation.departures)[0]
        for send in (*operation.arrivals, *operation.departures):
            other = int(schedule.src[send] + schedule.dst[send]) - operation.switch
            if other not in members and not topology.devices[other].reads:
                name = topology.devices[other].name
                yield send, f"joins {device.name}, which works for groups of GPUs with a rank, with {name}"
                return
            if len(schedule.links_of(int(schedule.route[send]))) != 1:
                yield send, f"takes a detour, but {device.name} works for the GPUs that are linked to it"
                return
        if not operation.arrivals or not operation.departures:
            word = "gives out" if operation.departures else "takes in"
            yield first, f"is of no operation: {device.name} {word} what it keeps nowhere"
            return
        for sends in (operation.arrivals, operation.departures):
            if len({int(schedule.step[send]) for send in sends}) > 1:
                others = f"the rest of its operation of {device.name}"
                yield sends[-1], f"is in another step than {others}, which keeps nothing"
                return
        yield from _wrong_kind(schedule, operation, members)


def _wrong_kind(schedule: Schedule, operation: Operation, members: Collection[int]) -> Iterator[tuple[int, str]]:
    """What keeps an operation with arrivals and departures from being a read or a store."""
    device = schedule.topology.devices[operation.switch]
    arrivals, departures = operation.arrivals, operation.departures
    last = int(schedule.dst[departures[0]]) in members
    reduces = {*schedule.op[list(arrivals)].tolist()} == {REDUCE}
    # A sum that leaves more than once is for readers that each cost all senders their copies.
    times, readers = Counter(schedule.src[list(arrivals)].tolist()), schedule.dst[list(departures)].tolist()
    senders, each = {*times}, {*times.values()} == {len(readers)}
    apart = senders >= {*readers} and len({*readers}) == len(readers)
    if reduces:
        if "reduce_into_reader" not in device.can:
            yield arrivals[0], f"reduces at {device.name}, which only copies"
        elif len(departures) > 1 and not (each and apart):
            yield departures[1], f"sends on a sum that {device.name} formed for one reader; it must pass a GPU first"
        elif not each:
            again = max(arrivals, key=lambda send: times[int(schedule.src[send])])
            yield again, f"gives {device.name} copies for more readers than the sum has"
        elif last and not senders.issuperset(schedule.dst[list(departures)].tolist()):
            yield departures[0], f"brings a sum to a GPU whose own copy {device.name} did not read with the others"
        elif (int(schedule.op[departures[0]]) == COPY) != last:
            yield departures[0], f"must copy what {device.name} formed to its reader, or reduce it at the next switch"
    elif len(arrivals) > 1:
        yield arrivals[1], f"meets other data in {device.name}, which stores what one GPU writes"
    elif "multicast" not in device.can:
        yield arrivals[0], f"stores at {device.name}, which cannot multicast"
    elif any(int(schedule.op[send]) != COPY for send in departures):
        yield departures[0], f"reduces what {device.name} stores; it can only copy it"
    elif senders <= set(members) and senders.isdisjoint(int(schedule.dst[send]) for send in departures):
        yield arrivals[0], f"is stored by {device.name} at other GPUs only; the writer's own copy must be among them"


def repeated_reads(schedule: Schedule) -> Bools:
    """For each send if it gives a switch that reduces into readers a copy once more, for a further reader.

    Such sends count as loads, and bring no other data than the first of them.
    """
    reading = [device for device in switches(schedule) if schedule.topology.devices[device].reads]
    into = np.flatnonzero(np.isin(schedule.dst, reading) & (schedule.op == REDUCE))
    columns = (schedule.chunk, schedule.src, schedule.dst, schedule.step)
    found = np.zeros(len(schedule.src), dtype=np.bool_)
    found[into] = True
    if len(into):
        _, first = np.unique(np.stack([column[into] for column in columns]), axis=1, return_index=True)
        found[into[first]] = False
    return found


def sums_at(schedule: Schedule, adding: Collection[int]) -> Iterator[tuple[int, int]]:
    """For every sum that these switches form: a send that brings a part of it, the last, and the switch.

    One that reduces in flight forms one sum of a chunk. One that reduces into readers forms one for each of
    them.
    """
    devices = schedule.topology.devices
    for switch in adding:
        if not devices[switch].reads:
            into = np.flatnonzero((schedule.dst == switch) & (schedule.op == REDUCE))
            chunks, counts = np.unique(schedule.chunk[into], return_counts=True)
            last = dict(zip(schedule.chunk[into].tolist(), into.tolist(), strict=True))
            yield from ((last[chunk], switch) for chunk in chunks[counts > 1].tolist())
    if any(devices[switch].reads for switch in adding):
        # Of each read as many arrivals as it has readers, the last first.
        events = _Events(schedule)
        run = np.flatnonzero(events.answered())
        run = run[np.isin(events.switch[run], list(adding)) & (schedule.op[events.send[events.start[run]]] == REDUCE)]
        sizes = np.diff(events.start)
        many = np.minimum(sizes[run], sizes[run + 1])
        arrival = np.repeat(events.start[run + 1] - 1, many) - places(many)
        yield from zip(events.send[arrival].tolist(), np.repeat(events.switch[run], many).tolist(), strict=True)


def own_copies(schedule: Schedule) -> list[int]:
    """The sends that bring readers their sums and writers their own copies, and those of what a reader itself holds."""
    found = []
    for operation in operations(schedule):
        senders = {int(schedule.src[send]) for send in operation.arrivals}
        # None where further switches bring the reader the sum, or the writer its own copy.
        for back in [send for send in operation.departures if int(schedule.dst[send]) in senders][:1]:
            own = schedule.dst[back]
            found += [back, *(i for i in operation.arrivals if schedule.op[i] == REDUCE and schedule.src[i] == own)]
    return found
