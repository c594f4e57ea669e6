"""Answers are those of the base commit, or were changed on purpose; see tests/corpus."""

from __future__ import annotations

import subprocess
import sys

import pytest
from source_tree import ROOT


@pytest.mark.parametrize("every", [720, pytest.param(90, marks=pytest.mark.slow)])
def test_answers_are_as_frozen(every: int) -> None:
    script = str(ROOT / "tests" / "corpus" / "corpus.py")
    command = [sys.executable, script, "check", "--every", str(every), "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
