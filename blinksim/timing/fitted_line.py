"""Straight-line fits of latency and rate to measured times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blinksim.errors import InputError


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """(alpha, beta, worst) of time = alpha + beta * size through (size, time), least squares of relative errors.

    alpha is not less than 0, beta more. worst: largest |line / time - 1|. Raises `InputError` for fewer than two sizes.
    """
    if len({size for size, _ in points}) < 2:
        raise InputError("a line needs times of at least two sizes")
    size, time = np.array(points, dtype=np.float64).T
    (alpha, beta), *_ = np.linalg.lstsq(np.stack([1 / time, size / time], axis=1), np.ones(len(time)))
    if alpha < 0 or beta <= 0:
        alpha, beta = 0.0, float((size / time).sum() / ((size / time) ** 2).sum())
    return float(alpha), float(beta), float(np.abs((alpha + beta * size) / time - 1).max())
