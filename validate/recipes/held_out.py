"""Runs that no constants were fitted to: 3, 5, 6 and 8 GPUs, sizes between the powers of two, float16; and NCCL's.

    PYTHONPATH=. NCCL_NVLS_ENABLE=0 python3 validate/recipes/held_out.py --gpus 8 --budget 200 --out results

First the machine is calibrated as by `blinksim calibrate --gpus`; then every case is timed, and at the end predicted by
the constants of the catalogue and by those that were just found. Reported as found, with no case left out.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import repeat
from statistics import median
from typing import Any

from blinksim.answers.measurements.execution_fit import Case, calibrate_gpus, predict, processes
from blinksim.formats import rate_tables
from blinksim.gpu.execution.run import GpuClock, execute
from blinksim.machines import load
from blinksim.nccl.tuner.tuner import predict as choice
from blinksim.timing.measured_constants import NcclRates
from blinksim.topology.graph import Topology
from validate.recipes.arguments import arguments, script
from validate.recipes.notes import Notebook, provenance

COUNTS = (3, 5, 6, 8)
# None of them is a power of two, or was measured before.
SIZES = (3 << 10, 40 << 10, 300 << 10, 3 << 20, 11 << 20, 48 << 20, 200 << 20)
NAMES = {
    "allreduce": ("ring", "direct", "two_shot", "double_binary"),
    "allgather": ("ring",),
    "reducescatter": ("direct",),
    "broadcast": ("chain",),
    "reduce": ("double_binary",),
}
MOST_PACKETS = 64 << 20
Timed = tuple[Case, float]


def cases(most: int) -> Iterator[Case]:
    """The sizes in turn over collectives, algorithms and counts, so that a short run has some of everything."""
    for turn in range(len(SIZES)):
        for shift, gpus in enumerate(count for count in COUNTS if count <= most):
            size = SIZES[(turn + 2 * shift) % len(SIZES)]
            for collective, names in NAMES.items():
                for name in names:
                    for protocol in ("ll128", "simple"):
                        if protocol == "ll128" and size > MOST_PACKETS:
                            continue
                        yield Case(gpus, collective, name, protocol, size)


def time_ours(notes: Notebook, case: Case, dtype: str) -> Timed:
    """Times a case; halves are taken to be as quick as floats of as many bytes."""
    options: dict[str, Any] = {"executor": "cupy", "protocol": case.protocol, "dtype": dtype}
    run = execute(case.schedule, case.used, check=case.used <= 1 << 26, **options)
    assert run.time_s is not None
    entry = {"gpus": case.gpus, "collective": case.collective, "algorithm": case.algorithm, "protocol": case.protocol}
    entry |= {"size_bytes": case.size, "used_bytes": case.used, "dtype": dtype, "wrong": run.wrong}
    notes.add("ours", {**entry, "time_s": run.time_s, "times_s": run.times_s})
    print(f"{case} {dtype}: {run.time_s * 1e6:.1f} us, {run.wrong} wrong", flush=True)
    return case, run.time_s


def time_nccl(notes: Notebook, clock: GpuClock, case: Case) -> Timed:
    """The same for NCCL's collective of the case's size."""
    seconds = median(clock.time_nccl(case.gpus, case.collective, case.used))
    entry = {"gpus": case.gpus, "collective": case.collective, "used_bytes": case.used}
    notes.add("nccl", {**entry, "nccl": clock.nccl_version, "time_s": seconds})
    return case, seconds


def nccl_time(case: Case, machine: Topology, rates: NcclRates) -> float:
    """What the constants say of NCCL's choice."""
    found = choice(machine, machine.members[: case.gpus], multicast=False)
    line = found.best(case.collective, case.used).protocol.lower()
    return rates.time(case.collective, case.gpus, case.used, line, 2 * found.nchannels)


def summary(what: str, timed: list[Timed], predicted: list[float]) -> dict[str, Any]:
    """Median, nine in ten and worst error, printed and as an entry of the notes."""
    if not timed:
        return {"what": what, "runs": 0}
    errors = sorted(abs(time / seen - 1) for time, (_, seen) in zip(predicted, timed, strict=True))
    picks = errors[len(errors) // 2], errors[-(-9 * len(errors) // 10) - 1], errors[-1]
    print(f"{what}: {len(errors)} runs, " + " / ".join(f"{100 * error:.1f} %" for error in picks), flush=True)
    return {"what": what, "runs": len(errors), "median": picks[0], "p90": picks[1], "worst": picks[2]}


def main() -> None:
    options = arguments(__doc__, 8, 200).parse_args()
    begin = time.monotonic()
    command = f"python3 validate/recipes/held_out.py --gpus {options.gpus} --budget {options.budget:g}"
    notes = Notebook(options.out / f"held-out-{options.gpus}gpu.json", provenance(options.gpus, command))
    notes.deadline = begin + options.budget
    machine = load("hgx-h200", rates="nccl")
    clock = GpuClock(options.gpus)
    with processes() as evaluate:
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        found = calibrate_gpus(clock, machine, date=day, report=partial(print, flush=True), evaluate=evaluate)
        took = time.monotonic() - begin
        print(f"calibrated in {took:.1f} s: {found.execution.error.words()}", flush=True)
        (options.out / "calibrated.yaml").write_text(rate_tables.write(found.table))
        notes.add("calibration", {"seconds": took, **found.to_dict()})
        ours, nccl = list[Timed](), dict[tuple[int, str, int], Timed]()
        for number, case in enumerate(cases(options.gpus)):
            if notes.out_of_time:
                print("out of time; the rest of the cases was not run")
                break
            ours.append(time_ours(notes, case, "float16" if number % 3 == 2 else "float32"))
            key = case.gpus, case.collective, case.size
            if key not in nccl:
                nccl[key] = time_nccl(notes, clock, case)
        clock.close()
        assert machine.execution is not None
        assert machine.nccl_rates is not None
        shipped = replace(machine.execution, blocks=clock.blocks)
        for name, rates in (("shipped", shipped), ("calibrated", found.execution.rates)):
            predicted = [*evaluate(predict, [case for case, _ in ours], repeat(rates))]
            notes.add("summary", {**summary(f"ours, {name} constants", ours, predicted), "predicted_s": predicted})
        for name, known in (("shipped", machine.nccl_rates), ("calibrated", found.nccl and found.nccl.rates)):
            if known:
                times = [nccl_time(case, machine, known) for case, _ in nccl.values()]
                notes.add("summary", summary(f"NCCL, {name} constants", list(nccl.values()), times))


if __name__ == "__main__":
    script(main, __file__)
