"""What was measured stands beside the curves: the times of the results, by their source, and only where it fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import blinksim as bs
from blinksim import plots
from blinksim.answers.measurements.beside import measured_beside
from blinksim.errors import FileError
from blinksim.timing.measured import public_tables
from blinksim.units import format_size_about
from validate.recipes import measured_times

RESULTS = Path(__file__).resolve().parents[2] / "validate" / "results"


def drawn(machine: Any, collective: str = "allreduce", y: str = "algbw") -> Any:
    found = bs.compare(machine, collective, ["1KiB", "1MiB", "1GiB"], ["ring"])
    return plots.compare(found, y=y).axes[0]


def points(axes: Any) -> dict[str, dict[float, float]]:
    """Marked points without a line, by marker."""
    return {
        line.get_marker(): dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in axes.get_lines()
        if line.get_linestyle() == "None" and len(line.get_xdata())
    }


def legend(axes: Any) -> list[str]:
    return [" ".join(text.get_text().split()) for text in axes.get_legend().get_texts()]


def test_programs_and_nccl_on_h200_are_drawn_as_they_were_measured() -> None:
    raw = json.loads((RESULTS / "elementary-8gpu.json").read_text())
    axes = drawn("hgx-h200", y="time")
    found = points(axes)
    assert set(found) == {"o", "x"}
    ring = {
        row["size_bytes"]: row["time_s"]
        for row in raw["allreduce"]
        if row["algorithm"] == "ring" and not row["in_place"] and row["size_bytes"] < 2**20
    }
    assert len(ring) == 5
    for size, time in ring.items():
        assert found["o"][size] == pytest.approx(time, rel=1e-3)
    nccl = {row["size_bytes"]: row["time_s"] for row in raw["nccl_allreduce"]}
    assert found["x"][2**10] == pytest.approx(nccl[2**10], rel=1e-3)
    names = legend(axes)
    assert "measured: 8 GPUs, validate/results" in names
    assert "measured: NCCL without NVLS, validate/results" in names


def test_published_cells_are_named_by_library_and_set() -> None:
    axes: Any = plots.compare(bs.compare("hgx-h100", "allreduce", ["1KiB", "8GiB"], ["ring"])).axes[0]
    assert "measured: NCCL 2.29.2, xxr-h100-n8" in legend(axes)
    [cell] = [
        one
        for one in public_tables.cells("hgx-h100")
        if (one.set.name, one.collective, one.size) == ("xxr-h100-n8", "allreduce", 2**30)
    ]
    markers = {" ".join(str(line.get_label()).split()): line.get_marker() for line in axes.get_lines()}
    marker = markers["measured: NCCL 2.29.2, xxr-h100-n8"]
    assert points(axes)[marker][2**30] == pytest.approx(cell.size / cell.time_s / 1e9)
    # NCCL had switches add there: it may exceed what holds where they only forward, not what holds where they add.
    bounds = {str(line.get_label()): max(line.get_ydata(), default=0) for line in axes.get_lines()}
    most = max(max(line.values()) for line in points(axes).values())
    assert bounds["bound if switches only forward"] == pytest.approx(1800 / 7)
    assert bounds["bound if switches add"] == pytest.approx(400)
    assert 1800 / 7 < most < 400


def test_what_was_measured_of_something_else_is_left_out() -> None:
    machine = bs.load("hgx-h200")
    assert {one.algorithm for one in measured_beside(machine.select("4-7"), "allgather")} == {"", "ring", "direct"}
    for part, collective in (
        (machine.select("0-4"), "allreduce"),  # five GPUs were never measured
        (machine.select(), "alltoall"),
        (machine.select("0-5", relays="6,7"), "allreduce"),
        (machine.edit("degrade gpu0-nvswitch lanes=9").select(), "allreduce"),
        (machine.replicate(2).select(), "allreduce"),
        (bs.load("switch:8").select(), "allreduce"),
        (bs.load("dgx1-v100").select("1,4,5,7"), "allreduce"),
    ):
        assert measured_beside(part, collective) == [], part


def test_the_table_is_what_the_results_say() -> None:
    assert measured_times.TABLE.read_text(encoding="utf-8") == measured_times.text(RESULTS)


def test_a_row_that_is_no_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "full-speed").mkdir()
    (tmp_path / "full-speed" / "box.csv").write_text("collective,gpus\nallreduce,8\n")
    monkeypatch.setattr("blinksim.timing.measured.public_tables.data_files.folder", lambda name: tmp_path)
    assert public_tables.runs("other") == []
    with pytest.raises(FileError, match=r"box.csv:2: is no run"):
        public_tables.runs("box")


def test_sizes_have_no_exponent() -> None:
    assert [format_size_about(size) for size in (1023, 1024 * 1023.6, 2**20, 1.5 * 2**30)] == [
        "1023 B",
        "1024 KiB",
        "1 MiB",
        "1.5 GiB",
    ]
