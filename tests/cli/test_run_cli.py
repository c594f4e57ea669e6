"""`blinksim run`: what it prints, with a stand-in for the GPUs where it needs some."""

from __future__ import annotations

from pathlib import Path

import pytest

from blinksim.cli.main import run
from blinksim.execute import measure

ROOT = Path(__file__).resolve().parents[2]
SCHEDULE = str(ROOT / "schedules" / "dgx1-v100-4-allreduce.json")


def test_pairs_are_printed_as_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {
        "gpus": ["NVIDIA H200", "NVIDIA H200"],
        "size_bytes": 2**28,
        "GBps": [[None, 393.4], [393.6, None]],
        "latency_s": [[None, 1.96e-6], [1.9e-6, None]],
    }
    monkeypatch.setattr(measure, "measure_pairs", lambda: measured)
    assert run(["run", "--pairs"]) == 0
    text = capsys.readouterr().out
    assert "copies of 256 MiB, GB/s\n         gpu0   gpu1\n  gpu0      -  393.4\n  gpu1  393.6      -\n" in text
    assert "on NVIDIA H200\n" in text


def test_gpus_that_are_missing_cost_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (["run", SCHEDULE, "1MiB", "--executor", "cupy"], ["run", "--pairs"]):
        assert run(line) == 4
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1


def test_what_is_missing_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run"]) == 2
    assert "give a schedule file and a size" in capsys.readouterr().err
    assert run(["run", SCHEDULE, "1MiB", "--pairs"]) == 2
    assert "leave the schedule out" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["int32", "float16", "bfloat16", "float64"])
def test_types(capsys: pytest.CaptureFixture[str], dtype: str) -> None:
    assert run(["run", SCHEDULE, "65536", "--dtype", dtype, "--op", "max"]) == 0
    assert f"numpy, {dtype} max: correct" in capsys.readouterr().out
