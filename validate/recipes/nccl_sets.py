"""Blink+ with stock NCCL: a communicator for every chain of two GPUs and their helpers, as `nccl-graph-set` exports it.

    PYTHONPATH=. python3 validate/recipes/nccl_sets.py --make FOLDER
    PYTHONPATH=. NCCL_NVLS_ENABLE=0 python3 validate/recipes/nccl_sets.py --sets FOLDER --out results

The first writes the sets for the tenants of a DGX-1V that the Blink+ report measured (section 4.3), with one to four
chains, and needs OR-Tools but no GPU. The second starts the communicators of every set in a process of its own, by the
functions of the set's own recipe.py, looks for the promised lines in NCCL's log, checks the data and takes times. A
chain has one channel for every lane between its GPUs, and on H200 a channel moves about what a lane of a V100 does.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

from blinksim.gpu.execution.gpu_devices import require_cupy
from validate.recipes.arguments import add_steps, arguments, script, take_steps
from validate.recipes.emulated import TENANT_SIZES, tenants
from validate.recipes.nccl_files import ANSWER, seen_lines, squeezed
from validate.recipes.notes import Notebook, provenance

GPUS = 4
# Bytes between two waits, as repetitions, so that starting and waiting weigh little.
ROUNDS_BYTES, MOST_ROUNDS, REPEATS = 1 << 31, 200, 7


def make(folder: Path) -> None:
    """One folder for every tenant, collective and number of chains."""
    from blinksim import machines
    from blinksim.answers.synthesize import synthesize
    from blinksim.collective import Collective
    from blinksim.nccl.graph_export import export

    whole = machines.load("dgx1-v100", rates="nccl")
    for case, _ in tenants():
        if case.channels is None:
            continue
        members, helpers = ([f"gpu{i}" for i in group] for group in (case.members, case.relays))
        machine = whole.select(members, helpers, relays_reduce=True)
        made = synthesize(machine, Collective(case.collective), "blinkplus", channels=case.channels)
        target = folder / case.name
        target.mkdir(parents=True, exist_ok=True)
        for name, text in export(made.schedule).files.items():
            (target / name).write_text(text)


def load_recipe(folder: Path) -> ModuleType:
    """The recipe.py of a set, as a module."""
    spec = importlib.util.spec_from_file_location("recipe", folder / "recipe.py")
    assert spec is not None
    assert spec.loader is not None
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    return recipe


class Chains:
    """The communicators of one set, with a stream on every GPU of each."""

    def __init__(self, folder: Path) -> None:
        self.cupy, self.recipe = require_cupy(), load_recipe(folder)
        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.entries, self.users = self.manifest["communicators"], self.manifest["users"]
        self.comms = [self.recipe.start(entry) for entry in self.entries]
        self.gpus = self.users + self.manifest["helpers"]
        self.streams: list[dict[int, Any]] = [{} for _ in self.entries]
        for number, entry in enumerate(self.entries):
            for gpu in entry["gpus"]:
                with self.cupy.cuda.Device(gpu):
                    self.streams[number][gpu] = self.cupy.cuda.Stream(non_blocking=True)

    @property
    def version(self) -> str:
        """NCCL's, such as 2.28.9."""
        number = self.recipe.nccl.get_version()
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def buffers(self, total: int) -> dict[int, tuple[Any, Any]]:
        """What every GPU sends and receives: a ramp on the users, zeros elsewhere."""
        cupy, made = self.cupy, {}
        for gpu in self.gpus:
            with cupy.cuda.Device(gpu):
                held = cupy.arange(total, dtype="f4") % 997 + self.users.index(gpu) if gpu in self.users else None
                made[gpu] = (cupy.zeros(total, "f4") if held is None else held), cupy.zeros(total, "f4")
        return made

    def launch(self, buffers: dict[int, tuple[Any, Any]], parts: Any) -> None:
        """Queues the collective on every chain. parts: the vector's part of each, as the recipe has them."""
        for number, entry in enumerate(self.entries):
            self.recipe.launch(self.manifest, entry, self.comms[number], self.streams[number], buffers, parts[number])

    def wait(self) -> None:
        for gpu in self.gpus:
            with self.cupy.cuda.Device(gpu):
                self.cupy.cuda.runtime.deviceSynchronize()

    def time(self, launch: Callable[[], None], rounds: int) -> list[float]:
        """Seconds of one launch, from `REPEATS` rows of `rounds` launches."""
        self.wait()
        for _ in range(3):
            launch()
        self.wait()
        samples = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            for _ in range(rounds):
                launch()
            self.wait()
            samples.append((time.perf_counter() - begin) / rounds)
        return samples

    def wrong(self, buffers: dict[int, tuple[Any, Any]], total: int) -> int:
        """Elements that differ from what the collective promises the users."""
        users, wrong = self.users, 0
        for gpu in users:
            with self.cupy.cuda.Device(gpu):
                ramp = self.cupy.arange(total, dtype="f4") % 997
                if self.manifest["collective"] == "allreduce":
                    expected = ramp * len(users) + sum(range(len(users)))
                else:
                    expected = ramp + users.index(self.manifest["root"])
                wrong += int((buffers[gpu][1] != expected).sum())
        return wrong


