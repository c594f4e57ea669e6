"""NCCL's times in validate/results: without NVLS, on 2 to 8 H200, from 1 KiB to 1 GiB."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from blinksim import machines
from blinksim.nccl.tuner.tuner import Prediction, predict

RESULTS = Path(__file__).resolve().parents[1] / "validate" / "results"
H200 = machines.load("hgx-h200", rates="nccl")


@dataclass(frozen=True)
class Point:
    """A time of NCCL. size: bytes, what really ran; time_s: seconds."""

    collective: str
    ranks: int
    size: int
    time_s: float


def points() -> list[Point]:
    """All of them: five collectives from 1 MiB, and allreduce from 1 KiB."""
    found = []
    for path in sorted(RESULTS.glob("full-speed-?gpu.json")):
        ranks = int(path.stem[-4])
        rows = json.loads(path.read_text())["nccl"]
        found += [Point(row["collective"], ranks, row["used_bytes"], row["time_s"]) for row in rows]
    for path in sorted(RESULTS.glob("elementary-?gpu.json")):
        rows = json.loads(path.read_text())["nccl_allreduce"]
        found += [Point("allreduce", int(path.stem[-4]), row["size_bytes"], row["time_s"]) for row in rows]
    return found


@cache
def prediction(ranks: int) -> Prediction:
    """What NCCL does on the first `ranks` H200 without NVLS."""
    return predict(H200, H200.members[:ranks], multicast=False)
