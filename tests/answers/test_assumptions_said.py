"""A bound on the screen says in few words what the same bound in JSON assumes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nccl_tests_logs import Point, text

import blinksim as bs
from blinksim.answers.project import answer
from blinksim.cli.main import run
from blinksim.collective import Collective


@pytest.mark.parametrize("machine", ["dgx1-v100", "hgx-h100", "mi355x", "aurora", "gb200-nvl72"])
@pytest.mark.parametrize("collective", ["allreduce", "allgather", "alltoall", "broadcast"])
@pytest.mark.parametrize("size", [2**12, 2**30])
def test_whatever_the_schedule_is_said_where_nothing_is_assumed(machine: str, collective: str, size: int) -> None:
    [found] = answer(bs.Question(machine), Collective(collective), [size])
    [line] = [text for label, text in found.lines() if label == "cannot take less"]
    assert found.least is not None
    assert ("whatever the schedule" in line) == (not found.least.assumes)
    for words in ("whole messages", "along trees"):
        assert (words in line) == (words in found.least.assumes)
    # Only some collectives add up anything.
    if "sums" in found.least.assumes:
        assert ("by ordinary sends and sums" if collective == "allreduce" else "by ordinary sends") in line
    assert "sums" not in line or collective == "allreduce"


def test_the_machine_as_it_is_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight ports of 450 GB/s: each byte crosses 9/8 times with switches that add, 14/8 times if they only forward."""
    assert run(["bound", "hgx-h100", "allreduce"]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "at most 400 GB/s algbw (busbw 700 GB/s)" in first
    assert second.split("; ")[0] == "  with switches that add"
    assert "if they only forward, 1800/7 GB/s algbw (257.1 GB/s, busbw 450 GB/s)" in second
    found = bs.bound("hgx-h100", "allreduce")
    assert "400 GB/s" in found.sentence()
    assert found.to_dict()["rate_exact"] == "1800/7"
    # The switches of a DGX-1 do nothing else, so that there is one figure.
    assert run(["bound", "dgx1-v100", "allreduce"]) == 0
    assert "forward" not in capsys.readouterr().out


@pytest.mark.parametrize("gpu", ["", "NVIDIA GeForce RTX 4090"])
def test_bounds_of_guessed_rates_are_no_verdict(capsys: pytest.CaptureFixture[str], tmp_path: Path, gpu: str) -> None:
    """By hand: CPUs that pass 6 GB/s allow busbw 10.5 GB/s (7/4 of it). A log of 14 GB/s shows that they pass more."""
    labels = [f"GPU{n}" for n in range(8)]
    cells = [["X" if a == b else "NODE" if a // 4 == b // 4 else "SYS" for b in range(8)] for a in range(8)]
    lines = [f"GPU {n}: {gpu} (UUID: GPU-{n})" for n in range(8) if gpu]
    lines += ["\t".join(["", *labels]), *("\t".join([a, *row]) for a, row in zip(labels, cells, strict=True))]
    box, logs = tmp_path / "box.txt", [tmp_path / "quick.txt", tmp_path / "usual.txt"]
    box.write_text("\n".join(lines) + "\n")
    for log, busbw in zip(logs, (14e9, 5.5e9), strict=True):
        times = [Point(size, 1.75e6 * size / busbw, None) for size in (2**28, 2**30)]
        log.write_text(text("allreduce", 8, times).replace("NVIDIA H200", gpu or "GPU"))

    def said(command: str, *rest: str, status: int = 0) -> str:
        assert run([command, *rest, "-q"]) == status
        return capsys.readouterr().out

    told = "PCIe of generation 3 (4 and 5 carry 2 and 4 times as much; topo.xml or lspci -vv tells)"
    for shown in (said("health", str(box), status=5), said("expect", str(box), "--collective", "allreduce")):
        [bound] = [line for line in shown.splitlines() if line.startswith("  bound")]
        assert f", if what is assumed is right: {told}" in bound
    assert ", whatever the schedule, if the guess is right" in said("project", str(box), "allreduce", "256MiB")
    shown = said("diagnose", str(logs[0]), "--machine", str(box), status=5)
    assert "faster than guessed rates allow, so these are too low" in shown.splitlines()[0]
    assert "another" not in shown.splitlines()[0]
    assert f"10.5 GB/s at nominal (pcie, cpu: guessed) rates, if what is assumed is right: {told}" in shown
    found = json.loads(said("diagnose", str(logs[0]), "--machine", str(box), "--json", status=5))
    assert (found["normal"], found["ok"]) == (False, True)
    assert ": normal, " in said("diagnose", str(logs[1]), "--machine", str(box))
    # What a catalogue states is no guess.
    assert "assumed is right" not in said("health", "l40s-pcie")
