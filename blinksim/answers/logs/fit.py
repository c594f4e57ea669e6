"""Robust fit of positive constants on relative errors, with intervals, for times with some outliers.

Times scatter by a percentage, and some are simply wrong, so the logarithms of the constants are fitted to
logarithms of times: first with least absolute deviations, then with Tukey's biweight, both by iteratively
reweighted least squares; the intervals are those of an M-estimate (Huber, Robust Statistics, 1981, sections
7.6 to 7.8; Holland and Welsch, Commun. Statist. A6, 1977). A constant that no time depends on, or that others
stand for just as well (start and hop where all times are of as many steps), is left as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from statistics import NormalDist
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Name = TypeVar("Name", bound=Hashable)
# From all constants and the names of some: times (n), and the share of each that is in proportion to those (n x p).
Predict = Callable[[Mapping[Name, float], Sequence[Name]], tuple[Floats, Floats]]
# 95 % as efficient as least squares where all errors are normal.
_TUNING = 4.685
_LEAST_SCALE = 1e-7
_ROUNDS = 60
# No link is e^12 times as quick as its data sheet.
_FARTHEST = 12.0
# Of the logarithm of a constant; an interval that goes further says nothing either, and stays finite.
_MOST_REACH = 100.0
# A constant that no time depends on by more is kept, and one of which others explain all but this part of its
# share.
_LEAST_SHARE, _LEAST_OWN = 0.05, 0.1


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fitted constant in its own unit. low, high: its interval of 95 %. before: what it was.

    The ends of the interval are NaN where there are as many constants as different times.
    """

    name: str
    value: float
    low: float
    high: float
    before: float

    @property
    def is_rate(self) -> bool:
        """True for NCCL's constants that divide bytes."""
        return self.name.endswith((".rate", ".turn"))

    def interval(self, scale: float) -> str:
        """Such as ``19.98 to 20``, in the unit of which `scale` make one of the constant's own."""
        return "no interval" if isnan(self.low) else f"{self.low * scale:.4g} to {self.high * scale:.4g}"


@dataclass(frozen=True)
class Fit(Generic[Name]):
    """The result of a fit.

    values: every constant, kept ones among them. intervals: those of 95 %, of the fitted ones. predicted:
    seconds of every observation. residual: log(seen / predicted). weight: 0 (left out) to 1 per observation.
    scale: spread of the residuals that count, such as 0.05 for 5 %. Where there are as many constants as
    different times, nothing is left over to judge by: scale and intervals are NaN.
    """

    values: Mapping[Name, float]
    intervals: Mapping[Name, tuple[float, float]]
    predicted: Floats
    residual: Floats
    weight: Floats
    scale: float


@dataclass(frozen=True, slots=True)
class Timed:
    """A measured time in seconds, and how often each constant counts in it."""

    seconds: float
    counts: Mapping[str, float]


def fit_sums(
    times: Sequence[Timed],
    start: Mapping[str, float],
    absent: Mapping[str, float] | None = None,
    least: Mapping[str, float] | None = None,
    rates: bool = True,
) -> Fit[str] | None:
    """`fit` of times that are sums of constants, each counted so many times.

    rates: False leaves seconds per byte as they begin.
    """
    every = list(start)
    counts = np.array([[time.counts.get(name, 0.0) for name in every] for time in times], dtype=np.float64)

    def predict(values: Mapping[str, float], names: Sequence[str]) -> tuple[Floats, Floats]:
        total = counts @ np.array([values[name] for name in every])
        parts = counts[:, [every.index(name) for name in names]] * np.array([values[name] for name in names])
        return total, parts / total[:, None]

    used = sorted({x for time in times for x in time.counts if rates or not x.endswith((".byte", ".turn"))})
    return fit(predict, np.array([time.seconds for time in times]), start, used, absent, least)


