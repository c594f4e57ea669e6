"""Logs of NVLS, made of published times: judged by the bound for switches that add, fitted with its constants."""

from __future__ import annotations

from pathlib import Path

import pytest
from nccl_tests_logs import Point, text

from blinksim.answers.logs.calibrate import calibrate
from blinksim.answers.logs.diagnose import Diagnosis, diagnose
from blinksim.answers.logs.expectation import read_series
from blinksim.cli.main import run
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.formats import rate_tables
from blinksim.machines import Question, load
from blinksim.timing.library_model import Library
from blinksim.timing.measured.public_tables import cells

MIB = 2**20
# Source, machine of the table, machine that it is held against; bus bandwidth at the largest size.
TABLES = [
    ("azure-ndh200v5", "nd-h200-v5", "hgx-h200", 479.98),
    ("xxr-h100-n8", "hgx-h100", "hgx-h100", 482.27),
    ("aic-h100_sxm-nccl2292", "hgx-h100", "hgx-h100", 444.99),
    ("aic-b200_sxm-nccl2292", "hgx-b200", "hgx-b200", 703.98),
]


def published(source: str, machine: str, least: int = 4 * MIB) -> list[Point]:
    """The allreduces of eight GPUs in a table."""
    return [
        Point(cell.size, cell.time_s * 1e6, None)
        for cell in cells(machine)
        if (cell.set.name, cell.collective, cell.gpus) == (source, "allreduce", 8)
        and cell.adds_in_switches and cell.size >= least
    ]  # fmt: skip


def log_of(folder: Path, points: list[Point], ranks: int = 8) -> str:
    path = folder / "log.txt"
    path.write_text(text("allreduce", ranks, points).replace("NVIDIA H200", "GPU"))
    return str(path)


def judged(folder: Path, points: list[Point], machine: str, multicast: bool = True) -> Diagnosis:
    return diagnose(log_of(folder, points), load(machine).select(), load(machine, rates="nccl"), multicast=multicast)


@pytest.mark.parametrize(("source", "table", "machine", "busbw"), TABLES)
def test_published_runs_are_normal_by_the_bound_for_switches_that_add(
    tmp_path: Path, source: str, table: str, machine: str, busbw: float
) -> None:
    found = judged(tmp_path, published(source, table), machine)
    assert found.first_behind is None
    assert found.odd == []
    assert found.to_dict()["normal"]
    assert all(0.88 < line.of_model < (1.21 if "b200" in machine else 1.13) for line in found.lines)
    assert all(line.expected.choice == "nvls Simple" and line.expected.origin for line in found.lines)
    port = 900 if "b200" in machine else 450
    assert float(found.bound.rate) / 1e9 == pytest.approx(port * 8 / 9)
    assert found.bound.grants
    assert found.of_bound(found.largest) == pytest.approx(busbw / (port * 14 / 9), rel=0.01)


def test_nvls_where_the_model_takes_rings_is_judged_as_such(tmp_path: Path) -> None:
    """Five H200 ran NVLS by NCCL 2.27.7 (stas-h200-nvls-ramp: 414.2 GB/s busbw), where 2.28.3's model takes rings."""
    points = [Point(size, 1e6 * 1.6 * size / 414.2e9, None) for size in (2**31, 2**32, 2**33)]
    path = log_of(tmp_path, points, 5)
    part = load("hgx-h200").select([f"gpu{rank}" for rank in range(5)])
    for multicast, rate in ((True, 375), (False, 281.25)):
        found = diagnose(path, part, load("hgx-h200", rates="nccl"), multicast=multicast)
        assert float(found.bound.rate) / 1e9 == rate


@pytest.mark.parametrize(("machine", "nodes"), [("hgx-h100", 1), ("p5.48xlarge", 2), ("dgx1-v100", 1), ("mi300x", 1)])
@pytest.mark.parametrize("multicast", [True, False])
def test_one_question_has_one_bound(machine: str, nodes: int, multicast: bool) -> None:
    """Whatever was measured, and that of `project`: for switches that add where they may."""
    whole = load(machine, nodes=nodes)
    asked = [diagnose(None, whole, size="8GiB", busbw=busbw, multicast=multicast) for busbw in (200, 700, 701)]
    [bound] = {found.bound.rate for found in asked}
    _, _, ceiling = Library(multicast=multicast).at(Question(whole))[0].bounded(Collective("allreduce"))
    assert bound == ceiling.rate


def test_nvls_that_is_slow_from_a_size_on_is_found(tmp_path: Path) -> None:
    points = []
    for size, time, _ in published("azure-ndh200v5", "nd-h200-v5"):
        assert time is not None
        points.append(Point(size, time * (1.5 if size >= 64 * MIB else 1), None))
    found = judged(tmp_path, points, "hgx-h200")
    assert found.first_behind is not None
    assert found.first_behind.size == 64 * MIB


