"""Every run at full speed beside what the constants of H200 say: those that are shipped, and those of a few runs.

    PYTHONPATH=. python3 validate/recipes/time_predictions.py --results validate/results

Simulates the program of every run of ours twice, with the constants of the catalogue and with constants that are fitted
here to the forty runs of `few_points.py`, from round guesses. Does the same for NCCL's times by the constants of its
own, by those fitted here to 24 of its times, and by NCCL's own figure. Writes `times-predicted.json`, which `report.py`
reads. Needs no GPU; some minutes on two cores.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from blinksim import machines
from blinksim.answers.logs.calibrate import fit_nccl
from blinksim.answers.logs.expectation import Sample, Series
from blinksim.answers.measurements.execution_fit import Case, Map, fit_execution, processes
from blinksim.collective import Collective
from blinksim.gpu.execution_time.simulate_blocks import run_time
from blinksim.nccl.tuner.tuner import Prediction, predict
from blinksim.timing.measured_constants import ExecutionRates, NcclRates, write_section
from validate.recipes import few_points
from validate.recipes.arguments import arguments, script
from validate.recipes.execution_times import Point, odd_sizes, points

RESULTS = Path(__file__).parents[1] / "results"
NAME = "times-predicted"
MACHINE = "hgx-h200"
# Only these were candidates for the few runs; the others are counted as what nobody fitted.
_FITTED_FROM = ("full-speed", "elementary")


def runs(results: Path) -> list[Point]:
    """All runs of our programs, as they were cut."""
    return [*points(results), *odd_sizes(results)]


def case_of(point: Point) -> Case | None:
    """The run as one that constants can be fitted to; None for what those are not fitted to."""
    row = point.row
    if not point.source.startswith(_FITTED_FROM) or row["algorithm"] == "packed" or row.get("in_place"):
        return None
    return Case(point.gpus, row["collective"], row["algorithm"], row["protocol"], point.size)


def fit_few(found: Sequence[Point], evaluate: Map) -> ExecutionRates:
    """Constants fitted to the forty runs, from round guesses."""
    times = {case: point.time_s for point in found if (case := case_of(point)) is not None}
    cases = list(few_points.ours())
    return fit_execution(cases, [times[case] for case in cases], few_points.GUESSES, evaluate).rates


def nccl_rows(results: Path) -> Iterator[dict[str, Any]]:
    """All times of NCCL, without NVLS: source, gpus, collective, size_bytes, measured_s and dtype."""
    patterns = ("full-speed-?gpu.json", "elementary-?gpu.json", "odd-sizes-*.json", "held-out-*.json")
    for path in (path for pattern in patterns for path in sorted(results.glob(pattern))):
        content = json.loads(path.read_text())
        for row in content.get("nccl", content.get("nccl_allreduce", [])):
            yield {
                "source": path.stem,
                "gpus": row.get("gpus", len(content["provenance"]["gpus"])),
                "collective": row.get("collective", "allreduce"),
                "size_bytes": row.get("used_bytes", row.get("size_bytes")),
                "dtype": row.get("dtype", "float32"),
                "measured_s": row["time_s"],
            }


@cache
def prediction(gpus: int) -> Prediction:
    """What NCCL does on some of eight H200, without switches that reduce."""
    machine = machines.load(MACHINE, rates="nccl")
    return predict(machine, machine.members[:gpus], multicast=False)


def fit_few_of_nccl(rows: Sequence[dict[str, Any]]) -> NcclRates:
    """NCCL's constants fitted to 24 of its times, and those marked ``fitted``."""
    machine = machines.load(MACHINE, rates="nccl")
    series: dict[tuple[int, str], dict[int, float]] = {}
    for row in rows:
        gpus, collective, size = row["gpus"], row["collective"], row["size_bytes"]
        chosen = gpus in (2, 4) and size in few_points.NCCL.get(collective, ())
        if chosen and row["source"].startswith(_FITTED_FROM) and size not in series.get((gpus, collective), {}):
            series.setdefault((gpus, collective), {})[size] = row["measured_s"]
            row["fitted"] = True
    logs = [
        Series(machine.select(range(gpus)), Collective(name), tuple(Sample(*sample) for sample in times.items()))
        for (gpus, name), times in series.items()
    ]
    found = fit_nccl(logs)
    assert found is not None
    return found.rates


def _time(rates: NcclRates, row: dict[str, Any]) -> float:
    found = prediction(row["gpus"])
    best = found.best(row["collective"], row["size_bytes"])
    channels = 2 * found.nchannels
    return rates.time(row["collective"], row["gpus"], row["size_bytes"], best.protocol.lower(), channels)


def _simulated(point: Point, constants: tuple[ExecutionRates, ...]) -> list[float]:
    return [run_time(point.program(rates.blocks), rates).time_s for rates in constants]


def predictions(results: Path) -> dict[str, Any]:
    """What the file holds: constants, a row for every run of ours, and one for every time of NCCL."""
    known = machines.load(MACHINE, rates="measured")
    assert known.execution is not None
    assert known.nccl_rates is not None
    found = runs(results)
    with processes() as evaluate:
        few = fit_few(found, evaluate)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        times = list(pool.map(partial(_simulated, constants=(known.execution, few)), found, chunksize=8))
    fitted = set(few_points.ours())
    ours = [
        {
            "source": point.source,
            "gpus": point.gpus,
            **{key: point.row[key] for key in ("collective", "algorithm", "protocol", "size_bytes")},
            "dtype": point.row.get("dtype", "float32"),
            "in_place": point.row.get("in_place", False),
            "measured_s": point.time_s,
            "catalogue_s": both[0],
            "few_s": both[1],
            "fitted": case_of(point) in fitted,
        }
        for point, both in zip(found, times, strict=True)
    ]
    nccl = list(nccl_rows(results))
    few_nccl = fit_few_of_nccl(nccl)
    for row in nccl:
        best = prediction(row["gpus"]).best(row["collective"], row["size_bytes"])
        row |= {"choice": f"{best.algorithm} {best.protocol}", "own_s": best.time_s}
        row |= {"catalogue_s": _time(known.nccl_rates, row), "few_s": _time(few_nccl, row)}
        row.setdefault("fitted", False)
    sections = {"catalogue": constants_of(known.execution, known.nccl_rates), "few": constants_of(few, few_nccl)}
    return {"constants": sections, "ours": ours, "nccl": nccl}


def constants_of(ours: ExecutionRates, nccl: NcclRates) -> dict[str, Any]:
    """The constants that the predictions depend on, as a machine file has them: all but those of NVLS."""
    return write_section(ours, replace(nccl, nvls=None))


def write(content: dict[str, Any], path: Path) -> None:
    """One row a line, times to the nanosecond."""
    parts = [f'"constants": {json.dumps(content["constants"], indent=1)}']
    for part in ("ours", "nccl"):
        rows = [
            {key: round(value, 10) if isinstance(value, float) else value for key, value in row.items()}
            for row in content[part]
        ]
        parts.append(f'"{part}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    write(predictions(options.results), options.results / f"{NAME}.json")


if __name__ == "__main__":
    script(main, __file__)
