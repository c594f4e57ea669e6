"""What takes long says so, and ends when it should."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from blinksim.answers import sweep as study
from blinksim.cli import terminal
from blinksim.cli.main import run
from blinksim.errors import InputError


def compute(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1000))


@pytest.mark.slow
def test_long_work_says_so_ever_later(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "FIRST_WORD_S", 0.1)
    with terminal.still_at_work("blinksim project"):
        compute(0.8)
        with terminal.Working("reading [x].yaml") as say:
            say("building ring")
            compute(2.5)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("s: blinksim project (Ctrl-C ends it)")
    assert any(line.endswith("s: building ring (Ctrl-C ends it)") for line in lines[1:])
    assert len(lines) <= 4


@pytest.mark.slow
def test_quick_and_quiet_work_says_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal.still_at_work("blinksim project"):
        pass
    monkeypatch.setattr(terminal, "FIRST_WORD_S", 0.0)
    with terminal.still_at_work("blinksim project", quiet=True):
        compute(0.8)
    assert capsys.readouterr().err == ""


def test_a_line_on_a_terminal_moves_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(terminal, "PATIENCE_S", 0.0)
    with terminal.still_at_work("blinksim project"):
        with terminal.Working("reading \x1b[2J.yaml") as say:
            time.sleep(0.5)
            say("building ring")
            time.sleep(0.5)
            terminal.note("a note")
        print("after", file=sys.stderr)
    # What a terminal shows in the end: \r\x1b[K begins the line anew.
    lines = [line.rpartition("\r\x1b[K")[2] for line in screen.getvalue().split("\n")]
    assert lines == ["a note", "after", ""]
    drawn = re.findall(r"\r\x1b\[K([^\r\n]+)", screen.getvalue())
    assert drawn[0] == "reading \\u001b[2J.yaml (0 s)"
    assert any(re.fullmatch(r"building ring \([01] s\)", line) for line in drawn)


@pytest.mark.parametrize("done", [0, 1, 95])
def test_a_sweep_says_what_is_done_and_guesses_no_rest(monkeypatch: pytest.MonkeyPatch, done: int) -> None:
    """Pieces of many nodes come last and take longest: from two of five, done in 1.7 s, no rest of 4.8 s follows."""
    said = list[str]()
    monkeypatch.setattr(terminal.Working, "__call__", lambda _, what: said.append(what))

    def two_reports(*_: object, report: Callable[[int, int], None], **__: object) -> None:
        report(0, 100)
        report(done, 100)
        raise InputError("enough")

    monkeypatch.setattr(study, "sweep", two_reports)
    assert run(["sweep", "dgx1-v100", "allreduce", "--vary", "nodes=1,2"]) == 2
    assert said[1] == f"{done} of 100 pieces of work are done"


def test_waiting_is_not_work(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine, or a reader that is slow, makes no command talk."""
    monkeypatch.setattr(terminal, "FIRST_WORD_S", 0.5)
    with terminal.still_at_work("blinksim project"):
        time.sleep(1.2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("words", [["project", "dgx1-v100", "allreduce", "1MB"], ["bound", "dgx1-v100", "allreduce"]])
def test_every_command_is_watched(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    real = terminal.still_at_work
    seen: list[tuple[str, bool]] = []

    def watched(command: str, *, quiet: bool) -> object:
        seen.append((command, quiet))
        return real(command, quiet=quiet)

    monkeypatch.setattr("blinksim.cli.main.still_at_work", watched)
    assert run([*words, "-q"]) == run(words) == 0
    assert seen == [(f"blinksim {words[0]}", True), (f"blinksim {words[0]}", False)]
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_time_limit_is_kept_by_what_is_large() -> None:
    # In a process of its own: the end may come while the garbage collector calls back into the tests' own tools, and
    # is dropped there with a warning.
    words = ["synth", "mesh:100x100", "allgather", "--time-limit", "0.001"]
    done = subprocess.run([sys.executable, "-m", "blinksim", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("blinksim: no schedule within 0.001 s; allow more time")


@pytest.mark.parametrize("algorithm", ["packed", "few_steps", "chains", "blink"])
def test_a_small_limit_is_enough_for_what_is_small(capsys: pytest.CaptureFixture[str], algorithm: str) -> None:
    assert run(["synth", "ring:4", "allreduce", "--algorithm", algorithm, "--time-limit", "30"]) == 0


def test_synth_counts_the_trees_meanwhile(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    monkeypatch.setattr(terminal.Working, "__call__", lambda _, what: said.append(what))
    assert run(["synth", "mesh:4x4", "allgather"]) == 0
    assert re.fullmatch(r"synthesising allgather on mesh:4x4, \d+ of \d+ trees", said[-1])
    capsys.readouterr()
