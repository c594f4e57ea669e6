"""The path that a piece takes longest on through the trees of a forest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from blinksim.schedule.model import Schedule

Floats = npt.NDArray[np.float64]
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
