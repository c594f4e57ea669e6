"""Hostile inputs to all readers and to the command line: no traceback, no hang, no flood, no more than a gigabyte."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import fuzz_interrupts
import fuzz_verify
import pytest
from fuzz_commands import command_line
from fuzz_readers import READERS

from blinksim.errors import BlinksimError
from blinksim.schedule import verify

SCRIPT = Path(__file__).with_name("fuzz_run.py")
# Further ones, with other seeds: python tests/fuzz/fuzz_run.py --inputs 100000 --seed 7
LONG = 2_000


def run(inputs: int, seed: int, seconds: float) -> str:
    """What the fuzzer prints; its last line are the figures."""
    # One thread each: every thread of a numerical library takes memory of its own.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    command = [sys.executable, str(SCRIPT), "--inputs", str(inputs), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
    return done.stdout


def test_hostile_inputs_end_in_an_answer_or_in_one_line() -> None:
    figures = json.loads(run(75, 1, 300).splitlines()[-1])
    assert figures["inputs"] == 75
    assert figures["findings"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.alike)])
def test_thousands_of_hostile_inputs(part: int) -> None:
    figures = json.loads(run(LONG // 2, 100 + part, 7200).splitlines()[-1])
    assert figures["findings"] == 0


@pytest.mark.parametrize("name", READERS)
def test_the_samples_are_read(name: str, tmp_path: Path) -> None:
    """A fuzzer whose samples are refused at the first line finds nothing."""
    reader = READERS[name]
    read = 0
    for sample in reader.samples():
        path = tmp_path / reader.name
        path.write_bytes(sample.encode("utf-8", "surrogateescape"))
        with suppress(BlinksimError):
            reader.read(path)
            read += 1
    assert read


@pytest.mark.slow
def test_inputs_can_be_made_again() -> None:
    for name, reader in READERS.items():
        first = [reader.input(random.Random(f"{name} {number}")) for number in range(40)]
        assert first == [reader.input(random.Random(f"{name} {number}")) for number in range(40)]
    assert command_line(random.Random(7)) == command_line(random.Random(7))


def test_a_finding_is_found() -> None:
    """The guard itself: exceptions, time, memory and messages."""
    from fuzz_run import _guarded, _unclean

    def fails() -> str:
        raise KeyError("x")

    assert _guarded(fails, "f")[0]["wrong"] == "KeyError('x')"
    assert _guarded(lambda: "", "f")[0] == {}
    assert all(map(_unclean, ("a\nb", "\x1b", "a" * 3000)))
    assert not _unclean("a: b")


# --- schedules by symmetry ------------------------------------------------------------------------------------------


def test_what_is_accepted_is_right_and_what_is_refused_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz_verify.main(["--mutants", "200", "--seed", "1"]) == 0, capsys.readouterr().out
    figures = json.loads(capsys.readouterr().out)
    assert figures["accepted"] > 40 < figures["refused"]


@pytest.mark.slow
@pytest.mark.parametrize("mutants", [1500, pytest.param(3000, marks=pytest.mark.alike)])
def test_thousands_of_schedules_by_symmetry(mutants: int, capsys: pytest.CaptureFixture[str]) -> None:
    """More of them: python tests/fuzz/fuzz_verify.py --mutants 20000 --seed 2"""
    assert fuzz_verify.main(["--mutants", f"{mutants}", "--seed", "100"]) == 0, capsys.readouterr().out
    assert json.loads(capsys.readouterr().out)["schedules"] > 100


@pytest.mark.slow
def test_every_schedule_that_is_changed_is_right(tmp_path: Path) -> None:
    found = [one for number in range(len(fuzz_verify.SAMPLES)) if (one := fuzz_verify.sample(number))]
    assert len(found) > 100
    for one in found:
        assert fuzz_verify.compared(one.plain, tmp_path / "s.json") == ("accepted", ""), one.name


def test_a_false_acceptance_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(verify, "_wrong_images", lambda *_: iter(()))
    assert fuzz_verify.main(["--mutants", "80", "--seed", "1"]) == 1
    assert "accepted, and wrong: " in capsys.readouterr().out


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


def test_ctrl_c_at_random_moments(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz_interrupts.main(["--tries", "5", "--seed", "1"]) == 0, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("tries", [16, pytest.param(48, marks=pytest.mark.alike)])
def test_ctrl_c_at_many_moments(tries: int, capsys: pytest.CaptureFixture[str]) -> None:
    """More of them: python tests/fuzz/fuzz_interrupts.py --tries 200 --seed 2"""
    assert fuzz_interrupts.main(["--tries", f"{tries}", "--seed", "100"]) == 0, capsys.readouterr().out
