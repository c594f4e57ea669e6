"""Our schedules at full speed beside NCCL: same GPUs, same process, both timed by the same events, in turn.

    PYTHONPATH=. NCCL_NVLS_ENABLE=0 python3 validate/recipes/full_speed.py --gpus 4 --out results

For every collective and size: NCCL, then every candidate with the slices and pieces that `blinksim.gpu.programs.fit`
takes. `--sizes` and `--dtype` ask for others than the usual, `--label` names the file. With `--tune`,
a scan of slices, pieces, packets and inboxes instead. Trees of two levels for broadcast and reduce are packed, which
needs OR-Tools: `--make FOLDER` writes them where there is no GPU, `--schedules FOLDER` takes them along.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypedDict

# Before CuPy loads NCCL: in-switch reduction is another machine than the one that is measured here.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective, busbw_factor
from blinksim.errors import BlinksimError
from blinksim.formats.schedule_json import read_schedule, write_schedule
from blinksim.gpu.execution.gpu_devices import Nccl, Stopwatch, require_cupy
from blinksim.gpu.execution.run import execute
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES, DtypeName
from blinksim.gpu.programs.program import PROTOCOLS, ProtocolName
from blinksim.schedule.model import Schedule
from blinksim.topology.shapes import fully_connected, one_switch
from validate.recipes.arguments import add_steps, arguments, script
from validate.recipes.notes import Notebook, measured, provenance

# What --tune tries: protocol, whether staged, slices, bytes of a piece; and the sizes.
SCAN: list[tuple[ProtocolName, bool, int, int]] = [
    ("simple", False, slices, piece << 10) for slices in (16, 32, 64, 128) for piece in (16, 32, 64, 128, 256)
]
SCAN += [("simple", True, slices, piece << 10) for slices in (64, 128) for piece in (32, 64, 128)]
SCAN += [("ll128", True, slices, 1 << 20) for slices in (16, 33, 66, 132)]
SCAN_SIZES = (1 << 20, 1 << 22, 1 << 24, 1 << 28)
# Larger vectors are not tried with packets, which move 16 bytes for 15.
MOST_PACKETS = 1 << 26
# Smaller ones are not scanned without them.
LEAST_SIMPLE = 1 << 24
SIZES = tuple(1 << power for power in range(20, 31, 2))
CANDIDATES = {
    "allreduce": ("ring", "two_shot", "direct", "double_binary"),
    "allgather": ("ring", "direct"),
    "reducescatter": ("ring", "direct"),
    "broadcast": ("chain", "double_binary", "packed"),
    "reduce": ("chain", "double_binary", "packed"),
}


class Cut(TypedDict):
    """One entry of `SCAN` as options of `execute`."""

    protocol: ProtocolName
    staged: bool
    slices: int
    piece_bytes: int


def schedule_of(name: str, collective: str, gpus: int, folder: Path | None) -> Schedule | None:
    if name == "packed":
        path = None if folder is None else folder / f"packed-{collective}-{gpus}.json"
        return read_schedule(path) if path is not None and path.exists() else None
    machine = one_switch(gpus, bandwidth=Fraction(450 * 10**9)).select()
    return REGISTRY[name].build(machine, Collective(collective))


def make(folder: Path, gpus: int) -> None:
    """Writes the packed trees: on direct links, where they have two levels; a switch carries them just as well."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = fully_connected(gpus, bandwidth=Fraction(450 * 10**9)).select()
    for collective in ("broadcast", "reduce"):
        schedule = REGISTRY["packed"].build(machine, Collective(collective))
        write_schedule(schedule, folder / f"packed-{collective}-{gpus}.json", force=True)


def whole_lines(size: int, gpus: int) -> int:
    """The size rounded down so that every rank's slice has whole lines of memory, as nccl-tests does it."""
    return size - size % (128 * gpus)


def time_nccl(notes: Notebook, nccl: Nccl, collective: str, nominal: int, dtype: DtypeName) -> None:
    cupy, gpus = require_cupy(), len(nccl.gpus)
    size, kind = whole_lines(nominal, gpus), ELEMENT_TYPES[dtype]
    count = size // kind.itemsize
    sent, got = [], []
    for gpu in nccl.gpus:
        with cupy.cuda.Device(gpu):
            sent.append(cupy.full(count, gpu + 1, dtype=dtype))
            got.append(cupy.zeros(count, dtype=dtype))
            cupy.cuda.Device(gpu).synchronize()
    launch = partial(nccl.launch, sent, got, count, kind, "sum", collective)
    samples = Stopwatch(nccl.gpus, nccl.streams).time(launch, nccl.finish)
    wrong = 0
    for gpu, want in expected(collective, gpus):
        with cupy.cuda.Device(gpu):
            wrong += int((got[gpu][:count] != want).sum())
    busbw = size / median(samples) * float(busbw_factor(collective, gpus)) / 1e9
    entry = {"collective": collective, "size_bytes": nominal, "used_bytes": size, "nccl": nccl.version, "wrong": wrong}
    if dtype != "float32":
        entry["dtype"] = dtype
    notes.add("nccl", {**entry, "time_s": median(samples), "busbw_GBps": busbw, "times_s": samples})
    print(f"{collective:<14} {size:>11} nccl {'':>20} {median(samples) * 1e6:>10.1f} us {busbw:>7.1f} GB/s busbw")


def expected(collective: str, gpus: int) -> list[tuple[int, float]]:
    """(GPU, value everywhere in its output) where every rank sent its number plus one; whole vectors only."""
    total = gpus * (gpus + 1) / 2
    if collective == "allreduce":
        return [(gpu, total) for gpu in range(gpus)]
    if collective == "broadcast":
        return [(gpu, 1) for gpu in range(gpus)]
    return [(0, total)] if collective == "reduce" else []


