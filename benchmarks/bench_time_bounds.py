"""How near do schedules come to the bound on their time? 216 points: 27 machines and collectives, 4 KiB to 64 MiB by 4.

Every algorithm that has the collective builds its schedules, the searches for `few_steps` with 1, 2 and 4 chunks; what
is quickest in `simulate` counts. The gap is its time over the bound, less 1. ``--csv FILE`` writes the points,
``--only TEXT`` takes those whose name has the text, ``--limit S`` gives every search so many seconds.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import blinksim as bs
from blinksim.algorithms.registry import REGISTRY
from blinksim.bounds.time.delays import SECOND
from blinksim.bounds.time.time_bound import all_times
from blinksim.errors import BlinksimError
from blinksim.schedule.model import Schedule
from blinksim.units import format_size, format_time

SIZES = [4**power * 2**12 for power in range(8)]
# (machine, nodes, members, edit, collectives)
MACHINES: tuple[tuple[str, int, str | None, str | None, tuple[str, ...]], ...] = (
    ("dgx1-v100", 1, None, None, ("allgather", "broadcast", "reducescatter", "allreduce", "alltoall", "scatter")),
    ("dgx1-v100", 1, "0,1,2,3", None, ("allgather", "allreduce")),
    ("dgx1-v100", 1, "0,1,2,3,4,7", None, ("allgather", "allreduce")),
    ("dgx1-v100", 1, "0,1,4,6,7", None, ("allreduce",)),
    ("dgx1-v100", 1, None, "without gpu0-gpu3", ("allreduce",)),
    ("dgx1-p100", 1, None, None, ("allgather", "allreduce")),
    ("hgx-h200", 1, None, None, ("allgather", "broadcast", "allreduce")),
    ("hgx-h200", 1, "0,1,2,3", None, ("allreduce", "alltoall")),
    ("hgx-h200", 1, None, "degrade gpu0-nvswitch bandwidth=12.5GB/s", ("allgather",)),
    ("ring:8@50GB/s", 1, None, None, ("allgather", "allreduce")),
    ("torus:4x4@50GB/s", 1, None, None, ("allgather", "allreduce")),
    ("mesh:3x3@50GB/s", 1, None, None, ("broadcast",)),
    ("hgx-h200", 2, None, None, ("allgather", "allreduce")),
)
MOST_SECONDS = 15.0  # of a search
Point = tuple[str, int, float, str, float, str, float]
Made = dict[str, list[Schedule]]


def problems() -> Iterator[tuple[str, bs.Topology, bs.Collective]]:
    """Every machine and collective, with a name."""
    for machine, nodes, members, edit, collectives in MACHINES:
        part = bs.Question(machine, nodes=nodes, members=members, edits=(edit,) if edit else ()).part()
        more = [f"x{nodes}"] * (nodes > 1) + [f"gpus {members}"] * bool(members) + ([edit] if edit else [])
        for name in collectives:
            yield " ".join((machine, *more, name)), part, bs.Collective(name)


def of_any_size(part: bs.Topology, collective: bs.Collective, seconds: float) -> Made:
    """The schedules that serve all sizes, by the name of their algorithm."""
    made: Made = {}
    for name, entry in REGISTRY.items():
        if not entry.supports(collective.name) or entry.in_network or "size" in entry.options():
            continue
        choices = [{"chunks": 1}, {"chunks": 2}, {"chunks": 4}] if name == "few_steps" else [{}]
        for options in choices:
            if options and collective.name == "alltoall":
                options = {"chunks": options["chunks"] * part.ranks}
            limit = {"time_limit": seconds} if "time_limit" in entry.options() else {}
            try:
                made.setdefault(name, []).append(entry.build(part, collective, **options, **limit))
            except BlinksimError:
                continue
    return made


def of_a_size(part: bs.Topology, collective: bs.Collective, size: int, seconds: float) -> Made:
    """The schedules that are made for a size."""
    made: Made = {}
    for name, entry in REGISTRY.items():
        if entry.supports(collective.name) and "size" in entry.options():
            try:
                made[name] = [entry.build(part, collective, size=size, time_limit=seconds)]
            except BlinksimError:
                continue
    return made


def points(only: str, seconds: float) -> Iterator[Point]:
    """Problem, size, bound, kind, best time, algorithm, seconds that the point took."""
    for name, part, collective in problems():
        if only not in name:
            continue
        start = time.perf_counter()
        made = of_any_size(part, collective, seconds)
        proofs = [entry.certificate for entry in bs.bound(part, collective).bounds if not entry.grants]
        common = (time.perf_counter() - start) / len(SIZES)
        for size in SIZES:
            start = time.perf_counter()
            least = all_times(part, collective, size, proofs)[0]
            entries = [(label, one) for label, many in made.items() for one in many]
            entries += [
                (label, one) for label, many in of_a_size(part, collective, size, seconds).items() for one in many
            ]
            took, label = min((_simulated(one, size), label) for label, one in entries)
            yield name, size, least.time / SECOND, least.kind, took, label, common + time.perf_counter() - start


def _simulated(schedule: Schedule, size: int) -> float:
    if schedule.form != "steps":
        return bs.simulate(schedule, size).time_s
    # In order of arrival, or of steps, as the channels of a program do.
    return min(bs.simulate(schedule, size).time_s, bs.simulate(schedule, size, service="ordered").time_s)


def spread(gaps: list[float]) -> str:
    """Median, 90th percentile and largest, in per cent."""
    ordered = sorted(gaps)
    ninety = ordered[min(len(ordered) - 1, -(-9 * len(ordered) // 10) - 1)]
    cells = (statistics.median(ordered), ninety, ordered[-1])
    return f"{len(ordered):>5}" + "".join(f"{100 * cell:>9.1f} %" for cell in cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1, help="has no effect: a point is worked out once")
    parser.add_argument("--only", default="", help="problems whose name has this text")
    parser.add_argument("--limit", type=float, default=MOST_SECONDS, help="seconds of a search (default: %(default)s)")
    parser.add_argument("--csv", type=Path, help="write the points to this file")
    options = parser.parse_args()
    found = list[Point]()
    for point in points(options.only, options.limit):
        name, size, least, kind, took, label, seconds = point
        found.append(point)
        print(
            f"{name:<62}{format_size(size):>8}{format_time(least):>12} {kind:<15}{format_time(took):>12} {label:<19}"
            f"{100 * (took / least - 1):>7.1f} %{seconds:>8.1f} s",
            flush=True,
        )
    if not found:
        print(f"no problem has {options.only!r} in its name", file=sys.stderr)
        return 2
    if options.csv:
        with options.csv.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("problem", "size_bytes", "time_bound_s", "kind", "time_s", "algorithm", "gap", "seconds"))
            rows.writerows((*point[:6], point[4] / point[2] - 1, round(point[6], 2)) for point in found)
    groups: tuple[tuple[str, Callable[[Point], str]], ...] = (
        ("all", lambda point: "all"),
        ("collective", lambda point: point[0].rsplit(" ", 1)[1]),
        ("size", lambda point: format_size(point[1])),
    )
    print(f"\n{'gap by':<14}{'points':>6}{'median':>11}{'90 %':>11}{'worst':>11}")
    for title, group in groups:
        for key in dict.fromkeys(map(group, found)):
            gaps = [point[4] / point[2] - 1 for point in found if group(point) == key]
            print(f"{key if title != 'all' else title:<14} {spread(gaps)}")
    below = [point for point in found if point[4] < point[2] * (1 - 1e-9)]
    print(f"points below their bound: {len(below)}")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main())
