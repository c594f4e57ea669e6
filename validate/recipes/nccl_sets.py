"""Blink+ with stock NCCL: a communicator for every chain of two GPUs and their helpers, as `nccl-graph-set` exports it.

    python3 validate/recipes/nccl_sets.py --make FOLDER
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
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

from emulated import TENANT_SIZES, tenants
from nccl_files import ANSWER, seen_lines, squeezed

from blinksim.errors import BlinksimError

GPUS = 4
# Repetitions of so many bytes, between two waits, so that starting and waiting weigh little.
ROUNDS_BYTES, MOST_ROUNDS, REPEATS = 1 << 31, 200, 7


def make(folder: Path) -> None:
    """One folder for every tenant, collective and number of chains."""
    from blinksim import machines
    from blinksim.answers.synthesize import synthesize
    from blinksim.collective import Collective
    from blinksim.nccl.export.graph_set import export

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


def work(folder: Path) -> None:
    """Times and checks one set; prints one line of JSON."""
    from blinksim.execution.executors.gpu_devices import require_cupy

    cupy, recipe = require_cupy(), load_recipe(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    entries, users = manifest["communicators"], manifest["users"]
    comms = [recipe.start(entry) for entry in entries]
    gpus = users + manifest["helpers"]
    streams: list[dict[int, Any]] = [{} for _ in entries]
    for number, entry in enumerate(entries):
        for gpu in entry["gpus"]:
            with cupy.cuda.Device(gpu):
                streams[number][gpu] = cupy.cuda.Stream(non_blocking=True)
    rows = []
    for size in TENANT_SIZES:
        total = size // 4
        parts = recipe.shares(manifest, total)
        buffers = {}
        for gpu in gpus:
            with cupy.cuda.Device(gpu):
                held = cupy.arange(total, dtype="f4") % 997 + users.index(gpu) if gpu in users else None
                buffers[gpu] = (cupy.zeros(total, "f4") if held is None else held), cupy.zeros(total, "f4")

        def everything(buffers: Any = buffers, parts: Any = parts) -> None:
            for number, entry in enumerate(entries):
                recipe.launch(manifest, entry, comms[number], streams[number], buffers, parts[number])

        def wait() -> None:
            for gpu in gpus:
                with cupy.cuda.Device(gpu):
                    cupy.cuda.runtime.deviceSynchronize()

        rounds = max(5, min(MOST_ROUNDS, ROUNDS_BYTES // size))
        wait()
        for _ in range(3):
            everything()
        wait()
        samples = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            for _ in range(rounds):
                everything()
            wait()
            samples.append((time.perf_counter() - begin) / rounds)
        wrong = 0
        for gpu in users:
            with cupy.cuda.Device(gpu):
                ramp = cupy.arange(total, dtype="f4") % 997
                several = manifest["collective"] == "allreduce"
                expected = (
                    ramp * len(users) + sum(range(len(users))) if several else ramp + users.index(manifest["root"])
                )
                wrong += int((buffers[gpu][1] != expected).sum())
        rows.append({"size_bytes": size, "rounds": rounds, "wrong": wrong, "times_s": samples})
    number = recipe.nccl.get_version()
    version = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    print(ANSWER + json.dumps({"nccl": version, "rows": rows}), flush=True)


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
    from statistics import median

    from notes import Notebook, provenance

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=GPUS, help="at least 4; further ones have nothing to do")
    parser.add_argument("--make", type=Path, metavar="FOLDER", help="write the sets there and stop")
    parser.add_argument("--sets", type=Path, metavar="FOLDER", help="run the sets that are there")
    parser.add_argument("--work", type=Path, metavar="SET", help=argparse.SUPPRESS)
    parser.add_argument("--budget", type=float, default=200, help="seconds after which no further set begins")
    parser.add_argument("--out", type=Path, default=Path("."))
    options = parser.parse_args()
    if options.work:
        work(options.work)
    elif options.make:
        make(options.make)
    elif options.sets:
        run_all(options.sets, options.out, options.budget)
    else:
        parser.error("give --make FOLDER or --sets FOLDER")


if __name__ == "__main__":
    try:
        main()
    except BlinksimError as error:
        print(f"nccl_sets.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
