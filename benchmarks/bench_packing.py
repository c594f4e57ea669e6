"""Times whole packings: bound, trees, schedule and its verification, the loading of the machine and imports left out.

Beside our times stand the aims, and two others for the same graphs: a 200-line prototype of the method, and the
released Python code of ForestColl (commit 3c13aee) with its trees' heights; both measured on two shared cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from blinksim import machines
from blinksim.algorithms.packed import build
from blinksim.bounds.compute import bound
from blinksim.collective import Collective
from blinksim.schedule.loads import rate
from blinksim.schedule.model import Schedule
from blinksim.schedule.verify import verify
from blinksim.topology.graph import Topology


@dataclass(frozen=True)
class Case:
    """aim, prototype, forestcoll: seconds, or a word. templates: whether single hosts may be packed instead."""

    name: str
    machine: str
    nodes: int = 1
    collective: str = "allgather"
    templates: bool = False
    edits: tuple[str, ...] = ()
    aim: str = "-"
    prototype: str = "-"
    forestcoll: str = "-"
    once: bool = False


SLOW_LINK = ("degrade n0.nic0-fabric0 bandwidth=12.5GB/s",)
CASES = (
    Case("DGX-1V, whole graph", "dgx1-v100", prototype="0.009", forestcoll="0.07, height 5"),
    Case("A100 x 1, whole graph", "dgx-a100", prototype="0.003", forestcoll="0.10, height 7"),
    Case("A100 x 2, whole graph", "dgx-a100", 2, aim="0.05", prototype="0.042", forestcoll="4.2, height 11"),
    Case("A100 x 4, whole graph", "dgx-a100", 4, aim="0.05", prototype="0.040", forestcoll="41, height 19"),
    Case("A100 x 16, whole graph", "dgx-a100", 16, aim="0.5", prototype="1.3", forestcoll="not in 300"),
    Case("MI250 x 1, whole graph", "mi250", prototype="0.014", forestcoll="0.51, height 14"),
    Case("MI250 x 2, whole graph", "mi250", 2, aim="1.5", prototype="1.73", forestcoll="29.5, height 20"),
    Case("A100 x 4 allreduce", "dgx-a100", 4, "allreduce"),
    Case("torus 16x16 allreduce", "torus:16x16", 1, "allreduce", aim="2", once=True),
    Case("torus 8x8x8 allreduce", "torus:8x8x8", 1, "allreduce", aim="5", once=True),
    Case("A100 x 16 alltoall", "dgx-a100", 16, "alltoall"),
    Case("A100 x 64, host by host", "dgx-a100", 64, templates=True, aim="2", prototype="153", once=True),
    Case("MI250 x 32, host by host", "mi250", 32, templates=True, aim="2", once=True),
    Case("A100 x 128, host by host", "dgx-a100", 128, templates=True, aim="5", once=True),
    Case("A100 x 128, a slow NIC", "dgx-a100", 128, templates=True, edits=SLOW_LINK, aim="120 (1 %)", once=True),
)


def height(schedule: Schedule) -> int:
    return schedule.steps // (2 if schedule.collective.name == "allreduce" else 1)


def synthesize(topology: Topology, collective: Collective, templates: bool) -> Schedule:
    """A schedule that was verified; raises `RuntimeError` for one that is wrong, since its time means nothing."""
    schedule = build(topology, collective, bound=bound(topology, collective), templates=templates)
    verdict = verify(schedule)
    if not verdict.ok:
        raise RuntimeError("; ".join(verdict.reasons))
    return schedule


def timed(run: Callable[[], Schedule], runs: int) -> tuple[list[float], Schedule]:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        schedule = run()
        times.append(time.perf_counter() - start)
    return times, schedule


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="timed runs of each case, after one to warm the caches")
    runs = max(1, parser.parse_args().runs)
    print(f"whole packings in s, {runs} runs, Python {sys.version.split()[0]}, {os.cpu_count()} CPUs")
    others = f"{'aim':>11}{'prototype':>11}{'ForestColl':>17}"
    print(f"{'case':<26}{'median':>8}{'min':>8}{others}{'trees':>7}{'height':>8}  gap")
    for case in CASES:
        topology = machines.load(case.machine, nodes=case.nodes, edits=case.edits).select()
        collective = Collective(case.collective)
        if not case.once:
            synthesize(topology, collective, case.templates)
        times, schedule = timed(
            partial(synthesize, topology, collective, case.templates),
            1 if case.once else runs,
        )
        gap = 1 - (rate(schedule) or 0) / bound(topology, collective).rate
        print(
            f"{case.name:<26}{statistics.median(times):>8.3f}{min(times):>8.3f}{case.aim:>11}{case.prototype:>11}"
            f"{case.forestcoll:>17}{schedule.chunks:>7}{height(schedule):>8}  {gap}",
            flush=True,
        )
    losses()


def losses() -> None:
    """Allgather and allreduce again after the loss of any link of a DGX-1V."""
    machine = machines.load("dgx1-v100").select(links=["nvlink"])
    cables = sorted({tuple(sorted((link.src, link.dst))) for link in machine.links})
    worst = {}
    for name in ("allgather", "allreduce"):
        times = []
        for a, b in cables:
            rest = machine.without(f"{a}-{b}")
            collective = Collective(name)
            times.append(timed(partial(synthesize, rest, collective, True), 1)[0][0])
        worst[name] = max(times)
    print(
        f"DGX-1V after the loss of any of {len(cables)} links, the slowest: "
        + ", ".join(f"{name} {seconds:.3f} s" for name, seconds in worst.items())
        + " (aim 0.1 s)"
    )


if __name__ == "__main__":
    main()
