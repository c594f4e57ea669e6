"""A schedule as a graph of stages: what each send occupies, in which order, and what waits for it.

A send passes one stage after another: the capacity of the device it leaves, the link (or bus), the capacity of the
device it enters, and so on along its route, and at the end the receiver's reducer if it is reduced there. Every stage
is a server of its own that passes chunks one by one, so a simulation needs nothing but stages and what waits for what:
an event graph, whose times obey max-plus linear equations once the order at every server is known (Baccelli, Cohen,
Olsder, Quadrat, "Synchronization and linearity", 1992, chapter 2).

A send waits for everything that earlier steps brought to its chunk at its source, from the last copy on. It does not
wait for the place where it arrives: receivers have room for what comes early. Where a schedule runs in steps, the
chunks that one connection carries in one step are one message: it starts when all its chunks are there, pays the
overhead once, and has arrived when all of it has; unless what runs it sends each of them as a message of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from blinksim.errors import InputError
from blinksim.graphs.fronts import fronts
from blinksim.schedule.contents import connections
from blinksim.schedule.loads import Resources, resources, sums_formed
from blinksim.schedule.model import REDUCE, Schedule
from blinksim.simulation.simulation_options import MessagesName, SwitchingName
from blinksim.simulation.stage_waits import waits
from blinksim.structures.arrays import expand
from blinksim.topology.elements import Link

Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

Given = TypeVar("Given")
Found = TypeVar("Found")


class Derived:
    """What functions compute from a graph alone, kept by function: works of all sizes of the graph share it."""

    def __init__(self) -> None:
        self._found: dict[Callable[..., object], object] = {}

    def once(self, function: Callable[[Given], Found], given: Given) -> Found:
        """``function(given)``, computed by the first call; every `given` must have the same graph."""
        if function not in self._found:
            self._found[function] = function(given)
        return cast("Found", self._found[function])


@dataclass(frozen=True, eq=False)
class Stages:
    """The event graph of one piece of every chunk. E stages in the order of sends, of trees by chunk; joints last.

    resource (E): what is occupied: first those of `shared`, then one reducer per device, then one per joint. send (E):
    index of the send, -1 for joints (which only collect arrivals and take no time). share (E): numerator of the share
    of the size, over schedule.share_den; 0 for joints. latency, overhead (E): seconds. crossing (E): -1 if no link is
    crossed, else its index. cut (E): True if the next stage of the send may begin before this one has passed the whole
    piece. follows (E): True if the next stage belongs to the same send. before, after: stage after[i] waits for
    before[i]. level (E): most stages in a row before this one. derived: what engines compute from the graph alone.
    """

    schedule: Schedule
    shared: Resources
    resource: Indices
    send: Indices
    share: Indices
    latency: Floats
    overhead: Floats
    crossing: Indices
    cut: Flags
    follows: Flags
    before: Indices
    after: Indices
    derived: Derived = field(default_factory=Derived)

    @cached_property
    def transfers(self) -> tuple[list[Fraction | None], list[int], Indices]:
        """The distinct pairs (rate, share) of real stages, and which of them each real stage is; None for reducers."""
        real = self.send >= 0
        number: dict[Fraction, int] = {}
        known = [number.setdefault(rate, len(number)) for rate in self.shared.rate]
        kind = np.array([*known, *[len(number)] * len(self.schedule.topology.devices)], dtype=np.int64)
        rates: list[Fraction | None] = [*number, None]
        modulus = int(self.share.max(initial=0)) + 1
        pairs, where = np.unique(kind[self.resource[real]] * modulus + self.share[real], return_inverse=True)
        return [rates[k] for k in (pairs // modulus).tolist()], (pairs % modulus).tolist(), where

    @cached_property
    def latencies(self) -> tuple[Floats, Indices]:
        """The distinct latencies, and which of them each stage has."""
        return np.unique(self.latency, return_inverse=True)

    @cached_property
    def overheads(self) -> tuple[Floats, Indices]:
        return np.unique(self.overhead, return_inverse=True)

    @property
    def count(self) -> int:
        return len(self.resource)

    @cached_property
    def level(self) -> Indices:
        return levels(self.before, self.after, self.count)

    @property
    def reducers(self) -> range:
        """The numbers of the resources that are reducers, one per device."""
        first = len(self.shared.names)
        return range(first, first + len(self.schedule.topology.devices))

    def resource_name(self, resource: int) -> str:
        """``gpu0->gpu1 (nvlink)``, ``bus …``, ``out of …``, or ``reduction at …``."""
        if resource < len(self.shared.names):
            return self.shared.names[resource]
        if resource in self.reducers:
            return f"reduction at {self.schedule.topology.devices[resource - self.reducers.start].name}"
        return "a joint"


def stages(
    schedule: Schedule,
    *,
    switching: SwitchingName = "cut-through",
    messages: MessagesName = "joined",
    reduction: bool = False,
) -> Stages:
    """The stages of a schedule.

    switching: ``cut-through``, where devices inside a route pass a piece on while it arrives, or ``store-and-forward``,
    where they wait for all of it. messages: ``joined``, where in steps form a message is what a connection carries in a
    step, or ``single``, where it is one chunk. reduction: True to make a stage of every reduction. Raises `InputError`
    for sends without a route.
    """
    if schedule.sends and bool((np.diff(schedule.route_start)[schedule.route] == 0).any()):
        raise InputError(f"{schedule.algorithm}: a send has a route without links; blinksim verify names it")
    shared = resources(schedule.topology)
    # Who sends several messages in a step begins with the first that the schedule has.
    chunk = schedule.chunk if schedule.form == "forest" else np.zeros(schedule.sends)
    order = np.argsort(chunk, kind="stable")
    path = _path(schedule, shared, order)
    place = np.argsort(order)
    added, adder = sums_formed(schedule, shared)
    path = _with_stages(path, place[added], adder.astype(np.int64))
    if reduction:
        reducing = np.flatnonzero(schedule.op[order] == REDUCE)
        path = _with_stages(path, reducing, len(shared.names) + schedule.dst[order[reducing]].astype(np.int64))
    count = len(path.resource)
    send = order[path.turn]
    follows = np.zeros(count, dtype=np.bool_)
    follows[:-1] = path.turn[1:] == path.turn[:-1]
    # What arrives at a reducer has arrived whole.
    into_reducer = np.zeros(count, dtype=np.bool_)
    into_reducer[:-1] = path.resource[1:] >= len(shared.names)
    cut = follows & (~path.ends_link | (switching == "cut-through")) & ~into_reducer
    latency, overhead = _delays(schedule.topology.links, path)

    head, tail = np.empty(schedule.sends, dtype=np.int64), np.empty(schedule.sends, dtype=np.int64)
    first = _first(path.turn)
    head[send[first]] = np.flatnonzero(first)
    tail[send[~follows]] = np.flatnonzero(~follows)
    message, later = _messages(schedule, order, messages)
    overhead[head[later]] = 0.0
    before, after, joints = waits(schedule, head, tail, message, count)
    inside = np.flatnonzero(follows)
    extra = np.zeros(joints)
    free = len(shared.names) + len(schedule.topology.devices)
    return Stages(
        schedule=schedule,
        shared=shared,
        resource=np.concatenate((path.resource, free + np.arange(joints))),
        send=np.concatenate((send, np.full(joints, -1))),
        share=np.concatenate((schedule.share_num[schedule.chunk[send]], extra.astype(np.int64))),
        latency=np.concatenate((latency, extra)),
        overhead=np.concatenate((overhead, extra)),
        crossing=np.concatenate((path.crossing, np.full(joints, -1))),
        cut=np.concatenate((cut, extra > 0)),
        follows=np.concatenate((follows, extra > 0)),
        before=np.concatenate((inside, before)),
        after=np.concatenate((inside + 1, after)),
    )


@dataclass(frozen=True, slots=True)
class _Path:
    """The stages of all sends, one row each, send after send.

    resource: what is occupied. crossing: the link that is crossed, -1 if none. turn: the position of the send in the
    order of sends. ends_link: True for the last resource of a link.
    """

    resource: Indices
    crossing: Indices
    turn: Indices
    ends_link: Flags


def _path(schedule: Schedule, shared: Resources, order: Indices) -> _Path:
    """The resources along the route of every send."""
    turn_of_link, link = expand(schedule.route_start, schedule.route_links, schedule.route[order])
    starts, members, own = _in_order(shared)
    position, resource = expand(starts, members, link)
    crossed = np.asarray(link, dtype=np.int64)[position]
    is_link = own[starts[crossed] + _place_in_group(position)]
    return _Path(resource.astype(np.int64), np.where(is_link, crossed, -1), turn_of_link[position], _last(position))


def _with_stages(path: _Path, sends: Indices, resource: Indices) -> _Path:
    """The path with one stage more behind each of these sends, such as the receiver's reducer.

    sends: positions in the order of sends. resource: what the stage of each occupies.
    """
    turn = np.concatenate((path.turn, sends))
    sort = np.argsort(turn, kind="stable")
    return _Path(
        np.concatenate((path.resource, resource))[sort],
        np.concatenate((path.crossing, np.full(len(sends), -1)))[sort],
        turn[sort],
        np.concatenate((path.ends_link, np.ones(len(sends), dtype=np.bool_)))[sort],
    )


def _delays(links: Sequence[Link], path: _Path) -> tuple[Floats, Floats]:
    """Seconds of latency at every link, and of overhead at the first link of every send."""
    count = len(path.resource)
    latency, overhead = np.zeros(count), np.zeros(count)
    at_link = path.crossing >= 0
    latency[at_link] = np.array([link.latency for link in links])[path.crossing[at_link]]
    first_link = np.flatnonzero(at_link)[_first(path.turn[at_link])]
    overhead[first_link] = np.array([link.overhead for link in links])[path.crossing[first_link]]
    return latency, overhead


def _first(group: Indices) -> Flags:
    """True where an entry of sorted group numbers is the first of its group."""
    result = np.ones(len(group), dtype=np.bool_)
    result[1:] = group[1:] != group[:-1]
    return result


def _last(group: Indices) -> Flags:
    return _first(group[::-1])[::-1]


def _place_in_group(group: Indices) -> Indices:
    first = np.flatnonzero(_first(group))
    return np.arange(len(group)) - np.repeat(first, np.diff(np.append(first, len(group))))


def _in_order(shared: Resources) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], Flags]:
    """The resources of each link in the order in which data passes them, and which of them is the link itself."""
    own = np.zeros(len(shared.members), dtype=np.bool_)
    own[shared.starts[:-1]] = True
    members = shared.members.copy()
    for link in np.flatnonzero(np.diff(shared.starts) > 1):
        start, end = int(shared.starts[link]), int(shared.starts[link + 1])
        mine = sorted(members[start:end].tolist(), key=lambda r: _PASSED.get(shared.names[r].partition(" ")[0], 1))
        own[start:end] = [_PASSED.get(shared.names[r].partition(" ")[0], 1) == 1 for r in mine]
        members[start:end] = mine
    return shared.starts, members, own


# "out of gpu0" before the link or bus, "into gpu1" after it.
_PASSED = {"out": 0, "into": 2}


def _messages(schedule: Schedule, order: Indices, messages: MessagesName) -> tuple[Indices, Indices]:
    """The number of the message of each send, -1 where it is a message of its own; and the sends behind their first."""
    message = np.full(schedule.sends, -1, dtype=np.int64)
    if messages == "single" or schedule.form != "steps" or not schedule.sends:
        return message, np.zeros(0, dtype=np.int64)
    connection = connections(schedule)
    key = schedule.step.astype(np.int64) * (int(connection.max()) + 1) + connection
    _, where, counts = np.unique(key, return_inverse=True, return_counts=True)
    several = counts > 1
    message[several[where]] = (np.cumsum(several) - 1)[where][several[where]]
    ordered = order[message[order] >= 0]
    _, first = np.unique(message[ordered], return_index=True)
    return message, np.delete(ordered, first)


def levels(before: Indices, after: Indices, count: int) -> Indices:
    """For each of `count` stages the most waits in a row that lead to it."""
    level = np.zeros(count, dtype=np.int64)
    seen = 0
    for depth, front in enumerate(fronts(before, after, count)):
        level[front] = depth
        seen += len(front)
    assert seen == count, "steps order the waits, so they cannot form a circle"
    return level
