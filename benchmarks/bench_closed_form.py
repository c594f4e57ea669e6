"""How near the closed form of the execution model is to its simulation, and what both cost.

    python benchmarks/bench_closed_form.py [--runs N] [--gpus 2,3,8]

First the ratio of the two times, over all algorithms that are found quickly, all collectives, 1 KiB to 1 GiB on H200.
`OVERSTATED` in blinksim/timing/execution_model.py must exceed the largest of a form. Then, of the quickest program of
each question, the time as a share of what its third launch takes: `SHORT_OF_LAUNCH` in
blinksim/gpu/execution_time/simulate_blocks.py must be below all. Then CPU seconds of whole answers by both, beside
alpha-beta. Aims: a comparison of 21 sizes in 3 s, a projection in 0.3 s.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from statistics import mean, median
from time import process_time

import blinksim as bs
from blinksim.collective import COLLECTIVES
from blinksim.errors import BlinksimError
from blinksim.gpu.execution_time import simulate_blocks
from blinksim.gpu.execution_time.closed_form import ScheduleTimes, schedule_times
from blinksim.gpu.execution_time.simulate_blocks import Blocks
from blinksim.gpu.programs.program import Program
from blinksim.timing.execution_model import MOST_PACKETS
from blinksim.topology.graph import Topology

SIZES = [2**power for power in range(10, 31, 2)] + [3 << 18, 3 << 22, 5 << 25]
BANDS = (("below 256 KiB", 256 << 10), ("to 16 MiB", (16 << 20) + 1), ("beyond", 1 << 62))
Ratios = dict[tuple[str, str], list[float]]


def ratios(part: Topology, found: Ratios, shares: list[float]) -> None:
    """Adds closed form over simulation, by band and form, for all programs on a part; and, for the quickest ones, their
    times as shares of what the third launch takes."""
    assert part.execution is not None
    times = ScheduleTimes(part.execution)
    for collective in COLLECTIVES:
        try:
            candidates = bs.contest(part, collective, model="execution", sizes=SIZES).candidates
        except BlinksimError as error:
            print(f"{part.ranks} GPUs: {error}")
            continue
        for size in SIZES:
            band, simulated = next(band for band, end in BANDS if size < end), list[tuple[float, Program]]()
            for name, candidate in candidates.items():
                if name == "nvls":
                    continue  # no program
                for protocol in ("simple", "ll128") if size <= MOST_PACKETS else ("simple",):
                    schedule = candidate.compact
                    one, other = times.estimate(schedule, size, protocol), times.simulate(schedule, size, protocol)
                    found[band, schedule.form].append(one.time.time_s / other.time.time_s)
                    simulated.append((other.time.time_s, times.program(schedule, size, protocol)))
            time_s, program = min(simulated, key=itemgetter(0))
            launches = simulate_blocks.Launches(Blocks(program, part.execution), part.execution, 3)
            launches.run()
            _, second, third = launches.ends
            shares.append(time_s / mean(after - before for before, after in zip(second, third, strict=True)))


def row(name: str, values: list[float]) -> None:
    off = sorted(abs(value - 1) for value in values)
    nine_in_ten = off[int(0.9 * len(off))]
    print(f"{name:24} {len(off):6} {median(off):9.3%} {nine_in_ten:9.2%} {min(values):7.3f} {max(values):7.3f}")


def best(runs: int, answer: Callable[[], object]) -> float:
    """CPU seconds of the quickest run; no time is known before."""
    found = []
    for _ in range(runs):
        simulate_blocks.forget()
        schedule_times.cache_clear()
        begin = process_time()
        answer()
        found.append(process_time() - begin)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--gpus", default="2,3,8")
    options = parser.parse_args()
    machine = bs.load("hgx-h200", rates="measured")
    found: Ratios = defaultdict(list)
    shares: list[float] = []
    for gpus in map(int, options.gpus.split(",")):
        ratios(machine.select(list(range(gpus))), found, shares)
    print(f"{'closed form/simulation':24} {'points':>6} {'median':>9} {'9 in 10':>9} {'least':>7} {'most':>7}")
    for (band, protocol), values in sorted(found.items()):
        row(f"{band}, {protocol}", values)
    row("all", [value for values in found.values() for value in values])
    row("time/third launch", shares)

    answers = {
        "compare, 21 sizes": lambda model: bs.compare(machine, "allreduce", model=model),
        "project 1 MiB": lambda model: bs.project(machine, "allreduce", "1MiB", model=model),
        "project 1 GiB": lambda model: bs.project(machine, "allreduce", "1GiB", model=model),
    }
    print(f"\n{'CPU seconds':24} {'alpha-beta':>10} {'closed':>8} {'ratio':>6} {'execution':>10} {'ratio':>6}")
    for name, answer in answers.items():
        plain, closed, full = (
            best(options.runs, partial(answer, model)) for model in ("alpha-beta", "execution-closed", "execution")
        )
        print(f"{name:24} {plain:10.3f} {closed:8.3f} {closed / plain:6.1f} {full:10.3f} {full / plain:6.1f}")


if __name__ == "__main__":
    main()
