"""Ctrl-C in a search: once ends it with the best so far, twice ends everything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import blinksim as bs
from blinksim.budget import asked_to_stop, stoppable


def test_once_asks_and_twice_raises() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stoppable():
        assert not asked_to_stop()
        signal.raise_signal(signal.SIGINT)
        assert asked_to_stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert not asked_to_stop()
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_are_left_alone() -> None:
    found = []

    def work() -> None:
        with stoppable():
            found.append(asked_to_stop())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


def test_a_search_that_is_stopped_keeps_what_it_has() -> None:
    said = list[str]()

    def report(text: str) -> None:
        said.append(text)
        if len(said) == 1:
            signal.raise_signal(signal.SIGINT)

    part = bs.Question("dgx1-v100", members="0,1,2,3").part()
    made = bs.synthesize(part, "allgather", size="1MiB", report=report)
    assert made.interrupted
    assert made.verdict.ok
    assert "so far, at least" in said[0]


def test_a_solver_leaves_control_c_to_python() -> None:
    code = """
import signal
from ortools.sat.python import cp_model
from blinksim.packing.choose import Limits
Limits().solver().solve(cp_model.CpModel())
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("raised")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "raised\n"), done.stderr


@pytest.mark.slow
def test_a_command_that_is_stopped_writes_the_best_so_far(tmp_path: Path) -> None:
    file = tmp_path / "best.json"
    command = [sys.executable, "-m", "blinksim", "synth", "dgx1-v100", "broadcast", "--size", "64MiB", "-o", str(file)]
    command += ["--time-limit", "300"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}) as running:
        # The first line is there after some seconds of computing, in the midst of the search.
        assert running.stderr is not None
        assert any(b"so far, at least" in line for line in running.stderr)
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    assert b"this is the best so far" in out
    assert bs.verify(bs.read_schedule(file)).ok


@pytest.mark.slow
def test_a_limit_on_the_time_gives_the_best_until_then() -> None:
    made = bs.synthesize("dgx1-v100", "broadcast", size="16MiB", time_limit=3)
    assert made.verdict.ok
    assert made.seconds < 3.5


@pytest.mark.slow
def test_the_limit_is_for_the_algorithms_beside_a_named_one_too() -> None:
    made = bs.synthesize("dgx1-v100", "broadcast", "few_rounds", size="16MiB", time_limit=3)
    assert made.seconds < 3.5


@pytest.mark.slow
def test_a_search_that_does_not_end_leaves_the_best_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[int]()

    def endless(part: bs.Topology, wanted: bs.Collective, *, size: int, time_limit: float) -> None:
        begun.append(size)
        while time_limit:
            pass

    monkeypatch.setattr("blinksim.algorithms.few_rounds.build", endless)
    made = bs.synthesize("ring:8", "allreduce", size="64KiB", time_limit=5)
    assert begun == [2**16]
    assert made.verdict.ok
    assert made.at is not None
    assert made.at.quickest


def test_a_search_does_not_begin_after_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    def search(part: bs.Topology, wanted: bs.Collective, *, size: int) -> None:
        pytest.fail("nothing can be better")

    monkeypatch.setattr("blinksim.algorithms.few_rounds.build", search)
    made = bs.synthesize("mi300x", "allgather", size="256KiB")
    assert made.at is not None
    assert made.at.gap == 0
    assert not made.interrupted


def test_a_search_is_told_to_end_at_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[bool]()

    def search(part: bs.Topology, wanted: bs.Collective, *, size: int, report: Callable[[float], None]) -> None:
        for seconds in (1.0, 0.0):
            report(seconds)
            asked.append(asked_to_stop())
        raise bs.InfeasibleError("enough")

    monkeypatch.setattr("blinksim.algorithms.few_rounds.build", search)
    bs.synthesize("ring:8", "allreduce", size="64KiB")
    assert asked == [False, True]
