"""A bound on the screen says in few words what the same bound in JSON assumes."""

from __future__ import annotations

import pytest

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
    if "sums" in found.least.assumes:
        assert "ordinary sends and sums" in line


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
