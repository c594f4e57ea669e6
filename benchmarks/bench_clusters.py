"""How near is the best time of a cluster to its bound? All clusters of the catalogue, 2 to 4,096 nodes.

    python benchmarks/bench_clusters.py [--nodes 2,8,64] [--sizes 1GiB] [--collectives allreduce] [--only p5] [--jobs 2]

Every row is one question to a new process: the best schedule on the links (alpha-beta, nominal rates), its time, the
bound, the bound over the time, and CPU seconds with the reading of the machine. The aim is 0.95 at 1 GiB.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import blinksim as bs
from blinksim.errors import BlinksimError
from blinksim.formats.shipped.machine_names import names
from blinksim.units import format_time

COLLECTIVES = "allreduce,reducescatter,allgather,broadcast,reduce"
Row = tuple[str, str, str, int, str, float, float, float, float]


def ask(question: tuple[str, str, str, int]) -> Row:
    """A machine, a collective, a size and a number of nodes; then algorithm, time, bound, their ratio, CPU seconds."""
    machine, collective, size, nodes = question
    start = time.process_time()
    try:
        best = bs.project(bs.load(machine, nodes=nodes), collective, size, model="alpha-beta")
    except BlinksimError as error:
        return (*question, f"refused: {error}"[:80], 0.0, 0.0, 0.0, time.process_time() - start)
    assert best.bound is not None
    least = best.least.time_s if best.least else best.size / float(best.bound.rate)
    return (*question, best.algorithm, best.time_s, least, least / best.time_s, time.process_time() - start)


def answers(questions: list[tuple[str, str, str, int]], jobs: int) -> Iterator[Row]:
    """One process for each question, so that nothing is known from the one before."""
    # A pool forks from its threads, and children then may wait for ever for a lock that one of these held.
    with multiprocessing.get_context("forkserver").Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap(ask, questions, chunksize=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="2,8,64,512,4096")
    parser.add_argument("--sizes", default="1KiB,1MiB,64MiB,1GiB")
    parser.add_argument("--collectives", default=COLLECTIVES)
    parser.add_argument("--only", default="", help="machines whose names have this text")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    clusters = [name for name in names() if given.only in name and bs.load(name).fabric is not None]
    collectives, sizes = given.collectives.split(","), given.sizes.split(",")
    nodes = [int(count) for count in given.nodes.split(",")]
    rows = list[Row]()
    print(f"{'machine':<20}{'collective':<14}{'size':>6}{'nodes':>6}{'time':>12}{'bound':>10}{'ratio':>7}{'CPU s':>7}")
    for row in answers(list(itertools.product(clusters, collectives, sizes, nodes)), given.jobs):
        machine, collective, size, count, algorithm, best, least, ratio, cpu_s = row
        rows.append(row)
        print(
            f"{machine:<20}{collective:<14}{size:>6}{count:>6}{format_time(best):>12}{format_time(least):>10}"
            f"{ratio:>7.3f}{cpu_s:>7.2f}  {algorithm}",
            flush=True,
        )
    if given.csv:
        with given.csv.open("w", newline="") as file:
            head = ("machine", "collective", "size", "nodes", "algorithm", "time_s", "bound_s", "ratio", "cpu_s")
            csv.writer(file).writerows([head, *rows])
    print(f"\n{'size':>6}{'nodes':>6}{'answers':>9}{'0.95 and more':>15}{'median':>8}{'1 in 10 below':>15}{'least':>7}")
    for size, count in itertools.product(sizes, nodes):
        found = sorted(row[7] for row in rows if row[2] == size and row[3] == count and row[5])
        if found:
            good, low = sum(ratio >= 0.95 for ratio in found), found[len(found) // 10]
            middle = statistics.median(found)
            print(f"{size:>6}{count:>6}{len(found):>9}{good:>15}{middle:>8.3f}{low:>15.3f}{found[0]:>7.3f}")
    print(f"refused: {sum(not row[5] for row in rows)}; most CPU {max(row[8] for row in rows):.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
