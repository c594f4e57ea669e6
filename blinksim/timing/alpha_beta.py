"""Alpha-beta(-gamma) time of a schedule on its own links: loads and depth to seconds.

A message over a route costs alpha, the route's latencies plus the sender's overhead, and beta per byte
(Hockney's model; Thakur et al., IJHPCA 2005, section 3). Concurrent sends share the links, buses and device
capacities that their routes cross. In steps form a step takes as long as its slowest resource, and steps on
other resources overlap in pieces (`blinksim.timing.pipelines.paced`). A forest is a pipeline: its busiest
resource passes all of its load, and one piece follows the longest path to or from there.

Messages that start on the same link start one after the other: each further one, and each further piece, adds
its overhead, while the latency passes meanwhile (LogP: Culler et al., PPoPP 1993). Without overheads a rank
could send to all others at once through one port, and times would fall below the lower bounds of
`blinksim.bounds.time`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from blinksim.graphs.arrays import expand
from blinksim.schedule.loads import Resources, RouteUses, Spread, chunk_parts, one_way, resources, whole_loads
from blinksim.schedule.model import REDUCE, Schedule
from blinksim.schedule.pipeline import best_pieces
from blinksim.textio.text_table import count as counted
from blinksim.timing.pipelines import FURTHER, Paths, Step, paced
from blinksim.timing.terms import Term

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]


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


_known: WeakKeyDictionary[Schedule, dict[tuple[int, float, Spread | None, bool], Cost]] = WeakKeyDictionary()


def cost(
    schedule: Schedule, size: int, gamma: float = 0.0, spread: Spread | None = None, *, whole_messages: bool = False
) -> Cost:
    """The alpha-beta time of `schedule` for `size` bytes; gamma is seconds per byte that a rank reduces.

    spread: the ways that sends are divided among (`blinksim.schedule.loads`); the time is that of the divided schedule.
    whole_messages: True if messages of steps are not cut into pieces, so that no step begins before the one before it
    is over, as textbooks add them up. What is asked again of the same schedule is not worked out again.
    """
    known = _known.setdefault(schedule, {})
    key = size, gamma, spread, whole_messages
    if key not in known:
        known[key] = _cost(schedule, size, gamma, spread, whole_messages)
    return known[key]


def _cost(schedule: Schedule, size: int, gamma: float, spread: Spread | None, whole_messages: bool) -> Cost:
    if not schedule.sends:
        return Cost((Term("nothing to send", 0.0),), "nothing", 0.0, 0)
    ways, shared = spread or one_way(schedule), resources(schedule.topology)
    seconds, occupied, count = size / shared.rates, RouteUses.of(ways, shared), len(shared.names)
    carried, whole = whole_loads(schedule, ways, shared, occupied)
    busy = np.array([value / whole for value in carried]) * seconds
    worst = int(np.argmax(busy))
    kind, alphas, starts = shared.kinds[worst], route_alphas(schedule, ways), Starts.of(schedule, ways, shared)
    if schedule.form == "steps":
        kinds, numbers = step_kinds(schedule, ways)
        channels = int(schedule.channel.max(initial=0)) + 1
        steps, crossing = [], _crossing(occupied, seconds, alphas)
        for used, share, messages in kinds:
            load, alpha = crossing(used, share)
            each, longest = starts.occupied(used, count, messages), starts.one(used, count)
            steps.append(Step.of(load, alpha, each, longest, channels))
        # The steps, and how often each follows itself.
        changes = np.flatnonzero(np.diff(numbers, prepend=-1))
        times = np.diff(changes, append=len(numbers)).tolist()
        runs = [(steps[number], many) for number, many in zip(numbers[changes].tolist(), times, strict=True)]
        drain = Term(f"bandwidth of {kind}", float(busy[worst]), kind)
        terms, pieces = paced(runs, shared.kinds, drain, schedule.steps, whole_messages)
        terms += _reductions(schedule, gamma * size) if gamma else ()
    else:
        # Every tree sends messages of its own, as a simulation and a program of the schedule do.
        used, messages = np.unique(schedule.route, return_counts=True)
        each, longest = starts.occupied(used, count, messages), starts.one(used, count)
        share, reduces = _shares(schedule), schedule.op == REDUCE
        reduced = np.bincount(schedule.dst[reduces], share[reduces]).max(initial=0.0)
        behind, waits = in_turn(schedule, ways, shared, seconds)
        transfer = slowest(occupied, seconds)[schedule.route] * share + behind
        work = Work(alphas[schedule.route], transfer, waits, busy, each, longest)
        terms, pieces = pipelined(schedule, work, kind, gamma * size * float(reduced))
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
        return cls(ways.first, shared.of_link[first], overhead)

    def occupied(self, routes: Ints, resources: int, times: Counts | None = None) -> Floats:
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


def _shares(schedule: Schedule) -> Floats:
    return (schedule.share_num / schedule.share_den)[schedule.chunk]


def _reductions(schedule: Schedule, gamma: float) -> tuple[Term, ...]:
    """What the rank takes in every step that reduces most in it; gamma: seconds for the whole size."""
    reduces = schedule.op == REDUCE
    # Steps without a send, of which a file may have any number, take no time.
    used, step = np.unique(schedule.step, return_inverse=True)
    devices = len(schedule.topology.devices)
    key = step.astype(np.int64) * devices + schedule.dst
    found, where = np.unique(key[reduces], return_inverse=True)
    if not len(found):
        return ()
    reduced = np.zeros(len(used))
    amounts = np.bincount(where, _shares(schedule)[reduces]) * gamma
    np.maximum.at(reduced, found // devices, amounts)
    return (Term("reduction", float(reduced.sum()), "gamma"),)


def step_kinds(schedule: Schedule, spread: Spread | None = None) -> tuple[list[tuple[Ints, Floats, Counts]], Counts]:
    """The steps that differ, and the kind of every step: the routes that one uses, the share of the size on each, and
    the messages on each of its ways, one for every channel and part that a chunk is divided into.

    The steps of a ring differ in their chunks only, so there are few kinds of many steps.
    """
    bounds = np.append(np.flatnonzero(np.diff(schedule.step, prepend=-1)), schedule.sends)
    share, kinds, numbers = _shares(schedule), dict[tuple[bytes, bytes, bytes], int](), []
    found: list[tuple[Ints, Floats, Counts]] = []
    channels = int(schedule.channel.max(initial=0)) + 1
    parts = None
    if spread is not None:
        parts = chunk_parts(schedule, spread)[schedule.chunk] // spread.count[schedule.route]
    for first, end in pairwise(bounds.tolist()):
        used, where = np.unique(schedule.route[first:end], return_inverse=True)
        carried = np.asarray(np.bincount(where, share[first:end]), dtype=np.float64)
        messages = np.ones(len(used), dtype=np.int64)
        if channels > 1 or parts is not None:
            apart, one = np.unique(where * channels + schedule.channel[first:end], return_index=True)
            each = None if parts is None else parts[first:end][one]
            messages = np.bincount(apart // channels, each, len(used)).astype(np.int64)
        number = kinds.setdefault((used.tobytes(), carried.tobytes(), messages.tobytes()), len(found))
        if number == len(found):
            found.append((used, carried, messages))
        numbers.append(number)
    return found, np.array(numbers, dtype=np.int64)


def busiest(
    kinds: list[tuple[Ints, Floats, Counts]], occupied: RouteUses, seconds: Floats, starts: Starts, alphas: Floats
) -> list[tuple[int, float, float]]:
    """For each kind of step the resource that is busy longest, how long with bytes, and the alpha of what crosses it.

    seconds: of the size, by resource. starts: where messages start; what a route carries in a step is one message, and
    all others that start there add their overheads. alphas: of each route.
    """
    found, crossing = [], _crossing(occupied, seconds, alphas)
    for used, carried, _ in kinds:
        load, alpha = crossing(used, carried)
        alpha += starts.occupied(used, len(load)) - starts.one(used, len(load))
        both = load + alpha
        worst = len(load) - 1 - int(np.argmax(both[::-1]))
        found.append((worst, float(load[worst]), float(alpha[worst])))
    return found


def _crossing(occupied: RouteUses, seconds: Floats, alphas: Floats) -> Callable[[Ints, Floats], tuple[Floats, Floats]]:
    """Of the routes that a step uses, with the shares of the size that they carry: seconds of bytes on each resource,
    and the alpha of the slowest message across it."""
    weight = occupied.times / occupied.count[occupied.route]
    entries, start = np.arange(len(weight), dtype=np.int32), occupied.start.astype(np.int32)

    def of(used: Ints, carried: Floats) -> tuple[Floats, Floats]:
        place, entry = expand(start, entries, used)
        crossed = occupied.resource[entry]
        load = np.bincount(crossed, carried[place] * weight[entry], len(seconds)) * seconds
        alpha = np.zeros(len(seconds))
        np.maximum.at(alpha, crossed, alphas[used][place])
        return load, alpha

    return of


def slowest(occupied: RouteUses, seconds: Floats) -> Floats:
    """Seconds of the whole size on the slowest resource of every route."""
    found = np.zeros(len(occupied.count))
    part = occupied.times / occupied.count[occupied.route]
    np.maximum.at(found, occupied.route, seconds[occupied.resource] * part)
    return found


def in_turn(schedule: Schedule, ways: Spread, shared: Resources, seconds: Floats) -> tuple[Floats, Floats]:
    """Seconds that a send waits for others of its chunk that begin on the same link, or end there to be reduced.

    The bytes of the whole chunk that pass before, and the overheads of one piece of each. A binary tree, for example,
    takes two messages for each level (Pjesivac-Grbovic et al., Cluster Computing 2007).
    """
    way = ways.first[:-1]
    first, last = ways.links[ways.start[way]], ways.links[ways.start[way + 1] - 1]
    reduces = schedule.op == REDUCE
    link = np.where(reduces, last[schedule.route], first[schedule.route])
    resource = shared.of_link[link].astype(np.int64)
    key = (schedule.chunk.astype(np.int64) * len(seconds) + resource) * 2 + reduces
    order = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.diff(key[order], prepend=-1))
    place = np.empty(len(key), dtype=np.int64)
    place[order] = np.arange(len(key)) - np.repeat(begins, np.diff(begins, append=len(key)))
    part = _shares(schedule) / ways.count[schedule.route]
    overhead = np.where(reduces, 0.0, schedule.topology.link_columns.overhead[link])
    return place * part * seconds[resource], np.asarray(place * overhead)


@dataclass(frozen=True, slots=True)
class Work:
    """What a forest has its machine do, in seconds.

    alphas, transfer: of every send, the latter of its whole chunk on the slowest resource of its route, behind what its
    sender sends before it. waits: of every send, the overheads of those. busy: of every resource, for the size. each,
    longest: of every resource, the overheads of one piece of every chunk, and the longest of them.
    """

    alphas: Floats
    transfer: Floats
    waits: Floats
    busy: Floats
    each: Floats
    longest: Floats


def pipelined(schedule: Schedule, work: Work, kind: str, reduction: float) -> tuple[tuple[Term, ...], int]:
    """The terms of a forest, in as many pieces as are best, and how many these are.

    kind: of the busiest resource. reduction: seconds of the rank that reduces most.
    """
    alphas, transfer, busy, each, longest = work.alphas, work.transfer, work.busy, work.each, work.longest
    drain, piece = float(busy.max()), float(each.max())
    covered, moved, waited = _covered(busy, each, longest), float(transfer.sum()), float(work.waits.sum())

    # The longest path depends on the number of pieces, and that on the longest path; a few rounds settle it.
    best: tuple[float, int, float, float, float] | None = None
    paths = Paths(schedule, alphas, transfer, work.waits)
    tried, wanted = set[int](), {1}
    while wanted - tried:
        for count in sorted(wanted - tried):
            tried.add(count)
            lag, tail = paths.longest(count)
            further = float((busy + count * each - longest).max()) - drain
            time = lag + further + tail / count
            # Of the tail, the part that gets shorter with more pieces.
            by_bytes = tail * moved / (moved + count * waited) if moved else 0.0
            wanted |= {*best_pieces(by_bytes, piece, lag + drain), *covered}
            if best is None or time < best[0]:
                best = (time, count, lag, tail, further)
    assert best is not None
    _, count, lag, tail, further = best
    first = "first piece" if count == 1 else f"first of {count} pieces"
    terms = [
        Term(f"latency of {counted(schedule.steps, 'hop')}", lag, "alpha"),
        *([Term(FURTHER, further, "alpha")] if further > 0 else []),
        Term(f"{first} on its way", tail / count, kind),
        Term(f"bandwidth of {kind}", drain, kind),
    ]
    if reduction:
        terms.append(Term("reduction", reduction, "gamma"))
    return tuple(terms), count


def _covered(busy: Floats, each: Floats, longest: Floats) -> tuple[int, ...]:
    """The most pieces whose overheads fit in while the busiest resource passes its bytes; none if not even one."""
    sends = each > 0
    room = (float(busy.max()) - busy[sends] + longest[sends]) / each[sends]
    most = int(min(65536.0, room.min(initial=65536.0)))
    return (most, min(65536, most + 1)) if most and len(room) else ()
