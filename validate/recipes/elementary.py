"""Runs the elementary algorithms on this machine's GPUs: is every result right, and how fast is allreduce beside NCCL?

    PYTHONPATH=. NCCL_NVLS_ENABLE=0 python3 validate/recipes/elementary.py --gpus 4 --budget 300 --out results

Writes elementary-<N>gpu.json after every run, so that a run cut short keeps what it has. Needs CuPy and N GPUs that
can access each other's memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial

# Before CuPy loads NCCL: in-switch reduction is another machine than the one that is measured here.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import numpy as np

from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import ROOTED, Collective
from blinksim.errors import BlinksimError
from blinksim.gpu.execution.cupy_executor import Kernels, Runner
from blinksim.gpu.execution.gpu_devices import Nccl, Stopwatch, map_devices, measure_pairs, require_cupy
from blinksim.gpu.execution.reference import Reference
from blinksim.gpu.execution.run import execute
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.gpu.programs.fit import fit
from blinksim.gpu.programs.of_calls import compile_schedule
from blinksim.gpu.programs.program import PROTOCOLS, ExecutionError
from blinksim.schedule.model import Schedule
from blinksim.topology.shapes import one_switch
from validate.recipes.arguments import arguments, script
from validate.recipes.nccl_tests import nccl_tests_row, nccl_tests_table
from validate.recipes.notes import CONSTANT, Notebook, provenance

TYPES_AND_OPS = (
    ("int32", "sum"),
    ("float32", "sum"),
    ("bfloat16", "sum"),
    ("int32", "prod"),
    ("float16", "max"),
    ("uint8", "min"),
    ("float64", "prod"),
)
# Elements: less than one per chunk, odd, a little over a few pieces.
COUNTS = (3, 1_000_003, 4_194_304 + 5)
SIZES = tuple(1 << power for power in range(10, 31, 2))


def schedules(gpus: int) -> Iterator[Schedule]:
    """Everything in the registry that this many GPUs under one switch can run; two roots where there is one."""
    machine = one_switch(gpus, bandwidth=Fraction(450 * 10**9)).select()
    for entry in REGISTRY.values():
        if entry.solver:
            continue
        for collective in entry.collectives:
            for root in (0, gpus - 1) if collective in ROOTED else (0,):
                try:
                    yield entry.build(machine, Collective(collective, root))
                except BlinksimError as error:
                    print(f"skipped {entry.name} {collective}: {error}")
                    break


def check_failure(notes: Notebook, gpus: int) -> None:
    """A program that waits for what never comes must end in an error, and the GPUs must work afterwards."""
    schedule = next(iter(schedules(gpus)))
    kind = ELEMENT_TYPES["float32"]
    program = compile_schedule(schedule, 1 << 20, kind)
    chosen = map_devices(program, schedule.topology)
    kernels = Kernels(program, "sum", chosen)
    broken = fit(program, kernels.blocks)
    signals = broken.signals.copy()
    # The first op raises a flag that no op waits for: one flag beyond those that are waited for.
    signals[0, 1] = broken.flags[signals[0, 0]]
    flags = broken.flags.copy()
    flags[signals[0, 0]] += 1
    runner = Runner(replace(broken, signals=signals, flags=flags), kernels, chosen, timeout_s=0.5)
    runner.load(Reference(schedule.collective, gpus, 1 << 20, kind))
    begin = time.monotonic()
    runner.launch()
    try:
        runner.synchronize()
    except ExecutionError as error:
        message = str(error)
    else:
        raise SystemExit("a program that cannot finish finished")
    seconds = time.monotonic() - begin
    after = execute(schedule, 1 << 20, executor="cupy", warmup=0, iterations=1)
    print(f"broken program: {message} ({seconds:.2f} s); next run correct: {after.ok}")
    notes.add("failure", {"timeout_s": 0.5, "seconds": seconds, "message": message, "next_run_ok": after.ok})


def check_all(notes: Notebook, gpus: int) -> None:
    """Every algorithm and collective, each with a sample of sizes, types and reductions, in and out of place."""
    turn = wrong = 0
    for schedule in schedules(gpus):
        for count in COUNTS:
            for in_place in (False, True):
                if notes.out_of_time:
                    print("out of time while checking")
                    return
                if in_place and schedule.collective.name == "alltoall":
                    continue
                dtype, op = TYPES_AND_OPS[turn % len(TYPES_AND_OPS)]
                turn += 1
                size = count * ELEMENT_TYPES[dtype].itemsize
                run = execute(
                    schedule,
                    size,
                    executor="cupy",
                    op=op,
                    dtype=dtype,
                    protocol=PROTOCOLS[turn // 2 % len(PROTOCOLS)],
                    staged=(None, True)[turn // 4 % 2],
                    in_place=in_place,
                    slices=(None, 1, 3)[turn % 3],
                    piece_bytes=(None, 4096)[turn % 2],
                    warmup=1,
                    iterations=2,
                )
                keys = ("algorithm", "collective", "root", "count", "dtype", "op", "protocol", "staged", "in_place")
                whole = run.to_dict()
                more = ("slices", "piece_bytes", "ops", "wrong", "max_error", "tolerance")
                row = {key: whole[key] for key in (*keys, *more)}
                notes.add("checks", row)
                if run.wrong:
                    wrong += 1
                    print("WRONG", row)
    print(f"checked {turn} runs on {gpus} GPUs, {wrong} wrong")


def time_nccl(notes: Notebook, gpus: int, sizes: tuple[int, ...]) -> None:
    cupy = require_cupy()
    kind = ELEMENT_TYPES["float32"]
    nccl = Nccl(range(gpus))
    watch = Stopwatch(nccl.gpus, nccl.streams)
    for size in sizes:
        sent, got = [], []
        for gpu in range(gpus):
            with cupy.cuda.Device(gpu):
                sent.append(cupy.full(size // 4, gpu + 1, dtype=cupy.float32))
                got.append(cupy.zeros(size // 4, dtype=cupy.float32))
                cupy.cuda.Device(gpu).synchronize()
        samples = watch.time(partial(nccl.launch, sent, got, size // 4, kind, "sum"), nccl.finish)
        expected = gpus * (gpus + 1) / 2
        wrong = 0
        for gpu in range(gpus):
            with cupy.cuda.Device(gpu):
                wrong += int((got[gpu] != expected).sum())
        middle = float(np.median(samples))
        busbw = size / middle * 2 * (gpus - 1) / gpus / 1e9
        print(
            f"{'nccl ' + nccl.version:>30} {size:>11} {middle * 1e6:>10.1f} us {busbw:>7.1f} GB/s busbw, {wrong} wrong"
        )
        entry = {"size_bytes": size, "time_s": middle, "busbw_GBps": busbw, "wrong": wrong, "times_s": samples}
        notes.add("nccl_allreduce", {"nccl": nccl.version, **entry})
    nccl.close()


def time_all(notes: Notebook, gpus: int, sizes: tuple[int, ...]) -> None:
    rows = []
    for schedule in schedules(gpus):
        if schedule.collective.name != "allreduce":
            continue
        for size in sizes:
            if notes.out_of_time:
                print("out of time while timing")
                return
            runs = [execute(schedule, size, executor="cupy", in_place=in_place) for in_place in (False, True)]
            rows.append(nccl_tests_row(*runs))
            for run in runs:
                notes.add("allreduce", {key: value for key, value in run.to_dict().items() if key not in CONSTANT})
        print(f"# {schedule.algorithm}\n{nccl_tests_table(rows[-len(sizes) :])}")


def main() -> None:
    parser = arguments(__doc__, 2, 300)
    parser.add_argument("--parts", default="failure,pairs,checks,nccl,timing")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    options = parser.parse_args()
    parts = options.parts.split(",")
    # Without --out: where the file is written has nothing to do with what is in it.
    command = f"python3 validate/recipes/elementary.py --gpus {options.gpus} --budget {options.budget:g}"
    command += f" --parts {options.parts} --sizes {options.sizes}"
    sizes = tuple(int(size) for size in options.sizes.split(","))
    notes = Notebook(options.out / f"elementary-{options.gpus}gpu.json", provenance(options.gpus, command))
    notes.deadline = time.monotonic() + options.budget
    if "failure" in parts:
        check_failure(notes, options.gpus)
    if "pairs" in parts:
        pairs = measure_pairs(range(options.gpus))
        print("copy engine GB/s:", pairs["GBps"], "latency s:", pairs["latency_s"])
        notes.add("pairs", pairs)
    if "nccl" in parts:
        time_nccl(notes, options.gpus, sizes)
    if "checks" in parts:
        check_all(notes, options.gpus)
    if "timing" in parts:
        time_all(notes, options.gpus, sizes)


if __name__ == "__main__":
    script(main, __file__)
