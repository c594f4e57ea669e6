"""Times the search for few steps on the DGX-1 points of SCCL's table, beside those of SCCL's own solver.

Every schedule is verified and its point compared with what was asked, so that a quick wrong answer cannot pass. SCCL's
times: microsoft/sccl 030a750 with z3-solver 5.4.0 on two shared cores, one run each.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

from blinksim.algorithms.few_steps import find
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.machines import load
from blinksim.schedule.verify import verify

# collective, (chunks, steps, rounds), SCCL's seconds (None: no answer in 200 s).
POINTS: tuple[tuple[str, tuple[int, int, int], float | None], ...] = (
    ("allgather", (1, 2, 2), 0.12),
    ("allgather", (2, 2, 3), 0.32),
    ("allgather", (3, 3, 4), 1.4),
    ("allgather", (4, 4, 5), 3.4),
    ("allgather", (5, 5, 6), 9.8),
    ("allgather", (6, 3, 7), 14.9),
    ("allgather", (6, 6, 7), 40.0),
    ("allgather", (6, 7, 7), 51.0),
    ("broadcast", (2, 2, 2), 0.04),
    ("broadcast", (6, 3, 3), 0.13),
    ("broadcast", (12, 4, 4), 0.73),
    ("broadcast", (18, 5, 5), 11.5),
    ("alltoall", (8, 3, 3), 50.0),
    ("alltoall", (8, 2, 3), 5.5),
    ("alltoall", (24, 8, 8), None),
)
# No such schedules; SCCL took 11 s and 10 s to prove it.
IMPOSSIBLE = (("alltoall", (64, 3, 3)), ("alltoall", (64, 2, 3)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="timed runs of each point, with different seeds")
    runs = max(1, parser.parse_args().runs)
    dgx1 = load("dgx1-v100").select()
    # The first search also pays for the imports.
    find(dgx1, Collective("allgather"))
    print(f"{'collective':<12}{'(C, S, R)':<14}{'median':>10}{'min':>10}{'max':>10}{'SCCL':>10}")
    for name, (chunks, steps, rounds), sccl in POINTS:
        times = []
        for seed in range(runs):
            start = time.perf_counter()
            given = {"chunks": chunks, "steps": steps, "rounds": rounds, "seed": seed}
            found, per_step, _ = find(dgx1, Collective(name), time_limit=300, **given)
            times.append(time.perf_counter() - start)
            assert (len(per_step), sum(per_step)) == (steps, rounds)
            assert verify(found), verify(found).reasons
        figures = f"{statistics.median(times):>8.2f} s{min(times):>8.2f} s{max(times):>8.2f} s"
        reference = "> 200 s" if sccl is None else f"{sccl:g} s"
        print(f"{name:<12}{f'({chunks}, {steps}, {rounds})':<14}{figures}{reference:>10}")
    for name, (chunks, steps, rounds) in IMPOSSIBLE:
        start = time.perf_counter()
        try:
            find(dgx1, Collective(name), chunks=chunks, steps=steps, rounds=rounds)
        except InfeasibleError as error:
            print(f"{name:<12}{f'({chunks}, {steps}, {rounds})':<14}{time.perf_counter() - start:>8.2f} s  {error}")
        else:
            raise AssertionError("a point that is impossible was found")
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
