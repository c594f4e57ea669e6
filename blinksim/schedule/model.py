"""Schedules: chunks of a collective's vector, and the sends that move them, as arrays.

The vector of a collective (its `size`, see `blinksim.collective`) is cut into chunks with exact shares. A
send moves one chunk from one device to another over a route of links, and either copies it or reduces it into
what the receiver has. Sends are ordered by step: the sends of a step read what was there when the step began.

Two forms. In *steps* form the steps run one after another. In *forest* form every chunk travels on a tree of
its own, and its steps only order dependent sends: the chunks can be cut into pieces that follow each other
(`blinksim.schedule.pipeline`), which turns a forest into steps.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from blinksim.collective import OWN, Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.graphs.arrays import Ints, Ints32, distinct, expand
from blinksim.results import Tabular
from blinksim.textio.text_table import count
from blinksim.topology.graph import Topology
from blinksim.units import parse_exact

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
        The rank that a chunk starts from, or must end at; -1 where that is every rank (or the root). The target
        of a dispatch, and the origin of a combine, is the number of a set of ranks in ``routing.classes.sets``.
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
        ranks = np.full(len(self.topology.devices), -1, dtype=np.int32)
        ranks[self.topology.member_places] = np.arange(self.topology.ranks, dtype=np.int32)
        return ranks

    @cached_property
    def device_of(self) -> Ints32:
        """Device index of each rank."""
        return self.topology.member_places.astype(np.int32)

    @cached_property
    def token_class(self) -> Ints:
        """Of a dispatch or combine, the number of each chunk in `Routing.classes`; -1 for tokens that it has not."""
        ends = self.origin.astype(np.int64), self.target.astype(np.int64)
        return self.collective.routed.classes.number(*ends[:: 1 if self.collective.starts == OWN else -1])

    def share(self, chunk: int) -> Fraction:
        """The exact share of one chunk."""
        return Fraction(int(self.share_num[chunk]), self.share_den)

    def links_of(self, route: int) -> list[int]:
        """The links of a route, as indices into topology.links."""
        return [int(link) for link in self.route_links[self.route_start[route] : self.route_start[route + 1]]]

    def chunks_by_link(self) -> dict[str, set[int]]:
        """The chunks that each link of the machine carries, by the link's name; none for an idle link."""
        found: list[set[int]] = [set() for _ in self.topology.links]
        for chunk, route in {*zip(self.chunk.tolist(), self.route.tolist(), strict=True)}:
            for link in self.links_of(route):
                found[link].add(chunk)
        return {link.name: chunks for link, chunks in zip(self.topology.links, found, strict=True)}

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
        try:
            return None if text is None else parse_exact(text)
        except InputError as error:
            raise InputError(f"the bound's {key}: {error}") from None

    def with_bound(self, bound: Mapping[str, Any]) -> Schedule:
        """The same schedule, carrying a bound and its certificate."""
        return replace(self, bound=dict(bound))

    def __repr__(self) -> str:
        what = f"{self.algorithm}: {self.collective} on {self.topology.name}, {self.topology.ranks} ranks"
        steps = f"{count(self.sends, 'send')} in {count(self.steps, 'step')} ({self.form} form)"
        ways = len(self.route_start) - 1, int(self.channel.max(initial=0)) + 1
        routes, channels = map(count, ways, ("route", "channel"))
        return f"<Schedule {what}\n  {count(self.chunks, 'chunk')}, {steps}, {routes}, {channels}>"


def _within(what: str, values: npt.NDArray[Any], end: int, least: int = 0) -> None:
    if len(values) and not (int(values.min()) >= least and int(values.max()) < end):
        raise InputError(f"a schedule's {what} holds a value outside {least} to {end - 1}")


