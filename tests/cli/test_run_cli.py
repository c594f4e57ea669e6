"""`blinksim run`: what it prints, with a stand-in for the GPUs where it needs some."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import jsonschema
import pytest

from blinksim.answers.verify import read_schedule
from blinksim.cli.main import run
from blinksim.gpu.execution import gpu_devices
from blinksim.gpu.execution.gpu_devices import CopyRate
from blinksim.gpu.jobs import backend

ROOT = Path(__file__).resolve().parents[2]
SCHEDULE = str(ROOT / "schedules" / "dgx1-v100-4-allreduce.json")


def test_pairs_are_printed_as_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {
        "gpus": ["NVIDIA H200", "NVIDIA H200"],
        "size_bytes": 2**28,
        "GBps": [[None, 393.4], [393.6, None]],
        "latency_s": [[None, 1.96e-6], [1.9e-6, None]],
    }
    monkeypatch.setattr(gpu_devices, "measure_pairs", lambda: measured)
    pushes = [CopyRate("push", a, (1 - a,), 4, 6e-6 + a * 1e-6, 160e9 + a * 8e9, 0.01, ()) for a in (0, 1)]
    engine = CopyRate("copy engine", 0, (1,), 0, 5e-6, 390e9, 0.01, ())
    monkeypatch.setattr(gpu_devices, "measure_copies", lambda: [engine, *pushes])
    monkeypatch.setattr(backend, "compile_ahead", lambda: 12)
    assert run(["run", "--pairs"]) == 0
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert ["copy", "engine", "-", "1", "390", "390", "5", "5"] in lines
    assert ["push", "4", "2", "160", "168", "6", "7"] in lines
    assert run(["run", "--pairs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, json.loads((ROOT / "docs" / "answer.schema.json").read_text()))
    assert found["GBps"] == measured["GBps"]
    assert [way["way"] for way in found["ways"]] == ["copy engine", "push", "push"]
    assert "copies of 256 MiB, GB/s\n         gpu0   gpu1\n  gpu0      -  393.4\n  gpu1  393.6      -\n" in text
    assert "on NVIDIA H200\n" in text


def test_gpus_that_are_missing_cost_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (["run", SCHEDULE, "1MiB", "--executor", "cupy"], ["run", "--pairs"]):
        assert run(line) == 4
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1


def test_tokens_and_groups_bring_their_size(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made, tokens = str(tmp_path / "tokens.json"), "--tokens 8 --experts 8 --topk 2"
    assert run(["synth", "full:4@50GB/s", "dispatch", *tokens.split(), "-o", made]) == 0
    routing = read_schedule(made).collective.routed
    capsys.readouterr()
    for command in ("simulate", "run"):
        assert run([command, made, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["size_bytes"] == routing.size
    groups = ["--group", "0,1:allreduce:1MiB", "--group", "2,3:allgather:3MiB"]
    assert run(["synth", "full:4@50GB/s", *groups, "-o", made, "--force"]) == 0
    capsys.readouterr()
    for command in ("simulate", "run"):
        assert run([command, made, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["size_bytes"] == 4 << 20
    assert run(["run", made]) == 0
    assert run(shlex.split(capsys.readouterr().out.rpartition("next: blinksim ")[2])) == 0
    for command in ("simulate", "run"):
        capsys.readouterr()
        assert run([command, made, "0"]) == 2
        assert run([command, SCHEDULE]) == 2
        assert "for vectors of any size; give one, such as 64MiB" in capsys.readouterr().err


def test_what_is_missing_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run"]) == 2
    assert "give a schedule file and a size" in capsys.readouterr().err
    assert run(["run", SCHEDULE, "1MiB", "--pairs"]) == 2
    assert "leave the schedule out" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["int32", "float16", "bfloat16", "float64"])
def test_types(capsys: pytest.CaptureFixture[str], dtype: str) -> None:
    assert run(["run", SCHEDULE, "65536", "--dtype", dtype, "--op", "max"]) == 0
    assert f"numpy, {dtype} max: correct" in capsys.readouterr().out


def test_an_emulated_machine_runs_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", SCHEDULE, "256KiB", "--lane-blocks", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["wrong"] == 0
    assert found["slices"] == 2
    assert run(["run", SCHEDULE, "256KiB", "--lane-blocks", "1", "--in-place"]) == 2
    assert "runs out of place" in capsys.readouterr().err
    assert run(["run", SCHEDULE, "256KiB", "--lane-blocks", "1", "--protocol", "ll128"]) == 2
    assert "lanes of an emulated machine use the protocol simple" in capsys.readouterr().err


def test_packets_run_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    for protocol in ("simple", "ll128"):
        assert run(["run", SCHEDULE, "1000003", "--protocol", protocol, "--json", "--seed", "3"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["protocol"], found["wrong"]) == (protocol, 0)
    assert run(["run", SCHEDULE, "1MiB", "--protocol", "ll"]) == 2
    assert "ll128" in capsys.readouterr().err


def test_what_would_have_no_effect_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", SCHEDULE, "4KiB", "--iterations", "3"]) == 0
    assert "--iterations: no effect without --executor cupy" in capsys.readouterr().err
    assert run(["run", "--pairs", "--lane-blocks", "2", "--seed", "1"]) == 2
    assert "leave out --lane-blocks, --seed" in capsys.readouterr().err
    assert run(["run", SCHEDULE, "4KiB", "--seed", "-1"]) == 2
    assert "Traceback" not in capsys.readouterr().err
