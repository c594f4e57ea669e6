"""Pipeline times: overlapping steps, and pieces on the longest path through trees.

A step takes as long as its slowest resource: the alpha of a message across it, its bytes, and the overheads
of further messages that start there. Cut into pieces, a step begins as soon as the first piece of the step
before it has arrived and its links are free, and ends a piece after that step at the earliest. Steps that
share their links, as those of a ring, gain nothing but latency; those on other links, such as NVLinks inside
nodes and adapters between them, overlap. This is how a simulation serves steps (``fifo``, in bursts): a link
first passes all pieces of one step, then those of the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from blinksim.schedule.model import Schedule
from blinksim.schedule.pipeline import climbed
from blinksim.textio.text_table import count as counted
from blinksim.timing.terms import Term

Floats = npt.NDArray[np.float64]
FURTHER = "overhead of further messages"


@dataclass(frozen=True, eq=False)
class Step:
    """What one step has its resources do, in seconds; arrays (K) over the resources that it uses.

    resource: their numbers. load: all bytes. alpha: of the slowest message across it. each: the overheads of one piece
    of all messages that start there. longest: the longest of these. channels: into how many parts the messages fall
    that do not wait for each other if the step follows itself, such as rings.
    """

    resource: npt.NDArray[np.int64]
    load: Floats
    alpha: Floats
    each: Floats
    longest: Floats
    channels: int

    @classmethod
    def of(cls, load: Floats, alpha: Floats, each: Floats, longest: Floats, channels: int = 1) -> Step:
        """From arrays over all resources."""
        used = np.flatnonzero(load)
        return cls(used, load[used], alpha[used], each[used], longest[used], channels)

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

    def whole(self, pieces: int) -> float:
        """Seconds until all pieces have arrived."""
        return float((self.alpha + self.load + pieces * self.each - self.longest).max())


Runs = Sequence[tuple[Step, int]]
"""Steps, and how often each follows itself."""


def paced(
    runs: Runs, kinds: Sequence[str], drain: Term, steps: int, whole: bool = False
) -> tuple[tuple[Term, ...], int]:
    """The terms of steps in as many pieces as are best, and how many these are.

    kinds: of the resources. drain: what passing all bytes takes the busiest resource. steps: how many there are.
    whole: True for one piece.
    """
    time = cache(lambda count: _time(runs, count, len(kinds)))
    pieces = 1
    if not (whole or (len(runs) == 1 and runs[0][1] == 1)):
        pieces = climbed(time, 1, 2)
        if pieces > 1:
            pieces = min(pieces, pieces * 3 // 4, pieces * 3 // 2, key=lambda count: (time(count), count))
    if pieces == 1:
        return _one_after_another(runs, kinds, steps), 1
    alpha = sum(times * float(step.alpha[_slowest(step)]) for step, times in runs)
    rest = time(pieces) - drain.time_s
    latency = min(alpha, rest)
    found = (
        Term(f"latency of {counted(steps, 'step')}", latency, "alpha"),
        Term("bandwidth of steps that do not overlap", rest - latency, drain.limit),
        drain,
    )
    return tuple(term for term in found if term.time_s > 0), pieces


def _time(runs: Runs, pieces: int, resources: int) -> float:
    """Seconds until the last piece of the last step has arrived."""
    free = np.zeros(resources)
    begin = first = done = 0.0
    for step, times in runs:
        begin = max(begin + first, float(free[step.resource].max()))
        first = step.first(pieces)
        begin += (times - 1) * step.again(pieces)
        free[step.resource] = begin + step.hold(pieces)
        done = max(done + (times - 1) * step.next(pieces) + first, begin + step.whole(pieces))
    return done


def _slowest(step: Step) -> int:
    """The place of the resource that a step of whole messages waits for longest; of equal ones the last."""
    whole = step.alpha + step.load + step.each - step.longest
    return len(whole) - 1 - int(np.argmax(whole[::-1]))


def _one_after_another(runs: Runs, kinds: Sequence[str], steps: int) -> tuple[Term, ...]:
    alpha = further = 0.0
    by_kind: dict[str, float] = {}
    for step, times in runs:
        place = _slowest(step)
        kind, load = kinds[step.resource[place]], float(step.load[place])
        whole = step.whole(1)
        # Where a step follows itself, its latency may pass while other messages are sent.
        waits = (times - 1) * min(step.again(1), whole) + whole - times * load
        one = min(times * float(step.alpha[place]), waits)
        alpha += one
        further += waits - one
        by_kind[kind] = by_kind.get(kind, 0.0) + times * load
    terms = [Term(f"latency of {counted(steps, 'step')}", alpha, "alpha")]
    terms += [Term(FURTHER, further, "alpha")] if further > 1e-9 * alpha else []
    return *terms, *(Term(f"bandwidth of {kind}", time, kind) for kind, time in by_kind.items())


# --- trees ----------------------------------------------------------------------------------------------------------

# Step, place of the sender, place of the receiver, alpha and transfer.
Hop = tuple[int, int, int, float, float]
# Places (a chunk on a device) per send from which on those that are passed are numbered.
_SPARSE = 16
# Steps from which on few sends in each, fewer than these on average, are followed one by one.
_LONG, _FEW = 500, 8


class Paths:
    """The hops of a forest, for the longest path at any number of pieces.

    alphas, transfer, waits: of every send, seconds of its latencies and its own overhead, of its whole chunk, and of
    what else costs as much for every piece. source, target: places, each a chunk on a device, of every send. bounds:
    the first send of every step, and the end.
    """

    def __init__(self, schedule: Schedule, alphas: Floats, transfer: Floats, waits: Floats) -> None:
        busy = np.zeros(len(schedule.topology.devices), dtype=bool)
        busy[schedule.src] = busy[schedule.dst] = True
        # Most devices of a large cluster, such as its NICs, hold no data: number those that do.
        number = np.cumsum(busy) - 1
        width = int(number[-1]) + 1
        self.step, self.alphas, self.transfer, self.waits = schedule.step, alphas, transfer, waits
        self.source = schedule.chunk.astype(np.int64) * width + number[schedule.src]
        self.target = schedule.chunk.astype(np.int64) * width + number[schedule.dst]
        self.places = schedule.chunks * width
        if self.places > _SPARSE * schedule.sends:
            # Most chunks of an alltoall pass a few devices only: number the places that are passed.
            passed, numbers = np.unique(np.concatenate((self.source, self.target)), return_inverse=True)
            self.places, self.source, self.target = len(passed), numbers[: schedule.sends], numbers[schedule.sends :]
        bounds = np.append(np.flatnonzero(np.diff(schedule.step, prepend=-1)), schedule.sends)
        self.bounds: list[int] = bounds.tolist()
        self.long = len(bounds) > _LONG and schedule.sends < _FEW * len(bounds)
        # A chain: every send goes on from where the one before it arrived.
        self.single = len(bounds) == schedule.sends + 1 and np.array_equal(self.source[1:], self.target[:-1])

    def longest(self, pieces: int) -> tuple[float, float]:
        """The path that one piece of any chunk takes longest on.

        Returns the sum of its alphas, and the time of the whole chunk on all of its hops but the slowest (seconds).
        What it waits for each piece counts for all pieces.
        """
        transfer = self.transfer + pieces * self.waits
        if self.single:
            return _longest_of_chain(self.alphas, transfer)
        if self.long:
            columns = self.step, self.source, self.target, self.alphas, transfer
            hops = zip(*(column.tolist() for column in columns), strict=True)
            return _longest_of_long(hops, self.places, pieces)
        times, lags, fills, slowest = (np.zeros(self.places) for _ in range(4))
        for first, end in pairwise(self.bounds):
            came, reached = self.source[first:end], self.target[first:end]
            lag = lags[came] + self.alphas[first:end]
            fill = fills[came] + transfer[first:end]
            peak = np.maximum(slowest[came], transfer[first:end])
            # Of several arrivals at one place the latest counts, and of equal ones the last.
            time, before = lag + fill / pieces, times[reached]
            np.maximum.at(times, reached, time)
            later = np.flatnonzero((time > before) & (time == times[reached]))
            there = reached[later]
            lags[there], fills[there], slowest[there] = lag[later], fill[later], peak[later]
        tails = fills - slowest
        latest = int(np.argmax(lags + tails / pieces))
        return float(lags[latest]), float(tails[latest])


def _longest_of_chain(alphas: Floats, transfer: Floats) -> tuple[float, float]:
    """As `Paths.longest`, for a single path: the sums one after another."""
    return float(np.cumsum(alphas)[-1]), float(np.cumsum(transfer)[-1] - transfer.max())


def _longest_of_long(hops: Iterable[Hop], places: int, pieces: int) -> tuple[float, float]:
    """As `Paths.longest`, hop by hop, for many steps with few sends in each, as those of a chain.

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