class Builder:
    """Collects chunks and sends, and makes a `Schedule` of them.

    Sends may be added in any order; they are sorted by step, keeping the order of addition within one.
    """

    def __init__(self, topology: Topology, collective: Collective, algorithm: str, form: str) -> None:
        self.topology, self.collective, self.algorithm, self.form = topology, collective, algorithm, form
        self._shares: list[Fraction] = []
        self._origin: list[int] = []
        self._target: list[int] = []
        self._columns: list[list[Ints32]] = [[] for _ in range(7)]
        self._routes: dict[tuple[int, ...], int] = {}
        # All routes in the order of their numbers: how many links each has, and these.
        self._route_lengths: list[Ints | list[int]] = []
        self._route_links: list[Ints | list[int]] = []
        self._numbered = 0

    def add_chunk(self, share: Fraction | int | str, origin: int = -1, target: int = -1) -> int:
        """A chunk with a share of the size, exact: ``Fraction(1, 8)``, ``1`` or ``"1/8"``; returns its number.

        origin, target: the rank that it starts from or must end at, where the collective gives every rank a
        part of its own (`blinksim.collective.Collective.labels` says where); -1 where it does not.
        """
        if isinstance(share, float):
            raise InputError(f"a share of {share} is not exact; give Fraction(1, 3), or text such as '1/3'")
        try:
            self._shares.append(Fraction(share))
        except (TypeError, ValueError, ZeroDivisionError):
            raise InputError(f"{share!r:.60} is not a share; give Fraction(1, 3), or text such as '1/3'") from None
        self._origin.append(origin)
        self._target.append(target)
        return len(self._shares) - 1

    def add_route(self, links: Sequence[int]) -> int:
        """The number of the route over these links (indices into topology.links)."""
        return self.add_routes((links,))[0]

    def add_routes(self, routes: Iterable[Sequence[int]]) -> list[int]:
        """The numbers of several routes."""
        known, found, lengths, links = self._routes, list[int](), list[int](), list[int]()
        for route in routes:
            key = tuple(route)
            number = known.setdefault(key, self._numbered + len(lengths))
            if number == self._numbered + len(lengths):
                lengths.append(len(key))
                links += key
            found.append(number)
        self._numbered += len(lengths)
        for parts, more in ((self._route_lengths, lengths), (self._route_links, links)):
            if parts and isinstance(parts[-1], list):
                parts[-1] += more
            else:
                parts.append(more)
        return found

    def add_new_routes(self, start: Ints, links: Ints) -> Ints:
        """The numbers of many routes of which none was added before: route r has links[start[r]:start[r + 1]]."""
        self._route_lengths.append(np.diff(start))
        self._route_links.append(links)
        self._numbered += len(start) - 1
        return np.arange(self._numbered - len(start) + 1, self._numbered)

    def add_sends(
        self, *, chunk: Like, src: Like, dst: Like, op: Like, step: Like, route: Like, channel: Like = 0
    ) -> None:
        """Sends, as numbers or arrays that broadcast against each other. src and dst are device indices."""
        given = (chunk, src, dst, op, step, route, channel)
        arrays = np.broadcast_arrays(*(np.asarray(a, dtype=np.int32) for a in given))
        for column, array in zip(self._columns, arrays, strict=True):
            column.append(array.ravel())

    def finish(self) -> Schedule:
        """The schedule; raises `InputError` if the arrays do not fit, `InfeasibleError` for too fine shares."""
        if (den := lcm(*(share.denominator for share in self._shares))) > MOST_DENOMINATOR:
            raise InfeasibleError(f"{self.algorithm}: shares need the common denominator {den}, more than 2^40")
        none, routes = np.zeros(0, dtype=np.int64), (self._route_lengths, self._route_links)
        lengths, links = (np.concatenate([none, *parts]) for parts in routes)
        what = self.topology, self.collective, self.algorithm, self.form
        shares = np.array([int(share * den) for share in self._shares], dtype=np.int64), den
        sends = [np.concatenate(column) if column else np.zeros(0, np.int32) for column in self._columns]
        start = np.concatenate([[0], np.cumsum(lengths)])
        return of_sends(what, shares, (np.array(self._origin), np.array(self._target)), sends, (start, links))


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
    was = old.device
    able = [replace(d, can=was(d.name).can) if d.name in old.relays else d for d in topology.devices]
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


def side_by_side(schedules: Sequence[Schedule], parts: Sequence[Fraction], machine: Topology) -> Schedule:
    """Schedules of groups that share a machine as one, which can be simulated but is no collective to verify.

    parts: of the size of all, what each group has of it. Raises `InputError` if the machine lacks a link or
    device of theirs, or if no common denominator of their shares has 62 bits.
    """
    den = lcm(*(s.share_den * part.denominator for s, part in zip(schedules, parts, strict=True)))
    if den >> 62:
        raise InputError("the sizes of these groups have no common measure; give rounder ones")
    columns = {name: [np.zeros(1 if name == "route_start" else 0, dtype=kind)] for name, kind in ARRAYS.items()}
    before = dict.fromkeys(("chunk", "channel", "route"), 0)
    for schedule, part in zip(schedules, parts, strict=True):
        if isinstance(placed := rebase(schedule, machine), tuple):
            raise InputError("; ".join(placed))
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
    first = schedules[0]
    return Schedule(machine, first.collective, "side by side", first.form, share_den=den, **whole)


def _users(sends: Ints) -> str:
    if not len(sends):
        return ""
    listed = ", ".join(map(str, sends[:3])) + (", …" if len(sends) > 3 else "")
    return f"; {count(len(sends), 'send')} need{'s' * (len(sends) == 1)} it ({listed})"
