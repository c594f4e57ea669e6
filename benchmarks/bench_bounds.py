"""Times the exact bounds: allgather on growing clusters of A100 boxes, with and without symmetry, and others.

Every rate is checked against its closed form (the box cut), so that a quick wrong answer cannot pass.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial

from blinksim.bounds.bound_result import BoundResult
from blinksim.bounds.compute import bound
from blinksim.collective import Collective
from blinksim.machines import load
from blinksim.topology.graph import Topology

# GPUs: aim in seconds (one sink per orbit, every sink after one link was slowed).
AIMS = {8: (0.002, 0.002), 32: (0.005, 0.005), 128: (0.010, 0.010), 1024: (0.2, 0.5), 8192: (5.0, 60.0)}


def boxes(gpus: int) -> Topology:
    """Boxes of eight A100 on rails, ready for collectives."""
    machine = load("dgx-a100", nodes=gpus // 8).select()
    assert machine.ranks == gpus
    return machine


def expected(gpus: int) -> Fraction:
    """algbw of allgather in bytes/s: one box for 8 GPUs; from 3 boxes on the cut around a box of 200 GB/s."""
    return Fraction(2400, 7) * 10**9 if gpus == 8 else Fraction(200 * gpus, gpus - 8) * 10**9


def timed(ask: Callable[[], BoundResult], runs: int) -> tuple[list[float], BoundResult]:
    """Seconds of each run, and the last answer."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        answer = ask()
        times.append(time.perf_counter() - start)
    return times, answer


def show(name: str, times: list[float], answer: BoundResult, aim: float | None = None) -> None:
    figures = f"{statistics.median(times):>9.4f} s{min(times):>9.4f} s{max(times):>9.4f} s"
    verdict = "" if aim is None else f"  aim {aim} s: {'met' if min(times) <= aim else 'MISSED'}"
    print(f"{name:<46}{figures}  {float(answer.rate) / 1e9:8.2f} GB/s {answer.scope}, {answer.headline.kind}{verdict}")


def draw(growth: dict[str, dict[int, float]], path: str) -> None:
    """Seconds against GPUs, beside ForestColl's Python on the same machines (2 cores, Python 3.11)."""
    from blinksim.plots import COLOURS, MARKERS, figure, save

    forestcoll = {16: 0.15, 32: 0.62, 64: 1.8, 128: 14.1}
    drawn, axes = figure()
    for place, (name, times) in enumerate([*growth.items(), ("ForestColl, Python", forestcoll)]):
        axes.plot(list(times), list(times.values()), color=COLOURS[place], marker=MARKERS[place], label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({gpus for times in growth.values() for gpus in times} | set(forestcoll))
    axes.set_xticks(ticks, [f"{gpus:,}" for gpus in ticks])
    axes.minorticks_off()
    axes.set_xlabel("GPUs (boxes of eight A100)")
    axes.set_ylabel("time for the exact allgather bound (s)")
    axes.set_title("An exact bound with its certificate, two cores", fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False)
    print(f"drawn: {save(drawn, path, force=True)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="timed runs of each bound, after one to warm the caches")
    parser.add_argument("--gpus", type=int, default=8192, help="largest cluster")
    parser.add_argument("--plot", metavar="FILE", help="draw the growth as PNG, SVG or PDF")
    options = parser.parse_args()
    runs = max(1, options.runs)
    allgather, allreduce = Collective("allgather"), Collective("allreduce")
    print(f"exact bounds, {runs} runs, Python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
    print(f"{'bound':<46}{'median':>11}{'min':>11}{'max':>11}")
    bound(boxes(8), allgather)
    growth: dict[str, dict[int, float]] = {"one sink per orbit": {}, "every sink": {}, "one slow link": {}}
    for gpus, aims in AIMS.items():
        if gpus > options.gpus:
            continue
        machine = boxes(gpus)
        times, answer = timed(partial(bound, machine, allgather), runs)
        assert answer.rate == expected(gpus), answer.rate
        show(f"allgather, {gpus} A100, one sink per orbit", times, answer, aims[0])
        growth["one sink per orbit"][gpus] = statistics.median(times)
        every = replace(machine, symmetries=())
        times, answer = timed(partial(bound, every, allgather), runs)
        assert answer.rate == expected(gpus), answer.rate
        show(f"allgather, {gpus} A100, every sink", times, answer, aims[1])
        growth["every sink"][gpus] = statistics.median(times)
        if gpus > 8:
            port = next(x for x in machine.links if x.src == "n0.nic3" and x.kind == "ib")
            slow = machine.degrade(f"{port.src}-{port.dst}", bandwidth="10GB/s")
            times, answer = timed(partial(bound, slow, allgather), runs)
            assert answer.rate == expected(gpus) * Fraction(185, 200), answer.rate
            show(f"allgather, {gpus} A100, one slow link", times, answer, aims[1])
            growth["one slow link"][gpus] = statistics.median(times)
    for name, nodes, collective in (
        ("dgx1-v100", 1, allreduce),
        ("dgx1-v100", 1, Collective("alltoall")),
        ("dgx-a100", 2, allreduce),
        ("dgx-a100", 16, allreduce),
        ("dgx-a100", 4, Collective("alltoall")),
        ("mi250", 2, allreduce),
    ):
        machine = load(name, nodes=nodes).select()
        times, answer = timed(partial(bound, machine, collective), runs)
        show(f"{collective}, {nodes} x {name}", times, answer)
    if options.plot:
        draw(growth, options.plot)


if __name__ == "__main__":
    main()
