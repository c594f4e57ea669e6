"""What leaves the command line: no control characters, in any encoding; bugs in one line; quiet ends by Ctrl-C."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import blinksim as bs
from blinksim.cli.main import BUG, interrupt, run
from blinksim.cli.terminal import EscapedStream
from blinksim.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "x\x1b]0;owned\x07\x1b[31m\x9b2J\u202e"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def started(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "blinksim", *arguments],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def safe(text: str) -> bool:
    return all(c in "\n\t" or (c.isprintable() and not "\x7f" <= c <= "\x9f") for c in text)


def machine_file(path: str, **texts: str) -> None:
    lines = bs.load("ring:4@25GB/s")
    bs.write(lines, path)
    text = Path(path).read_text()
    for key, value in texts.items():
        (old,) = [line for line in text.splitlines() if line.startswith(f"{key}:")]
        text = text.replace(old, f"{key}: {json.dumps(value)}")
    Path(path).write_text(text)


@pytest.mark.parametrize(
    "words",
    [
        ["topo", "show", "box.yaml"],
        ["topo", "show", "box.yaml", "--json"],
        ["topo", "import", "box.yaml"],
        ["topo", "show", HOSTILE],
        ["project", "box.yaml", HOSTILE, "1MB"],
        ["project", "box.yaml", "allreduce", HOSTILE],
        ["project", "box.yaml", "allreduce", "1MB", "--edit", HOSTILE],
        ["project", "box.yaml", "allreduce", "1MB", f"--{HOSTILE}"],
        ["verify", f"{HOSTILE}.json"],
        [HOSTILE],
    ],
)
def test_no_control_character_reaches_the_terminal(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    machine_file("box.yaml", source=HOSTILE)
    run(words)
    captured = capsys.readouterr()
    assert captured.out + captured.err
    assert safe(captured.out)
    assert safe(captured.err)


def test_json_says_what_the_file_says(capsys: pytest.CaptureFixture[str]) -> None:
    machine_file("box.yaml", source=HOSTILE)
    assert run(["topo", "show", "box.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == HOSTILE


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb", "a\u202eb", "", " ", "m" * 81])
def test_a_machine_has_a_name_that_can_be_read_again(capsys: pytest.CaptureFixture[str], name: str) -> None:
    machine_file("box.yaml", name=name)
    assert run(["synth", "box.yaml", "allgather", "-o", "s.json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "box.yaml:1" in captured.err or "cannot name a machine" in captured.err
    whole = bs.load("ring:4")
    with pytest.raises(InputError, match="cannot name a machine"):
        bs.Topology(name, whole.devices, whole.links)


def test_a_file_with_any_name_gives_a_machine_with_a_name_that_can_be_read() -> None:
    odd = "\x1b[31m" + "é" * 100 + ".xml"
    bs.write(bs.export(bs.load("dgx1-v100"), "nccl-topo"), odd)
    bs.write(bs.load(odd), "again.yaml")
    assert bs.load("again.yaml").ranks == 8


ENCODINGS = ["latin-1", "ascii", "utf-8", "cp1252"]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_every_encoding_of_the_terminal(encoding: str) -> None:
    done = started("topo", "show", "é …", PYTHONIOENCODING=encoding)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.decode(encoding).startswith("blinksim: ")
    assert done.stderr.count(b"\n") == 1


@pytest.fixture(scope="module")
def answers() -> list[str]:
    texts = []
    for words in (["topo", "show", "dgx1-v100"], ["advise", "dgx1-v100"]):
        # On a slow machine the second one would say that it is still at work.
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            assert run([*words, "--quiet"]) == 0
        assert err.getvalue() == ""
        texts.append(out.getvalue())
    return texts


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_answers_in_every_encoding(encoding: str, answers: list[str]) -> None:
    """Streams as Python sets them up, which refuse what the encoding lacks."""
    assert answers
    for text in answers:
        printed = io.BytesIO()
        stream = io.TextIOWrapper(printed, encoding)
        EscapedStream(stream).write(text)
        stream.flush()
        assert "dgx1-v100" in printed.getvalue().decode(encoding)
        assert printed.getvalue().count(b"\n") == text.count("\n")


def test_a_file_name_of_undecodable_bytes() -> None:
    name = os.fsdecode(b"a\xff.yaml")
    machine_file(name)
    done = started("topo", "show", name)
    assert (done.returncode, done.stderr) == (0, b"")
    done = started("topo", "show", os.fsdecode(b"none\xff.yaml"))
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1


def test_brackets_in_a_name_are_no_markup(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that shows what is being done, on a terminal, after a second."""
    from blinksim.cli import terminal

    monkeypatch.setattr(terminal, "PATIENCE_S", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with terminal.Working("reading [/red].yaml") as say:
        time.sleep(0.5)
        say("reading [/blue]")
        time.sleep(0.5)
    assert "Traceback" not in capsys.readouterr().err


def test_names_are_escaped_in_notebooks() -> None:
    evil = "<img src=x onerror=alert(1)>"
    machine_file("box.yaml", name=evil)
    machine, sizes = bs.load("box.yaml"), ["1MiB", "2MiB"]
    schedule = bs.synthesize(machine, "allreduce", "ring").schedule
    shown = [
        machine,
        schedule,
        bs.project(machine, "allreduce", "1MiB"),
        bs.sweep(machine, "allreduce", sizes),
        bs.compare(machine, "allreduce", sizes),
        bs.bound(machine, "allreduce"),
        bs.simulate(schedule, "1MiB"),
        bs.synthesize(machine, "allgather"),
        bs.place(machine, 2),
    ]
    for answer in shown:
        html = getattr(answer, "_repr_html_", str)()
        if hasattr(answer, "_repr_html_"):
            assert "<img" not in html, type(answer)


# --- bugs -------------------------------------------------------------------------------------------------------------


def broken(*_: object, **__: object) -> None:
    raise ZeroDivisionError("by\n\x1b[31mnothing")


def test_a_bug_is_one_line_and_has_its_own_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blinksim.formats.shipped.machine_names.names", broken)
    assert run(["topo", "list"]) == BUG == 70
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("blinksim: this is a bug in blinksim (ZeroDivisionError: by ")
    assert "test_door.py:" in captured.err
    assert "--debug" in captured.err
    assert safe(captured.err)
    for words in (["--debug", "topo", "list"], ["topo", "list", "--debug"]):
        assert run(words) == 70
        err = capsys.readouterr().err
        assert err.startswith("Traceback (most recent call last):")
        assert err.splitlines()[-1].startswith("blinksim: this is a bug")
    monkeypatch.undo()
    assert run(["topo", "list", "--debug"]) == 0


@pytest.mark.parametrize("words", ["project ring:4 alltoall 1MiB --members 0", "compare ring:4 allreduce --members 0"])
def test_one_rank_has_no_collective(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words.split()) == 2
    assert ": a collective needs two GPUs or more" in capsys.readouterr().err


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["click", "blinksim.bounds.optimum"])
def test_ctrl_c_while_modules_load_prints_no_traceback(module: str) -> None:
    code = (
        "import sys, os, signal\n"
        # A shell that starts the tests in the background has them ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from blinksim.__main__ import main\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv = ['blinksim', 'project', 'dgx1-v100', 'allreduce', '1MB']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.stdout == b""
    assert done.stderr.strip() in (b"", b"blinksim: interrupted")
    assert done.returncode in (130, -signal.SIGINT)


@pytest.mark.parametrize("error", [RuntimeError, ImportError, ValueError("Invalid bounding box")])
def test_ctrl_c_that_comes_as_another_error_is_no_bug(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python 3.11 raises a RuntimeError from what `__set_name__` raises; C++ modules an ImportError, or they forget."""

    def swallows(**_: object) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise error

    monkeypatch.setattr("blinksim.cli.main.cli.main", swallows)
    monkeypatch.setattr("blinksim.cli.main._interrupts", [])
    assert run(["project"]) == 70
    assert "this is a bug" in capsys.readouterr().err
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        assert run(["project"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "blinksim: interrupted\n"


def test_ctrl_c_at_exit_prints_no_traceback() -> None:
    code = (
        "import atexit, os, signal, sys\n"
        "from blinksim.__main__ import main\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "sys.argv = ['blinksim', '--version']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.stderr == b""
    assert done.stdout.startswith(b"blinksim ")


# --- a stranger's file ------------------------------------------------------------------------------------------------


def test_a_bound_file_opens_no_pipe_and_quotes_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    machine_file("box.yaml")
    assert run(["bound", "box.yaml", "allgather", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    Path("secret.yaml").write_text("password: hunter2\n")
    os.mkfifo("pipe")
    os.mkfifo("pipe.yaml")
    for key, value, status in (
        ("source", "box.yaml", 0),
        ("rates_source", "pipe", 2),
        ("rates_source", "secret.yaml", 2),
        ("source", "secret.yaml", 2),
        ("source", "pipe.yaml", 2),
        ("source", "/dev/zero", 2),
    ):
        Path("b.json").write_text(json.dumps({**found, key: value}))
        assert run(["verify", "b.json"]) == status
        captured = capsys.readouterr()
        assert "hunter2" not in captured.err + captured.out
        assert "password" not in captured.err + captured.out
