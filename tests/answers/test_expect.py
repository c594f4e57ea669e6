"""What a healthy machine reaches: the figures of `project`, floors that published runs keep to, and forms for tools."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from nccl_tests_logs import Point, as_json, text

import blinksim as bs
from blinksim.cli.main import run
from blinksim.timing.library_model import Library

LOGS = Path(__file__).resolve().parents[1] / "data" / "nccl_tests"
HEALTHY, SLOW = str(LOGS / "h200x8-allreduce.txt"), str(LOGS / "dgx1v-without-nvlink.txt")


@pytest.mark.parametrize(("machine", "nodes"), [("hgx-h100", 1), ("p5.48xlarge", 2), ("dgx1-v100", 1), ("mi300x", 1)])
def test_the_figures_are_those_of_project(machine: str, nodes: int) -> None:
    """Expected time, interval, least time and origin of the same question, asked of the other command."""
    found = bs.expect(machine, ["allreduce", "alltoall"], ["64KiB", "256MiB"], nodes=nodes).rows()
    for row in found:
        one = bs.project(bs.load(machine, nodes=nodes), row["collective"], row["size_bytes"])
        assert isinstance(one, bs.Answer)
        assert one.least is not None
        assert (row["time_s"], row["interval_low_s"], row["interval_high_s"]) == (one.time_s, one.low_s, one.high_s)
        assert (row["cannot_take_less_s"], row["origin"]) == (one.least.time_s, one.details["origin"])
        factor = {"allreduce": 2.0, "alltoall": 1.0}[row["collective"]] * (len(one.members) - 1) / len(one.members)
        for key, time_s in (("expected", one.time_s), ("floor", one.high_s), ("ceiling", one.least.time_s)):
            assert row[f"{key}_busbw_GBps"] == pytest.approx(row["size_bytes"] * factor / time_s / 1e9)
        assert row["floor_busbw_GBps"] <= row["expected_busbw_GBps"] <= row["ceiling_busbw_GBps"]


def ask(capsys: pytest.CaptureFixture[str], line: str, status: int = 0) -> tuple[str, str]:
    assert run(["expect", *shlex.split(line)]) == status
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_the_table_and_its_forms_have_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    line = "hgx-h200 --collective allreduce,reducescatter --sizes 1MiB,1GiB"
    said = json.loads(ask(capsys, f"{line} --json")[0])
    assert json.loads(ask(capsys, f"{line} --format json")[0]) == said
    assert yaml.safe_load(ask(capsys, f"{line} --format yaml")[0]) == said
    assert ask(capsys, f"{line} --csv")[0] == ask(capsys, f"{line} --format csv")[0]
    assert said["false_alarms"] == 0.1
    assert [(row["collective"], row["size_bytes"]) for row in said["rows"]] == [
        (name, size) for name in ("allreduce", "reducescatter") for size in (2**20, 2**30)
    ]
    shown = ask(capsys, line)[0].splitlines()
    assert "1 in 10 healthy runs is below a floor" in shown[0]
    for row, words in zip(said["rows"], shown[3:7], strict=True):
        assert words.split()[3:5] == [f"{row[key]:.4g}" for key in ("expected_busbw_GBps", "floor_busbw_GBps")]
    assert shown[-1] == "next: blinksim expect hgx-h200 --check log.txt"


def test_rules_of_prometheus(capsys: pytest.CaptureFixture[str]) -> None:
    """As its manual has them: groups with a unique name and rules, each with record, expr and labels of text."""
    said = json.loads(ask(capsys, "p5 --nodes 2 --collective allreduce --sizes 1GiB --json")[0])
    found = yaml.safe_load(ask(capsys, "p5 --nodes 2 --collective allreduce --sizes 1GiB --format prometheus")[0])
    assert list(found) == ["groups"]
    [group] = found["groups"]
    assert set(group) == {"name", "rules"}
    rules: list[dict[str, Any]] = group["rules"]
    seen = {(rule["record"], tuple(sorted(rule["labels"].items()))) for rule in rules}
    assert len(seen) == len(rules) == 3
    for rule in rules:
        assert set(rule) == {"record", "expr", "labels"}
        assert re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", rule["record"])
        for name, value in rule["labels"].items():
            assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name)
            assert not name.startswith("__")
            assert isinstance(value, str)
        figure = rule["record"].split("_")[1]
        value = float(re.fullmatch(r"vector\(([0-9.e+]+)\)", rule["expr"])[1])  # type: ignore[index]
        assert value == pytest.approx(said["rows"][0][f"{figure}_busbw_GBps"] * 1e9, rel=1e-5)


def _passes(bandwidths: list[float], least: float) -> bool:
    """What nccl-tests does with its average: src/common.cu."""
    return not sum(bandwidths) / len(bandwidths) < least * 0.9


def test_thresholds_of_nccl_tests(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(ask(capsys, "hgx-h200 --collective allreduce --json")[0])["rows"]
    [line] = ask(capsys, "hgx-h200 --collective allreduce --format nccl-tests")[0].splitlines()
    devices, setting, *command = line.split()
    least = float(setting.removeprefix("NCCL_TESTS_MIN_BW="))
    assert devices == "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"
    assert " ".join(command) == "all_reduce_perf -b 1024 -e 1073741824 -f 32 -g 8 -G 1"
    floors, usual = ([row[f"{key}_busbw_GBps"] for row in rows] for key in ("floor", "expected"))
    assert _passes(usual, least)
    assert _passes([1.001 * floor for floor in floors], least)
    assert not _passes([0.998 * floor for floor in floors], least)
    [line] = ask(capsys, "p5 --nodes 2 --collective alltoall --sizes 1MiB,8MiB --format nccl-tests")[0].splitlines()
    start = "mpirun -x CUDA_VISIBLE_DEVICES -x NCCL_TESTS_MIN_BW -np 16 -N 8"
    assert line.endswith(f" {start} alltoall_perf -b 1048576 -e 8388608 -f 8 -g 1")
    # The launch that the floors are of is that of the command, as the log of such a run says, and the head names it.
    sizes, ranks = "all_reduce_perf -b 1024 -e 1073741824 -f 32", "mpirun -x CUDA_VISIBLE_DEVICES -x NCCL_TESTS_MIN_BW"
    for launched, words, started in (
        ("graph", "in a graph", [sizes, "-g 8 -G 1"]),
        ("threads", "by threads", [sizes, "-g 8"]),
        ("stream", "from a stream", [f"{ranks} -np 8 -N 8", sizes, "-g 1"]),
    ):
        asked = f"hgx-h200 --collective allreduce --set-up {launched}"
        assert f"with NCCL launched {words}; " in ask(capsys, asked)[0].splitlines()[0]
        [line] = ask(capsys, f"{asked} --format nccl-tests")[0].splitlines()
        assert line.split(" ", 2)[2] == " ".join(started)
    lines = ask(capsys, "mi300x --members 0,2,4,5 --format nccl-tests")[0].splitlines()
    assert all(line.startswith("HIP_VISIBLE_DEVICES=0,2,4,5 NCCL_TESTS_MIN_BW=") for line in lines)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hgx-h200 --sizes 1MiB,3MiB,4MiB --format nccl-tests", "sizes that grow by one whole factor"),
        ("gaudi3 --format nccl-tests", "runs NCCL or RCCL"),
        ("gb200-nvl72 --collective allreduce --sizes 1MiB --format nccl-tests", "at most 16"),
        (f"hgx-h200 --check {HEALTHY} --format prometheus", "is not for --check"),
        ("hgx-h200 --format yaml --json", "leave --json and --csv out"),
        ("hgx-h200 --collective allreduce,broadcat", "broadcat"),
        (f"hgx-h200 --check {HEALTHY} --collective broadcast", "no test of broadcast"),
        ("hgx-h200 --check missing.txt", "missing.txt"),
        ("hgx-h200 --nccl-version 3.1", "3.1"),
    ],
)
def test_refusals_are_one_line(capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    out, err = ask(capsys, line, status=2)
    # Progress comes after two seconds, on a slow machine before this.
    said = [one for one in err.splitlines() if not one.startswith("still at work")]
    assert (out, len(said)) == ("", 1)
    assert message in err


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (f"hgx-h200 --no-nvls --check {HEALTHY}", 0),
        (f"hgx-h200 --check {HEALTHY}", 0),
        (f"dgx1-v100 --check {SLOW}", 1),
        (f"hgx-h200 --no-nvls --check {HEALTHY} --check {HEALTHY} --format yaml", 0),
    ],
)
def test_a_log_is_judged_as_diagnose_does(capsys: pytest.CaptureFixture[str], line: str, status: int) -> None:
    machine, *more = line.split()
    out, _ = ask(capsys, f"{line} --csv" if "--format" not in line else line, status=status)
    log = more[more.index("--check") + 1]
    flags = ["--no-nvls"] if "--no-nvls" in more else []
    assert run(["diagnose", log, "--machine", machine, *flags, "--json"]) == status
    rows = json.loads(capsys.readouterr().out)["rows"]
    if "--format" in line:
        assert yaml.safe_load(out)["rows"] == [{"log": log, "collective": "allreduce", **row} for row in rows] * 2
    else:
        assert [row.split(",")[3] for row in out.splitlines()[1:]] == [str(row["time_s"]) for row in rows]


def test_the_verdicts_of_several_logs_name_them(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = ask(capsys, f"hgx-h200 --no-nvls --check {HEALTHY}")
    verdict = out.splitlines()[0]
    out, _ = ask(capsys, f"hgx-h200 --no-nvls --check {HEALTHY} --check {HEALTHY}")
    assert out.splitlines()[:2] == [f"{HEALTHY}: {verdict}"] * 2


def _log(folder: Path, share: float, **more: Any) -> Path:
    """Tests of two collectives on H200 without NVLS: the first at a share of the usual rate, the second at it."""
    tests = []
    for name, part in (("allreduce", share), ("allgather", 1.0)):
        rows = bs.expect("hgx-h200", [name], "16MiB:1GiB:x8", library=Library(multicast=False)).rows()
        tests.append(text(name, 8, [Point(row["size_bytes"], 1e6 * row["time_s"] / part, None) for row in rows]))
    path = folder / "log.txt"
    path.write_text("".join(tests))
    return path


@pytest.mark.parametrize(("share", "status"), [(1.0, 0), (0.97, 0), (0.65, 1), (0.5, 1)])
def test_tests_of_several_collectives_in_one_log(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, share: float, status: int
) -> None:
    out, err = ask(capsys, f"hgx-h200 --no-nvls --check {_log(tmp_path, share)}", status)
    first, second = out.splitlines()[:2]
    assert first.startswith(f"allreduce on 8 GPUs of hgx-h200: {'normal' if status == 0 else 'behind from '}")
    assert second.startswith("allgather on 8 GPUs of hgx-h200: normal")
    assert out.count("slow") == (3 if status else 0)
    assert err == ""


def test_nobody_can_tell_from_small_sizes_or_wide_intervals(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(as_json("allreduce", 8, [Point(1024, 20.0, None), Point(4096, 21.0, None)]))
    assert "latency decides" in ask(capsys, f"hgx-h200 --check {path}", status=5)[0]


def test_every_source_has_a_label_of_its_own() -> None:
    # Aurora's allreduce of 1 GiB is scaled from a time that was published, its other collectives are not.
    found = bs.expect("aurora", ["allreduce", "allgather"], "1MiB,1GiB", nodes=2)
    lines = found.text().splitlines()
    labels = [re.split(r"\s{2,}", line.strip())[-1] for line in lines if re.match(r"  all(reduce|gather) ", line)]
    assert len(labels) == len(found.rows())
    origins = {label: row["origin"] for label, row in zip(labels, found.rows(), strict=True)}
    assert len(origins) == len({row["origin"] for row in found.rows()}) > 1
    for label, row in zip(labels, found.rows(), strict=True):
        assert origins[label] == row["origin"]
        assert any(re.match(rf"  {re.escape(label)}\s{{2,}}{re.escape(row['origin'])} \(", line) for line in lines)


def test_what_another_run_took_is_no_source_and_what_fewer_bytes_took_is_said() -> None:
    forced, falling = (
        bs.expect("dgx1-v100", ["allreduce"]).text(),
        bs.expect("alps", ["allreduce"], nodes=8, sizes="1MiB,4MiB").text(),
    )
    assert " took " not in forced
    assert forced.count("fitted to 65 published times") == 1
    assert "; fewer bytes took longer (allreduce)" in falling
