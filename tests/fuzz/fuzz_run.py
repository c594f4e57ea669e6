"""Hostile inputs to every reader and to the command line, in a process that may not take more than a gigabyte.

    python tests/fuzz/fuzz_run.py --inputs 1000 --seed 1 [--only machine]

prints what it found, one JSON line each, and a line of figures. An input is known by seed, reader and number;
`--first N --inputs 1` does one again. A finding is an exception that is no refusal, more than 5 s of CPU (30 for a
command), memory, a message of several lines or with control characters, or an exit status that the command line does
not have.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

MEMORY = 2**30
SECONDS = 5.0
COMMAND_SECONDS = 30.0
"""A sound question about many GPUs may take so long on a busy machine."""
PATIENCE = 600
"""Seconds by the wall clock after which the process ends with its stack: something hangs where no signal reaches it.

Many times `SECONDS`, since the machine may be busy with other things.
"""
PROGRESS = 1000
"""A line on stderr after this many inputs, so that a run that was ended can go on from there."""
COMMANDS = "command line"
STATUSES = (0, 1, 2, 3, 4, 5, 130)
# The answer is in what was printed: something is wrong, or nobody can tell.
VERDICTS = (1, 5)


class TooLongError(BaseException):
    """An input took more than its time; no `except Exception` holds it."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the inputs that the arguments ask for; returns 1 if there are findings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    asked = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _too_long)
    from fuzz_readers import READERS

    targets = [name for name in (*READERS, COMMANDS) if asked.only in ("", name)]
    start, findings, slowest = time.process_time(), 0, (0.0, "")
    # A descriptor of its own: after a write that fails, the command line points the first one elsewhere.
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with report, tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number in range(asked.first, asked.first + asked.inputs):
            if number > asked.first and number % PROGRESS == 0:
                print(f"{number} inputs, {findings} findings", file=sys.stderr, flush=True)
            name = targets[number % len(targets)]
            random_ = random.Random(f"{asked.seed} {name} {number}")
            attempt = _command(Path(folder), random_) if name == COMMANDS else _reader(Path(folder), name, random_)
            found, seconds = _guarded(*attempt, COMMAND_SECONDS if name == COMMANDS else SECONDS)
            slowest = max(slowest, (seconds, f"{name} {number}"))
            if found:
                findings += 1
                print(
                    json.dumps({"target": name, "number": number, "seed": asked.seed, **found}), file=report, flush=True
                )
        os.chdir("/")
        figures = {"inputs": asked.inputs, "findings": findings, "cpu_s": round(time.process_time() - start, 1)}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        figures |= {"slowest_s": round(slowest[0], 2), "slowest": slowest[1], "peak_MiB": peak}
        print(json.dumps(figures), file=report)
    return 1 if findings else 0


def _too_long(*_: object) -> None:
    raise TooLongError


def _guarded(work: Callable[[], str], shown: str, most: float = SECONDS) -> tuple[dict[str, str], float]:
    """What went wrong, and the CPU seconds that it took."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    signal.setitimer(signal.ITIMER_PROF, most)
    start = time.process_time()
    found = {}
    try:
        wrong = work()
        found = {"wrong": wrong, "input": shown} if wrong else {}
    except TooLongError:
        found = {"wrong": f"more than {most:g} s", "input": shown, "where": traceback.format_exc()[-1500:]}
    except MemoryError:
        found = {"wrong": "memory", "input": shown, "where": traceback.format_exc()[-1500:]}
    except Exception as error:
        found = {"wrong": repr(error)[:200], "input": shown, "where": traceback.format_exc()[-1500:]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
    return found, time.process_time() - start


def _reader(folder: Path, name: str, random_: random.Random) -> tuple[Callable[[], str], str]:
    from fuzz_readers import READERS

    from blinksim.errors import BlinksimError

    reader = READERS[name]
    path = folder / reader.name
    data = reader.input(random_)
    path.write_bytes(data)

    def work() -> str:
        try:
            reader.read(path)
        except BlinksimError as error:
            return _unclean(str(error))
        return ""

    return work, repr(data[:300])


def _command(folder: Path, random_: random.Random) -> tuple[Callable[[], str], str]:
    from fuzz_commands import command_line, write_files

    from blinksim.cli.main import run

    if random_.random() < 0.1 or not (folder / "ring.json").exists():
        write_files(folder, random_)
    words = command_line(random_)

    def work() -> str:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = run(words)
        said = err.getvalue()
        if status not in STATUSES:
            return f"exit status {status}: {said[-300:]}"
        if any(words in said for words in ("Traceback", "not enough memory", "cannot write the answer")):
            return said[-1500:]
        if status in VERDICTS:
            if not out.getvalue() and not said:
                return f"exit status {status} and no answer"
        elif status > 1 and f"blinksim: {said}".count("\nblinksim: ") + said.startswith("blinksim: ") != 1:
            return f"exit status {status} and not one message: {said[-300:]!r}"
        return next((wrong for line in said.splitlines() if (wrong := _unclean(line))), "")

    return work, repr(words)


def _unclean(message: str) -> str:
    from blinksim.errors import one_line

    if one_line(message) != message:
        return f"control characters in {message[:300]!r}"
    return f"a message of {len(message)} characters: {message[:300]!r}" if len(message) > 2000 else ""


if __name__ == "__main__":
    sys.exit(main())
