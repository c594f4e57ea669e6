"""The published figure beside a log: the rows of models/measured, read here without blinksim's reader."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from nccl_tests_logs import Point, text

from blinksim.answers.logs.diagnose import Diagnosis, diagnose
from blinksim.collective import Collective
from blinksim.machines import load
from blinksim.nccl.logs.tests_log import read

TABLES = Path(__file__).resolve().parents[2] / "models" / "measured"


def published(machine: str, **wanted: str) -> dict[str, str]:
    rows = csv.DictReader((TABLES / f"{machine}.csv").read_text().splitlines())
    return next(row for row in rows if all(row[key] == value for key, value in wanted.items()))


def diagnosed(
    folder: Path, machine: str, collective: str, points: list[Point], *, nodes: int = 1, multicast: bool = True
) -> Diagnosis:
    whole = load(machine, nodes=nodes)
    path = folder / "log.txt"
    path.write_text(text(collective, whole.ranks, points))
    return diagnose(read(path)[0], whole.select(), whole, multicast=multicast)


def test_the_figure_of_the_same_machine_at_the_same_size(tmp_path: Path) -> None:
    row = published("hgx-h100", set="xxr-h100-n8", collective="allreduce", size_bytes=str(2**30))
    time = 1.25 * float(row["time_us"])
    found = diagnosed(tmp_path, "hgx-h100", "allreduce", [Point(2**20, 40.0, None), Point(2**30, time, None)]).published
    assert found is not None
    assert found.same
    assert (found.cell.set.name, found.cell.size, found.size) == ("xxr-h100-n8", 2**30, 2**30)
    assert found.percent == pytest.approx(80, rel=1e-3)
    assert found.cell.busbw / 1e9 == pytest.approx(float(row["busbw_GBps"]), rel=1e-3)
    assert "published" in diagnosed(tmp_path, "hgx-h100", "allreduce", [Point(2**30, time, None)]).to_dict()


def test_the_same_wiring_in_place_of_the_same_machine(tmp_path: Path) -> None:
    points = [Point(2**30, 4000.0, None)]
    found = diagnosed(tmp_path, "hgx-h200", "allreduce", points).published
    assert found is not None
    assert not found.same
    assert "linked in the same way" in found.words
    # H800 and H20 have the same GPUs by compute capability, but other NVLinks or none published.
    assert diagnosed(tmp_path, "hgx-h800", "allreduce", points).published is None


def test_a_log_without_nvls_is_held_against_no_table_with_it(tmp_path: Path) -> None:
    points = [Point(2**30, 5227.0, None)]
    found = diagnosed(tmp_path, "hgx-h100", "allreduce", points, multicast=False).published
    assert found is None or found.cell.nvls in ("off", "n.a.")


@pytest.mark.slow
def test_clusters_are_held_against_the_same_number_of_nodes(tmp_path: Path) -> None:
    row = published("dgx-a100", collective="allreduce", nodes="2", gpus="16")
    points = [Point(int(row["size_bytes"]), 100.0, None)]
    found = diagnosed(tmp_path, "dgx-a100", "allreduce", points, nodes=2).published
    assert found is not None
    assert (found.cell.nodes, found.cell.gpus, found.same) == (2, 16, True)
    assert diagnosed(tmp_path, "dgx-a100", "allreduce", points, nodes=3).published is None


def test_far_sizes_and_told_algorithms_are_no_yardstick(tmp_path: Path) -> None:
    assert diagnosed(tmp_path, "hgx-h100", "allreduce", [Point(2**40, 1e7, None)]).published is None
    # The tables of DGX-1V are of runs that were told to take rings.
    assert diagnosed(tmp_path, "dgx1-v100", "allreduce", [Point(2**28, 4000.0, None)]).published is None


def test_other_collectives_have_their_own(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, "hgx-h100", "allgather", [Point(2**30, 3000.0, None)])
    assert found.collective == Collective("allgather")
    assert found.published is not None
    assert found.published.cell.collective == "allgather"
