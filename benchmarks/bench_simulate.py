"""How many transfers (one piece over one link) a second each engine simulates, beside a compiled priority queue.

    python benchmarks/bench_simulate.py [--runs N] [--large]

The compiled loop is built where a C++ compiler is present; it must find the same time, to the tick. Aims, on one core:
events 5e5 transfers/s on trees and 1e6 on rings; rounds 1e7 on a DGX-1V forest and 3e7 at a million stages; steps 1e8
on rings of 64 and more with 64 pieces; any size of a DGX-1V schedule in 2 ms. Look at the best of several runs.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from time import perf_counter

import numpy as np

import blinksim as bs
from blinksim.algorithms.registry import algorithm
from blinksim.collective import Collective
from blinksim.schedule.model import COPY, Builder, Schedule
from blinksim.timing.event_graph import Run, ScheduleGraph, Work, event_graph, timed
from blinksim.timing.events import evaluated, first_come, in_levels, in_rounds
from blinksim.timing.simulation_options import Options
from blinksim.topology.graph import Device, Link, Topology

GB = 10**9


def ring(n: int) -> Schedule:
    links = tuple(Link(f"gpu{i}", f"gpu{(i + 1) % n}", "link", Fraction(25 * GB), latency=5e-7) for i in range(n))
    topology = Topology(f"ring{n}", tuple(Device(f"gpu{i}", "gpu") for i in range(n)), links)
    return algorithm("ring").build(topology, Collective("allreduce"), rings=[list(range(n))])


def uneven(n: int) -> Schedule:
    """A ring whose latencies all differ, so that no two events fall together."""
    schedule = ring(n)
    links = tuple(replace(x, latency=5e-7 + 1e-10 * i) for i, x in enumerate(schedule.topology.links))
    return replace(schedule, topology=replace(schedule.topology, links=links))


def dgx1(collective: str) -> Schedule:
    return algorithm("packed").build(bs.load("dgx1-v100").select(), Collective(collective))


def double_tree(n: int) -> Schedule:
    devices = [Device(f"{kind}{i}", kind) for kind in ("gpu", "nic") for i in range(n)]
    devices.append(Device("core", "switch"))
    links = [Link(f"gpu{i}", f"nic{i}", "link", Fraction(25 * GB), latency=5e-7) for i in range(n)]
    links += [Link(f"nic{i}", "core", "link", Fraction(10**6 * GB)) for i in range(n)]
    links += [Link("core", f"gpu{i}", "link", Fraction(10**6 * GB)) for i in range(n)]
    topology = Topology(f"ports{n}", tuple(devices), tuple(links))
    return algorithm("double_binary").build(topology, Collective("allreduce"))


def grid_forest(side: int) -> Schedule:
    """Allgather on side x side GPUs, rows and columns fully linked: a tree of height 2 from every GPU."""
    n = side * side
    devices = tuple(Device(f"gpu{i}", "gpu") for i in range(n))
    number: dict[tuple[int, int], int] = {}
    links: list[Link] = []
    for i in range(n):
        row, column = divmod(i, side)
        for k in range(side):
            for j in (row * side + k, k * side + column):
                if j != i and (i, j) not in number:
                    number[i, j] = len(links)
                    links.append(Link(f"gpu{i}", f"gpu{j}", "link", Fraction(25 * GB), latency=5e-7))
    topology = Topology(f"grid{side}", devices, tuple(links))
    builder = Builder(topology, Collective("allgather"), "grid", "forest")
    routes = {pair: builder.add_routes([[link]])[0] for pair, link in number.items()}
    for i in range(n):
        row, column = divmod(i, side)
        chunk = builder.add_chunk(Fraction(1, n), origin=i)
        mates = [row * side + k for k in range(side) if k != column]
        first = [(i, j) for j in mates]
        second = [(j, k * side + j % side) for j in (i, *mates) for k in range(side) if k != row]
        for step, pairs in enumerate((first, second)):
            src, dst = zip(*pairs, strict=True)
            builder.add_sends(chunk=chunk, src=src, dst=dst, op=COPY, step=step, route=[routes[p] for p in pairs])
    return builder.finish()


def compiled() -> Callable[[Work, int, bool], tuple[float, int]] | None:
    """The C++ loop as a function of (work, pieces, turns) -> (seconds, ticks)."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="bench_simulate_"))
    program = folder / "priority_queue"
    source = Path(__file__).with_name("priority_queue.cpp")
    subprocess.run([compiler, "-O3", "-std=c++17", "-o", str(program), str(source)], check=True)

    def run(work: Work, pieces: int, turns: bool) -> tuple[float, int]:
        graph = work.graph
        order = np.lexsort((graph.after, graph.before))
        starts = np.searchsorted(graph.before[order], np.arange(work.count + 1))
        sizes = [work.count, pieces, len(order), int(graph.resource.max()) + 1, int(turns)]
        arrays = (sizes, graph.resource, work.hold, work.lag, starts, graph.after[order], graph.fan_in)
        (folder / "work").write_bytes(b"".join(np.asarray(a, dtype=np.int64).tobytes() for a in arrays))
        printed = subprocess.run([str(program), str(folder / "work")], check=True, capture_output=True, text=True)
        seconds, ticks = printed.stdout.split()
        return float(seconds), int(ticks)

    return run


