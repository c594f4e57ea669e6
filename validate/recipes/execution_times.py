"""How far the execution model is from what GPUs took: by number of GPUs, size and algorithm, and what its choice loses.

    PYTHONPATH=. python3 validate/recipes/execution_times.py [--machine hgx-h200] [--tuning | --odd-sizes] [--worst N]

Simulates every program of the committed results (`full-speed-*`, `elementary-*`), cut as it was, with the constants of
the machine's file; needs no GPU. --tuning adds the scans of slices and pieces. --odd-sizes takes the runs instead that
were made after the constants were fixed, at sizes between the powers of two and with other element types.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from blinksim import machines
from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.gpu.execution_time.simulate_blocks import run_time
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.gpu.programs.fit import fit, worth_staging
from blinksim.gpu.programs.of_calls import compile_schedule
from blinksim.gpu.programs.program import Program
from blinksim.results import table
from blinksim.schedule.model import Schedule
from blinksim.timing.measured_constants import ExecutionRates
from blinksim.topology.shapes import fully_connected, one_switch
from validate.recipes.arguments import arguments, script

RESULTS = Path(__file__).parents[1] / "results"
MANY, FEW, TUNED = (2, 3, 4, 6, 8), (2, 4, 8), (2, 8)
BANDS = (("below 256 KiB", 256 << 10), ("to 16 MiB", 16 << 20), ("from 16 MiB", 1 << 62))


@dataclass(frozen=True)
class Point:
    """A run on GPUs: how many, and its row in the results. scan: its slices and pieces were asked for.

    source: the file of the results.
    """

    gpus: int
    row: dict[str, Any]
    scan: bool = False
    source: str = ""

    @property
    def size(self) -> int:
        return int(self.row["size_bytes"])

    @property
    def band(self) -> str:
        return next(name for name, end in BANDS if self.size < end)

    @property
    def time_s(self) -> float:
        return float(self.row["time_s"])

    @property
    def rivals(self) -> tuple[object, ...]:
        """What it has in common with those that do the same."""
        row = self.row
        return self.gpus, row["collective"], self.size, row.get("dtype"), row.get("in_place"), "in_place" in row

    def program(self, blocks: int) -> Program:
        """What ran."""
        row = self.row
        schedule = schedule_of(row["algorithm"], row["collective"], self.gpus)
        kind = ELEMENT_TYPES[row.get("dtype", "float32")]
        used, packets = row.get("used_bytes", row["size_bytes"]), row["protocol"] == "ll128"
        program = compile_schedule(
            schedule,
            used // kind.itemsize,
            kind,
            packets=packets,
            staged=row.get("staged", packets or worth_staging(schedule, used)),
            in_place=row.get("in_place", False),
        )
        return fit(program, blocks, *((row["slices"], row["piece_bytes"]) if self.scan else ()))

    def __str__(self) -> str:
        row = self.row
        return f"{self.gpus} GPUs, {row['collective']} {row['algorithm']} {row['protocol']} {self.size >> 10} KiB"


@cache
def schedule_of(name: str, collective: str, gpus: int) -> Schedule:
    # Packed trees were measured as they are on direct links.
    shape = fully_connected if name == "packed" else one_switch
    return REGISTRY[name].build(shape(gpus, bandwidth=Fraction(450 * 10**9)).select(), Collective(collective))


def points(results: Path = RESULTS, tuning: bool = False) -> Iterator[Point]:
    """All runs of our algorithms at full speed."""
    for gpus in MANY:
        name = f"full-speed-{gpus}gpu"
        for row in json.loads((results / f"{name}.json").read_text())["ours"]:
            yield Point(gpus, row, source=name)
    for gpus in FEW:
        name = f"elementary-{gpus}gpu"
        for row in json.loads((results / f"{name}.json").read_text())["allreduce"]:
            yield Point(gpus, row, source=name)
    for gpus in TUNED if tuning else ():
        for row in json.loads((results / f"full-speed-{gpus}gpu-tuning.json").read_text())["tuning"]:
            yield Point(gpus, row, scan=True)


def odd_sizes(results: Path = RESULTS) -> Iterator[Point]:
    """All runs that no constants were fitted to: sizes between the powers of two, other counts of GPUs, halves."""
    for path in sorted((*results.glob("odd-sizes-*.json"), *results.glob("held-out-*.json"))):
        content = json.loads(path.read_text())
        for row in content["ours"]:
            yield Point(row.get("gpus", len(content["provenance"]["gpus"])), row, source=path.stem)


def off(point: Point, rates: ExecutionRates) -> float:
    """Simulated over measured time, less one."""
    return run_time(point.program(rates.blocks), rates).time_s / point.time_s - 1


def lost(points: Sequence[Point], errors: Sequence[float]) -> dict[tuple[object, ...], float]:
    """By what is done: how much longer the predicted winner takes than the real one, as a share."""
    groups: dict[tuple[object, ...], list[tuple[float, float]]] = defaultdict(list)
    for point, error in zip(points, errors, strict=True):
        groups[point.rivals].append((point.time_s * (1 + error), point.time_s))
    return {key: min(found)[1] / min(time for _, time in found) - 1 for key, found in groups.items()}


def lost_by_cut(points: Sequence[Point], errors: Sequence[float], blocks: int) -> list[tuple[float, float]]:
    """What cuts cost where slices and pieces were scanned, the cut of `fit` among them: for each question, how much
    longer than the quickest cut that of `fit` takes, and the one that is predicted to be quickest; as shares."""
    scans: dict[tuple[object, ...], list[tuple[Point, float]]] = defaultdict(list)
    for point, error in zip(points, errors, strict=True):
        if point.scan:
            row = point.row
            scans[(*point.rivals, row["algorithm"], row["protocol"], row.get("staged"))].append((point, error))
    found = []
    for runs in scans.values():
        usual = Point(runs[0][0].gpus, runs[0][0].row).program(blocks)
        nbytes = usual.piece_units * usual.unit * usual.kind.itemsize
        # Pieces were asked for in bytes, and rounded to units.
        mine = [
            point.time_s
            for point, _ in runs
            if point.row["slices"] == usual.slices
            and 0.99 * point.row["piece_bytes"] <= nbytes <= point.row["piece_bytes"]
        ]
        if mine:
            taken = min(runs, key=lambda run: run[0].time_s * (1 + run[1]))[0]
            best = min(point.time_s for point, _ in runs)
            found.append((min(mine) / best - 1, taken.time_s / best - 1))
    return found


def within(errors: Iterable[float], share: float = 0.9) -> float:
    """What this share of the errors does not exceed."""
    ordered = sorted(map(abs, errors))
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def errors_by(
    points: Sequence[Point], errors: Sequence[float], key: Callable[[Point], tuple[str, ...]], head: Sequence[str]
) -> str:
    """A table of errors in percent, a line for each key."""
    groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for point, error in zip(points, errors, strict=True):
        groups[key(point)].append(error)
    rows = [
        [
            *name,
            str(len(found)),
            *(f"{100 * x:.1f}" for x in (median(map(abs, found)), within(found), max(map(abs, found)))),
            f"{100 * median(found):+.1f}",
        ]
        for name, found in groups.items()
    ]
    return table((*head, "points", "median %", "90 % within", "worst %", "too long by"), rows, left=range(len(head)))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--machine", default="hgx-h200")
    parser.add_argument("--rates", default="measured")
    parser.add_argument("--tuning", action="store_true")
    parser.add_argument("--odd-sizes", action="store_true")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="also the N points that are furthest off")
    options = parser.parse_args()
    rates = machines.load(options.machine, rates=options.rates).execution
    if rates is None:
        raise InputError(f"{options.machine} has no measured constants of running programs")
    found = list(odd_sizes() if options.odd_sizes else points(tuning=options.tuning))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        errors = list(pool.map(partial(off, rates=rates), found, chunksize=8))
    runs = [(point, error) for point, error in zip(found, errors, strict=True) if not point.scan]
    main_points, main_errors = [point for point, _ in runs], [error for _, error in runs]
    print(errors_by(main_points, main_errors, lambda point: ("all",), ("",)) + "\n")
    by_size = sorted(runs, key=lambda run: (run[0].gpus, run[0].size))
    print(
        errors_by(
            [point for point, _ in by_size],
            [error for _, error in by_size],
            lambda point: (f"{point.gpus} GPUs", point.band),
            ("", "size"),
        )
        + "\n"
    )
    by_name = sorted(runs, key=lambda run: (run[0].row["algorithm"], run[0].row["collective"], run[0].row["protocol"]))
    print(
        errors_by(
            [point for point, _ in by_name],
            [error for _, error in by_name],
            lambda point: (point.row["algorithm"], point.row["collective"], point.row["protocol"]),
            ("algorithm", "collective", "protocol"),
        )
        + "\n"
    )
    if options.tuning and not options.odd_sizes:
        scans = [(point, error) for point, error in zip(found, errors, strict=True) if point.scan]
        print(errors_by([p for p, _ in scans], [e for _, e in scans], lambda point: ("scans",), ("",)) + "\n")
        cuts = lost_by_cut(found, errors, rates.blocks)
        rows = [
            [who, str(len(cuts)), *(f"{100 * share:.1f}" for share in (mean(shares), median(shares), max(shares)))]
            for who, shares in zip(("of fit", "predicted to be quickest"), zip(*cuts, strict=True), strict=True)
        ]
        print(table(("the cut", "cases", "loses: mean %", "median %", "worst %"), rows) + "\n")
    losses = lost(main_points, main_errors)
    rows = []
    for gpus in sorted({point.gpus for point in main_points}):
        shares = [share for key, share in losses.items() if key[0] == gpus]
        figures = (mean(shares), median(shares), within(shares), max(shares))
        rows.append([f"{gpus} GPUs", str(len(shares)), *(f"{100 * share:.1f}" for share in figures)])
    print(table(("the predicted winner loses", "cases", "mean %", "median %", "90 % within", "worst %"), rows))
    for point, error in sorted(zip(found, errors, strict=True), key=lambda run: -abs(run[1]))[: options.worst]:
        print(f"  {100 * error:+.0f} %  {point}, {point.time_s * 1e6:.1f} us measured")


if __name__ == "__main__":
    script(main, __file__)
