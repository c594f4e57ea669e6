"""How near sums of alpha and beta are to simulations of the same schedules, and what both cost.

    python benchmarks/bench_alpha_beta.py [--machines dgx1-v100,hgx-h100:2] [--worst 10] [--csv points.csv]

For every machine (``:2`` is two nodes), collective and algorithm, 64 KiB to 4 GiB: the time of ``project`` over that of
``project --model simulate``. Schedules of more than 30,000 sends are left out.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from statistics import median
from time import process_time

import blinksim as bs
from blinksim.errors import BlinksimError

MACHINES = (
    "dgx1-v100,hgx-h100,torus:4x4,aurora,hgx-h100:2,hgx-h100:4,hgx-h100:8,dgx-a100:2,dgx-a100:4,mi300x:2,aurora:2,"
    "gb200-nvl72:2"
)
SIZES = ("64KiB", "1MiB", "16MiB", "256MiB", "4GiB")
ALGORITHMS = {
    "allreduce": (
        "packed", "ring", "hierarchical", "double_binary", "two_shot", "recursive_doubling", "halving_doubling",
    ),
    "allgather": ("packed", "ring", "hierarchical", "direct"),
    "broadcast": ("packed", "chain", "double_binary"),
    "alltoall": ("direct", "rail_aligned", "packed"),
}  # fmt: skip
_MOST_SENDS = 30_000
HEAD = ("machine", "collective", "algorithm", "form", "size", "project_s", "simulate_s", "cpu_s", "simulation_cpu_s")
Point = dict[str, str | float]


def points(machine: str, part: bs.Topology) -> list[Point]:
    """All points of one machine; algorithms that do not run on it are left out."""
    found: list[Point] = []
    for collective, algorithms in ALGORITHMS.items():
        for algorithm in algorithms:
            try:
                schedule = bs.synthesize(part, collective, algorithm).schedule
            except BlinksimError:
                continue
            for size in SIZES if schedule.sends <= _MOST_SENDS else ():
                times: list[float] = []
                cpu: list[float] = []
                for model in ("alpha-beta", "simulate"):
                    begin = process_time()
                    times.append(bs.project(part, collective, size, algorithm=algorithm, model=model).time_s)
                    cpu.append(process_time() - begin)
                values: tuple[str | float, ...] = (machine, collective, algorithm, schedule.form, size, *times, *cpu)
                found.append(dict(zip(HEAD, values, strict=True)))
    return found


def ratio(point: Point) -> float:
    return float(point["project_s"]) / float(point["simulate_s"])


def off(value: float) -> float:
    """By how much one time exceeds the other."""
    return max(value, 1 / value) - 1


def row(name: str, values: list[float]) -> None:
    far = sorted(map(off, values))
    nine = far[int(0.9 * len(far))]
    print(f"{name:26} {len(values):6} {median(far):8.1%} {nine:8.1%} {min(values):7.3f} {max(values):7.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1, help="has no effect: every point is one simulation")
    parser.add_argument("--machines", default=MACHINES)
    parser.add_argument("--worst", type=int, default=10, help="how many of the points that are furthest off to print")
    parser.add_argument("--csv", help="write all points")
    options = parser.parse_args()
    found: list[Point] = []
    for machine in options.machines.split(","):
        name, _, nodes = machine.rpartition(":")
        clustered = bool(name) and nodes.isdigit()
        part = bs.load(name, nodes=int(nodes)) if clustered else bs.load(machine)
        found += points(machine, part.select())
    groups = defaultdict[str, list[float]](list)
    for point in found:
        for key in ("form", "size", "algorithm", "machine"):
            groups[f"{key} {point[key]}"].append(ratio(point))
    print(f"{'project/simulation':26} {'points':>6} {'median':>8} {'9 in 10':>8} {'least':>7} {'most':>7}")
    row("all", [ratio(point) for point in found])
    for name, values in groups.items():
        row(name, values)
    print("\nfurthest off")
    for point in sorted(found, key=lambda point: -off(ratio(point)))[: options.worst]:
        name = f"{point['machine']:14} {point['collective']:10} {point['algorithm']:18}"
        print(f"{name} {point['size']:>7} {ratio(point):.3f}")
    cpu = [sum(float(point[key]) for point in found) for key in ("cpu_s", "simulation_cpu_s")]
    print(f"\nCPU seconds: {cpu[0]:.1f} for sums, {cpu[1]:.1f} for simulations")
    if options.csv:
        with Path(options.csv).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, HEAD)
            writer.writeheader()
            writer.writerows(found)


if __name__ == "__main__":
    main()
