"""The predicted times of validate/results: of every run, from the constants of today, counted as the page says."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from blinksim import machines
from blinksim.gpu.execution_time.simulate_blocks import run_time
from validate.recipes import accuracy_page, aims, few_points, time_figures, time_predictions

RESULTS = Path(__file__).resolve().parents[2] / "validate" / "results"
RENEW = "constants or simulation have changed; run validate/recipes/time_predictions.py, then report.py"


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{time_predictions.NAME}.json").read_text())
    return found


def test_every_run_is_there_with_the_time_that_was_measured(content: Any) -> None:
    raw = Counter[tuple[object, ...]]()
    for path in RESULTS.glob("*.json"):
        if path.stem.startswith(("full-speed", "odd-sizes", "held-out")) and not path.stem.endswith("tuning"):
            rows = json.loads(path.read_text())["ours"]
        elif path.stem in ("elementary-2gpu", "elementary-4gpu", "elementary-8gpu"):
            rows = json.loads(path.read_text())["allreduce"]
        else:
            continue
        raw.update((path.stem, row["algorithm"], row["size_bytes"], round(row["time_s"], 10)) for row in rows)
    listed = Counter((row["source"], row["algorithm"], row["size_bytes"], row["measured_s"]) for row in content["ours"])
    assert listed == raw
    assert len(content["nccl"]) >= 418


def test_predictions_are_those_of_the_constants_of_today(content: Any) -> None:
    machine = machines.load("hgx-h200", rates="measured")
    assert machine.execution is not None
    assert machine.nccl_rates is not None
    section = json.loads(json.dumps(time_predictions.constants_of(machine.execution, machine.nccl_rates)))
    assert content["constants"]["catalogue"] == section, RENEW
    points = time_predictions.runs(RESULTS)
    for number in range(0, len(points), 67):
        time_s = run_time(points[number].program(machine.execution.blocks), machine.execution).time_s
        assert content["ours"][number]["catalogue_s"] == pytest.approx(time_s, rel=1e-3), RENEW


def test_what_was_fitted_is_counted_apart(content: Any) -> None:
    fitted = [row for row in content["ours"] if row["fitted"]]
    cases = {tuple(row[key] for key in ("gpus", "collective", "algorithm", "protocol", "size_bytes")) for row in fitted}
    assert len(cases) == 40 == len(list(few_points.ours()))
    assert {row["gpus"] for row in fitted} == {2, 4}
    assert not any(time_figures.apart(row) for row in fitted)
    assert sum(row["fitted"] for row in content["nccl"]) == 24
    # By hand: the first line of the table of few runs.
    off = [
        abs(row["few_s"] / row["measured_s"] - 1)
        for row in content["ours"]
        if row["gpus"] == 8 and row["size_bytes"] < 2**18 and not row["fitted"]
    ]
    line = time_figures.aims(content, "few")[1][0]
    assert line[:3] == ["8 GPUs", "our programs, below 256 KiB", str(len(off))]
    assert [re.sub(r" %.*", "", cell) for cell in line[3:6:2]] == [f"{100 * x:.1f}" for x in (median(off), max(off))]


def test_a_loss_is_what_the_predicted_winner_takes_longer() -> None:
    def row(algorithm: str, measured: float, said: float, size: int = 1) -> dict[str, Any]:
        question = {"source": "s", "gpus": 2, "collective": "reduce", "size_bytes": size, "dtype": "d", "in_place": 0}
        return {**question, "algorithm": algorithm, "measured_s": measured, "few_s": said}

    rows = [row("a", 2.0, 1.0), row("b", 1.6, 3.0), row("a", 1.0, 1.0, 2), row("b", 2.0, 3.0, 2), row("a", 1, 1, 3)]
    assert time_figures.losses(rows, "few") == pytest.approx([0.25, 0.0])


def test_the_page_is_what_the_results_give(content: Any) -> None:
    page = accuracy_page.PAGE.read_text(encoding="utf-8")
    assert page == accuracy_page.text(content), RENEW
    picture = accuracy_page.PAGE.parent / accuracy_page.PICTURE
    assert picture.stat().st_size > 10_000


def test_errors_stay_what_they_were(content: Any) -> None:
    """Of the runs that nothing was fitted to: the figures that the page promises, with some room."""
    fresh = [abs(time_figures.error(row, "catalogue")) for row in content["ours"] if time_figures.apart(row)]
    assert len(fresh) > 1000
    assert np.median(fresh) < 0.035
    assert np.quantile(fresh, 0.9) < 0.11
    nccl = [abs(time_figures.error(row, "catalogue")) for row in content["nccl"] if time_figures.apart(row)]
    assert np.median(nccl) < 0.045


@pytest.mark.slow
def test_one_command_prints_what_was_aimed_at_and_reached(
    content: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["aims.py"])
    aims.main()
    tables = [part.splitlines() for part in capsys.readouterr().out.split("\n\n")]
    assert [len(lines) for lines in tables] == [12, 12, 5, 5, 6]
    assert all(line.endswith(("met", "missed")) for lines in tables for line in lines[2:])
    # By hand: the worst of the runs of 16 MiB and more that nothing was fitted to.
    off = [
        abs(row["few_s"] / row["measured_s"] - 1)
        for row in content["ours"]
        if row["source"].startswith(("odd", "held")) and row["size_bytes"] >= 2**24
    ]
    assert f" {100 * max(off):.1f} % (20)" in tables[2][-1]
