"""Hostile inputs to all readers and to the command line: no traceback, no hang, no flood, no more than a gigabyte."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from fuzz_commands import command_line
from fuzz_readers import READERS

from blinksim.errors import BlinksimError

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
@pytest.mark.parametrize("part", range(2))
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
        path.write_text(sample, encoding="utf-8")
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
