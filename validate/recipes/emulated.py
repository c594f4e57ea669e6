"""Emulated machines: quads and smaller parts of DGX-1P and DGX-1V, lane by lane, on the GPUs at hand.

    python3 validate/recipes/emulated.py --make FOLDER
    PYTHONPATH=. python3 validate/recipes/emulated.py --schedules FOLDER --gpus 4 --out results

The first writes schedule files and needs OR-Tools but no GPU; the second runs them and needs GPUs but no solver. Every
lane of an NVLink is one thread block (`blinksim.execute.emulate`). The run begins with lines of GPUs that have a single
lane between neighbours: what they give is all that a prediction knows of this machine (`calibration.py`).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blinksim.collective import Collective
from blinksim.errors import BlinksimError

if TYPE_CHECKING:
    from blinksim.schedule.model import Schedule

MIB = 1 << 20
# Connected parts of the two machines, one for every class of equal ones (tests/golden/blink_subsets.csv) up to four.
PARTS = {
    "dgx1-p100": ("0123", "0145", "012", "01", "0124", "014"),
    "dgx1-v100": ("0123", "0145", "023", "012", "03", "01", "0124", "034"),
}
ALLREDUCE = ("rings", "packed", "chains", "blink_hierarchical", "mxnet", "mxnet-single", "blink")
BROADCAST = ("rings", "packed", "mxnet")
SIZES = (16 * MIB, 64 * MIB, 256 * MIB)
TENANT_SIZES = tuple(MIB << power for power in (0, 2, 4, 6, 8, 10))
# One block: bytes/s and seconds per piece, as first measured on H200; only the size of pieces follows from them.
BLOCK_RATE, BLOCK_OVERHEAD = 41e9, 3.6e-6


@dataclass(frozen=True)
class Case:
    """One question. change: what is done to the schedule or its machine for a control, or empty."""

    machine: str
    members: str
    collective: str
    algorithm: str
    relays: str = ""
    channels: int | None = None
    change: str = ""

    @property
    def name(self) -> str:
        parts = [self.machine, self.members + (f"+{self.relays}" if self.relays else ""), self.collective]
        parts += [self.algorithm + (f"-{self.channels}ch" if self.channels else "")]
        return "_".join([*parts, *([self.change] if self.change else [])])


def cases(gpus: int) -> Iterator[tuple[Case, tuple[int, ...]]]:
    """Every case that fits on so many GPUs, with its sizes; the most telling ones first."""
    if gpus >= 4:
        for machine in ("dgx1-v100", "dgx1-p100"):
            for change in ("", "skewed", "degraded"):
                yield Case(machine, "0123", "allreduce", "packed", change=change), (64 * MIB, 256 * MIB)
    for machine, parts in PARTS.items():
        for part in parts:
            if len(part) <= gpus:
                for algorithm in ALLREDUCE:
                    yield Case(machine, part, "allreduce", algorithm), SIZES
                for algorithm in BROADCAST:
                    yield Case(machine, part, "broadcast", algorithm), SIZES
    if gpus >= 4:
        for tenant in ("01", "03"):
            helpers = "".join(x for x in "0123" if x not in tenant)
            for collective in ("broadcast", "allreduce"):
                yield Case("dgx1-v100", tenant, collective, "packed"), TENANT_SIZES
                for channels in (1, 2, 3, 4):
                    yield Case("dgx1-v100", tenant, collective, "blinkplus", helpers, channels), TENANT_SIZES


def build(case: Case) -> Schedule:
    """The schedule of a case, verified before a control changes it."""
    from blinksim import machines
    from blinksim.synthesis import synthesize

    members = [f"gpu{i}" for i in case.members]
    machine = machines.load(case.machine)
    machine = machine.select(members, [f"gpu{i}" for i in case.relays], relays_reduce=bool(case.relays))
    options: dict[str, Any] = {"channels": case.channels} if case.channels else {}
    algorithm, _, trees = case.algorithm.partition("-")
    if trees:
        options["trees"] = trees
    made = synthesize(machine, Collective(case.collective), algorithm, **options)
    if not made.verdict.ok:
        raise SystemExit(f"{case.name} does not verify: {made.verdict.reasons}")
    return changed(made.schedule, case.change)


def changed(schedule: Schedule, change: str) -> Schedule:
    """Controls. skewed: the first tree carries twice its share, more than its links have room for. degraded: the widest
    link in use keeps one of its lanes."""
    if change == "skewed":
        shares = schedule.share_num.copy()
        shares[0] *= 2
        return replace(schedule, share_num=shares, share_den=int(shares.sum()), bound={})
    if change == "degraded":
        topology = schedule.topology
        used = {topology.links[i] for i in schedule.route_links.tolist()}
        widest = max(used, key=lambda link: (link.lanes, link.name))
        if widest.lanes > 1:
            links = [replace(x, lanes=1) if x.key == widest.key else x for x in topology.links]
            return replace(schedule, topology=topology.with_links(links), bound={})
        raise BlinksimError("no link has lanes to lose")
    return schedule


def make(folder: Path, gpus: int) -> None:
    """Writes the schedule of every case."""
    from blinksim.formats.schedule_json import write_schedule

    folder.mkdir(parents=True, exist_ok=True)
    for case, _ in cases(gpus):
        path = folder / f"{case.name}.json"
        if path.exists():
            continue
        try:
            write_schedule(build(case), path, force=True)
        except BlinksimError as error:
            print(f"skipped {case.name}: {error}")


def lines(gpus: int) -> Iterator[tuple[str, Schedule]]:
    """Lines of two and more GPUs with one lane from each to the next, for the calibration."""
    from blinksim.algorithms.registry import REGISTRY
    from blinksim.topology.generators import fully_connected

    for length in range(2, min(gpus, 4) + 1):
        for collective in ("broadcast", "reduce"):
            machine = fully_connected(length, bandwidth=Fraction(int(BLOCK_RATE))).select()
            yield f"line-{length}-{collective}", REGISTRY["chain"].build(machine, Collective(collective))


def piece_for(schedule: Schedule, size: int) -> int:
    """Bytes of a piece: filling the pipeline against the overhead of every piece, at the least of their sum."""
    from blinksim.schedule.lanes import lane_loads, lanes_apart

    load = float(max(lane_loads(lanes_apart(schedule)).values()))
    best = math.sqrt(load * size * BLOCK_OVERHEAD * BLOCK_RATE / max(1, schedule.steps - 1))
    return min(MIB, max(16 << 10, 1 << round(math.log2(best))))


def aligned(schedule: Schedule, size: int, piece: int) -> bool:
    """Whether every piece that a wire sends begins on a multiple of 128 bytes."""
    from blinksim.execute import ELEMENT_TYPES
    from blinksim.execute.emulate import emulate

    program, _ = emulate(schedule, size // 4, ELEMENT_TYPES["float32"], 1, piece)
    return not (4 * program.destinations[:, 2] % 128).any() and program.piece_units * program.unit * 4 % 128 == 0


def run(folder: Path, gpus: int, out: Path, budget: float, only: str, iterations: int) -> None:
    from notes import Notebook, provenance

    from blinksim.execute import execute
    from blinksim.formats.schedule_json import read_schedule

    command = f"python3 validate/recipes/emulated.py --schedules FOLDER --gpus {gpus} --budget {budget:g}"
    notes = Notebook(out / f"emulated-{gpus}gpu.json", provenance(gpus, command), resume=True)
    notes.deadline = time.monotonic() + budget

    def measure(part: str, name: str, schedule: Schedule, size: int, piece: int) -> None:
        keys = {"case": name, "size_bytes": size, "piece_bytes": piece}
        if notes.out_of_time or notes.has(part, **keys) or only not in name:
            return
        done = execute(
            schedule, size, executor="cupy", lane_blocks=1, piece_bytes=piece, warmup=2, iterations=iterations
        )
        found = {"wrong": done.wrong, "time_s": done.time_s, "times_s": list(done.times_s)}
        notes.add(part, {**keys, "aligned": aligned(schedule, size, piece), **found})
        print(f"{name:<52} {size:>11} {piece >> 10:>5} KiB {done.time_s * 1e6:>10.1f} us {done.algbw / 1e9:>7.1f} GB/s")
        if done.wrong:
            print("WRONG", name, size, done.wrong)

    for name, schedule in lines(gpus):
        for size in SIZES:
            for piece in (128 << 10, 512 << 10, MIB):
                measure("lines", name, schedule, size, piece)
    for case, sizes in cases(gpus):
        path = folder / f"{case.name}.json"
        if path.exists():
            schedule = read_schedule(path)
            for size in sizes:
                measure("cases", case.name, schedule, size, piece_for(schedule, size))
    if notes.out_of_time:
        print("out of time; run again to go on")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--make", type=Path, metavar="FOLDER", help="write the schedules there and stop")
    parser.add_argument("--schedules", type=Path, metavar="FOLDER", help="run the schedules that are there")
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--budget", type=float, default=200, help="seconds after which no further run begins")
    parser.add_argument("--only", default="", help="run only what has this in its name")
    parser.add_argument("--iterations", type=int, default=8)
    options = parser.parse_args()
    if options.make:
        make(options.make, options.gpus)
    elif options.schedules:
        run(options.schedules, options.gpus, options.out, options.budget, options.only, options.iterations)
    else:
        parser.error("give --make FOLDER or --schedules FOLDER")


if __name__ == "__main__":
    try:
        main()
    except BlinksimError as error:
        print(f"emulated.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
