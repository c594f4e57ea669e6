"""blinksim calibrate: from a log to a rates file that the other commands read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nccl_tests_logs import Point, as_json, text
from scaled_rings import scaled

import blinksim as bs
from blinksim.answers.logs.expectation import RingModel
from blinksim.cli.main import run
from blinksim.collective import Collective
from blinksim.machines import load
from blinksim.units import format_size

SIZES = [2**power for power in range(10, 31)]


def points(members: list[str] | None = None, slower: float = 1.25) -> list[Point]:
    model = scaled(RingModel(load("dgx1-v100").select(members), Collective("allreduce")), {}, {"nvlink": slower})
    times = [1e6 * model.time(size) for size in SIZES]
    return [Point(size, time, time * 1.001) for size, time in zip(SIZES, times, strict=True)]


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "log.txt"
    path.write_text(text("allreduce", 8, points()))
    return str(path)


def ask(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> tuple[str, str]:
    assert run(["calibrate", *arguments]) == status
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_from_a_log_to_a_projection(capsys: pytest.CaptureFixture[str], tmp_path: Path, log: str) -> None:
    target = str(tmp_path / "rates.yaml")
    out, _ = ask(capsys, log, "--machine", "dgx1-v100", "-o", target)
    first, *rest = out.splitlines()
    assert first.startswith("dgx1-v100: a lane of nvlink carries 19.99 GB/s (19.98 to 20), ")
    assert "from 42 measurements" in first
    assert max(len(line) for line in out.splitlines()[:-1] if not line.startswith("  log ")) < 120
    following = rest[-1].removeprefix("next: blinksim ").split()
    assert run([*following, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # 600/7 GB/s at 25 GB/s a lane.
    assert found["algbw_GBps"] == pytest.approx(600 / 7 / 1.25, rel=0.01)
    assert found["rates"] == "measured (pcie, qpi, ib: nominal)"
    _, err = ask(capsys, log, "--machine", "dgx1-v100", "-o", target, status=2)
    assert "is not overwritten; add --force" in err
    ask(capsys, log, "--machine", "dgx1-v100", "-o", target, "--force")


@pytest.mark.parametrize(("machine", "bound"), [("hgx-h200", 450), ("mi300x", 448), ("dgx1-v100", 150)])
def test_a_fit_gives_the_log_again_and_bounds_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, machine: str, bound: float
) -> None:
    """Protocols change with the size: no alpha and beta give such times; and links may carry more than was measured."""
    target, usual = str(tmp_path / "rates.yaml"), bs.project
    times = [1e6 * usual(machine, "allreduce", size).time_s * (1 + 0.3 * (size > 2**23)) for size in SIZES[::2]]
    diagnosed = ("diagnose", "{log}", "--machine", machine, "--no-nvls", "--rates", target)
    for name, quicker in (("first", 1.0), ("second", 0.8)):
        path = tmp_path / f"{name}.txt"
        rows = [Point(size, quicker * time, None) for size, time in zip(SIZES[::2], times, strict=True)]
        path.write_text(text("allreduce", 8, rows).replace("NVIDIA H200", "GPU"))
        if name == "first":
            ask(capsys, str(path), "--machine", machine, "--no-nvls", "-o", target)
        asked = [word.format(log=path) for word in diagnosed]
        assert run(asked) == 0
        *_, out = capsys.readouterr().out.partition(": ")
        assert out.startswith("normal" if name == "first" else "faster than expected: ")
        assert f"busbw {bound} GB/s at nominal rates" in out
        again = f"--machine {machine} --rates {target} --no-nvls -o rates.yaml"
        assert out.splitlines()[-1] == f"next: blinksim calibrate {path} {again}"
        assert run([*asked, "--json"]) == 0
        percents = [row["percent_of_model"] for row in json.loads(capsys.readouterr().out)["rows"]]
        assert percents == pytest.approx([100 / quicker] * len(percents), rel=0.002)


def test_json_keys_carry_units(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(as_json("allreduce", 8, points(), listed="all"))
    out, _ = ask(capsys, str(path), "--machine", "dgx1-v100", "--json")
    found = json.loads(out)
    assert found["command"] == "calibrate"
    assert found["members"] == [f"gpu{i}" for i in range(8)]
    (row,) = found["rows"]
    assert row["class"] == "nvlink"
    assert row["bandwidth_low_GBps"] <= row["bandwidth_GBps"] <= row["bandwidth_high_GBps"]
    assert row["bandwidth_GBps"] == pytest.approx(20, rel=2e-3)
    assert row["alpha_s"] == pytest.approx(1.9e-6, rel=2e-3)
    assert found["wild"] == []


def test_members_of_a_part_of_the_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(text("allreduce", 2, points(["gpu0", "gpu3"]), devices=[0, 3]))
    for more in ((), ("--members", "0,3")):
        out, _ = ask(capsys, str(path), "--machine", "dgx1-v100", "--json", *more)
        found = json.loads(out)
        assert found["members"] == ["gpu0", "gpu3"]
        assert found["rows"][0]["bandwidth_GBps"] == pytest.approx(20, rel=2e-3)
    _, err = ask(capsys, str(path), "--machine", "dgx1-v100", "--members", "0,1,2", status=2)
    assert "has 2 ranks, and 3 members are chosen" in err


def test_of_a_run_that_ended_early_the_sizes_are_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, values = tmp_path / "log.txt", points()
    for footer, many in ((True, len(values)), (False, len(values) - 3)):
        path.write_text(text("allreduce", 8, values[:many], footer=footer))
        out, _ = ask(capsys, str(path), "--machine", "dgx1-v100")
        span = f"of {format_size(values[0].size)} to {format_size(values[many - 1].size)}, on 8 ranks"
        assert f"  from allreduce {span}" in out
        assert ("the run ended early" in out, "nccl-tests' last lines are missing" in out) == (not footer,) * 2
        out, _ = ask(capsys, str(path), "--machine", "dgx1-v100", "--json")
        assert json.loads(out)["ended_early"] == ["nccl-tests' last lines are missing"] * (not footer)


def test_wild_times_are_listed_with_their_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    values = points()
    values[10] = values[10]._replace(out_of_place=values[10].out_of_place * 9)  # type: ignore[operator]
    path.write_text(text("allreduce", 8, values))
    line = 1 + next(i for i, row in enumerate(path.read_text().splitlines()) if row.split()[0] == "1048576")
    out, _ = ask(capsys, str(path), "--machine", "dgx1-v100")
    assert f"allreduce of 1 MiB (line {line}): " in out
    assert "9 times the fit" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{log}",), "name the machine with --machine"),
        ((), "give a log and its machine, as in: blinksim calibrate"),
        (("{log}.missing", "--machine", "dgx1-v100"), "no such log"),
        (("{log}", "--machine", "k2200-ntb"), "has 8 ranks, but k2200-ntb has"),
        (("{log}", "--machine", "dgx1-v100", "--collective", "allgather"), "no test of allgather, only of allreduce"),
        (("{log}", "--machine", "dgx1-v100", "--collective", "allgater"), "did you mean 'allgather'"),
    ],
)
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], log: str, arguments: tuple[str, ...], message: str
) -> None:
    out, err = ask(capsys, *(a.replace("{log}", log) for a in arguments), status=2)
    assert out == ""
    assert err.count("\n") == 1
    assert message in err


def test_as_many_constants_as_sizes_leave_nothing_to_judge_by(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Two sizes, each in and out of place: alpha and bandwidth go through them exactly."""
    path, every = tmp_path / "log.txt", [points()[4], points()[16]]
    path.write_text(text("allreduce", 8, every))
    said, _ = ask(capsys, str(path), "--machine", "dgx1-v100")
    assert "GB/s (no interval), from 4 measurements" in said
    assert "error not known, as there are no more sizes than constants" in said
    assert "median error" not in said
    found = json.loads(ask(capsys, str(path), "--machine", "dgx1-v100", "--json")[0])
    (row,) = found["rows"]
    assert row["bandwidth_GBps"] == pytest.approx(20, rel=0.01)
    assert {row["bandwidth_low_GBps"], row["alpha_high_s"], found["median_error"], found["spread"]} == {None}
    # One size more, and there is something to judge by.
    path.write_text(text("allreduce", 8, [*every, points()[20]]))
    found = json.loads(ask(capsys, str(path), "--machine", "dgx1-v100", "--json")[0])
    assert found["rows"][0]["bandwidth_low_GBps"] < found["rows"][0]["bandwidth_GBps"]
    assert found["median_error"] < 0.01
