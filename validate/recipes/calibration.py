"""Calibration of an emulated lane from lines of GPUs, and what a simulation with it predicts for all other runs.

    PYTHONPATH=. python3 validate/recipes/calibration.py --schedules FOLDER --gpus 4 --results validate/results

A piece of p bytes keeps a lane busy for overhead + p / rate, a little longer if it was received and is passed on, and
reaches the next GPU a latency later. Where it is added up there, that takes p / sum rate more, and another turn if the
sum is sent on. On a line of n GPUs with one lane from each to the next, s bytes in k pieces take

    launch + (k + h) * (overhead + [h > 0] * passing + s / k / rate) + h * latency
           + [reduce] * ((h + 1) * s / k / sum rate + h * turn)

with h = n - 2, which is linear in its unknowns: least squares of relative errors over all lines, none below 0. A lane
has a rate for every size, because vectors that fit into the GPUs' caches are read faster. Nothing else is fitted; the
predictions of `emulated-<N>gpu-predicted.json` are simulations with these numbers: of the schedules by
`bs.simulate`, and of the programs by `program_time.py`. Lanes that are slowed down
(`emulated-<N>gpu-shared.json`) have numbers of their own.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from blinksim.formats.schedule_json import read_schedule
from blinksim.gpu.execution.emulate import emulate
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.papers.mxnet import Job, together
from blinksim.schedule.loads import rate
from blinksim.schedule.model import REDUCE, Schedule
from blinksim.timing.simulator import pieces_of as pieces_of_chunks, simulate
from validate.recipes.arguments import arguments, script
from validate.recipes.lane import Lane, fit_lane
from validate.recipes.program_time import program_time


def predict(apart: Schedule, size: int, piece: int, lane: Lane) -> float:
    """Seconds that a schedule takes on lanes like this one, by simulation; every lane as its sends are on average.

    apart: with a link for every lane, as `blinksim.gpu.execution.emulate` returns it. The executor cuts all
    chunks into pieces of one size, the simulator each into equally many: chunks of different size are simulated as
    collectives of their own that run at once.
    """
    extra = extras(apart, piece, lane)
    links = [
        replace(
            link,
            lane_bandwidth=Fraction(round(lane.rate(size))),
            overhead=lane.overhead_s + busy,
            latency=lane.latency_s + late,
        )
        for link, (busy, late) in zip(apart.topology.links, extra, strict=True)
    ]
    calibrated = replace(apart, topology=apart.topology.with_links(links))
    shares = sorted(set(apart.share_num.tolist()))
    if len(shares) == 1:
        return simulate(calibrated, size, chunk=piece, launch=lane.launch_s).time_s
    equal = Fraction(size * shares[-1], apart.share_den) / pieces_of_chunks(apart, size, piece)
    jobs = [
        Job(chunks_of(calibrated, share), size, math.ceil(Fraction(size * share, apart.share_den) / equal))
        for share in shares
    ]
    return lane.launch_s + together(jobs, alone=False).time_s


def chunks_of(schedule: Schedule, share: int) -> Schedule:
    """The chunks of a schedule that have this share (`share_num`), and what is sent of them."""
    chosen = schedule.share_num == share
    sends = chosen[schedule.chunk]
    names = ("src", "dst", "op", "step", "channel", "route")
    return replace(
        schedule,
        chunk=(np.cumsum(chosen) - 1)[schedule.chunk[sends]],
        **{name: getattr(schedule, name)[sends] for name in names},
        **{name: getattr(schedule, name)[chosen] for name in ("share_num", "origin", "target")},
        bound={},
    )


def extras(apart: Schedule, piece: int, lane: Lane) -> list[tuple[float, float]]:
    """For every link, the seconds that a piece occupies it longer and arrives later than on a lane from a source."""
    columns = (apart.chunk, apart.src, apart.dst, apart.step, apart.op)
    sends = list(zip(*(column.tolist() for column in columns), strict=True))
    first: dict[tuple[int, int], float] = defaultdict(lambda: math.inf)
    last: dict[tuple[int, int], int] = defaultdict(lambda: -1)
    together: dict[tuple[int, int, int], int] = defaultdict(int)
    for chunk, src, dst, step, _ in sends:
        first[chunk, dst] = min(first[chunk, dst], step)
        last[chunk, src] = max(last[chunk, src], step)
        together[chunk, dst, step] += 1
    found: list[list[tuple[float, float]]] = [[] for _ in apart.topology.links]
    for link, (chunk, src, dst, step, op) in zip(apart.route_links[apart.route_start[apart.route]], sends, strict=True):
        busy = lane.passing_s * (first[chunk, src] < step)
        late = 0.0
        if op == REDUCE:
            late = (1 + together[chunk, dst, step]) / 2 * piece / lane.sum_rate
            late += lane.turn_s * (last[chunk, dst] > step)
        found[link].append((busy, late))
    return [tuple(np.mean(each, axis=0).tolist()) if each else (0.0, 0.0) for each in found]


def further_source(ways: Mapping[str, Any]) -> float:
    """What the second source of a sum costs a block, as a share of moving the first (a result of `ways.py`)."""
    push, reduce = (
        np.median([way["GBps"] for way in ways["ways"] if (way["way"], way["blocks"]) == (name, 1)])
        for name in ("push", "reduce")
    )
    return float(push / reduce - 1)


def predictions(measured: Sequence[Mapping[str, Any]], folder: Path, source: float) -> dict[str, Any]:
    """The lane of every result, and for every case what was predicted and what was seen.

    predicted_s is of the schedule, program_s of the program. source: see `further_source`.
    """
    lanes, rows = {}, []
    for content in measured:
        lane = fit_lane(content["lines"])
        lanes[str(content["lines"][0]["lane_GBps"] or "full")] = asdict(lane)
        for case in content["cases"]:
            schedule = read_schedule(folder / f"{case['case']}.json")
            row = {key: case[key] for key in ("case", "size_bytes", "piece_bytes", "lane_GBps")}
            exact = (rate(schedule) or Fraction(0)) / schedule.topology.links[0].lane_bandwidth
            size, piece = case["size_bytes"], case["piece_bytes"]
            program, apart = emulate(schedule, size // 4, ELEMENT_TYPES["float32"], 1, piece)
            times = {"predicted_s": predict(apart, size, piece, lane)}
            times |= {"program_s": program_time(program, lane, size, source), "measured_s": case["time_s"]}
            rows.append({**row, "lanes_exact": str(exact), **times})
    return {"lanes": lanes, "rows": rows}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--schedules", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=Path("validate/results"))
    options = parser.parse_args()
    paths = [options.results / f"emulated-{options.gpus}gpu{kind}.json" for kind in ("", "-shared")]
    # Where there are ways of as many GPUs, those; a block of another result is no other block.
    known = sorted(options.results.glob("ways-*gpu.json"), key=lambda path: f"-{options.gpus}gpu" not in path.name)
    if not known:
        raise SystemExit("calibration.py: no ways-<N>gpu.json among the results; run ways.py first")
    source = further_source(json.loads(known[0].read_text()))
    found = predictions([json.loads(path.read_text()) for path in paths if path.exists()], options.schedules, source)
    rows = ",\n".join(json.dumps(row) for row in found["rows"])
    text = f'{{\n"lanes": {json.dumps(found["lanes"], indent=1)},\n"rows": [\n{rows}\n]\n}}\n'
    (options.results / f"emulated-{options.gpus}gpu-predicted.json").write_text(text)
    print(*found["lanes"].items(), sep="\n")
    large = [row for row in found["rows"] if row["size_bytes"] >= 16 << 20]
    for what in ("predicted_s", "program_s"):
        off = np.abs([row[what] / row["measured_s"] - 1 for row in large])
        print(f"{what}: {len(off)} of 16 MiB or more: median {np.median(off):.3f}, worst {off.max():.3f}")


if __name__ == "__main__":
    script(main, __file__)
