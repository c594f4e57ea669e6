"""The time of steps, one after another or in pieces that overlap.

A step takes as long as its slowest resource: the alpha of a message across it, its bytes, and the overheads of further
messages that start there. Cut into pieces, a step begins as soon as the first piece of the step before it has arrived
and its links are free, and ends a piece after that step at the earliest. Steps that share their links, as those of a
ring, gain nothing but latency; those on other links, such as NVLinks inside nodes and adapters between them, overlap.
This is how a simulation serves steps (``fifo``, in bursts): a link first passes all pieces of one step, then those of
the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from blinksim.cost.terms import Term
from blinksim.schedule.pipeline import climbed
from blinksim.textio.text_table import count as counted

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
