"""What one lane does, fitted to measured lines of GPUs (`calibration.py` says by which formula)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.gpu.execution.emulate import PARTS

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Lane:
    """What one lane does.

    rates: bytes/s, by the vector's bytes. overhead_s: a piece occupies the lane for so much longer, and passing_s more
    if it was received before. latency_s: until the next GPU has it. sum_rate: bytes/s at which two pieces are added up
    there, infinite if nothing was seen of it. turn_s: until a sum is on its way. launch_s: once. median, worst: of the
    errors of the lines themselves, as shares.
    """

    rates: Mapping[int, float]
    overhead_s: float
    passing_s: float
    latency_s: float
    turn_s: float
    sum_rate: float
    launch_s: float
    median: float
    worst: float

    def rate(self, size: int) -> float:
        """Of vectors of `size` bytes: as measured for the nearest size."""
        return self.rates[min(self.rates, key=lambda known: abs(math.log(known / size)))]


def fit_lane(lines: Sequence[Mapping[str, Any]]) -> Lane:
    """The lane that the measured lines (part `lines` of a result, all of one kind) agree with best."""
    sizes = sorted({line["size_bytes"] for line in lines})
    rows, times = [], []
    for line in lines:
        _, length, collective = line["case"].split("-")
        hops, size = int(length) - 2, line["size_bytes"]
        pieces = pieces_of(size, line["piece_bytes"])
        piece, reduced = size / pieces, collective == "reduce"
        passed = (pieces + hops) * (hops > 0)
        moved = [(size + hops * piece) * (size == known) for known in sizes]
        rows.append([1, pieces + hops, passed, hops, reduced * hops, reduced * (hops + 1) * piece, *moved])
        times.append(line["time_s"])
    table, time = np.array(rows, dtype=np.float64), np.array(times)
    found = at_least_zero(table / time[:, None], np.ones(len(time)))
    errors = np.abs(table @ found / time - 1)
    launch, overhead, passing, latency, turn, per_sum, *betas = (float(x) for x in found)
    if 0 in betas:
        raise SystemExit(
            f"calibration.py: lines of {sizes[betas.index(0)]} bytes are too noisy to tell a rate; run again"
        )
    rates = {size: 1 / beta for size, beta in zip(sizes, betas, strict=True)}
    spread = float(np.median(errors)), float(errors.max())
    sum_rate = 1 / per_sum if per_sum else math.inf
    return Lane(rates, overhead, passing, latency, turn, sum_rate, launch, *spread)


def at_least_zero(table: Floats, wanted: Floats) -> Floats:
    """Least squares with no unknown below 0: those that come out negative are left out, the lowest first, and before
    them those that nothing depends on."""
    # Unknowns differ by many orders of magnitude: solved for, and compared by, what they contribute.
    scale = np.linalg.norm(table, axis=0)
    kept = np.flatnonzero(scale).tolist()
    while True:
        part, *_ = np.linalg.lstsq(table[:, kept] / scale[kept], wanted)
        if part.min() >= 0:
            found = np.zeros(table.shape[1])
            found[kept] = part / scale[kept]
            return found
        del kept[int(part.argmin())]


def pieces_of(size: int, piece: int) -> int:
    """Pieces of all parts of one chunk as the executor cuts them."""
    return PARTS * -(-(size // PARTS) // piece)