def best(runs: int, function: Callable[[], object]) -> float:
    times = []
    for _ in range(runs):
        begin = perf_counter()
        function()
        times.append(perf_counter() - begin)
    return min(times)


def memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--large", action="store_true", help="also the cases that need seconds and hundreds of MiB")
    options = parser.parse_args()
    native = compiled()
    print(f"{'case':38} {'transfers':>11} engine   {'ms':>9} {'per s':>9} {'C++ per s':>10} {'ratio':>7} {'MiB':>6}")

    def row(name: str, schedule: Schedule, pieces: int, engine: str, held: ScheduleGraph | None = None) -> None:
        graph = held or event_graph(schedule)
        work = timed(graph, 1 << 28, pieces, Options())
        count = int((~graph.timeless).sum()) * pieces
        turns = schedule.form == "forest"
        if engine == "events":

            def run() -> Run:
                return first_come(work, pieces, turns=turns, record=False)
        elif engine == "rounds":

            def run() -> Run:
                return in_rounds(work, pieces)
        elif engine == "steps":

            def run() -> Run:
                return in_levels(work, pieces, check=False)[0]
        else:

            def run() -> Run:
                service = Options("static" if engine == "tail" else "fifo")
                return evaluated(graph, timed(graph, 1 << 28, pieces, service), pieces, service)

        before = memory()
        run()
        spent = best(options.runs, run)
        other = ""
        if native is not None and count < 3e7 and engine in ("events", "rounds", "steps"):
            seconds, ticks = min(native(work, pieces, turns) for _ in range(options.runs))
            if engine == "events":
                assert ticks == run().finish, "the compiled loop finds another time"
            other = f"{count / seconds:10.2g} {seconds / spent:7.2f}"
        print(f"{name:38} {count:11,} {engine:8} {spent * 1e3:9.2f} {count / spent:9.2g} {other:18} "
              f"{memory() - before:6.0f}", flush=True)  # fmt: skip

    gather, reduce = dgx1("allgather"), dgx1("allreduce")
    row("ring 8 x 64", ring(8), 64, "events")
    row("ring 64 x 1", ring(64), 1, "events")
    row("ring 64 x 16", ring(64), 16, "events")
    row("ring 64 x 16, uneven", uneven(64), 16, "events")
    row("ring 256 x 4, uneven", uneven(256), 4, "events")
    row("ring 64 x 64", ring(64), 64, "steps")
    row("ring 256 x 64", ring(256), 64, "steps")
    for name, schedule in (("DGX-1V allgather", gather), ("DGX-1V allreduce", reduce)):
        row(f"{name} x 1000", schedule, 1000, "events")
        row(f"{name} x 1000", schedule, 1000, "rounds")
        row(f"{name} x 1000, any size", schedule, 1000, "tail")
    tree = double_tree(1024)
    row("double tree 1024 x 16", tree, 16, "events")
    row("double tree 1024 x 64", tree, 64, "rounds")
    if options.large:
        forest = grid_forest(32)
        held = event_graph(forest)
        row("1,024 GPUs, 1,024 trees x 16", forest, 16, "rounds", held)
        del forest, held
        schedule = ring(1024)
        held = event_graph(schedule)
        row("ring 1024 x 64", schedule, 64, "steps", held)
        row("ring 1024 x 64", schedule, 64, "formula", held)


if __name__ == "__main__":
    main()