def time_ours(notes: Notebook, gpus: int, collective: str, size: int, folder: Path | None, dtype: DtypeName) -> None:
    for name in CANDIDATES[collective]:
        schedule = schedule_of(name, collective, gpus, folder)
        if schedule is None:
            continue
        for protocol in PROTOCOLS:
            if protocol == "simple" or size <= MOST_PACKETS:
                time_schedule(notes, schedule, gpus, collective, size, protocol, dtype)


def time_schedule(
    notes: Notebook,
    schedule: Schedule,
    gpus: int,
    collective: str,
    size: int,
    protocol: ProtocolName,
    dtype: DtypeName,
) -> None:
    used = whole_lines(size, gpus)
    run = execute(schedule, used, executor="cupy", protocol=protocol, dtype=dtype, check=size <= 1 << 28)
    keys = ("algorithm", "protocol", "staged", "used_bytes", "slices", "piece_bytes", "wrong", "time_s", "busbw_GBps")
    whole = run.to_dict()
    asked = {"collective": collective, "size_bytes": size, **({} if dtype == "float32" else {"dtype": dtype})}
    notes.add("ours", {**asked, **{key: whole[key] for key in (*keys, "times_s")}})
    time_us, _, busbw = measured(run)
    note = "" if run.ok else f" WRONG: {run.wrong}"
    print(
        f"{collective:<14} {size:>11} {run.algorithm:<13} {protocol:<6} {run.slices:>3} x "
        f"{run.piece_bytes >> 10:>4} KiB {time_us:>10.1f} us {busbw:>7.1f} GB/s busbw{note}"
    )


def tune(notes: Notebook, gpus: int, sizes: Sequence[int], only: str, folder: Path | None) -> None:
    """How slices, pieces, packets and inboxes change the rate."""
    for collective, names in CANDIDATES.items():
        for name in names:
            schedule = schedule_of(name, collective, gpus, folder) if only in f"{collective}-{name}" else None
            if schedule is None:
                continue
            for size in sizes:
                best = sorted(scan(notes, schedule, name, size), reverse=True)[:6]
                print(collective, name, size, "GB/s busbw, protocol, slices, KiB:", best)


def scan(notes: Notebook, schedule: Schedule, name: str, size: int) -> list[tuple[float, str, int, int]]:
    """(GB/s busbw, protocol or "staged", slices, KiB) of every entry of `SCAN` that is new, makes sense and runs."""
    tried: list[tuple[float, str, int, int]] = []
    for protocol, staged, slices, piece in SCAN:
        cut: Cut = {"protocol": protocol, "staged": staged, "slices": slices, "piece_bytes": piece}
        keys = {"collective": schedule.collective.name, "algorithm": name, "size_bytes": size, **cut}
        if size < LEAST_SIMPLE if protocol == "simple" else size > MOST_PACKETS:
            continue
        if notes.out_of_time or notes.has("tuning", **keys):
            continue
        try:
            run = execute(schedule, size, executor="cupy", check=size <= 1 << 24, warmup=2, iterations=6, **cut)
        except BlinksimError:
            continue
        _, _, busbw = measured(run)
        notes.add("tuning", {**keys, "wrong": run.wrong, "time_s": run.time_s, "busbw_GBps": busbw})
        if run.wrong:
            print("WRONG", keys, run.wrong)
        way = "staged" if staged and protocol == "simple" else protocol
        tried.append((round(busbw, 1), way, slices, piece >> 10))
    return tried


def main() -> None:
    parser = arguments(__doc__, 2, 200)
    parser.add_argument("--sizes", help="bytes, with commas between")
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32", help="type of the elements")
    parser.add_argument("--label", default="full-speed", help="what the name of the file begins with")
    parser.add_argument("--tune", metavar="PART", help="scan slices and pieces of COLLECTIVE-ALGORITHM with PART in it")
    add_steps(parser, "packed trees")
    options = parser.parse_args()
    if options.make:
        make(options.make, options.gpus)
        return
    command = f"python3 validate/recipes/full_speed.py --gpus {options.gpus} --budget {options.budget:g}"
    command += f" --sizes {options.sizes}" if options.sizes else ""
    command += f" --dtype {options.dtype}" if options.dtype != "float32" else ""
    command += f" --label {options.label}" if options.label != "full-speed" else ""
    command += f" --tune '{options.tune}'" if options.tune is not None else ""
    name = f"{options.label}-{options.gpus}gpu" + ("-tuning" if options.tune is not None else "")
    notes = Notebook(options.out / f"{name}.json", provenance(options.gpus, command), resume=True)
    notes.deadline = time.monotonic() + options.budget
    sizes = SIZES if options.tune is None else SCAN_SIZES
    if options.sizes:
        sizes = tuple(int(size) for size in options.sizes.split(","))
    if options.tune is not None:
        tune(notes, options.gpus, sizes, options.tune, options.schedules)
        if notes.out_of_time:
            print("out of time; run again to go on")
        return
    nccl = Nccl(range(options.gpus))
    late = False
    for collective in CANDIDATES:
        for size in sizes:
            if notes.has("ours", collective=collective, size_bytes=size):
                continue
            if notes.out_of_time:
                late = True
                break
            time_nccl(notes, nccl, collective, size, options.dtype)
            time_ours(notes, options.gpus, collective, size, options.schedules, options.dtype)
    nccl.close()
    if late:
        print("out of time; run again to go on")


if __name__ == "__main__":
    script(main, __file__)