def work(folder: Path) -> None:
    """Times and checks one set; prints one line of JSON."""
    chains, rows = Chains(folder), []
    for size in TENANT_SIZES:
        total = size // 4
        parts, buffers = chains.recipe.shares(chains.manifest, total), chains.buffers(total)
        rounds = max(5, min(MOST_ROUNDS, ROUNDS_BYTES // size))
        samples = chains.time(partial(chains.launch, buffers, parts), rounds)
        wrong = chains.wrong(buffers, total)
        rows.append({"size_bytes": size, "rounds": rounds, "wrong": wrong, "times_s": samples})
    print(ANSWER + json.dumps({"nccl": chains.version, "rows": rows}), flush=True)


def measure(folder: Path) -> dict[str, Any]:
    """Runs `work` for a set and compares NCCL's log with what the manifest promises."""
    environment = {**os.environ, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,ENV,TUNING"}
    try:
        command = [sys.executable, __file__, "--work", str(folder)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        log, status = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        log, status = str(error.stdout or "") + str(error.stderr or ""), 124
    answers = [json.loads(x.removeprefix(ANSWER)) for x in log.splitlines() if x.startswith(ANSWER)]
    manifest = json.loads((folder / "manifest.json").read_text())
    promised = [squeezed(line) for entry in manifest["communicators"] for line in entry["log"]]
    seen = seen_lines(log)
    missing = [line for line in promised if not any(line in found for found in seen)]
    chains = ["-".join(map(str, entry["gpus"])) for entry in manifest["communicators"]]
    found = {"set": folder.name, "chains": chains, "status": status, "promised": promised, "missing": missing}
    return {**found, **(answers[0] if answers else {"output": log[-3000:]})}


def run_all(sets: Path, out: Path, budget: float) -> None:
    command = f"python3 validate/recipes/nccl_sets.py --sets FOLDER --budget {budget:g}"
    notes = Notebook(out / f"nccl-sets-{GPUS}gpu.json", provenance(GPUS, command), resume=True)
    notes.deadline = time.monotonic() + budget
    for folder in sorted(path for path in sets.iterdir() if (path / "manifest.json").exists()):
        if notes.out_of_time:
            print("out of time; run again to go on")
            return
        if notes.has("sets", set=folder.name):
            continue
        found = measure(folder)
        notes.add("sets", found)
        rates = [f"{row['size_bytes'] / median(row['times_s']) / 1e9:.1f}" for row in found.get("rows", [])]
        wrong = sum(row["wrong"] for row in found.get("rows", []))
        lines = f"{len(found['promised']) - len(found['missing'])} of {len(found['promised'])} lines"
        print(
            f"{folder.name:<44} status {found['status']}, {lines}, {wrong} wrong, GB/s: {' '.join(rates)}", flush=True
        )


def main() -> None:
    parser = arguments(__doc__, GPUS, 200)
    add_steps(parser, "sets", "sets")
    parser.add_argument("--work", type=Path, metavar="SET", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
    else:
        take_steps(parser, options, make, lambda folder: run_all(folder, options.out, options.budget), "sets")


if __name__ == "__main__":
    script(main, __file__)
