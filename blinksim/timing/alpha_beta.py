"""Alpha-beta(-gamma) time of a schedule on its own links: loads and depth to seconds.

A message over a route costs alpha, the route's latencies plus the sender's overhead, and beta per byte
(Hockney's model; Thakur et al., IJHPCA 2005, section 3). Concurrent sends share the links, buses and device
capacities that their routes cross. Messages that start on the same link start one after the other: each
further one, and each further piece, adds its overhead, while the latency passes meanwhile (LogP: Culler et
al., PPoPP 1993). Without overheads a rank could send to all others at once through one port, and times would
fall below the lower bounds of `blinksim.bounds.time`.

**Steps.** A step takes as long as its slowest resource: the alpha of a message across it, its bytes, and the
overheads of further messages that start there. Cut into pieces, a step begins as soon as the first piece of
the step before it has arrived and its links are free, and ends a piece after that step at the earliest. Steps
that share their links, as those of a ring, gain nothing but latency; those on other links, such as NVLinks
inside nodes and adapters between them, overlap. So it is where a link first passes all pieces of one step (in
bursts). Where every send has one piece in line (in turns, as a simulation serves by default), the first piece
passes all steps, and the others follow at the pace of the busiest link. The shorter time counts.

**Forests** are pipelines of rounds. In a round every chunk sends one piece along its tree, and messages that
meet are served first come, first served; those that wait for more others in a row come later. The first round
takes until its last arrival, and the others follow as fast as the busiest resource passes them. A send of
step s moves piece p in step s + p, so a tree of height h with P pieces takes h + P - 1 steps (S. L. Johnsson
and C.-T. Ho, "Optimum broadcasting and personalized communication in hypercubes", 1989, section 3).

**Symmetric schedules.** All images of a chunk take as long as it does. What they occupy together follows from
orbits: an orbit of links is one resource with the bandwidth of all, and messages that start on any of them
are counted on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import pairwise
from math import inf
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from blinksim.graphs.arrays import Floats, Ints, Ints32, by_place, distinct, expand, per_topology
from blinksim.results import Term, count as counted
from blinksim.schedule import loads
from blinksim.schedule.candidate import Candidate, SymmetricSchedule
from blinksim.schedule.loads import Outline, Resources, Spread, StepLoads, resources
from blinksim.schedule.model import REDUCE, Schedule

Timed = Schedule | SymmetricSchedule | Outline | StepLoads

FURTHER = "overhead of further messages"
MOST_PIECES = 65_536
SAFE = 1 - 1e-9
"""Sums in another order may differ in their last digits."""
GAINS = 0.999
"""Less time than this share of another is a gain: more pieces are not looked for that save less."""


def climbed(time: Callable[[int], float], count: int, factor: float, most: int = MOST_PIECES) -> int:
    """The number of pieces from `count` on, times `factor` as often as that saves 0.1 % of the time."""
    while 1 <= (further := round(count * factor)) <= most and time(further) < time(count) * GAINS:
        count = further
    return count


@dataclass(frozen=True, slots=True)
class Cost:
    """The time of a schedule for one size.

    terms: in seconds, they add up to the time. bottleneck: the resource that is busy longest. busy: for which
    share of the time the busiest resource of every class is, by bytes and by the overheads of messages that
    start there; the largest first. starts: the bottleneck's share for overheads. steps: dependent sends on
    the longest path. pieces: how many each chunk is cut into.
    """

    terms: tuple[Term, ...]
    bottleneck: str
    busy: dict[str, float]
    starts: float
    steps: int
    pieces: int = 1

    @property
    def time_s(self) -> float:
        return sum(term.time_s for term in self.terms)


_clocks: WeakKeyDictionary[Timed, dict[Spread | None, _Forest | _Steps]] = WeakKeyDictionary()


def cost(given: Candidate | Timed, size: int, gamma: float = 0.0, *, whole_messages: bool = False) -> Cost:
    """The alpha-beta time of a schedule for `size` bytes; gamma is seconds per byte that a rank reduces.

    Of a candidate whose sends are divided among parallel routes, it is that of the divided schedule.
    whole_messages: True if messages of steps are not cut into pieces, so that no step begins before the one
    before it is over, as textbooks add them up. What is asked again is not worked out again.
    """
    clock, key = _clock(given), (size, gamma, whole_messages)
    if key not in clock.known:
        clock.known[key] = clock.cost(*key)
    return clock.known[key]


def takes_at_most(given: Candidate, size: int, most: float) -> bool:
    """Whether a schedule takes `most` seconds or less; what keeps its links busy for longer is not timed."""
    # The bytes on its links are far sooner known than the starts of its messages.
    busy_s = SAFE * size / float(given.rate or inf)
    return busy_s <= most and SAFE * _clock(given).least(size) <= most and cost(given, size).time_s <= most


def quickest(given: Iterable[Candidate], size: int) -> Candidate:
    """The first of those that take least time; what keeps its links busy for longer than that is not timed."""
    every, best = list(given), (inf, 0)
    busy_s = sorted((size / float(one.rate or inf), place) for place, one in enumerate(every) if every[1:])
    for _, place in busy_s:
        if takes_at_most(every[place], size, best[0]):
            best = min(best, (cost(every[place], size).time_s, place))
    return every[best[1]]


def _clock(given: Candidate | Timed) -> _Forest | _Steps:
    timed, spread = (given.timed, given.parallel) if isinstance(given, Candidate) else (given, None)
    clocks = _clocks.setdefault(timed, {})
    if spread not in clocks:
        piped = timed if isinstance(timed, Schedule | SymmetricSchedule) and timed.form == "forest" else None
        clocks[spread] = _Forest(piped, spread) if piped and piped.sends else _Steps(timed, spread)
    return clocks[spread]


@dataclass(frozen=True, eq=False)
class Starts:
    """First link of every path, where messages start. start (R + 1): the paths of each route.

    resource, overhead: of each path.
    """

    start: Ints32
    resource: Ints32
    overhead: Floats

    @classmethod
    def of(cls, schedule: Schedule, spread: Spread, shared: Resources) -> Starts:
        """Start overheads of the messages on every route of a schedule."""
        first = spread.links[spread.start[:-1]]
        return cls(spread.first, shared.of_link[first], schedule.topology.link_columns.overhead[first])

    def overheads(self, routes: Ints32, resources: int, times: Ints | None = None) -> tuple[Floats, Floats]:
        """Seconds of overhead on each resource for a message on each of `routes`, or for `times` of them.

        And the longest overhead of a single one there.
        """
        place, path = expand(self.start, np.arange(len(self.resource), dtype=np.int32), routes)
        resource, overhead = self.resource[path], self.overhead[path]
        longest = by_place(np.maximum, resource, overhead, resources)
        weight = overhead if times is None else overhead * times[place]
        return np.asarray(np.bincount(resource, weight, resources)), longest


def _shares(schedule: Schedule) -> Floats:
    return (schedule.share_num / schedule.share_den)[schedule.chunk]


# Strings are sorted slowly.
_sorts: Callable[[Resources], Any] = per_topology(lambda of: np.unique_inverse(np.array(of.kinds)))


# --- steps ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Step:
    """Work of one step on its resources, in seconds; arrays (K) over the resources that it uses.

    resource: their numbers. channels: into how many parts the messages fall that do not wait for each other
    if the step follows itself, such as rings. load: all bytes. alpha: of the slowest message across it. each:
    the overheads of one piece of all messages that start there. longest: the longest of these.
    """

    resource: Ints
    channels: int
    load: Floats
    alpha: Floats
    each: Floats
    longest: Floats

    def first(self, pieces: int) -> float:
        """Seconds until the first piece of everything has arrived."""
        return float((self.alpha + self.load / pieces + self.each - self.longest).max())

    def next(self, pieces: int) -> float:
        """Seconds until the first piece has arrived that the step can follow itself with: that of one channel."""
        if self.channels == 1:
            return self.first(pieces)
        messages = np.divide(self.each, self.longest, out=np.ones(len(self.load)), where=self.longest > 0)
        return float((self.alpha + self.load / (pieces * np.minimum(self.channels, messages))).max())

    def hold(self, pieces: int) -> Floats:
        """Seconds that it keeps each of its resources busy."""
        return self.load + pieces * self.each

    def again(self, pieces: int) -> float:
        """Seconds until the step may follow itself: the first piece is there, and its links are free."""
        return max(self.next(pieces), float(self.hold(pieces).max()))

    def whole(self, pieces: int) -> Floats:
        """Seconds until all pieces have arrived across each resource."""
        return self.alpha + self.load + pieces * self.each - self.longest


def step_kinds(schedule: Schedule) -> tuple[list[tuple[Ints32, Floats, Ints]], Ints]:
    """The steps that differ, and the kind of every step: the routes that one uses, the share of the size on each, and
    the messages on each of its paths, one for every channel.

    The steps of a ring differ in their chunks only, so there are few kinds of many steps.
    """
    bounds = np.append(np.flatnonzero(np.diff(schedule.step, prepend=-1)), schedule.sends)
    share, kinds, numbers = _shares(schedule), dict[tuple[bytes, bytes, bytes], int](), []
    found: list[tuple[Ints32, Floats, Ints]] = []
    channels = int(schedule.channel.max(initial=0)) + 1
    for first, end in pairwise(bounds.tolist()):
        used, where = np.unique(schedule.route[first:end], return_inverse=True)
        carried = np.asarray(np.bincount(where, share[first:end]), dtype=np.float64)
        messages = np.bincount(distinct(where * channels + schedule.channel[first:end]) // channels)
        number = kinds.setdefault((used.tobytes(), carried.tobytes(), messages.tobytes()), len(found))
        if number == len(found):
            found.append((used, carried, messages))
        numbers.append(number)
    return found, np.array(numbers, dtype=np.int64)


def crossed(
    occupied: loads.RouteUses, alphas: Floats, used: Ints32, carried: Floats, resources: int
) -> tuple[Floats, Floats]:
    """Load of routes on each resource, and the alpha of the slowest message there.

    alphas: of all routes. used, carried: the routes of a step, and the share of the size that each of them
    carries.
    """
    place, entry = expand(occupied.start, occupied.entries, used)
    resource = occupied.resource[entry]
    alpha = by_place(np.maximum, resource, alphas[used][place], resources)
    return np.asarray(np.bincount(resource, carried[place] * occupied.part[entry], resources), dtype=np.float64), alpha


class _Clock:
    """What a schedule asks of its resources, for any size.

    load, rates: bytes of a byte over every resource, and bytes/s. starts: seconds of the starts of messages there.
    lag: the latencies of the longest path, if any number of pieces takes these. sorts: the classes of
    resources, and that of each. known: costs that were asked for.
    """

    def __init__(self, steps: int, shared: Resources, load: Floats, starts: Floats) -> None:
        self.steps, self.load, self.starts, self.lag = steps, load, starts, 0.0
        self.known = dict[tuple[int, float, bool], Cost]()
        self.rates, self.name, self.kinds, self.sorts = shared.rates, shared.name, shared.kinds, _sorts(shared)

    def least(self, size: int) -> float:
        """Seconds for which the busiest resource is held, and that any number of pieces takes at least."""
        return float((self.load * (size / self.rates) + self.starts).max(initial=self.lag))

    def busiest(self, busy: Floats, pieces: int) -> tuple[int, Term]:
        """The resource that is held longest, and the seconds of all bytes there; busy: those of each."""
        held = busy + pieces * self.starts
        # Of resources that differ by rounding alone, the first is named.
        worst = int(np.argmax(held > held.max() * SAFE))
        return worst, Term(f"bandwidth of {self.kinds[worst]}", float(busy[worst]), self.kinds[worst])

    def costs(self, terms: Iterable[Term], busy: Floats, pieces: int) -> Cost:
        """The cost by its terms; busy: seconds that all bytes take each resource."""
        known, (worst, _) = tuple(terms), self.busiest(busy, pieces)
        held, starts = (found / sum(term.time_s for term in known) for found in (busy, pieces * self.starts))
        most = by_place(np.maximum, self.sorts[1], held + starts, len(self.sorts[0]))
        by_class = {str(self.sorts[0][place]): float(most[place]) for place in np.argsort(-most, kind="stable")}
        return Cost(known, self.name(worst), by_class, float(starts[worst]), self.steps, pieces)


class _Steps(_Clock):
    """Steps one after another, for any size.

    runs: steps with the share of the size as load, and how often each follows itself. reduced: the share that
    is reduced one after another, in every step by the rank that reduces most in it.
    """

    def __init__(self, timed: Timed, spread: Spread | None) -> None:
        # Of every step that differs from the others, its load, alpha, each and longest over all resources.
        arrays, runs = list[tuple[Floats, ...]](), list[tuple[int, int]]()
        if isinstance(timed, Schedule):
            spread, shared = spread or loads.single_routes(timed), resources(timed.topology)
            occupied, starts = loads.RouteUses.of(spread, shared), Starts.of(timed, spread, shared)
            carried, whole = loads.whole_loads(timed, spread, shared)
            load = np.array([value / whole for value in carried])
            alphas, (kinds, numbers) = spread.alphas(timed.topology.link_columns), step_kinds(timed)
            channels, count = int(timed.channel.max(initial=0)) + 1, len(shared.rate)
            for used, share, messages in kinds:
                passed = crossed(occupied, alphas, used, share, count)
                arrays.append((*passed, *starts.overheads(used, count, messages)))
            changes = np.flatnonzero(np.diff(numbers, prepend=-1))
            times = np.diff(changes, append=len(numbers)).tolist()
            runs += zip(numbers[changes].tolist(), times, strict=True)
            # Steps without a send, of which a file may have any number, take no time.
            used, step = np.unique(timed.step, return_inverse=True)
            reduces, devices = timed.op == REDUCE, len(timed.topology.devices)
            place = step.astype(np.int64) * devices + timed.dst
            found, where = np.unique(place[reduces], return_inverse=True)
            sums = np.bincount(where, _shares(timed)[reduces], len(found))
            self.reduced = float(by_place(np.maximum, found // devices, sums, len(used)).sum())
        else:
            given = timed if isinstance(timed, StepLoads) else timed.step_loads
            shared = given.shared
            load = np.sum(given.load, axis=0) if given.total is None else given.total
            arrays += zip(given.load, given.alpha, given.each, given.longest, strict=True)
            channels = given.channels
            runs += enumerate(given.times or (1,) * len(arrays))
            self.reduced = sum(many * share * into for many, share, into in given.reduced)
        super().__init__(timed.steps, shared, load, np.zeros(len(load)))
        self.runs = list[tuple[Step, int]]()
        for number, many in runs:
            if len(crossing := np.flatnonzero(arrays[number][0])):
                self.runs.append((Step(crossing, channels, *(array[crossing] for array in arrays[number])), many))
                self.starts[crossing] += many * self.runs[-1][0].each

    def cost(self, size: int, gamma: float, whole_messages: bool) -> Cost:
        """The time, in as many pieces as are best, or in one."""
        if not self.runs:
            return Cost((Term("nothing to send", 0.0),), "nothing", {}, 0.0, 0)
        seconds = size / self.rates
        busy = self.load * seconds
        runs = [(replace(step, load=step.load * seconds[step.resource]), times) for step, times in self.runs]
        terms, pieces = self._paced(runs, busy, whole_messages)
        terms += (Term("reduction", gamma * size * self.reduced, "gamma"),) if gamma * self.reduced else ()
        return self.costs(terms, busy, pieces)

    def _paced(self, runs: Sequence[tuple[Step, int]], busy: Floats, whole: bool) -> tuple[tuple[Term, ...], int]:
        """The terms of steps in as many pieces as are best, and how many these are.

        busy: seconds that all bytes take each resource. whole: True for one piece.
        """

        @cache
        def time(pieces: int) -> float:
            """Seconds until the last piece of the last step has arrived, in bursts or in turns.

            In turns, the piece behind the first one follows it through every step; further ones keep a resource busy
            while the first one crosses others between two steps here.
            """
            passed, between, ended = 0.0, np.zeros(len(busy)), np.full(len(busy), np.inf)
            for step, times in runs:
                between[step.resource] += np.maximum(passed - ended[step.resource], 0.0)
                passed += times * step.first(pieces)
                ended[step.resource] = passed
            turn = busy / pieces + self.starts
            later = min(pieces - 1, 1) * turn + np.maximum((pieces - 2) * turn - between, 0.0)
            return min(bursts(pieces), passed + float(later.max()))

        def bursts(pieces: int) -> float:
            free = np.zeros(len(busy))
            begin = first = done = 0.0
            for step, times in runs:
                begin = max(begin + first, float(free[step.resource].max()))
                first = step.first(pieces)
                again, later = (step.again(pieces), step.next(pieces)) if times > 1 else (0.0, 0.0)
                begin += (times - 1) * again
                free[step.resource] = begin + step.hold(pieces)
                done = max(done + (times - 1) * later + first, begin + float(step.whole(pieces).max()))
            return done

        pieces = 1 if whole or (len(runs) == 1 and runs[0][1] == 1) else climbed(time, 1, 2)
        if pieces > 1:
            pieces = min(pieces, pieces * 3 // 4, pieces * 3 // 2, key=lambda count: (time(count), count))
        alpha = further = 0.0
        by_kind: dict[str, float] = {}
        for step, times in runs:
            # The resource that a step of whole messages waits for longest; of equal ones the last.
            waits = step.whole(1)
            place = len(waits) - 1 - int(np.argmax(waits[::-1]))
            latency = times * float(step.alpha[place])
            if pieces == 1:
                load, longest = times * float(step.load[place]), float(waits[place])
                # Where a step follows itself, its latency may pass while other messages are sent.
                rest = (times - 1) * min(step.again(1), longest) + longest - load
                latency = min(latency, rest)
                further += rest - latency
                kind = self.kinds[step.resource[place]]
                by_kind[kind] = by_kind.get(kind, 0.0) + load
            alpha += latency
        name = f"latency of {counted(self.steps, 'step')}"
        if pieces == 1:
            waiting = [Term(FURTHER, further, "alpha")] if further > 1e-9 * alpha else []
            passing = (Term(f"bandwidth of {kind}", seconds, kind) for kind, seconds in by_kind.items())
            return (Term(name, alpha, "alpha"), *waiting, *passing), 1
        worst, drain = self.busiest(busy, pieces)
        further = min(pieces * float(self.starts[worst]), time(pieces) - drain.time_s)
        rest = time(pieces) - drain.time_s - further
        latency = min(alpha, rest)
        # The rest of their latencies passes while bytes are sent.
        name = name if latency == alpha else f"latency of {counted(self.steps, 'overlapping step')}"
        apart = Term("bandwidth of steps that do not overlap", rest - latency, drain.limit)
        found = Term(name, latency, "alpha"), Term(FURTHER, further, "alpha"), apart, drain
        return tuple(term for term in found if term.time_s > 0), pieces


# --- forests --------------------------------------------------------------------------------------------------------


class _Forest(_Clock):
    """A pipeline along trees, for any size; a symmetric one by orbits.

    longest: seconds of the longest start of a message at every resource. paths: of sends; in its order are
    route, images, share (of all images), alphas and transfer (seconds of a send alone, and for each byte of
    the size). uses: what routes occupy; by its entries are pace (seconds for a byte), over (seconds of a
    start) and leaves (whether messages start there). lag: the latencies of the longest path. aside: seconds
    for a byte of what no route passes, such as sums at a switch. reduced: bytes of a byte that the device
    adds that adds most. rounds: what `round` gave; twice as many bytes often go in twice as many pieces.
    """

    def __init__(self, timed: Schedule | SymmetricSchedule, spread: Spread | None) -> None:
        own = resources(timed.topology)
        if isinstance(timed, SymmetricSchedule):
            base, weighted, shared = timed.base, timed.weighted, timed.pooled.shared
            orbit, images, many = timed.group.orbit, timed.times, timed.pooled.size
        else:
            base, weighted, shared, orbit = timed, timed, own, np.arange(len(timed.topology.devices))
            images, many = np.ones(timed.chunks, dtype=np.int64), np.ones(len(own.rate), dtype=np.int64)
        # Every tree sends messages of its own, as a simulation and a program of the schedule do.
        messages = np.bincount(base.route, images[base.chunk]).astype(np.int64)
        spread, share = spread or loads.single_routes(base), _shares(base)
        carried, whole = loads.whole_loads(weighted, spread, shared)
        load = np.array([value / whole for value in carried])
        routes, starts = np.flatnonzero(messages).astype(np.int32), Starts.of(base, spread, shared)
        each, self.longest = starts.overheads(routes, len(shared.rate), messages[routes])
        super().__init__(base.steps, shared, load, each / many)

        self.uses, self.paths = loads.RouteUses.of(spread, shared), loads.Paths(base)
        uses, order = self.uses, self.paths.order
        self.pace = uses.part / shared.rates[uses.resource]
        self.over = np.bincount(uses.begins, starts.overhead, len(self.pace)) / many[uses.resource]
        self.leaves = np.bincount(uses.begins, minlength=len(self.pace)) > 0
        self.route, self.images = base.route[order], images[base.chunk[order]]
        self.share = share[order] * self.images
        self.alphas = spread.alphas(base.topology.link_columns)[self.route]
        self.transfer = share[order] / loads.RouteUses.of(spread, own).rates(own.rates)[self.route]
        self.lag, self.rounds = self.paths.longest(self.alphas), dict[float, float]()
        self.aside = float(np.delete(self.load / self.rates, uses.resource).max(initial=0))
        reduces = base.op == REDUCE
        amounts = np.bincount(orbit[base.dst[reduces]], (share * images[base.chunk])[reduces], int(orbit.max()) + 1)
        self.reduced = float((amounts / np.bincount(orbit)).max())

    @cached_property
    def queues(self) -> list[list[tuple[Any, ...]]]:
        """The messages of every level at the resources where they start, and at their others, by resource.

        The place of each among the sends of the level, seconds for a byte and of starts; and their queue, as
        `_served` takes it.
        """
        found, uses = list[list[tuple[Any, ...]]](), self.uses
        kept = uses.slowest[uses.resource]
        entries = uses.entries[kept]
        starts_at = np.append(0, np.cumsum(kept))[uses.start]
        # Numbers of few bits are sorted several times as fast.
        resource = uses.resource.astype(np.min_scalar_type(uses.width))
        for first, end in pairwise(self.paths.bounds):
            send, entry = expand(starts_at, entries, self.route[first:end])
            order = np.argsort(resource[entry], kind="stable")
            send, entry = send[order], entry[order]
            starts = self.over[entry] * self.images[first:end][send]
            level = list[tuple[Any, ...]]()
            for one in (self.leaves[entry], ~self.leaves[entry]):
                used, begins, number = np.unique(resource[entry[one]], return_index=True, return_inverse=True)
                queue = used[number], begins[number], number.astype(np.float64)
                level.append((send[one], self.pace[entry[one]], starts[one], queue))
            found.append(level)
        return found

    def round(self, size: float) -> float:
        """Seconds until every chunk has arrived everywhere in one piece; size: bytes of all together."""
        paths, passing = self.paths, size * self.transfer
        if paths.single:
            return paths.longest(self.alphas + passing)
        busy, came = np.zeros((2, self.uses.width)), np.zeros(paths.places)
        for (first, end), queues in zip(pairwise(paths.bounds), self.queues, strict=True):
            begin, moved = came[paths.source[first:end]], size * self.share[first:end]
            # A message comes to the others of its resources when it has started.
            for later, (send, pace, starts, queue) in enumerate(queues):
                begin += later * self.alphas[first:end]
                np.maximum.at(begin, send, _served(queue, begin[send], pace * moved[send] + starts, busy))
            np.maximum.at(came, paths.target[first:end], begin + passing[first:end])
        return max(float(came.max(initial=0)), self.lag + size * self.aside)

    def cost(self, size: int, gamma: float, whole_messages: bool = False) -> Cost:
        """The time, in as many pieces as are best."""
        busy, each = self.load * (size / self.rates), self.starts

        def time(fill: float, pieces: int) -> float:
            """Seconds of so many rounds, each after the one before on the busiest resource."""
            held = float((busy + pieces * each).max())
            return held + max(0.0, self.lag + (fill - held) / pieces)

        count, tried = 1, dict[int, float]()
        while count not in tried:
            # What the bytes of a round add to the latencies, in one piece: nearly the same for other numbers.
            if (part := size / count) not in self.rounds:
                self.rounds[part] = self.round(part)
            fill = count * (self.rounds[part] - self.lag)
            tried[count] = time(fill, count)
            likely = cache(partial(time, fill))
            near = min((climbed(likely, count, factor) for factor in (2, 0.5)), key=likely)
            near = min(near, max(1, near * 3 // 4), near * 3 // 2, key=likely)
            count = near if likely(near) < 0.999 * min(tried.values()) else count
        count = min(tried, key=lambda pieces: (tried[pieces], pieces))
        passing = self.busiest(busy, count)[1]
        drain, kind = passing.time_s, passing.limit
        further = max(0.0, float((busy + count * each - self.longest).max()) - drain)
        rest = tried[count] - drain - further
        lag = min(self.lag, rest)
        found = (
            Term(f"latency of {counted(self.steps, 'hop')}", lag, "alpha"),
            Term(FURTHER, further, "alpha"),
            Term(f"pipeline fill ({counted(count, 'piece')})", rest - lag, kind),
            passing,
            Term("reduction", gamma * size * self.reduced, "gamma"),
        )
        # What is less than this share of the time is the rounding of sums.
        return self.costs((term for term in found if term.time_s > 1e-12 * tried[count]), busy, count)


def _served(queue: tuple[Ints, Ints, Floats], ready: Floats, hold: Floats, busy: Floats) -> Floats:
    """When each message begins at its resource (seconds): first come, first served, of equal ones the first.

    queue: of every message its resource, ascending, the place of the first message there, and how many
    resources come before. ready, hold: seconds from which on it waits, and for which it holds the resource.
    busy (2, resources): until when each is busy with the messages before these, and for how long in all; then
    with these too.
    """
    # Most queues are short, so a call costs more than its numbers: what is in order is sorted again.
    (at, first, before), (until, work) = queue, busy
    # Rounding must not decide who of those that are ready at once is the first. One sort serves all,
    # lifted as below.
    about = ready.round(12)
    about += before * (2 * about.max(initial=0))
    order = about.argsort(kind="stable")
    ready, hold = ready[order], hold[order]
    # What is ready before others came waits at most for all that went before.
    begin = until[at]
    begin -= ready
    begin = np.minimum(np.maximum(begin, 0.0, out=begin), work[at], out=begin)
    begin += ready
    passed = hold.cumsum()
    passed -= hold
    passed -= passed[first]
    # The running maximum of each resource, all lifted above those of the ones before.
    lift = before * (begin.max(initial=0) + passed.max(initial=0))
    begin -= passed
    begin += lift
    np.maximum.accumulate(begin, out=begin)
    begin -= lift
    begin += passed
    np.maximum.at(until, at, begin + hold)
    np.add.at(work, at, hold)
    served: Floats = np.empty_like(begin)
    served[order] = begin
    return served
