"""Constants of which measured times are sums: those that can be told apart, by a robust fit; the rest keeps its value.

A time counts each constant so many times. A constant that no time depends on, or that others stand for just as well
(start and hop where all times are of as many steps), is left as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from blinksim.answers.logs.robust import Floats, RobustFit, fit

# A constant that no time depends on by more is kept.
_LEAST_SHARE = 0.05
# So is one of which the others explain all but this part of its share.
_LEAST_OWN = 0.1


@dataclass(frozen=True, slots=True)
class Timed:
    """A measured time in seconds, and how often each constant counts in it."""

    seconds: float
    counts: Mapping[str, float]


@dataclass(frozen=True)
class LinearFit:
    """What came out.

    values: every constant, kept ones among them. intervals: those of 95 %, by name, of the fitted ones. predicted: the
    times by `values`, in seconds, one for each that was fitted to. found: the fit itself.
    """

    values: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    predicted: tuple[float, ...]
    found: RobustFit


def fit_sums(
    times: Sequence[Timed],
    start: Mapping[str, float],
    absent: Mapping[str, float] | None = None,
    least: Mapping[str, float] | None = None,
) -> LinearFit | None:
    """The constants whose sums come nearest to the times, in relative terms; None if the times determine none.

    start: where each constant begins. absent: in place of that, what constants have that the times do not determine.
    least: what no constant can be below; the times do not determine one that comes out so.
    """
    begun = dict(start)
    free = _determined(times, begun, sorted({name for time in times for name in time.counts}))
    seen = np.array([time.seconds for time in times])
    while free:
        kept = {**begun, **{name: value for name, value in (absent or {}).items() if name not in free}}
        fixed = _sums(times, kept, [name for name in kept if name not in free])
        counts = _counts(times, free)

        def predict(theta: Floats, fixed: Floats = fixed, counts: Floats = counts) -> tuple[Floats, Floats]:
            parts = counts * theta
            total = fixed + parts.sum(axis=1)
            return total, parts / total[:, None]

        found = fit(predict, seen, np.array([start[name] for name in free]))
        values = {**kept, **dict(zip(free, map(float, found.theta), strict=True))}
        below = {
            name: max(start[name], bound) for name, bound in (least or {}).items() if values.get(name, bound) < bound
        }
        if below.keys() & set(free):
            begun |= below
            free = [name for name in free if name not in below]
            continue
        still = _determined(times, values, free)
        if len(still) == len(free):
            intervals = {name: found.interval(number) for number, name in enumerate(free)}
            return LinearFit(values, intervals, tuple(map(float, predict(found.theta)[0])), found)
        free = still
    return None


def _counts(times: Sequence[Timed], names: Sequence[str]) -> Floats:
    return np.array([[time.counts.get(name, 0.0) for name in names] for time in times], dtype=np.float64)


def _sums(times: Sequence[Timed], values: Mapping[str, float], names: Sequence[str]) -> Floats:
    return np.asarray(_counts(times, names) @ np.array([values[name] for name in names], dtype=np.float64))


def _determined(times: Sequence[Timed], values: Mapping[str, float], names: Sequence[str]) -> list[str]:
    """The constants that some time depends on, and that no others stand for; those with larger shares first."""
    parts = _counts(times, names) * np.array([values[name] for name in names])
    shares = parts / _sums(times, values, list(values))[:, None]
    chosen: list[int] = []
    for column in np.argsort(-shares.sum(axis=0), kind="stable"):
        own = shares[:, column]
        if own.max(initial=0.0) <= _LEAST_SHARE:
            continue
        if chosen:
            others = shares[:, chosen]
            rest = own - others @ np.linalg.lstsq(others, own, rcond=None)[0]
            if np.linalg.norm(rest) < _LEAST_OWN * np.linalg.norm(own):
                continue
        chosen.append(int(column))
    return [names[column] for column in sorted(chosen)]