def test_a_log_of_nvls_that_is_said_to_have_none_is_of_no_such_machine(tmp_path: Path) -> None:
    found = judged(tmp_path, published("azure-ndh200v5", "nd-h200-v5"), "hgx-h200", multicast=False)
    assert found.impossible
    assert float(found.bound.rate) / 1e9 == pytest.approx(1800 / 7)


@pytest.mark.parametrize(("source", "table", "machine", "busbw"), TABLES)
def test_the_constants_of_nvls_come_out_of_a_log(
    tmp_path: Path, source: str, table: str, machine: str, busbw: float
) -> None:
    """W = busbw (n + 1) / (2 (n - 1)) of large sizes; the medium ones need the other constants."""
    path = log_of(tmp_path, published(source, table))
    found = calibrate(read_series(path, machine), machine=machine)
    assert found.parameters == ()
    assert found.nccl is not None
    line = found.nccl.rates.nvls
    assert line is not None
    largest = max(size for size, _, _ in published(source, table))
    assert line.time(8, largest) == pytest.approx(1.75 * largest / busbw / 1e9, rel=0.06)
    assert line.port_rate(8, largest) == pytest.approx(busbw * 9 / 14 * 1e9, rel=0.1)
    assert found.nccl.error.median < 0.03
    assert rate_tables.read(_written(tmp_path, rate_tables.write(found.table))).nccl_rates == found.nccl.rates


def test_one_slow_last_size_is_wild_and_no_run_of_rings(tmp_path: Path) -> None:
    *points, (size, time, _) = published("azure-ndh200v5", "nd-h200-v5")
    assert size > points[-1].size
    assert time is not None
    series = read_series(log_of(tmp_path, [*points, Point(size, 3 * time, None)]), "hgx-h200")
    found = calibrate(series, machine="hgx-h200")
    assert found.parameters == ()
    assert found.nccl is not None
    assert found.nccl.rates.nvls is not None
    assert [sample.size for _, sample, _ in found.wild] == [size]


def _written(folder: Path, content: str) -> str:
    path = folder / "rates.yaml"
    path.write_text(content)
    return str(path)


def test_rings_and_nvls_are_fitted_side_by_side(tmp_path: Path) -> None:
    """Two captured logs of H200 without NVLS beside a table of it: rings keep what they give alone."""
    rings = read_series("tests/data/nccl_tests/h200x8-allreduce.txt", "hgx-h200")
    added = read_series(log_of(tmp_path, published("azure-ndh200v5", "nd-h200-v5")), "hgx-h200")
    alone, both = calibrate(rings), calibrate([*rings, *added])
    assert both.table.classes == alone.table.classes
    assert both.nccl is not None
    assert alone.nccl is not None
    assert both.nccl.rates.simple == alone.nccl.rates.simple
    assert both.nccl.rates.nvls != alone.nccl.rates.nvls
    assert {one.name for one in both.nccl.constants} > {one.name for one in alone.nccl.constants}


def test_too_few_times_are_refused(tmp_path: Path) -> None:
    points = published("azure-ndh200v5", "nd-h200-v5")[-2:]
    with pytest.raises(InputError, match="ran as NVLS, where switches add, at 2 of these sizes"):
        calibrate(read_series(log_of(tmp_path, points), "hgx-h200"))


def test_the_commands_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, rates = log_of(tmp_path, published("azure-ndh200v5", "nd-h200-v5")), str(tmp_path / "rates.yaml")
    assert run(["diagnose", log, "--machine", "hgx-h200"]) == 0
    out = capsys.readouterr().out
    assert "it assumes: switches may multicast and reduce (NVLS)" in out
    assert "expected    measured on nd-h200-v5" in out
    assert out.splitlines()[-1] == f"next: blinksim calibrate {log} --machine hgx-h200 -o rates.yaml"
    assert run(["calibrate", log, "--machine", "hgx-h200", "-o", rates]) == 0
    out = capsys.readouterr().out
    assert "NCCL ran NVLS: busbw 4" in out
    # One rate of a port is said, the constant.
    assert out.count("nvls.rate") == out.count("GB/s a GPU") == 1
    assert "a port carries" not in out
    assert run(["diagnose", log, "--machine", "hgx-h200", "--rates", rates]) == 0
    assert "expected    measured at this point: NCCL, blinksim calibrate of log.txt" in capsys.readouterr().out
    assert run(["project", "hgx-h200", "allreduce", "64MiB", "--rates", rates]) == 0
    assert "measured at this point: NCCL, blinksim calibrate of log.txt" in capsys.readouterr().out
