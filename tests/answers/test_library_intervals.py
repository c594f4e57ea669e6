"""Intervals beside times: they hold the share of published cells that they claim, and say whose cells these are."""

from __future__ import annotations

import json

import numpy as np
import pytest

import blinksim as bs
from blinksim.cli.main import run
from blinksim.timing.measured import library_rates, public_tables


@pytest.mark.parametrize(("machine", "least", "most"), [("dgx1-v100", 2**26, 2**30), ("nd-a100-v4", 2**10, 2**15)])
def test_published_times_lie_where_the_nominal_answer_says(machine: str, least: int, most: int) -> None:
    """Each published allreduce and allgather beside the interval that its own question gets: 8 in 10 are inside."""
    inside = []
    for cell in public_tables.cells(machine):
        if cell.collective in ("allreduce", "allgather", "reducescatter") and least <= cell.size < most:
            interval = bs.rank(machine, cell.collective, cell.size).interval
            assert interval is not None
            assert interval.machine == machine
            inside.append(interval.low_s * 0.999 <= cell.time_s <= interval.high_s * 1.001)
    assert len(inside) >= 4
    assert np.mean(inside) >= 0.7


def test_the_first_lines_say_that_links_are_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["project", "p3.16xlarge", "allreduce", "1GiB"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[1] == "  nominal rates: links only, no launch"
    assert told[2].startswith("  libraries take ")
    assert told[2].endswith(" published times of dgx1-v100, its nearest relative")
    assert run(["project", "p3.16xlarge", "allreduce", "1GiB", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["interval_low_s"] > answer["time_s"]
    assert answer["interval_high_s"] > answer["interval_low_s"]
    assert answer["interval_cells"] >= 10
    assert answer["interval_relative"] == "dgx1-v100"
    assert answer["beside"] == told[1].strip()


@pytest.mark.slow
def test_a_machine_without_relatives_gets_all_of_them_and_generated_ones_none() -> None:
    found = bs.rank("tpu-v5p", "allreduce", "64MiB")
    assert found.interval is not None
    assert found.interval.share.endswith(" published times of all machines, as multiples of what links alone need")
    assert found.interval.high_s / found.interval.low_s > 1.5
    plain = bs.rank("ring:8@25GB/s", "allreduce", "1MiB")
    assert plain.interval is None
    assert plain.beside == "nominal rates: links only, no launch"
    assert bs.rank("dgx1-v100", "allreduce", "1GiB").to_dict().get("interval_relative") is None


def test_edited_machines_and_other_rates_have_none() -> None:
    assert (
        bs.rank(bs.load("dgx1-v100", edits=["degrade nvlink bandwidth=10GB/s"]), "allreduce", "1GiB").interval is None
    )
    assert bs.rank(bs.load("dgx1-v100", rates="nccl"), "allreduce", "1GiB").interval is None
    assert bs.rank("ring:4@25GB/s", "allreduce", "1GiB").interval is None


def test_measured_constants_come_with_their_own_error() -> None:
    found = bs.rank(bs.load("hgx-h200", rates="measured"), "allreduce", "1GiB", algorithms="ring")
    assert found.interval is not None
    assert found.interval.share == "9 in 10 measured times"
    p90 = found.best.details["error_p90"]
    assert found.interval.high_s == pytest.approx(found.best.time_s / (1 - p90))


@pytest.mark.slow
def test_nccl_on_several_nodes_takes_what_was_measured() -> None:
    """Two p5: what one of the published sizes took, by constants fitted to its neighbours."""
    cell = next(one for one in public_tables.cells("p5.48xlarge") if one.size == 2**29)
    found = bs.project(bs.load("p5", nodes=2), "allreduce", cell.size, algorithm="nccl")
    assert found.details["measured_time_s"] == pytest.approx(cell.time_s, rel=0.06)
    assert found.details["measured_low_s"] < cell.time_s < found.details["measured_high_s"]
    assert "published times of p5.48xlarge" in found.details["measured_on"]
    far = bs.project(bs.load("p5", nodes=64), "allreduce", cell.size, algorithm="nccl")
    assert "measured_time_s" not in far.details


def test_spreads_are_quantiles_of_the_cells() -> None:
    """Of the cells of a machine, by NumPy, for times by constants."""
    found = bs.measured("perlmutter")
    assert isinstance(found, bs.PublicMeasurements)
    ratios = [
        row["time_s"] / row["expected_s"]
        for row in found.rows()
        if not row["fitted"] and row["size_bytes"] < 32 * 2**10
    ]  # fmt: skip
    spread = library_rates.spread_of("perlmutter", "expected", "several nodes", 1024)
    assert spread is not None
    assert spread.cells == len(ratios)
    assert spread.low == pytest.approx(min(ratios), rel=1e-3)
    assert spread.middle == pytest.approx(np.median(ratios), rel=1e-3)
