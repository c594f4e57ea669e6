"""Which of NCCL's choices to time, so that few measurements find the quickest for every size.

First every algorithm and protocol that may win somewhere, by what is known so far, is timed once, where the model has
it strongest. Then come the
sizes where the best choice changes: both choices are timed there, and again where the change has moved to, until it
stays. What is left goes to channels: NCCL gives small messages one or two, and some are quicker on more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from blinksim.answers.tuning.choice_times import ChoiceTime, ChoiceTimes
from blinksim.nccl.tuner.tuner import ALGORITHMS_OF, COLLECTIVES
from blinksim.nccl.tuner.tuner_files import DEFAULT, Choice, runs

SIZES = tuple(2**power for power in range(10, 31))
MOST_MEASUREMENTS = 40
# A choice that the model takes to be slower than the best by more everywhere is not timed.
_HOPELESS = 1.3
# Channels of messages that NCCL gives fewer, and the sizes to try them at: the middle first.
_SPREAD = 8
_SPREAD_SIZES = (2**15, 2**13)
# How many sizes after its first the choice of the largest messages is timed.
_LAST = 1
# Octaves from which on a size counts as not measured at all.
_FAR = 6.0
# What so many channels must gain before other sizes are tried.
_WORTHWHILE = 0.05
# Octaves over which the usual number of channels need not be timed again.
_NEAR_ENOUGH = 2.0

Measure = Callable[[str, int, Choice], float]
"""Seconds of (collective, bytes, choice)."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is tuned for. collectives: NCCL's names. sizes: ascending bytes."""

    collectives: tuple[str, ...] = COLLECTIVES
    sizes: tuple[int, ...] = SIZES


def candidates(times: ChoiceTimes, collective: str, sizes: Sequence[int]) -> list[Choice]:
    """What NCCL can run here, with its own number of channels; rings first."""
    known = [
        (algorithm, protocol, DEFAULT)
        for algorithm in sorted(ALGORITHMS_OF[collective], key=lambda name: name != "ring")
        for protocol in ("ll", "ll128", "simple")
        if runs(collective, algorithm, protocol)
    ]
    return [choice for choice in known if times.time(collective, choice, sizes[0]) is not None]


def _behind(times: ChoiceTimes, collective: str, among: Sequence[Choice], choice: Choice, size: int) -> float:
    """How much slower than the best of `among` a choice is."""
    mine = times.time(collective, choice, size)
    if mine is None:
        return math.inf
    found = [time for other in among if (time := times.time(collective, other, size)) is not None]
    return mine / min(found)


def search(times: ChoiceTimes, job: Job, measure: Measure, most: int = MOST_MEASUREMENTS) -> list[ChoiceTime]:
    """Times at most `most` choices by `measure`, adds them to `times`, and returns them in the order of measuring."""
    found: list[ChoiceTime] = []
    for number, collective in enumerate(job.collectives):
        share = (most - len(found)) // (len(job.collectives) - number)
        plan = _wanted(times, collective, job.sizes)
        for size, choice in plan:
            if share == 0:
                break
            if times.distance(collective, choice, size) == 0:
                continue
            share -= 1
            one = ChoiceTime(collective, size, *choice, measure(collective, size, choice))
            times.add([one])
            found.append(one)
    return found


def _wanted(times: ChoiceTimes, collective: str, sizes: Sequence[int]) -> Iterator[tuple[int, Choice]]:
    """What to time next, as long as someone asks; between two of them `times` learns of the first."""
    among = candidates(times, collective, sizes)
    for choice in among:
        if min(_behind(times, collective, among, choice, size) for size in sizes) <= _HOPELESS:
            yield _strongest(times, collective, among, choice, sizes), choice
    yield from _channels(times, collective, among, sizes)
    yield from _changes(times, collective, among, sizes)


def _strongest(
    times: ChoiceTimes, collective: str, among: Sequence[Choice], choice: Choice, sizes: Sequence[int]
) -> int:
    """Where a choice is least behind the best: the size that serves the channels too, the first that still tells how
    it ends, or the middle."""
    ratios = [_behind(times, collective, among, choice, size) for size in sizes]
    best = [size for size, ratio in zip(sizes, ratios, strict=True) if ratio <= min(ratios) * (1 + 1e-9)]
    if _SPREAD_SIZES[0] in best:
        return _SPREAD_SIZES[0]
    return best[min(_LAST, len(best) - 1)] if best[-1] == sizes[-1] else best[len(best) // 2]


def best_of(times: ChoiceTimes, collective: str, among: Sequence[Choice], size: int) -> Choice:
    """The quickest of `among` at a size."""
    return min(among, key=lambda choice: times.time(collective, choice, size) or math.inf)


def _changes(
    times: ChoiceTimes, collective: str, among: Sequence[Choice], sizes: Sequence[int]
) -> Iterator[tuple[int, Choice]]:
    """Both choices at each change of the best, the change where a wrong choice costs most before the others."""
    while wanted := [
        (
            _stake(times, collective, pair, sizes, place) * min(times.distance(collective, choice, sizes[place]), _FAR),
            sizes[place + (choice == pair[0])],
            choice,
        )
        for place, pair in enumerate(pairwise(best_of(times, collective, among, size) for size in sizes))
        for choice in dict.fromkeys(pair)
        if pair[0] != pair[1] and min(times.distance(collective, choice, size) for size in sizes[place : place + 2]) > 0
    ]:
        _, size, choice = max(wanted, key=lambda entry: entry[0])
        yield size, choice


def _stake(times: ChoiceTimes, collective: str, pair: tuple[Choice, Choice], sizes: Sequence[int], place: int) -> float:
    """How far apart two choices are two sizes away from where the better one changes, in the mean."""
    around = [sizes[max(place - 2, 0)], sizes[min(place + 3, len(sizes) - 1)]]
    found = [[times.time(collective, choice, size) or math.inf for choice in pair] for size in around]
    return sum(max(one) / min(one) - 1 for one in found)


def _channels(
    times: ChoiceTimes, collective: str, among: Sequence[Choice], sizes: Sequence[int]
) -> Iterator[tuple[int, Choice]]:
    for size in _SPREAD_SIZES:
        if not sizes[0] <= size <= sizes[-1]:
            continue
        usual = best_of(times, collective, among, size)
        spread = (*usual[:2], _SPREAD)
        if times.distance(collective, usual, size) > _NEAR_ENOUGH:
            yield size, usual
        yield size, spread
        gain = 1 - (times.time(collective, spread, size) or math.inf) / (times.time(collective, usual, size) or 1)
        if gain < _WORTHWHILE:
            return
