"""Schedules: chunks of a collective's vector, and the sends that move them, as arrays.

The vector of a collective (its `size`, see `blinksim.collective`) is cut into chunks with exact shares. A
send moves one chunk from one device to another over a route of links, and either copies it or reduces it into
what the receiver has. Sends are ordered by step: the sends of a step read what was there when the step began.

Two forms. In *steps* form the steps run one after another. In *forest* form every chunk travels on a tree of
its own, and its steps only order dependent sends: the chunks can be cut into pieces that follow each other
(`blinksim.timing.alpha_beta`), which turns a forest into steps.

A switch that multicasts or reduces is an end of sends, like a relay that reduces. One that reduces in flight
has the sum of what arrived, and gives it out. One that reduces into readers carries out operations, and keeps
nothing: in a *read*, GPUs send their copies to be reduced, in one step, and the sum goes to one of them as a
copy; in a *store*, a GPU sends a copy, and it goes to GPUs among which the sender is. So the reader's and the
writer's own copies are sends, and count. Both may pass further switches of this sort. Several GPUs may read
at once: every copy is sent once for each.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from blinksim.collective import OWN, Collective
from blinksim.errors import InfeasibleError, InputError, blamed_on
from blinksim.graphs.arrays import Bools, Ints, Ints32, compressed, distinct, expand, places, scattered
from blinksim.graphs.connectivity import grouped
from blinksim.results import Tabular, count, names
from blinksim.topology.elements import BRANCHING
from blinksim.topology.graph import Topology
from blinksim.units import parse_exact, size_of

COPY, REDUCE = 0, 1
# The largest common denominator of the shares of a schedule's chunks.
MOST_DENOMINATOR = 2**40
# The arrays of a schedule by name, with the types of their entries.
ARRAYS = {
    "share_num": "int64",
    **dict.fromkeys(("origin", "target", "chunk", "src", "dst"), "int32"),
    "op": "uint8",
    **dict.fromkeys(("step", "route", "channel", "route_start", "route_links"), "int32"),
}
PER_SEND = ("chunk", "src", "dst", "op", "step", "route", "channel")
"""Those of them that have an entry for each send."""
FORMS = ("forest", "steps")
Like = npt.ArrayLike


@dataclass(frozen=True, slots=True)
class Tenant:
    """One of several groups whose schedules stand side by side in one.

    members: in rank order. relays: other devices that it may use, relays_reduce: also to reduce and
    multicast. share: what it has of the size of all.
    """

    members: tuple[str, ...]
    relays: tuple[str, ...]
    relays_reduce: bool
    collective: Collective
    share: Fraction

    def __str__(self) -> str:
        return f"{self.collective} of {names(self.members)}"


@dataclass(frozen=True, eq=False, repr=False)
class Schedule(Tabular):
    """A collective on a machine, as a list of sends; arrays, with C chunks, M sends and R routes.

    Parameters
    ----------
    topology : Topology
        The selected part of the machine (`Topology.select`); its members are the ranks.
    collective : Collective
        What it does.
    algorithm : str
        What built it.
    form : {"forest", "steps"}
        Chunks on trees of their own, or steps one after another.
    share_num, share_den : array of int64 (C), int
        The share of the size in each chunk is share_num / share_den. They add up to 1, or for alltoall, where
        every rank has a vector of that size, to the number of ranks; for alltoallv to all bytes over the
        size.
    origin, target : array (C)
        The rank that a chunk starts from, or must end at; -1 where that is every rank (or the root). The
        target of a dispatch, and the origin of a combine, is the number of a set of ranks in
        ``routing.classes.sets``.
    chunk, src, dst : array (M)
        What is sent from which device to which (indices into topology.devices).
    op : array (M)
        COPY or REDUCE.
    step : array (M)
        Never decreases.
    route : array (M)
        Index of the route.
    channel : array (M)
        Sends of one channel between two devices keep their order.
    route_start, route_links : array (R + 1), array
        Route r is the links route_links[route_start[r]:route_start[r + 1]].
    bound : mapping
        What the synthesis claims, as the command line prints it (scope, rate_exact, certificate …), or empty.
    groups : tuple of Tenant
        The groups whose schedules stand side by side here, if these are several: the chunks of the first,
        those of the second … The members are then all devices of these groups; the collective is that of the
        first.
    size : int, optional
        Bytes of all groups together that it was made for.

    Raises
    ------
    InputError
        For arrays that do not fit each other or the topology.

    Examples
    --------
    >>> import blinksim as bs
    >>> schedule = bs.synthesize("dgx1-v100", "allreduce", "ring").schedule
    >>> schedule.chunks, schedule.sends, schedule.share(0)
    (48, 672, Fraction(1, 48))
    >>> schedule.to_frame()["op"].value_counts().to_dict()
    {'reduce': 336, 'copy': 336}
    """

    topology: Topology
    collective: Collective
    algorithm: str
    form: str
    share_num: Ints
    share_den: int
    origin: Ints32
    target: Ints32
    chunk: Ints32
    src: Ints32
    dst: Ints32
    op: npt.NDArray[np.uint8]
    step: Ints32
    route: Ints32
    channel: Ints32
    route_start: Ints32
    route_links: Ints32
    bound: Mapping[str, Any] = field(default_factory=dict)
    groups: tuple[Tenant, ...] = ()
    size: int | None = None

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise InputError(f"a schedule's form is {' or '.join(FORMS)}, not {self.form!r}")
        self.collective.check_ranks(self.topology.ranks)
        per_chunk = (self.share_num, self.origin, self.target)
        if len({len(a) for a in per_chunk}) > 1 or len({len(getattr(self, name)) for name in PER_SEND}) > 1:
            raise InputError("a schedule's arrays differ in length")
        if self.share_den < 1 or int(self.share_num.min(initial=0)) < 0:
            raise InputError("a schedule's shares must not be negative")
        devices, links = len(self.topology.devices), len(self.topology.links)
        chunks, routes = len(self.share_num), len(self.route_start) - 1
        ends = {"chunk": chunks, "src": devices, "dst": devices, "op": 2, "route": routes, "route_links": links}
        ends |= zip(("origin", "target"), self.collective.label_counts(self.topology.ranks), strict=True)
        for what, end in ends.items():
            values, least = getattr(self, what), -1 * (what in ("origin", "target"))
            if ((values < least) | (values >= end)).any():
                raise InputError(f"a schedule's {what} holds a value outside {least} to {end - 1}")
        if len(self.step) and (int(self.step[0]) < 0 or bool((self.step[1:] < self.step[:-1]).any())):
            raise InputError("a schedule's steps must start at 0 or later and never decrease")
        if int(self.channel.min(initial=0)) < 0:
            raise InputError("a schedule's channels must not be negative")
        # In 64 bits: the differences of 32-bit numbers may not fit into 32.
        start = self.route_start.astype(np.int64)
        if len(start) < 1 or start[0] != 0 or start[-1] != len(self.route_links) or bool((np.diff(start) < 0).any()):
            raise InputError("a schedule's route_start must rise from 0 to the number of route_links")

    @property
    def chunks(self) -> int:
        return len(self.share_num)

    @property
    def sends(self) -> int:
        return len(self.chunk)

    @property
    def steps(self) -> int:
        """The number of steps: one more than the last step, 0 for an empty schedule."""
        return int(self.step[-1]) + 1 if self.sends else 0

    @cached_property
    def rank_of(self) -> Ints32:
        """Rank of each device, -1 for devices without one."""
        ranks = np.arange(self.topology.ranks, dtype=np.int32)
        return scattered(self.topology.member_places, ranks, len(self.topology.devices), np.int32(-1))

    @cached_property
    def device_of(self) -> Ints32:
        """Device index of each rank."""
        return self.topology.member_places.astype(np.int32)

    @cached_property
    def turns(self) -> Ints:
        """The sends of a forest in the order in which ports serve what is ready at once: by step, then by chunk.

        Where every rank is a root, all children of a root would send to it together, and then all of the
        next. So in every step the device after each root sends before the one after that. A switch that adds
        needs all at once.
        """
        summed = (self.op == REDUCE) & np.array([device.holds for device in self.topology.devices])[self.dst]
        distance = (self.src - self.dst) % len(self.topology.devices)
        child = np.where(summed & (not self.collective.rooted), distance, 0)
        # Numbers of few bits are sorted several times as fast.
        keys = (key.astype(np.min_scalar_type(key.max(initial=0))) for key in (self.chunk, child, self.step))
        return np.lexsort([*keys])

    @cached_property
    def token_class(self) -> Ints:
        """Of a dispatch or combine, the number of each chunk in `Routing.classes`; -1 for tokens that it has not."""
        ends = self.origin.astype(np.int64), self.target.astype(np.int64)
        return self.collective.routed.classes.number(*ends[:: 1 if self.collective.starts == OWN else -1])

    @property
    def does(self) -> str:
        """What it does, in words: its collective, or that of every group beside those of the others."""
        return names([*map(str, self.groups)], " beside ", 4) or str(self.collective)

    def sized(self, size: int | float | str | None) -> int:
        """Bytes of a size; without one, those that it was made for: of its groups, traffic matrix or routing.

        Raises `InputError` for no whole, positive number of bytes, and without one where any size will do.
        """
        if size is None:
            size = self.collective.data.size if self.collective.data else self.size
        if size is None:
            raise InputError("the schedule is for vectors of any size; give one, such as 64MiB")
        return size_of(size)

    def alone(self, number: int) -> Schedule:
        """The schedule of one of its groups by itself, on the links of all.

        Raises `InputError` as `Schedule` does, and for shares of groups that do not add up to 1.
        """
        one, topology, parts = self.groups[number], self.topology, [other.share for other in self.groups]
        begin, end = (sum(parts[:stop], Fraction(0)) * self.share_den for stop in (number, number + 1))
        if sum(parts) != 1 or end.denominator > 1 or sum(self.share_num.tolist()) != self.share_den:
            raise InputError("the shares of a schedule's groups, and those of its chunks, must add up to 1")
        if strangers := {*one.members} - {*topology.members}:
            raise InputError(f"the schedule's machine has no member {min(strangers)}, which a group names")
        first, last = np.searchsorted(np.cumsum(self.share_num), [int(begin), int(end)], "right")
        can = frozenset(("forward", "multicast", "reduce") if one.relays_reduce else ("forward",))
        able = [replace(d, can=can) if d.name in one.relays and d.holds else d for d in topology.devices]
        part = replace(topology, devices=tuple(able), members=one.members, relays=one.relays, symmetries=())
        mine = (self.chunk >= first) & (self.chunk < last)
        per_chunk = "share_num", "origin", "target"
        own: dict[str, Any] = {name: getattr(self, name)[first:last] for name in per_chunk}
        own |= {name: getattr(self, name)[mine] for name in PER_SEND}
        own |= {"chunk": own["chunk"] - np.int32(first), "share_den": int(end - begin)}
        return replace(self, topology=part, collective=one.collective, bound={}, groups=(), size=None, **own)

    def share(self, chunk: int) -> Fraction:
        """The exact share of one chunk."""
        return Fraction(int(self.share_num[chunk]), self.share_den)

    def links_of(self, route: int) -> list[int]:
        """The links of a route, as indices into topology.links."""
        return [int(link) for link in self.route_links[self.route_start[route] : self.route_start[route + 1]]]

    def chunks_by_link(self) -> dict[str, set[int]]:
        """The chunks that each link of the machine carries, by the link's name; none for an idle link."""
        sends = zip(self.chunk.tolist(), self.route.tolist(), strict=True)
        found = grouped((link, chunk) for chunk, route in sends for link in self.links_of(route))
        return {link.name: {*found.get(number, ())} for number, link in enumerate(self.topology.links)}

    def rows(self) -> list[dict[str, Any]]:
        """One row per send."""
        names, links = ([one.name for one in ones] for ones in (self.topology.devices, self.topology.links))
        shares = [str(self.share(chunk)) for chunk in range(self.chunks)]
        over = [", ".join(links[k] for k in self.links_of(route)) for route in range(len(self.route_start) - 1)]
        columns: dict[str, Any] = {"step": self.step.tolist(), "src": [names[k] for k in self.src]}
        columns |= {"dst": [names[k] for k in self.dst], "op": [("copy", "reduce")[op] for op in self.op]}
        columns |= {"chunk": self.chunk.tolist(), "share": [shares[chunk] for chunk in self.chunk]}
        columns |= {"channel": self.channel.tolist(), "links": [over[route] for route in self.route]}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def parts(self) -> str:
        """The parts that the data is cut into, in words: ``6 trees``, ``1 path``, ``8 chunks``.

        What goes from one rank to another only takes a path; what stays where it is takes none and is not
        counted.
        """
        if self.form != "forest":
            return count(self.chunks, "chunk")
        return count(len(distinct(self.chunk)), "path" if self.collective.personalized else "tree")

    def claim(self, key: str) -> Fraction | None:
        """A fraction stated by the bound (``rate_exact`` in GB/s, ``gap_exact``); None if there is none.

        Raises `InputError` if it is no fraction.
        """
        text = self.bound.get(key)
        with blamed_on(f"the bound's {key}"):
            return None if text is None else parse_exact(text)

    def with_bound(self, bound: Mapping[str, Any]) -> Schedule:
        """The same schedule, carrying a bound and its certificate."""
        return replace(self, bound=dict(bound))

    def __repr__(self) -> str:
        what = f"{self.algorithm}: {self.does} on {self.topology.name}, {self.topology.ranks} ranks"
        steps = f"{count(self.sends, 'send')} in {count(self.steps, 'step')} ({self.form} form)"
        ways = len(self.route_start) - 1, int(self.channel.max(initial=0)) + 1
        routes, channels = map(count, ways, ("route", "channel"))
        return f"<Schedule {what}\n  {count(self.chunks, 'chunk')}, {steps}, {routes}, {channels}>"


