"""Sweeps all 247 GPU subsets of both DGX-1 machines: chains, rings and trees against the exact bound, with times.

    python benchmarks/bench_subsets.py [--machine dgx1-v100] [--method chains] [--workers 2 | --cluster tcp://host:8786]

Every schedule is verified. What is expected stands below: chains in 16 channels reach the partition bound on 186 of 197
connected subsets with V100 and on all 197 with P100; Blink's trees reach theirs on all. The workers of a dask cluster
must find this file's folder in their PYTHONPATH.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations

from blinksim.algorithms.registry import algorithm
from blinksim.answers import worker_pool
from blinksim.bounds.compute import bound
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.machines import load
from blinksim.schedule.loads import rate
from blinksim.schedule.verify import verify
from blinksim.topology.graph import Topology

MACHINES = ("dgx1-p100", "dgx1-v100")
CASES = (
    ("chains", "allreduce"),
    ("rings", "allreduce"),
    ("blink_hierarchical", "allreduce"),
    ("blink", "allreduce"),
    ("blink", "broadcast"),
    ("blink", "allgather"),
    ("blinkplus", "allreduce"),
    ("blinkplus", "broadcast"),
)
# Subsets that reach their bound, of so many: what must come out.
EXPECTED = {
    ("dgx1-p100", "chains", "allreduce"): (197, 197),
    ("dgx1-v100", "chains", "allreduce"): (186, 197),
    ("dgx1-p100", "blink", "allreduce"): (197, 197),
    ("dgx1-v100", "blink", "allreduce"): (197, 197),
    ("dgx1-p100", "blink", "broadcast"): (197, 197),
    ("dgx1-v100", "blink", "broadcast"): (197, 197),
}


def subsets(machine: Topology, helpers: bool) -> Iterator[tuple[tuple[str, ...], Topology]]:
    """Every subset of two GPUs or more that links connect; with helpers, all other GPUs as relays that reduce."""
    for count in range(2, machine.ranks + 1):
        for chosen in combinations(machine.members, count):
            idle = [name for name in machine.members if name not in chosen] if helpers else []
            try:
                yield chosen, machine.select(chosen, relays=idle, relays_reduce=helpers)
            except InfeasibleError:
                continue


def measured(work: tuple[Topology, str, Collective]) -> tuple[str, float]:
    """The gap of the schedule to the bound, ``none`` where there is no such schedule, and the seconds to build it."""
    part, method, collective = work
    known = bound(part, collective)
    start = time.perf_counter()
    try:
        given = {"bound": known} if "bound" in algorithm(method).options() else {}
        schedule = algorithm(method).build(part, collective, **given)
    except InfeasibleError:
        return "none", 0.0
    seconds = time.perf_counter() - start
    verdict = verify(schedule)
    return (str(1 - (rate(schedule) or 0) / known.rate), seconds) if verdict.ok else (f"wrong: {verdict}", seconds)


def sweep(name: str, machine: Topology, method: str, collective: Collective, workers: int, cluster: str | None) -> None:
    times = []
    gaps: Counter[str] = Counter()
    below: dict[str, list[str]] = defaultdict(list)
    work = [(part, method, collective) for _, part in subsets(machine, method == "blinkplus")]
    for (part, _, _), found in worker_pool.finished(measured, work, workers, cluster):
        assert found is not None, (part.members, worker_pool.DIED)
        gap, seconds = found
        assert not gap.startswith("wrong"), (part.members, gap)
        gaps[gap] += 1
        times += [seconds] if gap != "none" else []
        below[gap].append("".join(gpu[3:] for gpu in part.members))
    reached = gaps["0"]
    total = sum(gaps.values())
    print(
        f"{name:<10} {method:<19}{collective.name:<11}{reached:>4} of {total} at the bound, {gaps['none']:>3} none; "
        f"{1e3 * statistics.median(times):>6.1f} ms median, {max(times):>6.2f} s at most",
        flush=True,
    )
    if method == "chains":
        for gap, names in below.items():
            if gap not in ("0", "none"):
                print(f"{'':<10} gap {gap}: {' '.join(names)}")
    expected = EXPECTED.get((name, method, collective.name))
    assert expected is None or expected == (reached, total), (expected, reached, total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1, help="has no effect: every schedule is built once")
    parser.add_argument("--all", action="store_true", help="also the trees of every allgather (about ten minutes)")
    parser.add_argument("--machine", choices=MACHINES, help="this one only")
    parser.add_argument("--method", help="this one only, such as chains")
    parser.add_argument("--workers", type=int, default=1, help="processes of this machine")
    parser.add_argument("--cluster", help="a dask scheduler to work on instead")
    options = parser.parse_args()
    print(f"all GPU subsets, every schedule verified, Python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
    for name in [options.machine] if options.machine else MACHINES:
        machine = load(name)
        for method, collective in CASES:
            if (options.all or collective != "allgather") and options.method in (None, method):
                sweep(name, machine, method, Collective(collective), options.workers, options.cluster)


if __name__ == "__main__":
    main()
