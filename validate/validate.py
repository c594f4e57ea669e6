"""Runner of every recipe that this machine's GPUs can carry out, and of the report on what they gave.

    python3 validate/validate.py --budget 540

Steps that are done are not repeated (`--fresh` forgets them), and one that ran out of time goes on where it stopped, so
the command can be run again until it says that all is done. Results go to validate/results and the report to
validate/report.md, or both to --out. Needs CuPy and at least two GPUs that can access each other's memory; schedules
are made with OR-Tools, or taken from --schedules.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from blinksim.errors import BlinksimError, MissingError
from blinksim.gpu.execution.gpu_devices import require_cupy

HERE = Path(__file__).resolve().parent
SIZES = (2, 3, 4, 6, 8)
OUT_OF_TIME = "out of time"


@dataclass(frozen=True)
class Step:
    """A recipe with its arguments.

    seconds: what it took on four or eight H200, or with `most` what it must have to begin at all; without so much left
    it is not begun. most: seconds that one that can go on where it stopped may take at once.
    """

    recipe: str
    gpus: int
    arguments: tuple[str, ...]
    seconds: float
    most: float | None = None
    part: str = ""

    @property
    def name(self) -> str:
        return f"{self.recipe}-{self.gpus}gpu{self.part}"


def steps(gpus: int, schedules: Path) -> Iterator[Step]:
    """What `gpus` GPUs can show, the most telling first."""
    counts = [count for count in SIZES if count <= gpus]
    packed = ("--schedules", str(schedules / "full"))
    for count in reversed(counts):
        yield Step("full_speed", count, packed, 15, 60)
    yield Step("emulated", gpus, ("--schedules", str(schedules / f"emulated-{gpus}")), 20, 300)
    yield Step("elementary", max(counts), (), 90)
    if gpus >= 4:
        yield Step("synthesised", 4, ("--schedules", str(schedules / "synthesised-4")), 40)
    yield Step("ways", gpus, (), 25 if gpus <= 4 else 100)
    for count in reversed(counts):
        yield Step("full_speed", count, (*packed, "--tune", ""), 15, 60, "-tuning")
    if max(counts) > 2:
        yield Step("elementary", 2, (), 60)
    if gpus >= 4:
        yield Step("nccl_files", 4, ("--files", str(schedules / "nccl-files")), 90)
        yield Step("nccl_sets", 4, ("--sets", str(schedules / "nccl-sets")), 20, 100)


def make_schedules(gpus: int, folder: Path) -> None:
    """Everything that needs OR-Tools, once."""
    wanted = [("emulated", gpus, folder / f"emulated-{gpus}")]
    wanted += [("full_speed", count, folder / "full") for count in SIZES if count <= gpus]
    if gpus >= 4:
        wanted.append(("synthesised", 4, folder / "synthesised-4"))
        wanted += [("nccl_files", 4, folder / "nccl-files"), ("nccl_sets", 4, folder / "nccl-sets")]
    for recipe, count, target in wanted:
        done = target / f".{recipe}-{count}"
        if not done.exists():
            call(recipe, ["--make", str(target), "--gpus", str(count)], None)
            done.touch()


def call(recipe: str, arguments: list[str], log: list[str] | None) -> int:
    """Runs a recipe in a process of its own and shows what it says; returns its exit status."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "PYTHONUNBUFFERED": "1"}
    environment.setdefault("NCCL_NVLS_ENABLE", "0")
    command = [sys.executable, str(HERE / "recipes" / f"{recipe}.py"), *arguments]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            if log is not None:
                log.append(line)
    return process.returncode


def run(gpus: int, out: Path, schedules: Path, budget: float, fresh: bool) -> bool:
    """True if everything is done."""
    deadline = time.monotonic() + budget
    out.mkdir(parents=True, exist_ok=True)
    state = schedules / "done.json"
    done: list[str] = [] if fresh or not state.exists() else json.loads(state.read_text())
    finished = True
    for step in steps(gpus, schedules):
        left = deadline - time.monotonic()
        if step.name in done:
            continue
        if left < step.seconds:
            print(f"{step.name}: needs {step.seconds:.0f} s and {max(0.0, left):.0f} s are left; run again to go on")
            finished = False
            continue
        print(f"--- {step.name}, {left:.0f} s left")
        arguments = ["--gpus", str(step.gpus), "--out", str(out), *step.arguments]
        if step.most:
            arguments += ["--budget", f"{min(step.most, left - 10):.0f}"]
        log: list[str] = []
        status = call(step.recipe, arguments, log)
        if status or any(OUT_OF_TIME in line for line in log):
            finished = False
            continue
        done.append(step.name)
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text(json.dumps(done))
    return finished


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=540, help="seconds after which nothing further begins")
    parser.add_argument("--gpus", type=int, help="how many to use  [default: all, at most 8]")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--schedules", type=Path, default=HERE.parent / "build" / "validate")
    parser.add_argument("--fresh", action="store_true", help="do everything again")
    options = parser.parse_args()
    present = int(require_cupy().cuda.runtime.getDeviceCount())
    gpus = min(8, present) if options.gpus is None else options.gpus
    if not 2 <= gpus <= present:
        raise MissingError(f"validating needs at least two GPUs and {gpus} are asked for; this machine has {present}")
    make_schedules(gpus, options.schedules)
    finished = run(gpus, options.out, options.schedules, options.budget, options.fresh)
    emulated = options.schedules / f"emulated-{gpus}"
    if (options.out / f"emulated-{gpus}gpu.json").exists():
        call("calibration", ["--gpus", str(gpus), "--schedules", str(emulated), "--results", str(options.out)], None)
    call("report", ["--results", str(options.out)], None)
    print("all done" if finished else "not everything is done; run again to go on")
    return 0 if finished else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BlinksimError as error:
        print(f"validate.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