class Builder:
    """Collects chunks and sends, and makes a `Schedule` of them.

    Sends may be added in any order; they are sorted by step, keeping the order of addition within one.
    """

    def __init__(self, topology: Topology, collective: Collective, algorithm: str, form: str) -> None:
        self.topology, self.collective, self.algorithm, self.form = topology, collective, algorithm, form
        # Of chunks, which begin at an origin and end at a target.
        self._shares, self._ends = list[Fraction](), list[tuple[int, int]]()
        self._columns: list[list[Ints32]] = [[] for _ in range(7)]
        self._routes: dict[tuple[int, ...], int] = {}
        # All routes in the order of their numbers: how many links each has, and these.
        self._route_parts, self._numbered = [(np.zeros(0, dtype=np.int64),) * 2], 0

    def add_chunk(self, share: Fraction | int | str, origin: int = -1, target: int = -1) -> int:
        """A chunk with a share of the size, exact: ``Fraction(1, 8)``, ``1`` or ``"1/8"``; returns its number.

        origin, target: the rank that it starts from or must end at, where the collective gives every rank a
        part of its own (`blinksim.collective.Collective.labels` says where); -1 where it does not.
        """
        if not isinstance(share, Fraction):
            said = f"{share!r:.60} is not an exact share; give text such as '1/3' or '0.3', or a Fraction"
            with blamed_on(lambda _: InputError(said), (TypeError, ValueError, ZeroDivisionError)):
                share = Fraction("" if isinstance(share, float) else share)
        self._shares.append(share)
        self._ends.append((origin, target))
        return len(self._shares) - 1

    def add_routes(self, routes: Iterable[Sequence[int]]) -> list[int]:
        """The numbers of several routes, each over these links (indices into topology.links)."""
        known, found, lengths, links = self._routes, list[int](), list[int](), list[int]()
        for route in routes:
            key = tuple(route)
            number = known.setdefault(key, self._numbered + len(lengths))
            if number == self._numbered + len(lengths):
                lengths.append(len(key))
                links += key
            found.append(number)
        if lengths:
            self.add_new_routes(np.cumsum([0, *lengths]), np.array(links, dtype=np.int64))
        return found

    def add_new_routes(self, start: Ints, links: Ints) -> Ints:
        """The numbers of many routes of which none was added before: route r has links[start[r]:start[r + 1]]."""
        self._route_parts.append((np.diff(start), links))
        self._numbered += len(start) - 1
        return np.arange(self._numbered - len(start) + 1, self._numbered)

    def add_sends(
        self, *, chunk: Like, src: Like, dst: Like, op: Like, step: Like, route: Like, channel: Like = 0
    ) -> None:
        """Sends, as numbers or arrays that broadcast against each other. src and dst are device indices."""
        given = (chunk, src, dst, op, step, route, channel)
        shape = np.broadcast(*given).shape
        for column, values in zip(self._columns, given, strict=True):
            column.append(np.full(shape, values, dtype=np.int32).ravel())

    def finish(self) -> Schedule:
        """The schedule; raises `InputError` if the arrays do not fit, `InfeasibleError` for too fine shares."""
        if (den := lcm(*(share.denominator for share in self._shares))) > MOST_DENOMINATOR:
            raise InfeasibleError(f"{self.algorithm}: shares need the common denominator {den}, more than 2^40")
        lengths, links = map(np.concatenate, zip(*self._route_parts, strict=True))
        what = self.topology, self.collective, self.algorithm, self.form
        shares = np.array([share.numerator * (den // share.denominator) for share in self._shares], dtype=np.int64), den
        sends = [np.concatenate(column) if column else np.zeros(0, np.int32) for column in self._columns]
        start = np.concatenate([[0], np.cumsum(lengths)])
        ends = np.array(self._ends, dtype=np.int64).reshape(-1, 2)
        return of_sends(what, shares, [*ends.T], sends, (start, links))


Arrays = Sequence[npt.NDArray[Any]]


def of_sends(
    what: tuple[Topology, Collective, str, str], shares: tuple[Ints, int], ends: Arrays, sends: Arrays, routes: Arrays
) -> Schedule:
    """The schedule of sends in any order; those of a step keep the order that they have here.

    what: topology, collective, algorithm and form. shares: numerators and their denominator. ends: origin and
    target. sends: chunk, src, dst, op, step, route and channel. routes: their start and links.
    """
    order = np.argsort(sends[4], kind="stable")
    chunk, src, dst, op, step, route, channel = (column[order].astype(np.int32) for column in sends)
    origin, target, start, links = (column.astype(np.int32) for column in (*ends, *routes))
    ops = op.astype(np.uint8)
    return Schedule(*what, *shares, origin, target, chunk, src, dst, ops, step, route, channel, start, links)


class HasSchedule(Protocol):
    """What comes with a schedule, such as a `Synthesis`."""

    @property
    def schedule(self) -> Schedule: ...


ScheduleLike = Schedule | HasSchedule
"""A schedule as public functions take it: itself, or what `synthesize` returns."""


def as_schedule(thing: ScheduleLike) -> Schedule:
    """A schedule as it is, or the one that comes with a synthesis.

    Raises `InputError` for anything else.
    """
    schedule = thing if isinstance(thing, Schedule) else getattr(thing, "schedule", None)
    if isinstance(schedule, Schedule):
        return schedule
    if isinstance(thing, (str, os.PathLike)):
        name = os.fspath(thing)
        raise InputError(f"{name!r:.80} is the name of a schedule; read it first: blinksim.read_schedule({name!r:.80})")
    raise InputError(f"a {type(thing).__name__} is not a schedule; give what synthesize or read_schedule returns")


def rebase(schedule: Schedule, topology: Topology) -> Schedule | tuple[str, ...]:
    """`schedule` on `topology`, or what is missing there, in sentences that name the device or link and the sends.

    `topology` may have more devices and links than the schedule uses. The schedule's members and relays stay
    what they are, with what its relays can do. Links are found by their ends and class; their bandwidths,
    latencies and buses are those of `topology`. A bound that comes with the schedule is kept only if nothing
    has changed: its figures are those of its machine.
    """
    old = schedule.topology
    number = {link.key: position for position, link in enumerate(topology.links)}
    links = np.array([number.get(link.key, -1) for link in old.links], dtype=np.int32)
    devices = np.array([topology.index.get(device.name, -1) for device in old.devices], dtype=np.int32)
    missing = list[str]()
    relays = np.array([old.index[name] for name in old.relays], dtype=np.int64)
    needed = distinct(np.concatenate([schedule.src, schedule.dst, old.member_places, relays]))
    for position in needed[devices[needed] < 0]:
        name, rank = old.devices[position].name, int(schedule.rank_of[position])
        sends = np.flatnonzero((schedule.src == position) | (schedule.dst == position))
        what = f"{name} (rank {rank})" if rank >= 0 else name
        missing.append(f"{what} is not part of {topology.name}{_users(sends)}")
    for name in old.members:
        if name in topology.index and not topology.device(name).holds:
            missing.append(f"{name} is a {topology.device(name).kind} in {topology.name} and cannot hold a rank")
    start = schedule.route_start
    owner = np.repeat(np.arange(len(start) - 1), np.diff(start))
    for position in np.flatnonzero(links < 0):
        sends = np.flatnonzero(np.isin(schedule.route, owner[schedule.route_links == position]))
        if len(sends):
            missing.append(f"the link {old.links[position].name} is not part of {topology.name}{_users(sends)}")
    if missing:
        return tuple(missing)
    able = [replace(d, can=old.device(d.name).can) if d.name in old.relays else d for d in topology.devices]
    machine = replace(topology, devices=tuple(able), members=old.members, relays=old.relays, symmetries=())
    # Unused routes may name links that are gone.
    used = distinct(schedule.route)
    lengths, (_, kept) = np.diff(start)[used], expand(start, schedule.route_links, used)
    moved: dict[str, Any] = {"src": devices[schedule.src], "dst": devices[schedule.dst]}
    moved["route"] = np.searchsorted(used, schedule.route).astype(np.int32)
    moved["route_start"] = np.cumsum(np.append(0, lengths)).astype(np.int32)
    moved["route_links"] = links[kept]
    same = (machine.devices, machine.links) == (old.devices, old.links)
    return replace(schedule, topology=machine, bound=schedule.bound if same else {}, **moved)


def side_by_side(
    schedules: Sequence[Schedule], parts: Sequence[Fraction], machine: Topology, size: int | None = None
) -> Schedule:
    """Schedules of groups that share a machine as one (`Schedule.groups`).

    parts: of the size of all, what each group has of it. size: that of all, if it is known. Raises
    `InputError` if the machine lacks a link or device of theirs, or if no common denominator of their shares
    has 62 bits.
    """
    den = lcm(*(s.share_den * part.denominator for s, part in zip(schedules, parts, strict=True)))
    if den >> 62:
        raise InputError("the sizes of these groups have no common measure; give rounder ones")
    columns = {name: [np.zeros(1 if name == "route_start" else 0, dtype=kind)] for name, kind in ARRAYS.items()}
    before, groups = dict.fromkeys(("chunk", "channel", "route"), 0), list[Tenant]()
    for schedule, part in zip(schedules, parts, strict=True):
        if isinstance(placed := rebase(schedule, machine), tuple):
            raise InputError("; ".join(placed))
        there, relays = placed.topology, placed.topology.relays
        reduces = any(machine.device(name).holds and "reduce" in there.device(name).can for name in relays)
        groups.append(Tenant(there.members, relays, reduces, schedule.collective, part))
        own = {name: getattr(placed, name) + before.get(name, 0) for name in ARRAYS}
        own["share_num"] = placed.share_num * int(part * den / placed.share_den)
        own["route_start"] = placed.route_start[1:] + len(np.concatenate(columns["route_links"]))
        for name, values in own.items():
            columns[name].append(values)
        ends = (placed.chunks, int(placed.channel.max(initial=0)) + 1, len(placed.route_start) - 1)
        before = {name: before[name] + count for name, count in zip(before, ends, strict=True)}
    whole: dict[str, Any] = {name: np.concatenate(values).astype(ARRAYS[name]) for name, values in columns.items()}
    order = np.argsort(whole["step"], kind="stable")
    whole |= {name: whole[name][order] for name in PER_SEND}
    first, how = schedules[0], ", ".join(dict.fromkeys(schedule.algorithm for schedule in schedules))
    whole |= {"share_den": den, "groups": tuple(groups), "size": size}
    return Schedule(machine, first.collective, how, first.form, **whole)


def _users(sends: Ints) -> str:
    if not len(sends):
        return ""
    listed = ", ".join(f"send {number}" for number in sends[:3]) + (", …" if len(sends) > 3 else "")
    return f"; {count(len(sends), 'send')} need{'s' * (len(sends) == 1)} it ({listed})"


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
    ends = scattered(np.append(schedule.src, schedule.dst), True, len(topology.devices), False)
    # Of thousands of devices, most are members, which are GPUs and tiles.
    ends[topology.member_places] = False
    return {end for end in np.flatnonzero(ends).tolist() if topology.devices[end].in_network}


def abilities_used(schedule: Schedule) -> frozenset[str]:
    """What the schedule has switches do, of `blinksim.topology.elements.BRANCHING`."""
    devices, working = schedule.topology.devices, switches(schedule)
    if not working:
        return frozenset()
    sorts = [_READS if devices[device].reads else _IN_FLIGHT for device in working]
    sort = scattered([*working], sorts, len(devices), np.int8(0))
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
    if names := sorted(schedule.topology.devices[device].name for device in switches(schedule)):
        what = " and ".join(words for ability, words in BRANCHING.items() if ability in abilities_used(schedule))
        more = f" and {len(names) - 1} more switches" if len(names) > 1 else ""
        raise InfeasibleError(f"{schedule.algorithm} has {names[0]}{more} {what or 'carry data on'}; {why}")


def _readers(schedule: Schedule) -> list[int]:
    """The switches between which data goes that reduce into readers."""
    return [device for device in switches(schedule) if schedule.topology.devices[device].reads]


class Events:
    """The sends from and to some devices (E), chunk by chunk and device by device, in the order of steps.

    Of one step, what leaves was there before, and what arrives comes after it. start (P + 1): where a run of
    arrivals or of departures begins. away, owner, switch (P): which of the two it is, its chunk and device as
    one number, and the device.
    """

    def __init__(self, schedule: Schedule, devices: Sequence[int]) -> None:
        count = len(schedule.topology.devices)
        out, into = (np.flatnonzero(np.isin(ends, devices)) for ends in (schedule.src, schedule.dst))
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
    events = Events(schedule, _readers(schedule))
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


def sends_by_chunk(schedule: Schedule) -> tuple[Ints, Ints]:
    """The sends of every chunk in their order: where those of each begin, and all.

    Without those that give a switch that reduces into readers a copy once more, for a further reader. They
    count as loads, and bring no other data than the first of them.
    """
    into = np.flatnonzero(np.isin(schedule.dst, _readers(schedule)) & (schedule.op == REDUCE))
    columns = (schedule.chunk, schedule.src, schedule.dst, schedule.step)
    new = scattered(into, False, schedule.sends, True)
    if len(into):
        _, first = np.unique(np.stack([column[into] for column in columns]), axis=1, return_index=True)
        new[into[first]] = True
    send = np.flatnonzero(new)
    starts, order = compressed(schedule.chunk[send], schedule.chunks)
    return starts, send[order]


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
        events = Events(schedule, _readers(schedule))
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
