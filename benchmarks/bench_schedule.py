"""Times and memory of verifying, writing and reading schedules: a DGX-1V, and 1,024 GPUs with 1,024 trees.

The large case is a forest with one tree for every GPU of 128 nodes of 8 on eight rails: along the root's rail to every
node, then inside it. As an allgather it has 1,047,552 sends, as an allreduce (up and down) twice as many.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from blinksim.collective import Collective
from blinksim.machines import load
from blinksim.schedule.model import COPY, REDUCE, Builder, Schedule


def rail_forest(nodes: int, local: int, collective: str) -> Schedule:
    """A tree of height 2 for every GPU: along its rail to all nodes, then to the other GPUs of each node."""
    topology = load(f"rails:{nodes}x{local}").select()
    builder = Builder(topology, Collective(collective), "rail_forest", "forest")
    n, number = nodes * local, {link.key[:2]: position for position, link in enumerate(topology.links)}
    device = [topology.index[name] for name in topology.members]
    ranks = np.arange(n).reshape(nodes, local)

    def route(a: int, b: int) -> int:
        (m, i), (k, j) = divmod(a, local), divmod(b, local)
        inside = (f"n{m}.gpu{i}", f"n{m}.switch", f"n{m}.gpu{j}")
        rail = (f"n{m}.gpu{i}", f"n{m}.nic{i}", f"fabric{i}", f"n{k}.nic{j}", f"n{k}.gpu{j}")
        return builder.add_routes([[number[pair] for pair in pairwise(inside if m == k else rail)]])[0]

    edges = {}
    for a in range(n):
        for b in {*ranks[a // local].tolist(), *ranks[:, a % local].tolist()} - {a}:
            edges[a, b] = route(a, b)
    for root in range(n):
        chunk = builder.add_chunk(Fraction(1, n), origin=root if collective == "allgather" else -1)
        rail = ranks[:, root % local].tolist()
        first = [(root, b) for b in rail if b != root]
        second = [(b, c) for b in rail for c in ranks[b // local].tolist() if c != b]
        levels = [(first, 0, COPY), (second, 1, COPY)]
        if collective == "allreduce":
            up = [([(b, a) for a, b in pairs], 1 - step, REDUCE) for pairs, step, _ in levels]
            levels = [*up, (first, 2, COPY), (second, 3, COPY)]
        for pairs, step, op in levels:
            ends = np.array([(device[a], device[b]) for a, b in pairs])
            routes = [edges[pair] for pair in pairs]
            builder.add_sends(chunk=chunk, src=ends[:, 0], dst=ends[:, 1], op=op, step=step, route=routes)
    return builder.finish()


def in_own_process(work: Callable[..., None], *arguments: object) -> None:
    """Runs `work` in a fresh process, so that its peak memory is its own."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(process.exitcode)


def report(what: str, runs: int, work: Callable[[], object]) -> None:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what:<40}{min(times):>10.4f} s{max(times):>10.4f} s{peak:>8.0f} MiB", flush=True)


def case(title: str, nodes: int, local: int, collective: str, runs: int) -> None:
    from blinksim.formats.schedule_json import read_schedule, write_schedule
    from blinksim.schedule.verify import verify

    schedule = rail_forest(nodes, local, collective)
    print(f"{title} {collective}, {schedule.sends:,} sends")

    def check() -> None:
        verdict = verify(schedule)
        assert verdict.ok, verdict

    report("  verify", runs, check)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("s.json", "s.json.gz"):
            path = Path(folder) / name
            report(f"  write {name}", runs, partial(write_schedule, schedule, path, force=True))
            report(f"  read {name} ({path.stat().st_size / 2**20:.2f} MiB)", runs, partial(read_schedule, path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="timed runs; the large case takes at most 3")
    runs = max(1, parser.parse_args().runs)
    print(f"peak memory: of the process up to then; Python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
    print(f"{'':<40}{'min':>12}{'max':>12}{'peak':>12}")
    for collective in ("allgather", "allreduce"):
        in_own_process(case, "8 ranks x 8 trees", 2, 4, collective, runs)
    for collective in ("allgather", "allreduce"):
        in_own_process(case, "1,024 x 1,024", 128, 8, collective, min(3, runs))


if __name__ == "__main__":
    main()
