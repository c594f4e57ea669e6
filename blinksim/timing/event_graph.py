"""Event graph of a schedule: what each send occupies, in which order, what waits for what, and for how long.

A send passes one stage after another: the capacity of the device it leaves, the link (or bus), the capacity
of the device it enters, and so on along its route, and at the end the receiver's reducer if it is reduced
there. Every stage is served by a resource that passes pieces one by one, so stages and waits are all that an
evaluator needs; once the order at every resource is known, their times obey max-plus linear equations
(Baccelli, Cohen, Olsder, Quadrat, "Synchronization and linearity", 1992, chapter 2).

A send waits for everything that earlier steps brought to its chunk at its source, from the last copy on, but
not for room at the receiver. In a schedule of steps, the chunks that one connection carries in one step are
one message: it starts when all its chunks are there, pays the overhead once, and has arrived when all of it
has; unless the executor sends each of them as a message of its own.

Times are whole ticks of a unit that divides every transfer time. Sums and maxima of whole numbers do not
depend on their order; in floating point two simultaneous arrivals would differ in the last digit, and
evaluators would serve them in different orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import lcm
from typing import Any

import numpy as np

from blinksim.errors import InputError
from blinksim.graphs.arrays import Bools, Floats, Ints, by_place, compressed, distinct, expand, fronts
from blinksim.schedule.loads import Resources, resources, sums_formed
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.schedule.verify_contents import connections
from blinksim.timing.simulation_options import Options

# Times stay below this, so that sums of two fit in 63 bits.
_MOST_TICKS = 2**60
# Fewer arrivals or readers than this are joined pairwise; from here on a joint saves waits.
_JOINT_FROM = 3


@dataclass(frozen=True, eq=False)
class EventGraph:
    """Stages of one piece of everything, E of them, joints last.

    resource (E): what is occupied; a joint has one of its own. timeless (E): joints, which collect arrivals,
    occupy nothing and take no time. before, after: stage after[i] waits for before[i].
    """

    resource: Ints
    timeless: Bools
    before: Ints
    after: Ints

    @property
    def count(self) -> int:
        return len(self.resource)

    @cached_property
    def fan_in(self) -> Ints:
        """How many waits lead to each stage."""
        return np.bincount(self.after, minlength=self.count)

    @cached_property
    def level(self) -> Ints:
        """Most waits in a row that lead to each stage."""
        level, seen = np.zeros(self.count, dtype=np.int64), 0
        for depth, front in enumerate(fronts(self.before, self.after, self.count)):
            level[front] = depth
            seen += len(front)
        assert seen == self.count, "steps order the waits, so they cannot form a circle"
        return level

    @cached_property
    def by_level(self) -> list[Ints]:
        """The waits, those of each level of `after` together."""
        limits, order = compressed(self.level[self.after], int(self.level.max(initial=0)) + 1)
        return [order[first:end] for first, end in pairwise(limits.tolist())]

    @cached_property
    def followers(self) -> list[tuple[int, ...]]:
        """For each stage the stages that wait for it, in order."""
        order = np.lexsort((self.after, self.before))
        starts = np.searchsorted(self.before[order], np.arange(self.count + 1)).tolist()
        after = self.after[order].tolist()
        return [tuple(after[first:end]) for first, end in pairwise(starts)]


@dataclass(frozen=True, eq=False)
class ScheduleGraph(EventGraph):
    """Event graph of one piece of every chunk of a schedule, in the order of sends, of trees by chunk.

    shared: the resources that are numbered first; one reducer for each device follows. send (E): index of the
    send, -1 for joints. share (E): numerator of the share of the size, over schedule.share_den; 0 for joints.
    latency, overhead (E): seconds. cut (E): True if the next stage of the send may begin before this one has
    passed the whole piece.
    """

    schedule: Schedule
    shared: Resources
    send: Ints
    share: Ints
    latency: Floats
    overhead: Floats
    cut: Bools

    @cached_property
    def transfers(self) -> tuple[list[tuple[Fraction | None, int]], Ints]:
        """The distinct pairs (rate, share) of real stages, and which each has; a reducer has the rate None."""
        number, different = self.shared.classes
        kind = np.append(number, np.full(len(self.schedule.topology.devices), len(different)))
        rates = (*different, None)
        real, modulus = ~self.timeless, int(self.share.max(initial=0)) + 1
        pairs, where = np.unique(kind[self.resource[real]] * modulus + self.share[real], return_inverse=True)
        return [(rates[pair // modulus], pair % modulus) for pair in pairs.tolist()], where

    @cached_property
    def delays(self) -> list[tuple[Floats, Ints]]:
        """The distinct latencies, and which of them each stage has; the same of overheads."""
        return [np.unique(seconds, return_inverse=True) for seconds in (self.latency, self.overhead)]

    def resource_kind(self, resource: int) -> str:
        """The link class, or what else it is."""
        return self.shared.kinds[resource] if resource < len(self.shared.kinds) else "reduction"

    def resource_name(self, resource: int) -> str:
        """``gpu0->gpu1 (nvlink)``, ``bus …``, ``out of …``, or ``reduction at …``."""
        first, devices = len(self.shared.rate), self.schedule.topology.devices
        if resource < first:
            return self.shared.name(resource)
        return f"reduction at {devices[resource - first].name}" if resource < first + len(devices) else "a joint"


def event_graph(schedule: Schedule, options: Options = Options()) -> ScheduleGraph:  # noqa: B008 - frozen
    """The event graph of a schedule; of `options` it depends on switching and messages, and on gamma if that is 0.

    Raises `InputError` for sends without a route.
    """
    if schedule.sends and bool((np.diff(schedule.route_start)[schedule.route] == 0).any()):
        raise InputError(f"{schedule.algorithm}: a send has a route without links; blinksim verify names it")
    shared, links = resources(schedule.topology), schedule.topology.links
    devices = schedule.topology.devices
    # Who sends several messages in a step begins with the first that the schedule has.
    order = schedule.turns if schedule.form == "forest" else np.arange(schedule.sends)
    place = np.argsort(order)

    # One row for each resource along the route of every send. position: of the send in `order`.
    hop, link = expand(schedule.route_start, schedule.route_links, schedule.route[order])
    # Data pass the capacity of the device that they leave before the link or bus, which is listed first.
    limited = np.array([device.capacity is not None for device in devices])[schedule.topology.link_columns.src]
    passed, leaving = shared.members.astype(np.int64), shared.starts[:-1][limited]
    passed[leaving], passed[leaving + 1] = passed[leaving + 1], passed[leaving]
    own = np.isin(np.arange(len(passed)), shared.starts[:-1] + limited)
    at, entry = expand(shared.starts, np.arange(len(passed), dtype=np.int64), link)
    position, resource = hop[at], passed[entry]
    crossing = np.where(own[entry], np.asarray(link, dtype=np.int64)[at], -1)
    ends_link = _first(at[::-1])[::-1]
    # A stage more, which crosses no link (-1), behind the sends whose switch adds, or whose receiver reduces.
    added, adder = sums_formed(schedule, shared)
    reducing = np.flatnonzero((schedule.op[order] == REDUCE) & (options.gamma > 0))
    reducer = len(shared.rate) + schedule.dst[order[reducing]].astype(np.int64)
    position = np.concatenate((position, place[added], reducing))
    sort, further = np.argsort(position, kind="stable"), np.full(len(added) + len(reducing), -1)
    position, resource = position[sort], np.concatenate((resource, adder.astype(np.int64), reducer))[sort]
    crossing, ends_link = np.append(crossing, further)[sort], np.append(ends_link, further < 0)[sort]

    count, send, begins = len(resource), order[position], _first(position)
    follows = np.append(~begins[1:], np.zeros(min(count, 1), dtype=np.bool_))
    # What arrives at a reducer has arrived whole.
    into_reducer = np.append(resource[1:] >= len(shared.rate), np.zeros(min(count, 1), dtype=np.bool_))
    cut = follows & (~ends_link | (options.switching == "cut-through")) & ~into_reducer
    at_link = np.flatnonzero(crossing >= 0)
    first_link = at_link[_first(position[at_link])]
    latency, overhead = np.zeros(count), np.zeros(count)
    latency[at_link] = np.array([x.latency for x in links])[crossing[at_link]]
    overhead[first_link] = np.array([x.overhead for x in links])[crossing[first_link]]

    head, tail = np.empty(schedule.sends, dtype=np.int64), np.empty(schedule.sends, dtype=np.int64)
    head[send[begins]] = np.flatnonzero(begins)
    tail[send[~follows]] = np.flatnonzero(~follows)
    message, later = _messages(schedule, order, options)
    overhead[head[later]] = 0.0
    before, after, joints = _waits(schedule, head, tail, message, count)
    inside, timeless = np.flatnonzero(follows), np.arange(count + joints) >= count
    waits = np.concatenate((inside, before)), np.concatenate((inside + 1, after))
    used = np.concatenate((resource, len(shared.rate) + len(devices) + np.arange(joints)))
    sent, share = np.append(send, np.full(joints, -1)), schedule.share_num[schedule.chunk[send]]
    # Joints have none of these.
    each: tuple[Any, ...] = share, latency, overhead, cut
    figures = (np.append(column, np.zeros_like(column, shape=joints)) for column in each)
    return ScheduleGraph(used, timeless, *waits, schedule, shared, sent, *figures)


def _first(group: Ints) -> Bools:
    """True where an entry of sorted group numbers is the first of its group."""
    return np.asarray(np.diff(group, prepend=-1) != 0)


def _messages(schedule: Schedule, order: Ints, options: Options) -> tuple[Ints, Ints]:
    """The number of the message of each send, -1 where it is a message of its own; and the sends behind their first."""
    message = np.full(schedule.sends, -1, dtype=np.int64)
    if options.sent(schedule.form) == "single" or not schedule.sends:
        return message, np.zeros(0, dtype=np.int64)
    connection = connections(schedule)
    key = schedule.step.astype(np.int64) * (int(connection.max()) + 1) + connection
    _, where, counts = np.unique(key, return_inverse=True, return_counts=True)
    several = counts > 1
    message[several[where]] = (np.cumsum(several) - 1)[where][several[where]]
    ordered = order[message[order] >= 0]
    _, first = np.unique(message[ordered], return_index=True)
    return message, np.delete(ordered, first)


def _waits(schedule: Schedule, head: Ints, tail: Ints, message: Ints, stages: int) -> tuple[Ints, Ints, int]:
    """(before, after) of all waits between sends, by their first and last stages, and how many joints they need.

    message (sends): the number of the message of each send, -1 for one of its own. Joints get numbers from
    `stages`.

    The events at a place (a chunk at a device), in the order of steps and with the reads of a step before its
    writes,
    form runs of writes and runs of reads. A run of writes that is read afterwards is a version of the place::

        write write | read | write read | read          time ->
        version 0          | version 1

    The readers of a version wait for its writes, and for the version before it unless the writes replace that
    with a copy. Joints save waits and collect messages, whose sends start together and arrive together.
    """
    nothing = np.zeros(0, dtype=np.int64)
    if not schedule.sends:
        return nothing, nothing, 0
    devices, steps = len(schedule.topology.devices), schedule.steps
    chunk, step = schedule.chunk.astype(np.int64) * devices, schedule.step.astype(np.int64)
    reads, writes = (chunk + schedule.src) * steps + step, (chunk + schedule.dst) * steps + step
    event = np.concatenate((2 * reads, 2 * writes + 1))
    order = np.argsort(event, kind="stable")
    write, place, send = event[order] % 2 == 1, event[order] // (2 * steps), order % schedule.sends
    begins = np.append(True, (place[1:] != place[:-1]) | (write[1:] != write[:-1]))
    run, start = np.cumsum(begins) - 1, np.flatnonzero(begins)
    run_place, run_write = place[start], write[start]
    length = np.diff(np.append(start, len(run)))
    # Runs of writes with a run of reads behind them at the same place.
    version_run = np.flatnonzero((run_place[1:] == run_place[:-1]) & ~run_write[1:] & run_write[:-1])
    if not len(version_run):
        return nothing, nothing, 0
    copies = np.bincount(run[write & (schedule.op[send] == COPY)], minlength=len(start))
    # adds: the version also needs the one before it. joint: a joint collects its writes.
    adds = np.zeros(len(version_run), dtype=np.bool_)
    adds[1:] = (run_place[version_run[1:]] == run_place[version_run[:-1]]) & (copies[version_run[1:]] == 0)
    joint = (length[version_run] + adds >= _JOINT_FROM) & (length[version_run + 1] >= _JOINT_FROM)
    # What a version adds to is one thing to wait for.
    joint[:-1] |= adds[1:]
    number = np.full(len(start), -1, dtype=np.int64)
    number[version_run] = number[version_run + 1] = np.arange(len(version_run))
    version = number[run]
    # Write k is of send writer[k] and belongs to version written[k]; reader and read say the same of reads.
    writer, written = send[write & (version >= 0)], version[write & (version >= 0)]
    reader, read = send[~write & (version >= 0)], version[~write & (version >= 0)]

    messages = int(message.max()) + 1
    collected, gate = stages + message, stages + messages + message
    arrival, entry = np.where(message >= 0, collected, tail), np.where(message >= 0, gate, head)
    joint_of = stages + 2 * messages + np.cumsum(joint) - 1
    sent, wanted = (
        np.flatnonzero(np.isin(message, distinct(message[some])) & (message >= 0)) for some in (writer, reader)
    )
    loose = np.flatnonzero(~joint[read])
    starts = np.searchsorted(written, np.arange(len(joint) + 1)).astype(np.int32)
    pair, loose_arrival = expand(starts, arrival[writer].astype(np.int32), read[loose].astype(np.int32))
    into, out, chained, past = joint[written], joint[read], np.flatnonzero(adds & joint), (adds & ~joint)[read]
    table = [
        # A message has arrived when all of its sends have, if anything reads what it writes.
        (tail[sent], collected[sent]),
        # Its sends start together, if it waits for anything.
        (gate[wanted], head[wanted]),
        # Without a joint every read of a version waits for every write of it.
        (loose_arrival.astype(np.int64), entry[reader][loose][pair]),
        # With a joint the writes come together there, and the reads wait for the joint alone.
        (arrival[writer[into]], joint_of[written[into]]),
        (joint_of[read[out]], entry[reader[out]]),
        # A version that adds to the one before it waits for that; if it has no joint, its reads do.
        (joint_of[chained - 1], joint_of[chained]),
        (joint_of[read[past] - 1], entry[reader[past]]),
    ]
    before, after = (np.concatenate(column).astype(np.int64) for column in zip(*table, strict=True))
    # A message that waits for nothing, or is not waited for, needs no joint there: number those that are
    # used.
    used = np.arange(stages + 2 * messages + int(joint.sum())) < stages
    used[before] = used[after] = True
    numbers = np.cumsum(used) - 1
    return numbers[before], numbers[after], int(used.sum()) - stages


# --- times ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Work:
    """Event graph with times, all in ticks.

    hold (E): for how long a piece occupies each stage's resource. lag (E): from its start until what waits
    for it may start (the next stage, or whoever needs the delivered piece). release (E): when the stages that
    wait for nothing may start. ticks_per_second: the unit, exact.
    """

    graph: EventGraph
    hold: Ints
    lag: Ints
    release: Ints
    ticks_per_second: Fraction

    @property
    def count(self) -> int:
        return self.graph.count

    @cached_property
    def load(self) -> Ints:
        """Ticks that one piece of everything occupies each resource."""
        return by_place(np.add, self.graph.resource, self.hold, int(self.graph.resource.max(initial=-1)) + 1)

    @cached_property
    def head(self) -> Ints:
        """The longest path to each stage: when it could start without contention."""
        reached, before, after = self.release.copy(), self.graph.before, self.graph.after
        for now in self.graph.by_level:
            np.maximum.at(reached, after[now], reached[before[now]] + self.lag[before[now]])
        return reached

    @cached_property
    def tail(self) -> Ints:
        """The longest path from the start of each stage to the end, its own lag included."""
        left, before, after = self.lag.copy(), self.graph.before, self.graph.after
        for now in reversed(self.graph.by_level):
            np.maximum.at(left, before[now], left[after[now]] + self.lag[before[now]])
        return left

    @cached_property
    def critical(self) -> int:
        """Ticks of the longest path of one piece; no order of service ends earlier."""
        return int((self.head + self.lag).max(initial=0))

    @cached_property
    def busiest(self) -> int:
        """Ticks that a piece of everything occupies the busiest resource: the least growth of the time per piece."""
        return int(self.load.max(initial=0))

    def seconds(self, ticks: int) -> float:
        return float(ticks / self.ticks_per_second)


@dataclass(frozen=True, eq=False)
class Run:
    """The result of an evaluator, in ticks.

    finish: when the last piece is delivered. start (pieces, E): when each stage began, if recorded, -1 for
    joints. settled: True if more pieces certainly add no more than the busiest resource's load each. engine:
    ``closed-form``, ``waves`` or ``heap``, by which it was found. pieces: how many it ran before the affine
    tail took over (0: none).
    """

    finish: int
    start: Ints | None = None
    settled: bool = False
    engine: str = ""
    pieces: int = 0


def timed(graph: ScheduleGraph, size: int, pieces: int, options: Options) -> Work:
    """The work of one piece when every chunk of a collective of `size` bytes is cut into `pieces`."""
    transfers = transfer_times(graph, size, pieces, options)
    unit = unit_of(transfers, options.launch + longest(graph, transfers, pieces, options.service != "fifo"))
    return in_ticks(graph, transfers, unit, Fraction(options.launch))


def transfer_times(graph: ScheduleGraph, size: int, pieces: int, options: Options) -> list[Fraction]:
    """Seconds that a piece takes at each of `ScheduleGraph.transfers`, exact."""
    per_second = 1 / Fraction(options.gamma).limit_denominator(10**30) if options.gamma else Fraction(1)
    factor = Fraction(size, graph.schedule.share_den * pieces)
    return [
        share * factor / (per_second if rate is None else rate * options.efficiency)
        for rate, share in graph.transfers[0]
    ]


def longest(graph: ScheduleGraph, transfers: Sequence[Fraction], pieces: int, given: bool = False) -> float:
    """Seconds that no run exceeds.

    First come, first served, a chain of waits alternates between busy resources and stages on their way. In a `given`
    order of service resources also stand idle for what is next; all stages one after another take longest.
    """
    hold = np.array([float(x) for x in transfers])[graph.transfers[1]] if len(transfers) else np.zeros(0)
    if given:
        return pieces * float(hold.sum() + (graph.latency + graph.overhead).sum())
    real = ~graph.timeless
    load = np.bincount(graph.resource[real], hold + graph.overhead[real]).max(initial=0.0)
    lag = float((graph.latency + graph.overhead).max(initial=0.0)) + hold.max(initial=0.0)
    return (int(graph.level.max(initial=0)) + 1) * (float(load) * pieces + float(lag))


def unit_of(transfers: Iterable[Fraction], most_s: float) -> Fraction:
    """Ticks per second: a multiple of all denominators if there is room, as fine as 60 bits allow for `most_s`."""
    room = Fraction(_MOST_TICKS) / max(Fraction(most_s), Fraction(1, 10**9))
    common = 1
    for fraction in set(transfers):
        common = lcm(common, fraction.denominator)
        if common > room:
            return Fraction(1 << (room.__floor__().bit_length() - 1)) if room >= 1 else room
    return Fraction(common << ((room / common).__floor__().bit_length() - 1))


def in_ticks(graph: ScheduleGraph, transfers: Sequence[Fraction], unit: Fraction, release: Fraction) -> Work:
    """The work of one piece, in ticks of 1 / `unit` seconds; release: seconds before anything starts."""
    transfer = np.zeros(graph.count, dtype=np.int64)
    # Rounded up where the unit does not divide it: never quicker than the link.
    transfer[~graph.timeless] = np.array([-((-x * unit) // 1) for x in transfers], dtype=np.int64)[graph.transfers[1]]
    # Half a tick does not matter here, but equal latencies must stay equal.
    latency, overhead = (
        np.array([round(Fraction(x) * unit) for x in seconds.tolist()], dtype=np.int64)[which]
        for seconds, which in graph.delays
    )
    passed = np.where(graph.cut, np.maximum(transfer - np.append(transfer[1:], 0), 0), transfer)
    start = np.full(graph.count, int(release * unit), dtype=np.int64)
    return Work(graph, transfer + overhead, overhead + latency + passed, start, unit)
