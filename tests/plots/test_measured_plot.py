"""Pictures of published measurements: every line holds the rows, and nothing is cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from canvas import outside
from matplotlib.lines import Line2D

import blinksim as bs
from blinksim import plots
from blinksim.cli.main import run
from blinksim.errors import InputError


def points(line: Line2D) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]


@pytest.mark.parametrize("y", ["busbw", "algbw", "time"])
def test_lines_are_what_was_measured_predicted_and_bounded(y: str) -> None:
    found = bs.measured("nd-h200-v5")
    assert isinstance(found, bs.PublicMeasurements)
    axes = plots.measured(found, y=y).axes[0]
    rows = found.rows()
    factor = {"busbw": 14 / 8, "algbw": 1, "time": 0}[y]

    def value(time: float, size: float) -> float:
        return size / time / 1e9 * factor if factor else time

    measured, predicted, bound = (points(line) for line in axes.lines)
    for line, key in ((measured, "time_s"), (predicted, "predicted_s")):
        for (size, shown), row in zip(line, rows, strict=True):
            assert size == row["size_bytes"]
            assert shown == pytest.approx(value(row[key], size))
    for (size, limit), row in zip(bound, rows, strict=True):
        assert limit == pytest.approx(value(size / row["bound_GBps"] / 1e9, size))
    assert [line.get_linestyle() for line in axes.lines] == ["-", "--", ":"]
    assert len({line.get_color() for line in axes.lines}) == 1


def test_the_largest_jobs_are_drawn_and_the_others_counted() -> None:
    found = bs.measured("p5en")
    assert isinstance(found, bs.PublicMeasurements)
    picture = plots.measured(found, most=2)
    axes = picture.axes[0]
    assert axes.get_title(loc="left").endswith("2 of 11 jobs")
    legend = axes.get_legend()
    assert legend is not None
    assert all("8 GPUs" in text.get_text() for text in legend.get_texts())
    assert outside(picture) == []
    with pytest.raises(InputError, match=r"no alltoall of p5en\.48xlarge was published; there are allreduce"):
        plots.measured(found, "alltoall")


def test_the_command_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "h200.svg"
    assert run(["measured", "nd-h200-v5", "--plot", str(path), "--plot-y", "busbw"]) == 0
    assert f"drawn: {path}" in capsys.readouterr().err
    assert "<svg" in path.read_text()
    assert run(["measured", "nd-h200-v5", "--plot", str(path)]) == 2
    assert "--force" in capsys.readouterr().err
    assert run(["measured", "aurora", "--plot", str(tmp_path / "a.svg")]) == 2
    assert "are not drawn" in capsys.readouterr().err
