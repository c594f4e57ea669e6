"""Times of calls in training jobs by the model, beside those that were measured on two and four GPUs."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import blinksim as bs
from blinksim.algorithms.registry import REGISTRY
from blinksim.answers.project import answer
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.gpu.execution_time.closed_form import schedule_times
from blinksim.gpu.jobs.job_plan import JobPlan
from blinksim.gpu.programs.dtypes import element_type
from blinksim.gpu.programs.of_calls import Call
from blinksim.timing.library_model import Library
from blinksim.timing.measured_constants import FitError

RESULTS = Path(__file__).parents[2] / "validate" / "results"
H200 = bs.load("hgx-h200").execution
assert H200 is not None


def rows(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["times"]
    return found


def predicted(machine: str, ranks: int, row: dict[str, Any], calls: Any = "graph") -> float:
    """Microseconds of a call by the rules that a group has built in."""
    rates = bs.load(machine).execution
    assert rates is not None
    chosen = JobPlan.for_switch(ranks).choose(Call(row["collective"], row["size_bytes"] // 4, element_type("float32")))
    protocol: Any = chosen.protocol
    run = schedule_times(rates, calls).simulate(chosen.schedule, row["size_bytes"], protocol)
    return 1e6 * run.time.time_s


# The first two were fitted, the others not; those of H100 are of other GPUs, another host and graphs of 20 calls.
@pytest.mark.parametrize(
    ("name", "machine", "ranks"),
    [
        ("training-job-2gpu", "hgx-h200", 2),
        ("training-job-4gpu", "hgx-h200", 4),
        ("training-job-20calls-4gpu", "hgx-h200", 4),
        ("training-job-20calls-2gpu", "hgx-h100", 2),
    ],
)
def test_times_are_near_measured_ones(name: str, machine: str, ranks: int) -> None:
    timed = rows(name)
    error = FitError.of([predicted(machine, ranks, row) for row in timed], [row["blinksim_us"] for row in timed])
    assert error.points == 50
    assert error.median < 0.08
    assert error.p90 < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_other_algorithms_are_near_measured_ones_too(ranks: int) -> None:
    """Eight algorithms by both protocols, most of which no constant was fitted to."""
    assert H200 is not None
    times, part = schedule_times(H200, "graph"), bs.load("hgx-h200").select([*range(ranks)])
    with (RESULTS / f"job-scan-{ranks}gpu.csv").open(newline="") as lines:
        timed: list[Any] = [*csv.DictReader(lines)]
    asked = {(row["algorithm"], row["collective"]) for row in timed}
    built = {(name, what): REGISTRY[name].build(part, Collective(what)) for name, what in asked}
    runs = [times.simulate(built[r["algorithm"], r["collective"]], int(r["size_bytes"]), r["protocol"]) for r in timed]
    error = FitError.of([1e6 * run.time.time_s for run in runs], [float(row["time_us"]) for row in timed])
    assert error.points == 282
    assert error.median < 0.08
    assert error.p90 < 0.2


@pytest.mark.parametrize(("name", "ranks"), [("training-job-2gpu", 2), ("training-job-4gpu", 4)])
def test_the_quicker_one_of_two_programs_is_named(name: str, ranks: int) -> None:
    part, graph = bs.load("hgx-h200").select([*range(ranks)]), bs.model("execution", calls="graph")
    apart = [row for row in rows(name) if abs(row["blinksim_us"] / row["nccl_us"] - 1) > 0.03][:: ranks - 1]
    named = 0
    for row in apart:
        [nccl] = answer(part, Collective(row["collective"]), [row["size_bytes"]])
        ours = bs.project(part, row["collective"], row["size_bytes"], model=graph)
        named += (ours.time_s < nccl.time_s) == (row["blinksim_us"] < row["nccl_us"])
    assert len(apart) > 14
    assert named >= 0.9 * len(apart)


@pytest.mark.parametrize(("name", "ranks"), [("training-job-2gpu", 2), ("training-job-4gpu", 4)])
def test_nccl_times_of_small_calls_in_a_graph_are_near_measured_ones(name: str, ranks: int) -> None:
    """A process launches them for each GPU: by threads of one process others published half of that."""
    part = bs.load("hgx-h200").select([*range(ranks)])
    small = [row for row in rows(name) if row["size_bytes"] <= 2**16]
    ratios = {}
    for set_up in ("graph", "threads"):
        library, whole = Library(set_up=set_up).at(bs.Question(part))
        found = [library.times(whole, Collective(row["collective"]), [row["size_bytes"]])[0] for row in small]
        ratios[set_up] = median(1e6 * one.time_s / row["nccl_us"] for one, row in zip(found, small, strict=True))
    assert len(small) == 20
    assert 0.8 < ratios["graph"] < 1.1
    assert ratios["threads"] < 0.7


def test_a_call_on_a_stream_and_one_from_the_host_take_longer() -> None:
    async_calls = json.loads((RESULTS / "async-calls-4gpu.json").read_text())["calls"]
    more = [row["blinksim_async_us"] - row["blinksim_us"] for row in async_calls]
    row = {"collective": "allreduce", "size_bytes": 1024}
    graph, stream, host = (predicted("hgx-h200", 4, row, calls) for calls in ("graph", "stream", "host"))
    assert min(more) < stream - graph < max(more)
    assert host == pytest.approx(17)
    # What takes longer than the host does not wait for it.
    large = {"collective": "allreduce", "size_bytes": 16 << 20}
    assert predicted("hgx-h200", 4, large, "host") == predicted("hgx-h200", 4, large)


def test_calls_that_nobody_measured_are_refused() -> None:
    rates = bs.load("dgx2").execution
    assert rates is not None
    assert rates.job is None
    with pytest.raises(InfeasibleError, match="nobody measured calls of training jobs"):
        schedule_times(rates, "graph")