def fit(
    predict: Predict[Name],
    seen: Floats,
    start: Mapping[Name, float],
    names: Sequence[Name] | None = None,
    absent: Mapping[Name, float] | None = None,
    least: Mapping[Name, float] | None = None,
    *,
    share: float = _LEAST_SHARE,
    own: float = _LEAST_OWN,
) -> Fit[Name] | None:
    """The constants with which `predict` comes nearest to the times `seen`; None if they determine none.

    start: where each constant begins. names: those that may be fitted, in their order; default: all. absent:
    in place of where they begin, what constants have that the times do not determine. least: what no constant
    can be below; the times do not determine one that comes out so. share: the part of a time where the fit
    begins above which a constant counts. own: the least part of a share that others do not explain.
    """
    begun = dict(start)
    free = list(start if names is None else names)
    free = _determined(predict(begun, free)[1], free, share, own)
    while free:
        fixed = {**begun, **{name: value for name, value in (absent or {}).items() if name not in free}}

        def at(phi: Floats, fixed: dict[Name, float] = fixed, free: list[Name] = free) -> tuple[Floats, Floats]:
            return predict(fixed | dict(zip(free, map(float, np.exp(phi)), strict=True)), free)

        phi = _nearest(at, seen, np.log([start[name] for name in free]))
        values = fixed | dict(zip(free, map(float, np.exp(phi)), strict=True))
        below = {name: max(start[name], bound) for name, bound in (least or {}).items() if values[name] < bound}
        predicted, shares = at(phi)
        still = _determined(shares, free, _LEAST_SHARE, own)
        if below.keys() & set(free):
            begun |= below
            still = [name for name in free if name not in below]
        if len(still) == len(free):
            residual = np.log(seen / predicted)
            scale = _spread(residual, len(free))
            quantile = student_quantile(0.975, max(1, len(seen) - len(free)))
            # A fit makes one residual 0 for each constant but one (Yohai, Stahel and Zamar 1991).
            left = np.sort(np.abs(residual))[max(0, min(len(free), len(residual)) - 1) :]
            middle = max(_LEAST_SCALE, float(np.median(left)) / NormalDist().inv_cdf(0.75))
            reach = np.minimum(quantile * _errors(residual, shares, middle), _MOST_REACH)
            weight = _biweight(residual / scale)
            # Runs of one size have one prediction: further ones, such as in place, do not judge it.
            if len(np.unique(np.log(predicted).round(9))) <= len(free):
                scale, reach = nan, np.full(len(free), nan)
            ends = zip(free, phi - reach, phi + reach, strict=True)
            intervals = {name: (float(np.exp(low)), float(np.exp(high))) for name, low, high in ends}
            return Fit(values, intervals, predicted, residual, weight, scale)
        free = still
    return None


def student_quantile(probability: float, free: float) -> float:
    """The quantile of Student's t with `free` degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(free, probability))


def _determined(shares: Floats, names: Sequence[Name], least: float, least_own: float) -> list[Name]:
    """The constants that some time depends on, and that no others stand for; larger shares first."""
    chosen: list[int] = []
    # Of two that the times do not tell apart, the one with the larger part gets the fitted value.
    for column in np.argsort(-shares.sum(axis=0), kind="stable"):
        own = shares[:, column]
        if own.max(initial=0.0) <= least:
            continue
        if chosen:
            others = shares[:, chosen]
            rest = own - others @ np.linalg.lstsq(others, own, rcond=None)[0]
            if np.linalg.norm(rest) < least_own * np.linalg.norm(own):
                continue
        chosen.append(int(column))
    return [names[column] for column in sorted(chosen)]


def _nearest(predict: Callable[[Floats], tuple[Floats, Floats]], seen: Floats, first: Floats) -> Floats:
    """Logarithms of the constants, from those of where they begin."""
    phi = first.copy()
    # The first stage only needs to come near.
    for absolute, near in ((True, 1e-4), (False, 1e-9)):
        for _ in range(_ROUNDS):
            times, shares = predict(phi)
            residual = np.log(seen / times)
            weight = 1 / np.maximum(np.abs(residual), 1e-6)
            root = np.sqrt(weight if absolute else _biweight(residual / _spread(residual, len(phi))))
            step = np.linalg.lstsq(shares * root[:, None], residual * root, rcond=1e-10)[0]
            step = np.clip(step, -1.5, 1.5)
            phi = np.clip(phi + step, first - _FARTHEST, first + _FARTHEST)
            if np.abs(step).max(initial=0.0) < near:
                break
    return phi


def _spread(residual: Floats, constants: int) -> float:
    """The median absolute residual as a standard deviation, corrected for the constants that were fitted."""
    count = len(residual)
    correction: float = (count / max(1, count - constants)) ** 0.5
    return max(_LEAST_SCALE, float(np.median(np.abs(residual))) / NormalDist().inv_cdf(0.75) * correction)


def _biweight(ratio: Floats) -> Floats:
    return np.asarray(np.clip(1 - (ratio / _TUNING) ** 2, 0, None) ** 2)


def _errors(residual: Floats, shares: Floats, scale: float) -> Floats:
    """Standard errors of an M-estimate: Huber's first formula, with his correction for few observations."""
    count, constants = shares.shape
    ratio = residual / scale
    square, score = (ratio / _TUNING) ** 2, ratio * _biweight(ratio)
    slope = np.where(square < 1, (1 - square) * (1 - 5 * square), 0.0)
    mean = max(0.05, float(slope.mean()))
    correction = 1 + constants / count * float(slope.var()) / mean**2
    variance = correction**2 * scale**2 * float((score**2).sum()) / max(1, count - constants) / mean**2
    return np.asarray(np.sqrt(variance * np.diag(np.linalg.pinv(shares.T @ shares))))
