"""Exported files in NCCL, on this machine's GPUs: does it say and do what the export promised?

    PYTHONPATH=. python3 validate/recipes/nccl_files.py --make FOLDER --gpus 4
    PYTHONPATH=. NCCL_NVLS_ENABLE=0 python3 validate/recipes/nccl_files.py --files FOLDER --gpus 4 --out results

The first writes graph files and needs OR-Tools but no GPU; the second runs NCCL in a process of its own for every case:
with its own choice, with each graph file, and with the topology file of the emulated machine (which needs the bus ids
of the GPUs at hand). A case holds the lines of NCCL's log that the export promised, whether each was seen, the dumped
graph, and timed allreduces with their data checked.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

from validate.recipes.arguments import add_steps, arguments, script, take_steps
from validate.recipes.notes import Notebook, provenance

MACHINE = "dgx1-v100"
SIZES = (1 << 26, 1 << 30)
ANSWER = "ANSWER "
_LINE = re.compile(r"NCCL INFO ((?:Channel \d+/\d+ : |Trees |Ring \d+ : |Pattern |Tree \d+ : ).*)")


def squeezed(line: str) -> str:
    return " ".join(line.split())


def seen_lines(log: str) -> list[str]:
    """The lines of a log of NCCL_DEBUG=INFO that say which channels are in force, each once, in their order."""
    return list(dict.fromkeys(squeezed(match.group(1)) for match in _LINE.finditer(log)))


def make(folder: Path, gpus: int) -> None:
    """Graph files of chains and rings for the first GPUs of a DGX-1V, each with what the export promises."""
    from blinksim import machines
    from blinksim.answers.synthesize import synthesize
    from blinksim.cli.main import run
    from blinksim.collective import Collective
    from blinksim.formats.schedule_json import write_schedule

    folder.mkdir(parents=True, exist_ok=True)
    part = machines.load(MACHINE, rates="nccl").select([f"gpu{i}" for i in range(gpus)])
    for algorithm in ("chains", "rings"):
        made = synthesize(part, Collective("allreduce"), algorithm)
        schedule = folder / f"{algorithm}.json"
        write_schedule(made.schedule, schedule, force=True)
        promise = folder / f"{algorithm}.promise"
        with promise.open("w") as file:
            old, sys.stdout = sys.stdout, file
            try:
                status = run(["export", str(schedule), "--format", "nccl-graph", "--json"])
            finally:
                sys.stdout = old
        if status:
            raise SystemExit(f"export of {algorithm} ended with status {status}")
        answer = json.loads(promise.read_text())
        (folder / f"{algorithm}.graph.xml").write_text(next(iter(answer["files"].values())))
        print(f"{algorithm}: {answer['summary']}; {len(answer['proof'])} lines to look for")


def work(gpus: int) -> None:
    """One process with one communicator: timed allreduces, data checked; prints one line of JSON."""
    import numpy as np

    from blinksim.gpu.execution.gpu_devices import Nccl, Stopwatch, require_cupy
    from blinksim.gpu.programs.dtypes import ELEMENT_TYPES

    cupy = require_cupy()
    kind = ELEMENT_TYPES["float32"]
    nccl = Nccl(range(gpus))
    watch = Stopwatch(nccl.gpus, nccl.streams)
    rows = []
    for size in SIZES:
        sent, got = [], []
        for gpu in range(gpus):
            with cupy.cuda.Device(gpu):
                sent.append(cupy.arange(size // 4, dtype=cupy.float32) % 1009 + gpu)
                got.append(cupy.full(size // 4, -1, dtype=cupy.float32))
                cupy.cuda.Device(gpu).synchronize()
        samples = watch.time(partial(nccl.launch, sent, got, size // 4, kind, "sum"), nccl.finish)
        wrong = 0
        for gpu in range(gpus):
            with cupy.cuda.Device(gpu):
                expected = (cupy.arange(size // 4, dtype=cupy.float32) % 1009) * gpus + gpus * (gpus - 1) // 2
                wrong += int((got[gpu] != expected).sum())
        middle = float(np.median(samples))
        busbw = size / middle * 2 * (gpus - 1) / gpus / 1e9
        rows.append({"size_bytes": size, "time_s": middle, "busbw_GBps": busbw, "wrong": wrong, "times_s": samples})
    print(ANSWER + json.dumps({"nccl": nccl.version, "rows": rows}), flush=True)
    nccl.close()


def case(name: str, gpus: int, environment: dict[str, str], promised: list[str], out: Path) -> dict[str, Any]:
    """Runs `work` under an environment and compares NCCL's log with what was promised."""
    dump = out / f"dump-{name}.xml"
    whole = {
        **os.environ,
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,ENV,TUNING",
        "NCCL_GRAPH_DUMP_FILE": str(dump),
        **environment,
    }
    command = [sys.executable, __file__, "--work", "--gpus", str(gpus)]
    begin = time.monotonic()
    try:
        done = subprocess.run(command, env=whole, capture_output=True, text=True, timeout=120, check=False)
        log, status = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        log, status = str(error.stdout or "") + str(error.stderr or ""), 124
    answers = [json.loads(x.removeprefix(ANSWER)) for x in log.splitlines() if x.startswith(ANSWER)]
    seen = seen_lines(log)
    missing = [line for line in map(squeezed, promised) if not any(line in found for found in seen)]
    result = {
        "case": name,
        "environment": {key: value.replace(str(out.resolve()), "OUT") for key, value in environment.items()},
        "status": status,
        "seconds": time.monotonic() - begin,
        "promised": promised,
        "missing": missing,
        "log": seen[:200],
        "dump": dump.read_text() if dump.exists() else None,
        **(answers[0] if answers else {"output": log[-3000:]}),
    }
    rates = ", ".join(
        f"{row['size_bytes'] >> 20} MiB {row['busbw_GBps']:.1f} GB/s busbw, {row['wrong']} wrong"
        for row in result.get("rows", [])
    )
    print(
        f"{name:<18} status {status}, {len(promised) - len(missing)} of {len(promised)} lines seen; {rates}", flush=True
    )
    dump.unlink(missing_ok=True)
    return result


