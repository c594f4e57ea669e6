"""Broadcast: many short pieces pay many overheads, a few long ones come late to whoever passes them on.

All ranks but the root share a clock, drawn at random. A byte of a message from the root that arrives before the clock
is worth n - 1, and 1 later; a byte that another rank sends is worth 1 if it starts after the clock, and nothing before.
Whatever the clock shows, every byte collects n - 1: if none of its messages from the root is early, all others start
after the clock too, and each rank is reached by one message. So the mean over all clocks is n - 1 at least, and no link
earns more than the best sequence of messages on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.bounds.time.delays import Delays, delays
from blinksim.bounds.time.theorems.theorem import Theorem, block, only_ranks_hold, units
from blinksim.bounds.time.time_certificate import in_words, microseconds
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Topology

Place = Iterable[Iterable[str]]
Floats = npt.NDArray[np.float64]
Clocks = tuple[tuple[float, float], ...]
# Between which parts of the time the clock may be: what was best on machines of 3 to 16 ranks.
_CLOCKS = (
    (0.0, 0.85),
    (0.0, 1.0),
    (0.1, 0.9),
    (0.1, 1.0),
    (0.2, 0.8),
    (0.2, 0.9),
    (0.3, 0.7),
    (0.3, 0.8),
    (0.5, 0.6),
    (0.5, 0.8),
    (0.9, 1.0),
)
# Steps that the time is cut into: for the search among clocks, and for the proof.
_COARSE, _FINE = 40, 160
# Sums of floats are off by far less than this part, and the search for a time stops at the other one.
_SAFE, _CLOSE = 2.0**-30, 10
# Times that are tried together.
_AT_ONCE = 12


class RandomClock(Theorem):
    """All links together earn less than n - 1 for every byte."""

    kind = "random-clock"

    def __init__(self, facts: Delays, size: int) -> None:
        self.facts, self.n = facts, facts.topology.ranks
        root = facts.ranks[facts.collective.root]
        own = facts.first_hops(root)
        # What is sent towards the root only goes on through the root's links, where it counts.
        others = [e for rank in facts.ranks if rank != root for e in facts.first_hops(rank) if facts.dst[e] != root]
        self.from_root = sum(facts.rate[e] for e in own) * self.n
        self.from_others = sum(facts.rate[e] for e in others) * self.n
        self.overhead = min(facts.overhead[e] for e in (*own, *others))
        self.latency = min(facts.closes(e) or 0 for e in (*own, *others))
        self.all = block(facts, size) * self.n

    @classmethod
    def stated(cls, topology: Topology, collective: Collective, size: int, where: Place) -> RandomClock:
        """where: nothing, it is about all ranks."""
        if [*where] or not cls.places(topology, collective):
            raise InputError(f"random-clock says nothing about {collective} on {topology.name}")
        return cls(delays(topology, collective), size)

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> list[tuple[tuple[str, ...], ...]]:
        if collective.name != "broadcast" or topology.ranks < 3:
            return []
        facts = delays(topology, collective)
        paid = all(facts.overhead[e] for rank in facts.ranks for e in facts.first_hops(rank))
        return [()] if paid and only_ranks_hold(facts) else []

    def there(self, time: int) -> int:
        return self._earned([time], self._best(time), _FINE)[0][0]

    def needed(self, time: int) -> int:
        return (self.n - 1) * self.all

    def _best(self, time: int) -> Clocks:
        """The clock by which links earn least, by a coarse sum."""
        (earned,) = self._earned([time], _CLOCKS, _COARSE)
        return (_CLOCKS[earned.index(min(earned))],)

    def _earned(self, times: Sequence[int], clocks: Clocks, steps: int) -> list[list[int]]:
        """What all links earn by each time at the most, for each clock."""
        root, others = _best_of(
            tuple(map(float, times)), self.n, float(self.overhead), float(self.latency), clocks, steps
        )
        earned = [
            ceil((self.from_root * mine + self.from_others * theirs) * (1 + _SAFE))
            for mine, theirs in zip(root.tolist(), others.tolist(), strict=True)
        ]
        return [earned[place : place + len(clocks)] for place in range(0, len(earned), len(clocks))]

    def latest(self, low: int = 0) -> int:
        """The latest time before which nothing ends, but for a part in a thousand; 0 if none is after `low`."""
        if min(self._earned([low + 1], _CLOCKS, _COARSE)[0]) >= self.needed(0):
            return 0
        good = self._last(low + 1, _CLOCKS, _COARSE)
        good = self._last(good, self._best(good), _FINE)
        rounded = good - good % 10**6
        return next((time for time in (rounded, good) if time > low and self.proves(time)), 0)

    def _last(self, good: int, clocks: Clocks, steps: int) -> int:
        """The last time by which too little is earned, about; `good` if that is none."""
        needed = self.needed(0)
        tried = [good + (max(good >> 4, 10**6) << power) for power in range(_AT_ONCE)]
        while True:
            short = [min(earned) < needed for earned in self._earned(tried, clocks, steps)]
            passed = short.index(False) if False in short else len(short)
            good = tried[passed - 1] if passed else good
            if passed == len(tried):
                tried = [good + (max(good >> 4, 10**6) << power) for power in range(_AT_ONCE)]
                continue
            bad = tried[passed]
            if bad - good <= good >> _CLOSE:
                return good
            tried = [good + (bad - good) * place // (_AT_ONCE + 1) for place in range(1, _AT_ONCE + 1)] + [bad]

    def unit(self) -> int:
        return units(self.facts)

    def table(self, time: int) -> dict[str, Any]:
        (clock,) = self._best(time)
        return {"clock_us": [microseconds(int(part * time)) for part in clock], "steps": _FINE}

    def words(self, time: int) -> str:
        return (
            f"pieces that are short pay overheads and pieces that are long come late: within {in_words(time)} messages "
            f"on all links together bring the data to fewer than {self.n - 1} other ranks"
        )


@lru_cache(maxsize=16)
def _best_of(
    times: tuple[float, ...], n: int, overhead: float, latency: float, clocks: Clocks, steps: int
) -> tuple[Floats, Floats]:
    """`_best_sequences` for every time and, of each, every clock."""
    rows = np.repeat(np.array(times), len(clocks))
    return _best_sequences(
        rows, n, overhead, latency, np.tile(np.array(clocks), (len(times), 1)) * rows[:, None], steps
    )


def _best_sequences(
    time: Floats, n: int, overhead: float, latency: float, clocks: Floats, steps: int
) -> tuple[Floats, Floats]:
    """What a link of the root and another link earn at the most with each clock, in times of a byte; rounded up.

    time: (C,), the end. clocks: (C, 2), from when to when. The worth of a message is taken at the better end of the
    step in which it ends (root) or starts (others). With that fixed, earnings are linear in the times between messages:
    the root's are best at the end of their step, as an earlier one is worth more, and the others' at its beginning.
    """
    step, last = time[:, None] / steps, time[:, None] - latency
    grid = np.arange(steps + 1) * step
    # passed (C, steps + 1): how likely the clock is over by then.
    passed = np.clip((grid - clocks[:, :1]) / (clocks[:, 1:] - clocks[:, :1]), 0.0, 1.0)
    arrives = np.minimum((grid + latency) // step, steps).astype(np.int64)
    early = 1.0 + (n - 2) * (1.0 - np.take_along_axis(passed, arrives, axis=1))
    ends = np.minimum(grid, last) - overhead
    root, other = np.zeros((2, len(clocks), steps + 1))
    for begin in range(steps - 1, -1, -1):
        # Nothing is sent, but what comes from others may pass through the root.
        other[:, begin] = other[:, begin + 1]
        root[:, begin] = root[:, begin + 1] + step[:, 0] * passed[:, begin + 1]
        data = np.maximum(ends[:, begin + 1 :] - grid[:, [begin]], 0.0)
        # A message of no bytes is as good as none.
        mine = data * early[:, begin:-1] + root[:, begin + 1 :]
        theirs = data * passed[:, [begin + 1]] + other[:, begin + 1 :]
        root[:, begin] = np.maximum(root[:, begin], mine.max(axis=1))
        other[:, begin] = np.maximum(other[:, begin], theirs.max(axis=1))
    return root[:, 0], other[:, 0]
