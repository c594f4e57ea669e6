"""What was run on real GPUs says where, when and with what, and nothing in it was wrong."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from blinksim.collective import busbw_factor

RESULTS = sorted((Path(__file__).parents[2] / "validate" / "results").glob("elementary-*gpu.json"))


@pytest.fixture(params=RESULTS, ids=lambda path: path.stem)
def result(request: pytest.FixtureRequest) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(request.param.read_text())
    return content


def test_there_are_results() -> None:
    assert [path.stem for path in RESULTS] == ["elementary-2gpu", "elementary-4gpu"]


def test_provenance_is_complete(result: dict[str, Any]) -> None:
    needed = {"date", "command", "gpus", "driver", "cuda_runtime", "cupy", "numpy", "python", "blinksim", "environment"}
    assert needed <= result["provenance"].keys()
    assert all(result["provenance"][key] for key in needed)


def test_every_run_was_right(result: dict[str, Any]) -> None:
    assert len(result["checks"]) > 200
    assert {row["wrong"] for row in result["checks"] + result["allreduce"] + result["nccl_allreduce"]} == {0}
    assert result["failure"][0]["next_run_ok"] is True


def test_rates_follow_from_the_samples(result: dict[str, Any]) -> None:
    factor = float(busbw_factor("allreduce", len(result["provenance"]["gpus"])))
    for row in result["allreduce"] + result["nccl_allreduce"]:
        assert len(row["times_s"]) == 20
        assert row["time_s"] == pytest.approx(median(row["times_s"]))
        assert row["busbw_GBps"] == pytest.approx(row["size_bytes"] / row["time_s"] * factor / 1e9)
