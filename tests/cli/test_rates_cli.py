"""At which rates answers are: said in every form, the same from Python, and changed by no other row."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from nccl_tests_logs import Point, text

import blinksim as bs
from blinksim.answers.logs.diagnose import diagnose
from blinksim.cli.main import run
from blinksim.nccl import tests_log
from blinksim.units import format_size

LOGS = Path(__file__).resolve().parents[1] / "data" / "nccl_tests"
HEALTHY = str(LOGS / "h200x8-allreduce.txt")
SIZES = [2**power for power in range(12, 31, 2)]


def ask(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert run(list(arguments)) == status
    captured = capsys.readouterr()
    return captured.err if status else captured.out


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, str]]:
    out = ask(capsys, "compare", "dgx1-v100", "allreduce", "--sizes", "256MiB", "--csv", *arguments)
    return list(csv.DictReader(io.StringIO(out)))


def test_nccl_beside_ring_leaves_ring_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    (alone,) = compared(capsys, "--algorithms", "ring")
    both = {row["algorithm"]: row for row in compared(capsys, "--algorithms", "ring,nccl")}
    assert both["ring"]["time_s"] == alone["time_s"]
    assert (both["ring"]["rates"], both["nccl"]["rates"]) == ("nominal", "nccl")
    named = compared(capsys, "--algorithms", "ring,nccl", "--rates", "nccl")
    assert {row["rates"] for row in named} == {"nccl"}
    assert {row["rates"] for row in compared(capsys, "--algorithms", "ring,nccl", "--rates", "nominal")} == {"nominal"}


def test_the_text_says_whose_rates(capsys: pytest.CaptureFixture[str]) -> None:
    out = ask(capsys, "compare", "dgx1-v100", "allreduce", "--sizes", "256MiB", "--algorithms", "ring,nccl")
    assert "at nominal rates, but nccl at nccl rates" in out
    assert "--rates takes one table for all" in out
    swept = ask(capsys, "sweep", "dgx1-v100", "allreduce", "--sizes", "256MiB", "--algorithms", "ring,nccl")
    assert "rates" in swept.splitlines()[2]
    alone = ask(capsys, "sweep", "dgx1-v100", "allreduce", "--sizes", "256MiB", "--algorithms", "ring")
    assert "  all at nominal rates" in alone.splitlines()


LINES = {
    "project": "project dgx1-v100 allreduce 1MiB --algorithm best",
    "project, all": "project dgx1-v100 allreduce 1MiB --algorithm all",
    "compare": "compare dgx1-v100 allreduce --sizes 1MiB --algorithms ring",
    "compare, models": "compare dgx1-v100 allreduce --sizes 1MiB --algorithms ring --model alpha-beta,simulate",
    "sweep": "sweep dgx1-v100 allreduce --sizes 1MiB --algorithms ring",
    "bound": "bound dgx1-v100 allreduce",
    "bound, losses": "bound dgx1-v100 allreduce --losses",
    "place": "place dgx1-v100 2",
    "synth": "synth dgx1-v100 allreduce --algorithm ring",
    "synth, a front": "synth dgx1-v100 broadcast --members 0-3 --pareto --time-limit 1",
    "topo show": "topo show dgx1-v100",
    "simulate": "simulate {schedule} 1MiB --chunk 1MiB",
    "verify": "verify {schedule}",
    "diagnose": f"diagnose {HEALTHY} --machine hgx-h200 --no-nvls --why",
}
LONG = {"synth, a front"}
NO_TABLE = {"synth", "topo show", "simulate", "verify"}


@pytest.mark.parametrize("table", [None, "nominal", "nccl"])
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if case in LONG else ()) for case in LINES],
)
def test_every_answer_says_its_rates(
    case: str, table: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = LINES[case].format(schedule=tmp_path / "s.json").split()
    rates = [] if table is None else ["--rates", table]
    if words[0] in ("simulate", "verify"):
        # What a schedule is for stands in its file.
        ask(capsys, "synth", "dgx1-v100", "allreduce", "--algorithm", "ring", "-o", str(tmp_path / "s.json"), *rates)
        rates = []
    expected = table or "nominal"
    text = ask(capsys, *words, *rates)
    answer = text.partition("\nnext: ")[0]
    named = set(re.findall(r"([a-z]+)(?: \([^)]*\))? rates", answer))
    if case == "diagnose":
        # The bound of a log is that of the machine, whatever rates NCCL's own model is at.
        expected = "nominal"
    others = {table or "nccl"} if case == "diagnose" else set()
    assert named == {expected} | others, text
    found = json.loads(ask(capsys, *words, *rates, "--json"))
    stated = {found["rates"]} if "rates" in found else {row["rates"] for row in found["rows"]}
    assert {entry.partition(" (")[0] for entry in stated} == {expected}
    if case.partition(",")[0] not in NO_TABLE:
        rows = list(csv.DictReader(io.StringIO(ask(capsys, *words, *rates, "--csv"))))
        column = "bound_rates" if case == "diagnose" else "rates"
        assert rows
        assert {row[column].partition(" (")[0] for row in rows} == {expected}


@pytest.mark.parametrize("rates", [None, "nominal", "seed"])
def test_python_advises_as_the_command_line_does(capsys: pytest.CaptureFixture[str], rates: str | None) -> None:
    given = () if rates is None else ("--rates", rates)
    typed = json.loads(ask(capsys, "advise", "dgx1-v100", "--members", "1,4,5,7", "--json", *given))
    machine = bs.load("dgx1-v100")
    found = bs.advise(machine.select([1, 4, 5, 7]), machine=machine, rates=rates)
    assert found.part.rates == typed["rates"] == "nominal"
    assert found.to_dict()["best"] == typed["best"]
    assert found.to_dict()["nccl"] == typed["nccl"]
    assert found.to_dict()["bound_exact"] == typed["bound_exact"]


def test_python_diagnoses_as_the_command_line_does(capsys: pytest.CaptureFixture[str]) -> None:
    typed = json.loads(ask(capsys, "diagnose", HEALTHY, "--machine", "hgx-h200", "--no-nvls", "--json"))
    machine = bs.load("hgx-h200")
    found = diagnose(HEALTHY, machine.select(), machine, multicast=False)
    assert found.expectation.name == typed["model"]
    assert "at nccl rates" in typed["model"]
    assert found.rows() == typed["rows"]


@pytest.mark.parametrize(
    ("command", "default"),
    [
        ("diagnose", "nominal for the bound, nccl for NCCL's model"),
        ("compare", "nominal; nccl for what NCCL chooses"),
    ],
)
def test_the_help_states_the_true_default(capsys: pytest.CaptureFixture[str], command: str, default: str) -> None:
    assert f"Default of --rates: {default}" in " ".join(ask(capsys, command, "--help").split())
    assert "Default of --rates" not in ask(capsys, "bound", "--help")  # nominal, as `help machine` says


@pytest.mark.parametrize(
    ("line", "judged", "other"),
    [
        ("NCCL version 2.30.7+cuda13.0", "2.30.7", ""),
        ("NCCL version 2.28.9+cuda13.0", "2.28.3", "2.28.9"),
        ("NCCL version 2.21.5+cuda12.4", "2.28.3", "2.21.5"),
    ],
)
def test_a_log_is_judged_by_the_nccl_that_it_names(tmp_path: Path, line: str, judged: str, other: str) -> None:
    points = [Point(size, 30 + size / 2e5, None) for size in SIZES]
    path = tmp_path / "log.txt"
    path.write_text(f"vm:1:1 [0] NCCL INFO {line}\n" + text("allreduce", 8, points))
    machine = bs.load("hgx-h200")
    found = diagnose(path, machine.select(), machine)
    assert found.expectation.name.startswith(f"NCCL {judged}'s own model")
    assert found.expectation.name.endswith(f"(the log is of NCCL {other})") == bool(other)


def test_the_nccl_that_ran_can_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = [Point(size, 30 + size / 2e5, None) for size in SIZES]
    path = tmp_path / "log.txt"
    path.write_text("vm:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n" + text("allreduce", 8, points))
    assert run(["diagnose", str(path), "--machine", "hgx-h200", "--nccl-version", "2.30.7", "--why"]) == 1
    assert "NCCL 2.30.7's own model" in capsys.readouterr().out
    assert run(["diagnose", str(path), "--machine", "hgx-h200", "--nccl-version", "new"]) == 2
    assert "'new' is no version of NCCL; give one such as 2.28.3" in capsys.readouterr().err


def test_the_version_of_the_library_in_the_first_line() -> None:
    assert {run.nccl for run in tests_log.read(HEALTHY)} == {"2.28.9"}


def test_a_fit_that_does_not_fit_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, target = tmp_path / "log.txt", tmp_path / "rates.yaml"
    # Times that jump by a factor of ten from size to size.
    points = [Point(size, (30 + size / 1e5) * (10 if place % 2 else 1), None) for place, size in enumerate(SIZES)]
    path.write_text(text("allreduce", 8, points))
    err = ask(capsys, "calibrate", str(path), "--machine", "hgx-h200", "-o", str(target), status=2)
    assert "no rates explain these times" in err
    assert len(err.splitlines()) == 1
    assert not target.exists()


def test_a_log_of_nvls_is_not_fitted_with_rings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, target = tmp_path / "log.txt", tmp_path / "rates.yaml"
    # 8 x H100 with NVLS: busbw 473 GB/s, so algbw 270 (published).
    path.write_text(text("allreduce", 8, [Point(size, 20 + size / 270.3e3, None) for size in SIZES]))
    arguments = ("calibrate", str(path), "--machine", "hgx-h100", "-o", str(target))
    # Said to be of rings: no ring reaches 270 of 257 GB/s.
    err = ask(capsys, *arguments, "--no-nvls", status=2)
    assert "which carries 25 GB/s" in err
    assert not target.exists()
    out = ask(capsys, *arguments)
    assert "nothing about links: rings show what they carry (NCCL_NVLS_ENABLE=0)" in out
    assert "classes" not in target.read_text()


def test_words(capsys: pytest.CaptureFixture[str]) -> None:
    out = ask(capsys, "synth", "full:8@64GB/s", "alltoall")
    # Every one of 8 ranks sends to 7 others; what it keeps takes no path.
    assert "56 paths, 56 sends" in out
    assert "1 tree, 3 sends" in ask(capsys, "synth", "line:4@25GB/s", "broadcast")
    assert format_size(1_680_000) == "1.68 MB"
