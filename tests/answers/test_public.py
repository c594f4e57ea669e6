"""Published cells beside predictions and bounds: as a project of the same job says, and summed up as NumPy would."""

from __future__ import annotations

import json

import numpy as np
import pytest

import blinksim as bs
from blinksim.answers.measurements.public import public_measurements
from blinksim.cli.main import run
from blinksim.errors import InputError
from blinksim.timing.measured import public_tables


def measured(machine: str, quality: str = "ABCD") -> bs.PublicMeasurements:
    found = bs.measured(machine, quality=quality)
    assert isinstance(found, bs.PublicMeasurements)
    return found


def test_a_cell_stands_beside_what_project_says_of_its_job() -> None:
    found = measured("p6-b200")
    cell = next(one for one in found.cells if (one.cell.gpus, one.cell.nvls) == (8, "on"))
    wanted = bs.project("p6-b200.48xlarge", "allreduce", cell.cell.size, algorithm="nccl")
    assert cell.predicted_s == pytest.approx(wanted.time_s)
    assert cell.choice == f"{wanted.details['nccl_algorithm']}/{wanted.details['nccl_protocol']}"
    assert cell.error_pct == pytest.approx(100 * (wanted.time_s - cell.cell.time_s) / cell.cell.time_s)
    # 838 GB/s are published for eight GPUs; ports of 900 GB/s with sums read from the switch allow 2 x 7/9 x 900.
    assert cell.cell.busbw == pytest.approx(838e9, rel=0.01)
    assert cell.of_bound_pct == pytest.approx(100 * 838 / (2 * 7 / 9 * 900), rel=0.01)


def test_switches_that_were_told_not_to_add_do_not_raise_the_bound() -> None:
    found = measured("p5en.48xlarge", quality="B")
    by_nvls = {one.cell.nvls: one.bound for one in found.cells if one.cell.gpus == 8}
    assert by_nvls["on"] is not None
    assert by_nvls["off"] is not None
    assert by_nvls["on"].rate_GBps == pytest.approx(450 * 8 / 9)
    assert by_nvls["off"].rate_GBps == pytest.approx(450 * 8 / 14)


@pytest.mark.parametrize("machine", ["a3-megagpu-8g", "dgx1-v100", "alps"])
def test_nothing_is_expected_below_the_bound(machine: str) -> None:
    """8 GiB on 2 x a3-megagpu-8g: constants that are factors on what NCCL says come out a quarter below it."""
    for row in measured(machine).rows():
        if row["expected_s"] is not None and row["bound_GBps"] is not None:
            assert row["expected_s"] >= row["size_bytes"] / (1e9 * row["bound_GBps"]) * (1 - 1e-9)


def test_only_nccl_is_predicted_and_only_where_it_was_modelled() -> None:
    assert {one.predicted_s for one in measured("mi300x").cells} == {None}
    forced = measured("dgx1-v100").cells
    assert {one.choice for one in forced} == {"ring/Simple"}
    assert {one.predicted_s for one in measured("gb300-nvl72").cells if one.cell.gpus == 64} == {None}


def test_the_summary_is_that_of_the_rows() -> None:
    found = measured("nvl4")
    rows = [row for row in found.rows() if (row["collective"], row["gpus"]) == ("allreduce", 4)]
    large = [row for row in rows if row["size_bytes"] >= 64 * 2**20]
    told = next(
        row
        for row in found.summary()
        if (row["collective"], row["gpus"], row["band"]) == ("allreduce", 4, "from 64 MiB")
    )
    assert told["cells"] == len(large) > 3
    assert told["median_error_pct"] == pytest.approx(np.median([row["error_pct"] for row in large]))
    assert told["best_busbw_GBps"] == max(row["busbw_GBps"] for row in large)


def test_measurements_that_two_tables_have_count_once() -> None:
    found = bs.measured("aurora")
    # The tables "with PCIe" hold the times of those without it beside another model.
    names = {row["table"] for row in found.rows()}
    again = {f"{name}, with PCIe" for name in names} & names
    assert len(again) == 2
    times = ("nodes", "ranks_per_node", "size_bytes", "measured_ms")
    of = {name: {tuple(row[key] for key in times) for row in found.rows() if row["table"] == name} for name in names}
    assert all(of[name] == of[name.removesuffix(", with PCIe")] for name in again)
    distinct, printed = len(set().union(*of.values())), len(found.rows())
    assert f"aurora: {distinct} published measurements, printed {printed} times, reach" in found.sentence()
    assert "15 published" in found.sentence()
    # As the list of all machines counts them.
    assert len(public_tables.cells("aurora")) == distinct < printed


def test_which_tables_are_taken() -> None:
    every, whole = (public_measurements("p4d.24xlarge", quality, predict=False) for quality in ("ABCD", "A"))
    assert {row["quality"] for row in every.rows()} == {"A", "D"}
    assert whole.rows() == [row for row in every.rows() if row["quality"] == "A"]
    with pytest.raises(InputError, match="has no published measurements of quality B"):
        measured("p4d", quality="B")
    with pytest.raises(InputError, match="unknown quality 'X'"):
        measured("p4d", quality="X")


def test_the_command_prints_every_set_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["measured", "nd-h200-v5", "--why"]) == 0
    out = capsys.readouterr().out
    found = measured("nd-h200-v5")
    for one in found.sets:
        assert f"\n{one.name}: NCCL" in out
        assert one.source in out
    assert run(out.splitlines()[-1].removeprefix("next: blinksim ").split()) == 0
    capsys.readouterr()
    assert run(["measured", "nd-h200-v5", "--json", "--quality", "b"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {row["set"] for row in printed["rows"]} == {"azure-ndh200v5"}
    assert run(["measured", "nd-h200-v5", "--csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(found.cells) + 1


def test_without_a_machine_those_with_tables_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["measured"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[1:-2]] == public_tables.machines()
    assert run(["measured", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["machine"] for row in rows] == public_tables.machines()


def test_a_machine_without_tables_is_told_apart_from_no_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["measured", "h20"]) == 2
    said = capsys.readouterr().err
    assert "no published times of hgx-h20; " in said
    assert "the nearest machine with some is hgx-h100; there are" in said
    assert run(["measured", "hgx-h10"]) == 2
    assert "did you mean 'hgx-h100'" in capsys.readouterr().err
