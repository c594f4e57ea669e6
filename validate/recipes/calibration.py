"""What the emulated lines of GPUs say about a lane, and what a simulation with it predicts for everything else.

    python3 validate/recipes/calibration.py --schedules FOLDER --gpus 4 --results validate/results

A piece of p bytes keeps a lane busy for overhead + p / rate, and reaches the next GPU a latency later, or a sum later
where it is added up there. On a line of n GPUs with one lane from each to the next, s bytes in k pieces take

    launch + (k + n - 2) * (overhead + s / k / rate) + (n - 2) * latency + [reduce] (n - 1) * sum

which is linear in its five unknowns: least squares of relative errors over all lines, none below 0. Nothing else is
fitted; the predictions of `emulated-<N>gpu-predicted.json` are simulations of the schedules with these numbers. Stores
that do not begin on a multiple of 128 bytes are slower, so there are two lanes: one from lines whose chunks begin on
such boundaries, one from lines whose chunks do not (`emulated-<N>gpu-unaligned.json`, where it exists).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from blinksim.schedule.model import Schedule

Floats = npt.NDArray[np.float64]
# Smaller pieces are all overhead, and no case uses them.
LEAST_PIECE = 100_000


@dataclass(frozen=True)
class Lane:
    """What one lane does.

    rate: bytes/s. overhead_s: a piece occupies the lane for so much longer. latency_s: until the next GPU may send the
    piece on. sum_s: what adding it up there takes on top. launch_s: once. median, worst: of the errors of the lines
    themselves, as shares.
    """

    rate: float
    overhead_s: float
    latency_s: float
    sum_s: float
    launch_s: float
    median: float
    worst: float


def fit_lane(lines: Sequence[Mapping[str, Any]], parts: int | None = None) -> Lane:
    """The lane that the measured lines (part `lines` of a result) agree with best."""
    rows, times = [], []
    for line in lines:
        _, length, collective = line["case"].split("-")
        hops, size = int(length) - 2, line["size_bytes"]
        if line["piece_bytes"] < LEAST_PIECE:
            continue
        pieces = pieces_of(size, line["piece_bytes"], parts)
        sums = (hops + 1) * (collective == "reduce")
        rows.append([1, pieces + hops, size + hops * size / pieces, hops, sums])
        times.append(line["time_s"])
    table, time = np.array(rows, dtype=np.float64), np.array(times)
    found = at_least_zero(table / time[:, None], np.ones(len(time)))
    errors = np.abs(table @ found / time - 1)
    launch, overhead, beta, latency, sum_s = (float(x) for x in found)
    spread = float(np.median(errors)), float(errors.max())
    return Lane(1 / beta, overhead, latency, sum_s, launch, *spread)


def at_least_zero(table: Floats, wanted: Floats) -> Floats:
    """Least squares with no unknown below 0: those that come out negative are left out, the lowest first."""
    kept = list(range(table.shape[1]))
    while True:
        part, *_ = np.linalg.lstsq(table[:, kept], wanted)
        # Unknowns differ by many orders of magnitude: compared by what they contribute.
        effect = part * table[:, kept].mean(axis=0)
        if effect.min() >= 0:
            found = np.zeros(table.shape[1])
            found[kept] = part
            return found
        del kept[int(effect.argmin())]


def pieces_of(size: int, piece: int, parts: int | None = None) -> int:
    """Pieces of all parts of one chunk as the executor cuts them."""
    from blinksim.execute.emulate import PARTS

    cut = parts or PARTS
    return cut * -(-(size // cut) // piece)


def predict(schedule: Schedule, size: int, piece: int, lane: Lane) -> float:
    """Seconds that `schedule` takes on lanes like this one, by simulation."""
    from blinksim.execute.emulate import PARTS
    from blinksim.schedule.lanes import lanes_apart
    from blinksim.simulate.simulator import simulate

    apart = lanes_apart(schedule, PARTS)
    reduced = float((apart.op == 1).mean()) if apart.sends else 0.0
    links = [
        replace(
            link,
            lane_bandwidth=Fraction(round(lane.rate)),
            overhead=lane.overhead_s,
            latency=lane.latency_s + reduced * lane.sum_s,
        )
        for link in apart.topology.links
    ]
    calibrated = replace(apart, topology=apart.topology.with_links(links))
    return simulate(calibrated, size, chunk=piece, launch=lane.launch_s).time_s


def predictions(measured: Mapping[str, Any], unaligned: Mapping[str, Any] | None, folder: Path) -> dict[str, Any]:
    """The lanes, and for every measured case what was predicted and what was seen.

    measured: with the lines and the cases. unaligned: with other lines, for cases that do not say `aligned`.
    """
    from blinksim.formats.schedule_json import read_schedule
    from blinksim.schedule.loads import rate

    lanes = {True: fit_lane(measured["lines"])}
    lanes[False] = fit_lane(unaligned["lines"], unaligned["parts"]) if unaligned else lanes[True]
    rows = []
    for case in measured["cases"]:
        schedule = read_schedule(folder / f"{case['case']}.json")
        keys = {key: case[key] for key in ("case", "size_bytes", "piece_bytes")}
        time = predict(schedule, case["size_bytes"], case["piece_bytes"], lanes[case["aligned"]])
        exact = (rate(schedule) or Fraction(0)) / schedule.topology.links[0].lane_bandwidth
        row = {**keys, "aligned": case["aligned"], "lanes_exact": str(exact)}
        rows.append({**row, "predicted_s": time, "measured_s": case["time_s"]})
    return {"lane": asdict(lanes[True]), "unaligned_lane": asdict(lanes[False]), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--schedules", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=Path("validate/results"))
    options = parser.parse_args()
    measured = json.loads((options.results / f"emulated-{options.gpus}gpu.json").read_text())
    other = options.results / f"emulated-{options.gpus}gpu-unaligned.json"
    found = predictions(measured, json.loads(other.read_text()) if other.exists() else None, options.schedules)
    rows = ",\n".join(json.dumps(row) for row in found["rows"])
    lanes = "".join(f'"{key}": {json.dumps(found[key])},\n' for key in ("lane", "unaligned_lane"))
    text = f'{{\n{lanes}"rows": [\n{rows}\n]\n}}\n'
    (options.results / f"emulated-{options.gpus}gpu-predicted.json").write_text(text)
    errors = np.array([row["predicted_s"] / row["measured_s"] - 1 for row in found["rows"]])
    large = np.array([row["size_bytes"] >= 16 << 20 for row in found["rows"]], dtype=bool)
    print(found["lane"], found["unaligned_lane"])
    off = abs(errors[large])
    print(f"{len(off)} of 16 MiB or more: median {np.median(off):.3f}, worst {off.max():.3f}")


if __name__ == "__main__":
    main()
