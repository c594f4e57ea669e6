"""Runs of synthesised schedules on this machine's GPUs: is every result right, and how fast is each beside NCCL?

    PYTHONPATH=. python3 validate/recipes/synthesised.py --make FOLDER --gpus 4
    PYTHONPATH=. NCCL_NVLS_ENABLE=0 python3 validate/recipes/synthesised.py --schedules FOLDER --gpus 4 --out results

The first writes schedule files and needs OR-Tools but no GPU; the second runs them and needs GPUs but no solver. The
schedules are made for the first GPUs of a DGX-1V, for clusters and for tenants with helpers; on other GPUs they run
over whatever joins those, so that the data are proved and the times are those of this machine, not of a DGX-1V.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

# Before CuPy loads NCCL: in-switch reduction is another machine than the one that is measured here.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

from blinksim.collective import Collective
from blinksim.errors import BlinksimError
from validate.recipes.arguments import add_steps, arguments, script, take_steps

SIZES = (1 << 20, 1 << 24, 1 << 30)
COUNTS = (3, 1_000_003)


def questions(gpus: int) -> list[tuple[str, str, dict[str, Any], str, str]]:
    """(name, machine, what to select, collective, algorithm) of every schedule that uses exactly `gpus` GPUs."""
    first = {"members": [f"gpu{i}" for i in range(gpus)]}
    asked: list[tuple[str, str, dict[str, Any], str, str]] = []
    every = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "gather", "scatter", "alltoall")
    asked += [(f"packed-{name}", "dgx1-v100", first, name, "packed") for name in every]
    for algorithm in ("chains", "rings", "blink", "blink_hierarchical", "mxnet"):
        asked.append((f"{algorithm}-allreduce", "dgx1-v100", first, "allreduce", algorithm))
    asked += [(f"blink-{name}", "dgx1-v100", first, name, "blink") for name in ("broadcast", "allgather")]
    asked += [(f"few_steps-{name}", "dgx1-v100", first, name, "few_steps") for name in ("allgather", "broadcast")]
    if gpus > 2:
        helpers = {"members": ["gpu0", "gpu1"], "relays": [f"gpu{i}" for i in range(2, gpus)], "relays_reduce": True}
        asked += [(f"blinkplus-{name}", "dgx1-v100", helpers, name, "blinkplus") for name in ("allreduce", "broadcast")]
    if gpus % 2 == 0 and gpus > 2:
        cluster = f"rails:2x{gpus // 2}"
        for algorithm in ("hierarchical", "chain_tree", "packed"):
            asked.append((f"cluster-{algorithm}-allreduce", cluster, {}, "allreduce", algorithm))
    return asked


def make(folder: Path, gpus: int) -> None:
    """Synthesizes, verifies and writes the schedules."""
    from blinksim import machines
    from blinksim.answers.synthesize import synthesize
    from blinksim.formats.schedule_json import write_schedule

    folder.mkdir(parents=True, exist_ok=True)
    for name, machine, part, collective, algorithm in questions(gpus):
        try:
            made = synthesize(machines.load(machine).select(**part), Collective(collective), algorithm)
        except BlinksimError as error:
            print(f"skipped {name}: {error}")
            continue
        if not made.verdict.ok:
            raise SystemExit(f"{name} does not verify: {made.verdict.reasons}")
        write_schedule(made.schedule, folder / f"{name}.json", force=True)
        print(f"{name:<34} {float(made.rate) / 1e9:8.2f} GB/s on {made.schedule.topology.name}, gap {made.gap}")


def run(folder: Path, gpus: int, out: Path, budget: float) -> None:
    """Checks every schedule with several types and sizes, then times it."""
    from blinksim.formats.schedule_json import read_schedule
    from blinksim.gpu.execution.run import execute
    from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
    from validate.recipes.elementary import TYPES_AND_OPS, time_nccl
    from validate.recipes.notes import CONSTANT, Notebook, measured, provenance

    command = f"python3 validate/recipes/synthesised.py --schedules FOLDER --gpus {gpus} --budget {budget:g}"
    notes = Notebook(out / f"synthesised-{gpus}gpu.json", provenance(gpus, command))
    notes.deadline = time.monotonic() + budget
    time_nccl(notes, gpus, SIZES)
    turn = wrong = 0
    for path in sorted(folder.glob("*.json")):
        schedule = read_schedule(path)
        for count in COUNTS:
            if notes.out_of_time:
                print("out of time while checking")
                return
            dtype, op = TYPES_AND_OPS[turn % 3]
            turn += 1
            size = count * ELEMENT_TYPES[dtype].itemsize
            done = execute(schedule, size, executor="cupy", op=op, dtype=dtype, warmup=1, iterations=2)
            row = {key: value for key, value in done.to_dict().items() if key not in CONSTANT}
            notes.add("checks", {"schedule": path.stem, **row})
            wrong += bool(done.wrong)
            if done.wrong:
                print("WRONG", path.stem, dtype, op, count, done.wrong)
    print(f"checked {turn} runs of {turn // len(COUNTS)} schedules on {gpus} GPUs, {wrong} wrong")
    for path in sorted(folder.glob("*.json")):
        schedule = read_schedule(path)
        for size in SIZES:
            if notes.out_of_time:
                print("out of time while timing")
                return
            done = execute(schedule, size, executor="cupy")
            time_us, _, busbw = measured(done)
            notes.add("times", {"schedule": path.stem, **done.to_dict()})
            print(f"{path.stem:<34} {size:>11} {time_us:>10.1f} us {busbw:>7.1f} GB/s busbw")


def main() -> None:
    parser = arguments(__doc__, 4, 200)
    add_steps(parser, "schedules")
    options = parser.parse_args()
    take_steps(
        parser,
        options,
        lambda folder: make(folder, options.gpus),
        lambda folder: run(folder, options.gpus, options.out, options.budget),
    )


if __name__ == "__main__":
    script(main, __file__)
