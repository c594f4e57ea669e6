"""``-`` stands for standard input wherever a machine, a log or an answer is read."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from blinksim.cli.main import run

DATA = Path("tests/data")
SMI = DATA / "captures/h200x8/smi_topo.txt"
LOG = DATA / "nccl_tests/h200x8-allreduce.txt"
Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """A function that runs a command with a text on standard input: exit status, answer, message."""

    def run_with(text: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        status = run(list(arguments))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run_with


@pytest.mark.parametrize("file", [SMI, DATA / "captures/h200x8/topo.xml", Path("topologies/dgx1-v100.yaml")])
@pytest.mark.parametrize("rates", ["nominal", "nccl"])
def test_a_machine_is_the_same_through_standard_input(
    typed: Typed, capsys: pytest.CaptureFixture[str], file: Path, rates: str
) -> None:
    assert run(["topo", "show", str(file), "--rates", rates, "--json"]) == 0
    named = json.loads(capsys.readouterr().out)
    # The edit has the machine read twice: once to number its GPUs.
    arguments = ("topo", "show", "-", "--rates", rates, "--json")
    status, out, _ = typed(file.read_text(), *arguments)
    piped = json.loads(out)
    assert status == 0
    assert {**piped, "machine": "", "source": ""} == {**named, "machine": "", "source": ""}


def test_what_needs_the_machine_twice_reads_it_once(typed: Typed) -> None:
    edited = ("bound", "-", "allreduce", "--members", "2-5", "--edit", "without gpu[0-1]", "--json")
    status, out, _ = typed(SMI.read_text(), *edited)
    assert status == 0
    assert json.loads(out)["members"] == ["gpu2", "gpu3", "gpu4", "gpu5"]


@pytest.mark.parametrize("log", ["h200x8-allreduce", "h200x8-allreduce-nvls"])
def test_no_command_reads_standard_input_a_second_time(typed: Typed, log: str) -> None:
    """What came through a pipe is gone: the command would wait for more."""
    _, out, _ = typed((LOG.parent / f"{log}.txt").read_text(), "diagnose", "-", "--machine", "hgx-h200")
    line = next(line for line in out.splitlines() if line.startswith("next: "))
    assert "-" not in line.split()
    assert "FILE" in line.split()


def test_a_log_and_a_bound_come_through_standard_input(typed: Typed, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = typed(LOG.read_text(), "diagnose", "-", "--machine", "hgx-h200", "--json")
    assert run(["diagnose", str(LOG), "--machine", "hgx-h200", "--json"]) == status == 0
    assert json.loads(out) | {"log": ""} == json.loads(capsys.readouterr().out) | {"log": ""}
    assert run(["bound", "dgx1-v100", "allreduce", "--json"]) == 0
    status, out, _ = typed(capsys.readouterr().out, "verify", "-")
    assert status == 0
    assert out.startswith("-: right: ")


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ("", ("topo", "show", "-"), "standard input: is empty"),
        ("name: [", ("topo", "show", "-"), "standard input:2:"),
        ("nothing", ("diagnose", "-", "--machine", "hgx-h200"), "standard input: has no heading"),
        ("x", ("sweep", "-", "allreduce", "--workers", "2"), "other processes cannot read standard input"),
        (
            '{"source": "-", "bounds": [], "collective": "allreduce", "members": []}',
            ("verify", "-"),
            "is of a machine that came through standard input; say which one with --machine",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(
    typed: Typed, text: str, arguments: tuple[str, ...], words: str
) -> None:
    status, out, err = typed(text, *arguments)
    assert (status, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_the_next_command_does_not_read_standard_input_again(typed: Typed) -> None:
    status, out, _ = typed(SMI.read_text(), "bound", "-", "allreduce")
    assert status == 0
    assert out.splitlines()[-1].startswith("next: blinksim bound FILE allreduce")
