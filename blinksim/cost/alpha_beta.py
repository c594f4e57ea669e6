"""Alpha-beta(-gamma) time of a schedule on its own links: loads and depth to seconds.

A message over a route costs alpha, the route's latencies plus the sender's overhead, and beta per byte (Hockney's
model; Thakur et al., IJHPCA 2005, section 3). Sends that run together share the links, buses and device capacities
that their routes cross: in steps form a step takes its largest alpha plus its busiest resource; a forest is a
pipeline: its busiest resource passes all of its load, one piece follows the longest path to or from there, and every
further piece adds an alpha.

Messages that start on the same link start one after the other: each further one adds its overhead. Without that, a rank
could send to all others at once through one port, and times would fall below what any schedule takes
(`blinksim.bounds.time`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from blinksim.cost.terms import Term
from blinksim.schedule.loads import Resources, resources
from blinksim.schedule.model import REDUCE, Schedule
from blinksim.schedule.pipeline import best_pieces
from blinksim.schedule.ways import RouteUses, Spread, one_way, whole_loads
from blinksim.structures.arrays import expand
from blinksim.textio.text_table import count as counted

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
# Step, place of the sender, place of the receiver, alpha and transfer.
Hop = tuple[int, int, int, float, float]
FURTHER = "overhead of further messages"
# Places (a chunk on a device) per send from which on those that are passed are numbered.
_SPARSE = 16
# Steps from which on few sends in each, fewer than these on average, are followed one by one.
_LONG, _FEW = 500, 8


@dataclass(frozen=True, slots=True)
class Cost:
    """What a schedule takes for one size.

    terms: in seconds, they add up to the time. bottleneck: the resource that is busy longest. busy: the share of the
    time that it is. steps: dependent sends on the longest path. pieces: how many each chunk is cut into.
    """

    terms: tuple[Term, ...]
    bottleneck: str
    busy: float
    steps: int
    pieces: int = 1

    @property
    def time_s(self) -> float:
        return sum(term.time_s for term in self.terms)


_known: WeakKeyDictionary[Schedule, dict[tuple[int, float, Spread | None], Cost]] = WeakKeyDictionary()


def cost(schedule: Schedule, size: int, gamma: float = 0.0, spread: Spread | None = None) -> Cost:
    """The alpha-beta time of `schedule` for `size` bytes; gamma is seconds per byte that a rank reduces.

    spread: the ways that sends are divided among (`blinksim.schedule.ways`); the time is that of the divided schedule.
    What is asked again of the same schedule is not worked out again.
    """
    known = _known.setdefault(schedule, {})
    key = size, gamma, spread
    if key not in known:
        known[key] = _cost(schedule, size, gamma, spread)
    return known[key]


def _cost(schedule: Schedule, size: int, gamma: float, spread: Spread | None) -> Cost:
    if not schedule.sends:
        return Cost((Term("nothing to send", 0.0),), "nothing", 0.0, 0)
    ways = spread or one_way(schedule)
    shared = resources(schedule.topology)
    seconds = size / shared.rates
    occupied = RouteUses.of(ways, shared)
    carried, whole = whole_loads(schedule, ways, shared, occupied)
    busy = np.array([value / whole for value in carried]) * seconds
    alphas = route_alphas(schedule, ways)[schedule.route]
    starts = Starts.of(schedule, ways, shared)
    if schedule.form == "steps":
        terms, pieces = _in_steps(schedule, alphas, occupied, shared, seconds, gamma * size, starts), 1
    else:
        further = _messages(schedule, starts, len(shared.names))
        terms, pieces = _pipelined(schedule, alphas, occupied, shared, seconds, busy, gamma * size, further)
    worst = int(np.argmax(busy))
    time = sum(term.time_s for term in terms)
    return Cost(terms, shared.names[worst], float(busy[worst] / time), schedule.steps, pieces)


def route_alphas(schedule: Schedule, spread: Spread | None = None, scale: Floats | float = 1.0) -> Floats:
    """Seconds of alpha of each route: all latencies on its slowest way, and the overhead of that way's first link.

    scale: a factor on both, of each link.
    """
    ways, columns = spread or one_way(schedule), schedule.topology.link_columns
    latency, overhead = columns.latency * scale, columns.overhead * scale
    first = ways.start[:-1]
    way = np.add.reduceat(latency[ways.links], first) + overhead[ways.links[first]]
    return np.asarray(np.maximum.reduceat(way, ways.first[:-1]))


@dataclass(frozen=True, eq=False)
class Starts:
    """Where messages start: the first link of every way. start (R + 1): the ways of a route; resource, overhead (W)."""

    start: Ints
    resource: Ints
    overhead: Floats

    @classmethod
    def of(cls, schedule: Schedule, ways: Spread, shared: Resources) -> Starts:
        """What the messages on every route of a schedule occupy, besides their bytes."""
        first = ways.links[ways.start[:-1]]
        overhead = schedule.topology.link_columns.overhead[first]
        # The link, or its bus, is the first of the resources that it uses.
        return cls(ways.first, shared.members[shared.starts[first]], overhead)

    def occupied(self, routes: Ints, resources: int, times: npt.NDArray[np.int64] | None = None) -> Floats:
        """Seconds of overhead on each resource for a message on each of `routes`, or for `times` of them."""
        place, way = expand(self.start, np.arange(len(self.resource), dtype=np.int32), routes)
        weight = self.overhead[way] if times is None else self.overhead[way] * times[place]
        return np.asarray(np.bincount(self.resource[way], weight, resources))

    def one(self, routes: Ints, resources: int) -> Floats:
        """The longest overhead of a message on each resource, of those on `routes`."""
        _, way = expand(self.start, np.arange(len(self.resource), dtype=np.int32), routes)
        longest = np.zeros(resources)
        np.maximum.at(longest, self.resource[way], self.overhead[way])
        return longest


def _messages(schedule: Schedule, starts: Starts, resources: int) -> tuple[Floats, Floats]:
    """Seconds of overhead on each resource for one piece of every chunk, and of the longest of these.

    Every tree sends messages of its own, as a simulation and a program of the schedule do.
    """
    used, times = np.unique(schedule.route, return_counts=True)
    return starts.occupied(used.astype(np.int32), resources, times), starts.one(used.astype(np.int32), resources)


def _shares(schedule: Schedule) -> Floats:
    return (schedule.share_num / schedule.share_den)[schedule.chunk]


def _in_steps(
    schedule: Schedule,
    alphas: Floats,
    occupied: RouteUses,
    shared: Resources,
    seconds: Floats,
    gamma: float,
    starts: Starts,
) -> tuple[Term, ...]:
    share = _shares(schedule)
    # Steps without a send, of which a file may have any number, take no time.
    used, step = np.unique(schedule.step, return_inverse=True)
    alpha = np.zeros(len(used))
    np.maximum.at(alpha, step, alphas)
    by_kind: dict[str, float] = {}
    kinds, numbers = step_kinds(schedule)
    longest = busiest(kinds, occupied, seconds, starts)
    further = 0.0
    for worst, time, more in (longest[number] for number in numbers.tolist()):
        by_kind[shared.kinds[worst]] = by_kind.get(shared.kinds[worst], 0.0) + time
        further += more
    terms = [Term(f"latency of {counted(schedule.steps, 'step')}", float(alpha.sum()), "alpha")]
    terms += [Term(FURTHER, further, "alpha")] if further else []
    terms += [Term(f"bandwidth of {kind}", time, kind) for kind, time in by_kind.items()]
    reduced = np.zeros(len(used))
    key = step.astype(np.int64) * len(schedule.topology.devices) + schedule.dst
    found, where = np.unique(key[schedule.op == REDUCE], return_inverse=True)
    if gamma and len(found):
        amounts = np.bincount(where, share[schedule.op == REDUCE]) * gamma
        np.maximum.at(reduced, found // len(schedule.topology.devices), amounts)
        terms.append(Term("reduction", float(reduced.sum()), "gamma"))
    return tuple(terms)


def step_kinds(schedule: Schedule) -> tuple[list[tuple[Ints, Floats]], npt.NDArray[np.int64]]:
    """The steps that differ: the routes that one uses and the share of the size on each; and the kind of every step.

    The steps of a ring differ in their chunks only, so there are few kinds of many steps.
    """
    bounds = np.append(np.flatnonzero(np.diff(schedule.step, prepend=-1)), schedule.sends)
    share, kinds, numbers = _shares(schedule), dict[tuple[bytes, bytes], int](), []
    found: list[tuple[Ints, Floats]] = []
    for first, end in pairwise(bounds.tolist()):
        used, where = np.unique(schedule.route[first:end], return_inverse=True)
        carried = np.asarray(np.bincount(where, share[first:end]), dtype=np.float64)
        number = kinds.setdefault((used.tobytes(), carried.tobytes()), len(found))
        if number == len(found):
            found.append((used, carried))
        numbers.append(number)
    return found, np.array(numbers, dtype=np.int64)


def busiest(
    kinds: list[tuple[Ints, Floats]], occupied: RouteUses, seconds: Floats, starts: Starts | None = None
) -> list[tuple[int, float, float]]:
    """For each kind of step the resource that is busy longest, how long with bytes, and how long with overheads.

    seconds: of the size, by resource. starts: where messages start; the overhead of one of them, on each resource, is
    part of the step's alpha. Without it, bytes alone count.
    """
    weight = occupied.times / occupied.count[occupied.route]
    numbers = np.arange(len(weight), dtype=np.int32)
    start = occupied.start.astype(np.int32)
    found = []
    for used, carried in kinds:
        place, entry = expand(start, numbers, used)
        load = np.bincount(occupied.resource[entry], carried[place] * weight[entry], len(seconds)) * seconds
        more = np.zeros(len(load))
        if starts is not None:
            more = starts.occupied(used, len(load)) - starts.one(used, len(load))
        both = load + more
        worst = len(load) - 1 - int(np.argmax(both[::-1]))
        found.append((worst, float(load[worst]), float(more[worst])))
    return found


def _pipelined(
    schedule: Schedule,
    alphas: Floats,
    occupied: RouteUses,
    shared: Resources,
    seconds: Floats,
    busy: Floats,
    gamma: float,
    messages: tuple[Floats, Floats],
) -> tuple[tuple[Term, ...], int]:
    share = _shares(schedule)
    reduced = np.bincount(schedule.dst[schedule.op == REDUCE], share[schedule.op == REDUCE])
    work = Work(alphas, slowest(occupied, seconds)[schedule.route] * share, busy, *messages)
    return pipelined(schedule, work, shared.kinds[int(np.argmax(busy))], gamma * float(reduced.max(initial=0.0)))


def slowest(occupied: RouteUses, seconds: Floats) -> Floats:
    """Seconds of the whole size on the slowest resource of every route."""
    found = np.zeros(len(occupied.count))
    part = occupied.times / occupied.count[occupied.route]
    np.maximum.at(found, occupied.route, seconds[occupied.resource] * part)
    return found


@dataclass(frozen=True, slots=True)
class Work:
    """What a forest has its machine do, in seconds.

    alphas, transfer: of every send, the latter of its whole chunk on the slowest resource of its route. busy: of every
    resource, for the size. each, longest: of every resource, the overheads of one piece of every chunk, and the longest
    of them.
    """

    alphas: Floats
    transfer: Floats
    busy: Floats
    each: Floats
    longest: Floats


def pipelined(schedule: Schedule, work: Work, kind: str, reduction: float) -> tuple[tuple[Term, ...], int]:
    """The terms of a forest, in as many pieces as are best, and how many these are.

    kind: of the busiest resource. reduction: seconds of the rank that reduces most.
    """
    alphas, transfer, busy, each, longest = work.alphas, work.transfer, work.busy, work.each, work.longest
    drain, alpha = float(busy.max()), float(alphas.max())
    # What further pieces cost where one more of each tree passes.
    piece = max(alpha, float(each.max()))

    # The longest path depends on the number of pieces, and that on the longest path; a few rounds settle it.
    best: tuple[float, int, float, float, float] | None = None
    paths = _Paths(schedule, alphas, transfer)
    tried, wanted = set[int](), {1}
    while wanted - tried:
        for count in sorted(wanted - tried):
            tried.add(count)
            lag, tail = paths.longest(count)
            passing = float((busy + count * each - longest).max())
            further = max(0.0, passing - drain - (count - 1) * alpha)
            time = lag + (count - 1) * alpha + further + tail / count
            wanted |= {*best_pieces(tail, alpha), *best_pieces(tail, piece)}
            if best is None or time < best[0]:
                best = (time, count, lag, tail, further)
    assert best is not None
    _, count, lag, tail, further = best
    more = f" and {counted(count - 1, 'more piece')}" if count > 1 else ""
    terms = [
        Term(f"latency of {counted(schedule.steps, 'hop')}{more}", lag + (count - 1) * alpha, "alpha"),
        *([Term(FURTHER, further, "alpha")] if further else []),
        Term("first piece on its way", tail / count, kind),
        Term(f"bandwidth of {kind}", drain, kind),
    ]
    if reduction:
        terms.append(Term("reduction", reduction, "gamma"))
    return tuple(terms), count


class _Paths:
    """The hops of a forest, for the longest path at any number of pieces.

    source, target: places, each a chunk on a device, of every send. bounds: the first send of every step, and the end.
    """

    def __init__(self, schedule: Schedule, alphas: Floats, transfer: Floats) -> None:
        busy = np.zeros(len(schedule.topology.devices), dtype=bool)
        busy[schedule.src] = busy[schedule.dst] = True
        # Most devices of a large cluster, such as its NICs, hold no data: number those that do.
        number = np.cumsum(busy) - 1
        width = int(number[-1]) + 1
        self.alphas, self.transfer = alphas, transfer
        self.source = schedule.chunk.astype(np.int64) * width + number[schedule.src]
        self.target = schedule.chunk.astype(np.int64) * width + number[schedule.dst]
        self.places = schedule.chunks * width
        if self.places > _SPARSE * schedule.sends:
            # Most chunks of an alltoall pass a few devices only: number the places that are passed.
            passed, numbers = np.unique(np.concatenate((self.source, self.target)), return_inverse=True)
            self.places, self.source, self.target = len(passed), numbers[: schedule.sends], numbers[schedule.sends :]
        bounds = np.append(np.flatnonzero(np.diff(schedule.step, prepend=-1)), schedule.sends)
        self.bounds: list[int] = bounds.tolist()
        self.hops: list[Hop] = []
        if len(bounds) > _LONG and schedule.sends < _FEW * len(bounds):
            columns = schedule.step, self.source, self.target, alphas, transfer
            self.hops = list(zip(*(column.tolist() for column in columns), strict=True))

    def longest(self, pieces: int) -> tuple[float, float]:
        """The path that one piece of any chunk takes longest on.

        Returns the sum of its alphas, and the time of the whole chunk on all of its hops but the slowest (seconds).
        """
        if self.hops:
            return _longest_of_long(self.hops, self.places, pieces)
        times, lags, fills, slowest = (np.zeros(self.places) for _ in range(4))
        for first, end in pairwise(self.bounds):
            came, reached = self.source[first:end], self.target[first:end]
            lag = lags[came] + self.alphas[first:end]
            fill = fills[came] + self.transfer[first:end]
            peak = np.maximum(slowest[came], self.transfer[first:end])
            # Of several arrivals at one place the latest counts, and of equal ones the last.
            time, before = lag + fill / pieces, times[reached]
            np.maximum.at(times, reached, time)
            later = np.flatnonzero((time > before) & (time == times[reached]))
            there = reached[later]
            lags[there], fills[there], slowest[there] = lag[later], fill[later], peak[later]
        tails = fills - slowest
        latest = int(np.argmax(lags + tails / pieces))
        return float(lags[latest]), float(tails[latest])


def _longest_of_long(hops: Iterable[Hop], places: int, pieces: int) -> tuple[float, float]:
    """As `_Paths.longest`, hop by hop, for many steps with few sends in each, as those of a chain.

    hops: step, place of the sender, place of the receiver, alpha and transfer, by step.
    """
    here: list[tuple[float, float, float, float]] = [(0.0, 0.0, 0.0, 0.0)] * places
    arrived: dict[int, tuple[float, float, float, float]] = {}
    now = -1
    for step, came, reached, alpha, transfer in hops:
        if step != now:
            # Sends of a step read what was there when it began.
            _let_in(here, arrived)
            arrived, now = {}, step
        _, lag, fill, slowest = here[came]
        lag, fill = lag + alpha, fill + transfer
        time = lag + fill / pieces
        if reached not in arrived or time >= arrived[reached][0]:
            arrived[reached] = time, lag, fill, max(slowest, transfer)
    _let_in(here, arrived)
    tails = [(lag, fill - slowest) for _, lag, fill, slowest in here]
    return max(tails, key=lambda ends: ends[0] + ends[1] / pieces)


def _let_in(
    here: list[tuple[float, float, float, float]], arrived: Mapping[int, tuple[float, float, float, float]]
) -> None:
    """Keeps what arrived at a place where it is later than what was there."""
    for place, found in arrived.items():
        if found[0] > here[place][0]:
            here[place] = found
