"""Fits the constants of calls in training jobs to timed ones, and tries them on others; needs no GPU.

    python validate/recipes/job_constants.py

The constants (``job`` under ``execution`` in a machine's file) are fitted to the calls of two and four H200 in graphs
of 50 (results/training-job-2gpu.json and -4gpu.json), and tried on graphs of 20: on two H100 and on four H200. Printed
are the section, how far times are off, and how often the model names the quicker one of blinksim and NCCL where they
are more than 3 % apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import yaml
from scipy.optimize import least_squares

import blinksim as bs
from blinksim.gpu.execution_time.closed_form import ScheduleTimes
from blinksim.gpu.jobs.job_plan import JobPlan
from blinksim.gpu.programs.dtypes import element_type
from blinksim.gpu.programs.of_calls import Call
from blinksim.gpu.programs.program import ProtocolName
from blinksim.schedule.model import Schedule
from blinksim.timing.measured_constants import ExecutionRates, FitError, JobRates, write_section

RESULTS = Path(__file__).parents[1] / "results"
FITTED = (("training-job-2gpu", "hgx-h200", 2), ("training-job-4gpu", "hgx-h200", 4))
TRIED = (("training-job-20calls-2gpu", "hgx-h100", 2), ("training-job-20calls-4gpu", "hgx-h200", 4))
# The two that the host and streams add: results/async-calls-4gpu.json, and docs/measurements/training-job.md.
STREAM_S, HOST_S = 1.1e-6, 17e-6
FLOAT32 = element_type("float32")
# A figure that is off by more counts less, as one of an unlucky run would.
LIKELY = 0.1


@cache
def choices(ranks: int) -> JobPlan:
    return JobPlan.for_switch(ranks)


def calls(name: str, ranks: int) -> Iterator[tuple[dict[str, Any], Schedule, ProtocolName]]:
    """Each timed call of a file, and the schedule and protocol that the built-in rules take for it."""
    for row in json.loads((RESULTS / f"{name}.json").read_text())["times"]:
        chosen = choices(ranks).choose(Call(row["collective"], row["size_bytes"] // 4, FLOAT32))
        yield row, chosen.schedule, cast("ProtocolName", chosen.protocol)


def predicted(rates: ExecutionRates, name: str, ranks: int) -> list[float]:
    times = ScheduleTimes(rates.in_jobs(), "graph")
    runs = (times.simulate(schedule, row["size_bytes"], how) for row, schedule, how in calls(name, ranks))
    return [run.time.time_s * 1e6 for run in runs]


def measured(name: str, ranks: int, key: str = "blinksim_us") -> list[float]:
    return [row[key] for row, _, _ in calls(name, ranks)]


def fitted(start: ExecutionRates) -> ExecutionRates:
    def rates(found: np.ndarray) -> ExecutionRates:
        *micros, again = found.tolist()
        launch_s, visit_s, step_s, piece_s = (float(f"{1e-6 * value:.4g}") for value in micros)
        return replace(start, job=JobRates(launch_s, visit_s, step_s, piece_s, again, STREAM_S, HOST_S))

    def off(found: np.ndarray) -> np.ndarray:
        apart = [np.log(predicted(rates(found), name, n)) - np.log(measured(name, n)) for name, _, n in FITTED]
        return np.concatenate(apart)

    first, least, most = [3, 0.3, 1.2, 0.6, 0.5], [0.1, 0, 0.1, 0.1, 0], [9, 1, 3, 3, 1]
    given: Any = {"diff_step": 0.03, "loss": "soft_l1", "f_scale": LIKELY}
    solved = least_squares(off, first, bounds=(least, most), **given)
    rounded = rates(np.array([float(f"{value:.3g}") for value in solved.x]))
    error = FitError.of(
        [time for name, _, n in FITTED for time in predicted(rounded, name, n)],
        [time for name, _, n in FITTED for time in measured(name, n)],
    )
    assert rounded.job is not None
    return replace(rounded, job=replace(rounded.job, error=error))


def main() -> None:
    whole = bs.load("hgx-h200")
    assert whole.execution is not None
    found = fitted(whole.execution)
    print(yaml.safe_dump({"job": write_section(found, None)["job"]}, default_flow_style=None, width=200).strip())
    for name, machine, n in (*FITTED, *TRIED):
        ours, theirs = predicted(found, name, n), []
        part = bs.load(machine).select([*range(n)])
        for row, _, _ in calls(name, n):
            theirs.append(bs.project(part, row["collective"], row["size_bytes"]).time_s * 1e6)
        seen, nccl = measured(name, n), measured(name, n, "nccl_us")
        apart = [at for at, (a, b) in enumerate(zip(seen, nccl, strict=True)) if abs(a / b - 1) > 0.03]
        named = sum((ours[at] < theirs[at]) == (seen[at] < nccl[at]) for at in apart)
        print(f"{name}: {FitError.of(ours, seen).words()}; the quicker one named in {named} of {len(apart)}")


if __name__ == "__main__":
    main()
