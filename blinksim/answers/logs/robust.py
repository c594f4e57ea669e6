"""Positive parameters from times that are mostly right: a robust fit on relative errors, with intervals.

Times scatter by a percentage, and some are simply wrong, so the logarithms of the parameters are fitted to logarithms
of times: first with least absolute deviations, then with Tukey's biweight, both by iteratively reweighted least
squares; the intervals are those of an M-estimate (Huber, Robust Statistics, 1981, sections 7.6 to 7.8; Holland and
Welsch, Commun. Statist. A6, 1977).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
# 95 % as efficient as least squares where all errors are normal.
_TUNING = 4.685
_LEAST_SCALE = 1e-7
_ROUNDS = 60
# No link is e^12 times as quick as its data sheet.
_FARTHEST = 12.0
# Of the logarithm of a parameter; an interval that goes further says nothing either, and stays finite.
_MOST_REACH = 100.0


@dataclass(frozen=True)
class RobustFit:
    """theta: the parameters. error (per parameter): standard error of its logarithm. residual: log(seen / fitted).

    weight: 0 (left out) to 1 per observation. scale: spread of the residuals that count, such as 0.05 for 5 %.
    """

    theta: Floats
    error: Floats
    residual: Floats
    weight: Floats
    scale: float

    def interval(self, parameter: int, confidence: float = 0.95) -> tuple[float, float]:
        """Where the parameter lies with that probability, if errors are alike and independent."""
        free = max(1, len(self.residual) - len(self.theta))
        reach = min(student_quantile(0.5 + confidence / 2, free) * self.error[parameter], _MOST_REACH)
        return float(self.theta[parameter] * np.exp(-reach)), float(self.theta[parameter] * np.exp(reach))


def student_quantile(probability: float, free: int) -> float:
    """The quantile of Student's t with `free` degrees of freedom (Abramowitz and Stegun, 26.7.5; good from 3 on)."""
    z = NormalDist().inv_cdf(probability)
    one = (z**3 + z) / 4
    two = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    three = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    four = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return float(z + one / free + two / free**2 + three / free**3 + four / free**4)


def fit(predict: Callable[[Floats], tuple[Floats, Floats]], seen: Floats, start: Floats) -> RobustFit:
    """Parameters with which `predict` comes nearest to `seen`.

    predict: takes parameters (p), gives times (n) and the share of each time that is in proportion to each parameter
    (n x p). seen: times (n), positive. start: positive parameters (p) to start from.
    """
    first = np.log(start)
    phi = first.copy()
    scale = 1.0
    for stage in ("absolute", "biweight"):
        for _ in range(_ROUNDS):
            times, shares = predict(np.exp(phi))
            residual = np.log(seen / times)
            if stage == "absolute":
                weight = 1 / np.maximum(np.abs(residual), 1e-6)
            else:
                scale = _spread(residual, len(phi))
                weight = _biweight(residual / scale)
            root = np.sqrt(weight)
            step = np.linalg.lstsq(shares * root[:, None], residual * root, rcond=1e-10)[0]
            step = np.clip(step, -1.5, 1.5)
            phi = np.clip(phi + step, first - _FARTHEST, first + _FARTHEST)
            # The first stage only needs to come near.
            if np.abs(step).max(initial=0.0) < (1e-4 if stage == "absolute" else 1e-9):
                break
    times, shares = predict(np.exp(phi))
    residual = np.log(seen / times)
    scale = _spread(residual, len(phi))
    weight = _biweight(residual / scale)
    return RobustFit(np.exp(phi), _errors(residual, shares, scale), residual, weight, scale)


def _spread(residual: Floats, parameters: int) -> float:
    """The median absolute residual as a standard deviation, corrected for the parameters that were fitted."""
    count = len(residual)
    correction = math.sqrt(count / max(1, count - parameters))
    return max(_LEAST_SCALE, float(np.median(np.abs(residual))) / NormalDist().inv_cdf(0.75) * correction)


def _biweight(ratio: Floats) -> Floats:
    inside = np.clip(1 - (ratio / _TUNING) ** 2, 0, None)
    return np.asarray(inside**2)


def _errors(residual: Floats, shares: Floats, scale: float) -> Floats:
    """Standard errors of an M-estimate: Huber's first formula, with his correction for few observations."""
    count, parameters = shares.shape
    ratio = residual / scale
    inside = np.abs(ratio) < _TUNING
    square = (ratio / _TUNING) ** 2
    score = np.where(inside, ratio * (1 - square) ** 2, 0.0)
    slope = np.where(inside, (1 - square) * (1 - 5 * square), 0.0)
    mean = max(0.05, float(slope.mean()))
    correction = 1 + parameters / count * float(slope.var()) / mean**2
    variance = correction**2 * scale**2 * float((score**2).sum()) / max(1, count - parameters) / mean**2
    return np.asarray(np.sqrt(variance * np.diag(np.linalg.pinv(shares.T @ shares))))
