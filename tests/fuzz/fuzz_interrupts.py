"""Ctrl-C at random moments of commands, their imports included: status 130, no traceback, no file and no worker left.

    python tests/fuzz/fuzz_interrupts.py --tries 200 --seed 1

prints what it found, one JSON line each, and a line of figures. A command that had its answer before it was
interrupted may end as if it had not been, and what it has written by then stays: whole files under their own names.
Before `blinksim.__main__.main` has begun, Python itself says how it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (
    "synth dgx1-v100 allreduce -o made.json --plot made.svg",
    "synth torus:4x4 alltoall -o made.json.gz",
    "compare ring:8 allgather --sizes 1KiB:64MiB --plot made.png",
    "sweep ring:4 allreduce --sizes 1MiB:4MiB --vary nodes=1 -o made.csv --plot made.svg",
    "sweep ring:4 allreduce --sizes 1MiB:4MiB --vary links=all;link --workers 2 -o made.csv",
    "bound dgx-a100 alltoall --nodes 4 --json",
    "topo show dgx1-v100 --plot made.pdf",
    "project hgx-h100 allreduce 256MiB",
)
LATEST_S = 1.5
PATIENCE_S = 60
# What may be there under its own name, and stays: finished work of a sweep.
WRITTEN = ("made.json", "made.json.gz", "made.csv", "made.csv.journal", "made.svg", "made.png", "made.pdf")


def main(arguments: list[str] | None = None) -> int:
    """Interrupts as often as the arguments ask for; returns 1 if there are findings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    # Children of a job in the background would ignore the signal as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    counted, findings = Counter[str](), 0
    for number in range(asked.first, asked.first + asked.tries):
        random_ = random.Random(f"{asked.seed} {number}")
        command, moment = COMMANDS[number % len(COMMANDS)], random_.uniform(0, LATEST_S)
        outcome, wrong = interrupted(command, moment)
        counted[outcome] += 1
        if wrong:
            findings += 1
            found = {"number": number, "seed": asked.seed, "command": command, "after_s": moment, "wrong": wrong}
            print(json.dumps(found), flush=True)
    print(json.dumps({"tries": asked.tries, "findings": findings, **counted}))
    return 1 if findings else 0


def interrupted(command: str, moment: float) -> tuple[str, str]:
    """How a command ends that gets SIGINT once it has computed so many seconds, and what is wrong with that."""
    words = [sys.executable, "-m", "blinksim", *command.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        while process.poll() is None and computed(process.pid) < moment:
            time.sleep(0.002)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        try:
            _, said = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "hangs", f"still there {PATIENCE_S} s later"
        files = [
            place.name for place in Path(folder).iterdir() if place.name not in WRITTEN or not place.stat().st_size
        ]
        workers = left_over(process.pid)
    if process.returncode == 0:
        return "finished", "a worker is left" if workers else ""
    if "Traceback" in said and not re.search(r"blinksim/(?!__init__|__main__)\w+/\w+\.py", said):
        return "Python's own start", ""
    if process.returncode not in (130, -signal.SIGINT):
        return "other status", f"exit status {process.returncode}: {said[-500:]}"
    lines = [line for line in said.splitlines() if line and not line.startswith("blinksim: interrupted")]
    if "Traceback" in said or "Exception ignored" in said:
        return "interrupted", f"a traceback: {lines[-12:]}"
    if files:
        return "interrupted", f"files are left: {files}"
    return "interrupted", "a worker is left" if workers else ""


def computed(process: int) -> float:
    """Seconds of CPU that a process has used: moments that do not depend on what else the machine does."""
    try:
        used = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return 0.0
    return sum(map(int, used)) / os.sysconf("SC_CLK_TCK")


def left_over(session: int) -> list[int]:
    """Processes of a session that has lost its first one, after the moment that workers take to see that."""
    for _ in range(100):
        found = [int(place.name) for place in Path("/proc").glob("[0-9]*") if _session(place) == session]
        if not found:
            return []
        time.sleep(0.1)
    for one in found:
        os.kill(one, signal.SIGKILL)
    return found


def _session(place: Path) -> int:
    try:
        state, _, _, session = place.joinpath("stat").read_text().rpartition(")")[2].split()[:4]
    except (OSError, ValueError):
        return 0
    return 0 if state == "Z" else int(session)


if __name__ == "__main__":
    sys.exit(main())
