"""Times a schedule for a size on a DGX-1 beside every point of SCCL's table, from 4 KiB to 64 MiB.

A point (chunks, steps S, rounds R) costs S latencies and R times the bytes of a chunk on one link. `synthesize` gets a
tenth of the seconds of SCCL's own solver, and no less than SHORTEST. Every schedule is verified and simulated.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from bench_few_steps import POINTS

import blinksim as bs
from blinksim.units import format_size, format_time

SIZES = tuple(4096 * 4**power for power in range(8))
# Latency and overhead of an NVLink of the DGX-1, and its bandwidth: what a step and a byte of SCCL's model cost.
STEP_S, LANE_BPS = 1.9e-6, 25e9
SHORTEST = 0.3


def time_of(collective: str, point: tuple[int, int, int], size: int) -> float:
    """Seconds of SCCL's point: its chunks are those of what one rank sends, which of an allgather is an eighth."""
    chunks, steps, rounds = point
    share = size / 8 if collective == "allgather" else size
    return steps * STEP_S + rounds * share / chunks / LANE_BPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="one collective")
    only = parser.parse_args().only
    dgx1 = bs.load("dgx1-v100").select()
    bs.synthesize(dgx1, "broadcast", size="4KiB", time_limit=SHORTEST)  # pays for the imports
    held = asked = 0
    sizes = f"{format_size(SIZES[0])} to {format_size(SIZES[-1])}"
    print(
        f"{'collective':<11}{'(C, S, R)':<11}{'SCCL':>8}{'limit':>8}{'longest':>9}  times over SCCL's, {sizes} by four"
    )
    for collective, point, sccl in POINTS:
        if sccl is None or only not in (None, collective):
            continue
        limit = max(SHORTEST, sccl / 10)
        shares, longest = [], 0.0
        for size in SIZES:
            start = time.perf_counter()
            found = bs.synthesize(dgx1, collective, size=size, time_limit=limit)
            longest = max(longest, time.perf_counter() - start)
            assert found.verdict.ok
            assert found.at is not None
            shares.append(found.at.time_s / time_of(collective, point, size))
        held += sum(share <= 1.0005 for share in shares)
        asked += len(shares)
        times = " ".join(f"{share:.3f}" for share in shares)
        print(f"{collective:<11}{point!s:<11}{sccl:>6g} s{limit:>6.2f} s{longest:>7.2f} s  {times}", flush=True)
    print(f"{held} of {asked} pairs of point and size are as quick as SCCL's; {format_time(STEP_S)} a step")
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
