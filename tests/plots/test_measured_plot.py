"""Pictures of published measurements: every line holds the rows, and nothing is cut."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from canvas import outside
from matplotlib.lines import Line2D

import blinksim as bs
from blinksim import plots
from blinksim.cli.main import run
from blinksim.errors import InputError

GOLDEN = Path(__file__).parents[1] / "golden"


def points(line: Line2D) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]


@pytest.mark.parametrize("y", ["busbw", "algbw", "time"])
def test_lines_are_what_was_measured_expected_predicted_and_bounded(y: str) -> None:
    found = bs.measured("nd-h200-v5")
    assert isinstance(found, bs.PublicMeasurements)
    above, below = plots.measured(found, y=y).axes
    rows = found.rows()
    judged, fitted = ([row for row in rows if row["fitted"] is kind] for kind in (False, True))
    factor = {"busbw": 14 / 8, "algbw": 1, "time": 0}[y]

    def value(time: float, size: float) -> float:
        return size / time / 1e9 * factor if factor else time

    lines = [points(line) for line in above.lines]
    cases = ((judged, "time_s"), (fitted, "time_s"), (rows, "expected_s"), (rows, "predicted_s"))
    for line, (cells, key) in zip(lines, cases, strict=False):
        for (size, shown), row in zip(line, cells, strict=True):
            assert size == row["size_bytes"]
            assert shown == pytest.approx(value(row[key], size))
    for (size, limit), row in zip(lines[4], rows, strict=True):
        assert limit == pytest.approx(value(size / row["bound_GBps"] / 1e9, size))
    assert [line.get_linestyle() for line in above.lines] == ["None", "None", "-", "--", ":"]
    assert len({line.get_color() for line in above.lines}) == 1
    assert above.lines[1].get_markerfacecolor() == "white"
    for drawn, cells in zip(below.lines, (judged, fitted), strict=False):
        assert [error for _, error in points(drawn)] == pytest.approx([row["expected_error_pct"] for row in cells])


def test_each_line_is_one_curve() -> None:
    """Sets with and without NVLS, and of several types, are told apart: no size stands twice in a line."""
    found = bs.measured("hgx-h100")
    assert isinstance(found, bs.PublicMeasurements)
    picture = plots.measured(found)
    for line in picture.axes[0].lines:
        sizes = [size for size, _ in points(line)]
        assert sizes == sorted(set(sizes))
    told = [text.get_text() for text in picture.legends[0].get_texts() if text.get_text().strip()]
    assert len(set(told)) == len(told)
    assert outside(picture) == []


def test_the_largest_jobs_are_drawn_and_the_others_counted() -> None:
    found = bs.measured("p5en")
    assert isinstance(found, bs.PublicMeasurements)
    picture = plots.measured(found, most=2)
    axes = picture.axes[0]
    assert axes.get_title(loc="left").endswith("2 of 11 jobs")
    told = [text.get_text() for text in picture.legends[0].get_texts() if text.get_text().strip()]
    assert ["8 GPUs" in text for text in told[:2]] == [True, True]
    assert told[2:] == ["measured", "expected by constants", "what NCCL predicts for itself", "bound"]
    assert outside(picture) == []
    with pytest.raises(InputError, match=r"no alltoall of p5en\.48xlarge was published; there are allreduce"):
        plots.measured(found, "alltoall")


def test_the_command_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "h200.svg"
    assert run(["measured", "nd-h200-v5", "--plot", str(path), "--plot-y", "busbw"]) == 0
    assert f"drawn: {path}" in capsys.readouterr().out
    assert "<svg" in path.read_text()
    assert run(["measured", "nd-h200-v5", "--plot", str(path)]) == 2
    assert "--force" in capsys.readouterr().err
    assert run(["measured", "aurora", "--plot", str(tmp_path / "a.svg"), "--plot-y", "time"]) == 0
    assert "measured and projected" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize("y", ["time", "algbw"])
def test_aurora_has_a_row_for_each_point_and_a_marker_for_each_time(y: str) -> None:
    """Against the golden copy of the published tables."""
    found = bs.measured("aurora")
    assert not isinstance(found, bs.PublicMeasurements)
    drawn = plots.measured(found, y=y)
    axes = drawn.axes[0]
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert len(rows) == len(set(rows)) == 15
    shown = {str(line.get_label()): points(line) for line in axes.lines}
    golden = list(csv.DictReader((GOLDEN / "aurora_all.csv").read_text(encoding="utf-8").splitlines()))
    for row in golden:
        nodes, ranks, size = int(row["nodes"]), int(row["ranks_per_node"]), float(row["message_GB"]) * 1e9
        name = f"{nodes} node{'s' * (nodes > 1)}, {ranks} rank{'s' * (ranks > 1)}{' each' * (nodes > 1)}, "
        (place,) = (place for place, words in enumerate(rows) if words.startswith(name))
        preset = "aurora-projection-pcie" if row["equation"] == "eq6" else "aurora-projection"
        for label, key in (("measured", "experiment_ms"), (preset, "reproduced_ms")):
            seconds = float(row[key]) / 1e3
            (drawn_at,) = (x for x, y in shown[label] if y == place)
            assert drawn_at == pytest.approx(seconds if y == "time" else size / seconds / 1e9, rel=1e-4)
    assert sum(map(len, shown.values())) == 15 + 15 + 12
    assert axes.get_xlabel() == ("time" if y == "time" else "algbw (GB/s)")
    assert outside(drawn) == []
    with pytest.raises(InputError, match="no alltoall of aurora was published; there are allreduce"):
        plots.measured(found, "alltoall")


@pytest.mark.parametrize("collective", ["allreduce", "allgather"])
def test_ticks_of_sizes_are_round_and_apart(collective: str) -> None:
    """Of H100 odd sizes were published too, such as 50163900 bytes and 33554400 for ten GPUs."""
    found = bs.measured("hgx-h100")
    assert isinstance(found, bs.PublicMeasurements)
    drawn = plots.measured(found, collective)
    drawn.draw_without_rendering()
    axes = drawn.axes[1]
    ticks = [int(tick) for tick in axes.get_xticks()]
    assert len(ticks) >= 5
    assert all(tick.bit_count() == 1 for tick in ticks)
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
