"""Broadcast: many short pieces pay many overheads, a few long ones come late to whoever passes them on.

All ranks but the root share a clock, drawn at random. A byte of a message from the root that arrives before the clock
is worth n - 1, and 1 later; a byte that another rank sends is worth 1 if it starts after the clock, and nothing before.
Whatever the clock shows, every byte collects n - 1: if none of its messages from the root is early, all others start
after the clock too, and each rank is reached by one message. So the mean over all clocks is n - 1 at least, and no link
earns more than the best sequence of messages on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.bounds.time.delays import Delays, delays
from blinksim.bounds.time.theorems.searched import Choice, Searched
from blinksim.bounds.time.theorems.theorem import only_ranks_hold
from blinksim.bounds.time.time_certificate import in_words, microseconds
from blinksim.collective import Collective
from blinksim.topology.graph import Topology

Floats = npt.NDArray[np.float64]


class RandomClock(Searched):
    """All links together earn less than n - 1 for every byte."""

    kind = "random-clock"
    # Between which parts of the time the clock may be: what was best on machines of 3 to 16 ranks.
    choices = (
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
    coarse, fine = 40, 160

    def __init__(self, facts: Delays, size: int, part: Sequence[str]) -> None:
        super().__init__(facts, size, part)
        (root,) = (facts.topology.index[name] for name in part)
        own = facts.first_hops(root)
        # What is sent towards the root only goes on through the root's links, where it counts.
        others = [e for rank in facts.ranks if rank != root for e in facts.first_hops(rank) if facts.dst[e] != root]
        self.from_root = sum(facts.rate[e] for e in own) * self.n
        self.from_others = sum(facts.rate[e] for e in others) * self.n
        self.overhead = min(facts.overhead[e] for e in (*own, *others))
        self.latency = min(facts.closes(e) or 0 for e in (*own, *others))

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> list[tuple[tuple[str, ...], ...]]:
        if collective.name != "broadcast" or topology.ranks < 3:
            return []
        facts = delays(topology, collective)
        paid = all(facts.overhead[e] for rank in facts.ranks for e in facts.first_hops(rank))
        return [((topology.members[collective.root],),)] if paid and only_ranks_hold(facts) else []

    def brings(self, time: int, choices: Sequence[Choice], steps: int) -> list[float]:
        """What all links earn by a time at the most, over what a byte needs."""
        root, others = _best_of(time, self.n, float(self.overhead), float(self.latency), tuple(choices), steps)
        return [float(one) for one in (self.from_root * root + self.from_others * others) / (self.n - 1)]

    def table(self, time: int) -> dict[str, Any]:
        return {"clock_us": [microseconds(int(part * time)) for part in self.best(time)], "steps": self.fine}

    def words(self, time: int) -> str:
        return (
            f"pieces that are short pay overheads and pieces that are long come late: within {in_words(time)} messages "
            f"on all links together bring the data to fewer than {self.n - 1} other ranks"
        )


def _best_of(
    time: int, n: int, overhead: float, latency: float, clocks: tuple[Choice, ...], steps: int
) -> tuple[Floats, Floats]:
    """`_best_sequences` of one time."""
    times = np.full(len(clocks), float(time))
    return _best_sequences(times, n, overhead, latency, np.array(clocks) * times[:, None], steps)


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