def bus_ids(gpus: int) -> list[str]:
    from blinksim.gpu.execution.gpu_devices import require_cupy

    runtime = require_cupy().cuda.runtime
    return [runtime.deviceGetPCIBusId(gpu).lower() for gpu in range(gpus)]


def run_all(folder: Path, gpus: int, out: Path) -> None:
    from blinksim.cli.main import run

    command = f"python3 validate/recipes/nccl_files.py --files FOLDER --gpus {gpus}"
    notes = Notebook(out / f"nccl-files-{gpus}gpu.json", provenance(gpus, command))
    notes.add("cases", case("own-choice", gpus, {}, [], out))
    for promise in sorted(folder.glob("*.promise")):
        answer = json.loads(promise.read_text())
        graph = folder / f"{promise.stem}.graph.xml"
        environment = {key: value for key, value in answer["environment"].items() if key != "NCCL_GRAPH_FILE"}
        notes.add("cases", case(f"{promise.stem}-unloaded", gpus, environment, [], out))
        loaded = environment | {"NCCL_GRAPH_FILE": str(graph)}
        notes.add("cases", case(f"{promise.stem}-loaded", gpus, loaded, answer["proof"], out))
    topology = out / "emulated-topo.xml"
    members = f"0-{gpus - 1}"
    export = ["topo", "export", MACHINE, "--format", "nccl-topo", "--members", members, "--rates", "nccl"]
    run([*export, "--bus-ids", ",".join(bus_ids(gpus)), "-o", str(topology), "--force", "-q"])
    emulated = {"NCCL_TOPO_FILE": str(topology.resolve())}
    for algorithm in ("Ring", "allreduce:tree"):
        chosen = emulated | {"NCCL_ALGO": algorithm, "NCCL_PROTO": "Simple"}
        notes.add("cases", case(f"emulated-{algorithm.split(':')[-1].lower()}", gpus, chosen, [], out))
    for promise in sorted(folder.glob("*.promise")):
        answer = json.loads(promise.read_text())
        loaded = answer["environment"] | emulated
        loaded["NCCL_GRAPH_FILE"] = str(folder / f"{promise.stem}.graph.xml")
        notes.add("cases", case(f"emulated-{promise.stem}", gpus, loaded, answer["proof"], out))
    notes.add("topology", topology.read_text())
    topology.unlink()


def main() -> None:
    parser = arguments(__doc__, 4)
    add_steps(parser, "graph files", "files")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.gpus)
    else:
        take_steps(
            parser,
            options,
            lambda folder: make(folder, options.gpus),
            lambda folder: run_all(folder, options.gpus, options.out),
            "files",
        )


if __name__ == "__main__":
    script(main, __file__)
