"""Forty runs of two and four H200 in validate/results, with their times."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from blinksim.answers.measurements.execution_fit import Case
from validate.recipes.few_points import GUESSES as GUESSES, ours

RESULTS = Path(__file__).resolve().parents[1] / "validate" / "results"


def chosen() -> list[tuple[Case, float]]:
    """The forty, with their times in seconds."""
    known = measured()
    return [(case, known[case]) for case in ours()]


@cache
def measured() -> dict[Case, float]:
    """Every run whose schedule is that of an algorithm on one switch, cut as `fit` cuts it: seconds by case."""
    found = {}
    for gpus in (2, 4, 8):
        for row in json.loads((RESULTS / f"elementary-{gpus}gpu.json").read_text())["allreduce"]:
            if not row["in_place"] and row["used_bytes"] % (128 * gpus) == 0:
                found[Case(gpus, "allreduce", row["algorithm"], row["protocol"], row["size_bytes"])] = row["time_s"]
    for gpus in (2, 3, 4, 6, 8):
        for row in json.loads((RESULTS / f"full-speed-{gpus}gpu.json").read_text())["ours"]:
            if row["algorithm"] != "packed":
                case = Case(gpus, row["collective"], row["algorithm"], row["protocol"], row["size_bytes"])
                found[case] = row["time_s"]
    return found
