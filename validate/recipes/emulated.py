"""Emulated machines: DGX-1P, DGX-1V and parts of them, and half a node of Aurora, lane by lane, on the GPUs at hand.

    PYTHONPATH=. python3 validate/recipes/emulated.py --make FOLDER
    PYTHONPATH=. python3 validate/recipes/emulated.py --schedules FOLDER --gpus 4 --out results

The first writes schedule files and needs OR-Tools but no GPU; the second runs them and needs GPUs but no solver. Every
lane of a link is one thread block (`blinksim.gpu.execution.emulate`). Machines with more devices than there are
GPUs run two on a GPU, never two that share a link, with lanes of half the rate, so that a GPU's port stays wider than
all lanes of its two. The run begins with lines of GPUs that have a single lane between neighbours, for both kinds of
lanes: what they give is all that a prediction knows of this machine (`calibration.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blinksim.collective import Collective
from blinksim.errors import BlinksimError
from blinksim.formats.schedule_json import read_schedule
from blinksim.gpu.execution.run import execute
from validate.recipes.arguments import add_steps, arguments, script, take_steps
from validate.recipes.notes import Notebook, measured, provenance

if TYPE_CHECKING:
    from blinksim.schedule.model import Schedule
    from blinksim.topology.graph import Topology

MIB = 1 << 20
# Connected parts of the two machines: one for every class of equal ones (tests/golden/blink_subsets.csv) up to four,
# and from five on some where trees gain much over rings, little, or nothing.
PARTS = {
    "dgx1-p100": ("0123", "0145", "012", "01", "0124", "014"),
    "dgx1-v100": ("0123", "0145", "023", "012", "03", "01", "0124", "034"),
}
LARGE_PARTS = {
    "dgx1-v100": ("01234567", "012345", "02347", "0123456", "012456", "01246"),
    "dgx1-p100": ("01234567", "0123456", "012456", "01245", "012345"),
}
HALF_NODE = "012345"
ALLREDUCE = ("rings", "nccl", "packed", "chains", "blink_hierarchical", "mxnet", "mxnet-single", "blink")
BROADCAST = ("rings", "packed", "mxnet")
SIZES = (16 * MIB, 64 * MIB, 256 * MIB)
# Where one tree and many of MXNet's may change places; below the first of SIZES nothing is promised.
SMALL_SIZES = tuple(64 << 10 << power for power in (0, 2, 4, 6))
LINE_SIZES = (MIB, 4 * MIB, *SIZES, 1024 * MIB)
LINE_PIECES = (32 << 10, 128 << 10, 512 << 10, MIB)
TENANT_SIZES = tuple(MIB << power for power in (0, 2, 4, 6, 8, 10))
# The rate of a lane where a GPU is two devices, in GB/s; where it is one, a lane is as fast as a block can be. For
# both: bytes/s and seconds per piece, as first measured on H200; only the size of pieces follows from them.
FULL, HALF = None, 20
BLOCK = {FULL: (41e9, 3.6e-6), HALF: (20e9, 3.6e-6)}


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

    def lane(self, gpus: int) -> int | None:
        """FULL or HALF."""
        return FULL if len(self.members + self.relays) <= gpus else HALF

    @property
    def name(self) -> str:
        parts = [self.machine, self.members + (f"+{self.relays}" if self.relays else ""), self.collective]
        parts += [self.algorithm + (f"-{self.channels}ch" if self.channels else "")]
        return "_".join([*parts, *([self.change] if self.change else [])])


def cases(gpus: int) -> Iterator[tuple[Case, tuple[int, ...]]]:
    """Every case that fits on `gpus` GPUs, at most two devices on each, with its sizes; the most telling first."""
    for case, sizes in _wanted(gpus):
        if len(case.members + case.relays) <= gpus or places(machine_of(case), gpus):
            yield case, sizes


def _wanted(gpus: int) -> Iterator[tuple[Case, tuple[int, ...]]]:
    """Every case with so few devices that two on each of the GPUs would do."""
    room = min(8, 2 * gpus)
    yield from _controlled(room)
    yield from _parts(PARTS, room)
    if gpus >= 4:
        yield from tenants()
    yield from _parts(LARGE_PARTS, room)
    if len(HALF_NODE) <= room:
        for algorithm in ("hierarchical", "packed", "rings"):
            yield Case("aurora", HALF_NODE, "allreduce", algorithm), SIZES


def _controlled(room: int) -> Iterator[tuple[Case, tuple[int, ...]]]:
    """Packed trees for a quad and a whole machine of at most `room` devices, and their controls."""
    for machine in ("dgx1-v100", "dgx1-p100"):
        for part in ("0123", "01234567"):
            if len(part) <= room:
                for change in ("", "skewed", "degraded"):
                    yield Case(machine, part, "allreduce", "packed", change=change), (64 * MIB, 256 * MIB)


def _parts(parts: Mapping[str, Sequence[str]], room: int) -> Iterator[tuple[Case, tuple[int, ...]]]:
    """Every algorithm on those of some machines' parts that have at most `room` devices."""
    for machine, part in ((machine, part) for machine, several in parts.items() for part in several):
        if len(part) > room:
            continue
        for algorithm in ALLREDUCE:
            small = SMALL_SIZES if "mxnet" in algorithm and part in ("0123", "01234567") else ()
            yield Case(machine, part, "allreduce", algorithm), (*SIZES, *small)
        for algorithm in BROADCAST:
            yield Case(machine, part, "broadcast", algorithm), SIZES


def tenants() -> Iterator[tuple[Case, tuple[int, ...]]]:
    """Blink+: two GPUs of a quad, alone and with the other two."""
    for tenant in ("01", "03"):
        helpers = "".join(x for x in "0123" if x not in tenant)
        for collective in ("broadcast", "allreduce"):
            yield Case("dgx1-v100", tenant, collective, "packed"), TENANT_SIZES
            for channels in (1, 2, 3, 4):
                yield Case("dgx1-v100", tenant, collective, "blinkplus", helpers, channels), TENANT_SIZES


def machine_of(case: Case) -> Topology:
    """The part of a machine that a case runs on."""
    from blinksim import machines

    if case.machine == "aurora":
        return half_node()
    members = [f"gpu{i}" for i in case.members]
    return machines.load(case.machine).select(
        members, [f"gpu{i}" for i in case.relays], relays_reduce=bool(case.relays)
    )


def half_node() -> Topology:
    """Three cards of Aurora. MDFI counts as four lanes of an Xe link: nominally, it is 220 GB/s against 53."""
    from blinksim import machines

    tiles = [f"card{i // 2}.t{i % 2}" for i in map(int, HALF_NODE)]
    part = machines.load("aurora").select(tiles, links=["mdfi", "xe"])
    lane = Fraction(53 * 10**9)
    links = [replace(x, lanes=4 if x.kind == "mdfi" else 1, lane_bandwidth=lane) for x in part.links]
    return part.with_links(links)


def build(case: Case) -> Schedule:
    """The schedule of a case, verified before a control changes it."""
    from blinksim.answers.synthesize import synthesize
    from blinksim.gpu.execution.emulate import lanes_apart
    from blinksim.schedule.verify import verify

    machine, collective = machine_of(case), Collective(case.collective)
    options: dict[str, Any] = {"channels": case.channels} if case.channels else {}
    algorithm, _, trees = case.algorithm.partition("-")
    if trees:
        options["trees"] = trees
    if algorithm == "nccl":
        made = nccl_rings(case)
    else:
        made = synthesize(machine, collective, algorithm, **options).schedule
    verdict = verify(made)
    if not verdict.ok:
        raise SystemExit(f"{case.name} does not verify: {verdict.reasons}")
    lanes_apart(made)  # refuses what does not keep to single links
    return changed(made, case.change)


def nccl_rings(case: Case) -> Schedule:
    """The rings that NCCL would choose on the real machine."""
    from blinksim import machines
    from blinksim.algorithms import ring
    from blinksim.nccl.tuner.tuner import predict

    machine = machine_of(case)
    rank = {name: number for number, name in enumerate(machine.members)}
    found = predict(machines.load(case.machine, rates="nccl"), machine.members).orders["ring"]
    orders = [tuple(rank[name] for name in order) for order in found]
    return replace(ring.build(machine, Collective(case.collective), orders), algorithm="nccl")


def places(topology: Topology, gpus: int) -> list[int] | None:
    """The GPU of every rank: one each while there are enough, else pairs of ranks without a link between them; None
    where there are too few such pairs."""
    import networkx as nx

    ranks = len(topology.members)
    if ranks <= gpus:
        return list(range(ranks))
    apart = nx.complement(nx.Graph([(x.src, x.dst) for x in topology.links if {x.src, x.dst} <= {*topology.members}]))
    pairs = sorted(tuple(sorted(pair)) for pair in nx.max_weight_matching(apart, maxcardinality=True))
    if ranks - len(pairs) > gpus:
        return None
    place: dict[str, int] = {}
    for number, pair in enumerate(pairs[: ranks - gpus]):
        place |= dict.fromkeys(pair, number)
    for member in topology.members:
        place.setdefault(member, 1 + max(place.values(), default=-1))
    return [place[member] for member in topology.members]


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
    from blinksim.topology.shapes import fully_connected

    for length in range(2, min(gpus, 4) + 1):
        for collective in ("broadcast", "reduce"):
            machine = fully_connected(length).select()
            yield f"line-{length}-{collective}", REGISTRY["chain"].build(machine, Collective(collective))


def piece_for(schedule: Schedule, size: int, lane: int | None) -> int:
    """Bytes of a piece."""
    from blinksim.gpu.execution.emulate import wire_piece

    rate, overhead = BLOCK[lane]
    return wire_piece(schedule, size, rate * overhead)


@dataclass(frozen=True)
class Bench:
    """The GPUs, and the results of both kinds of lanes. lanes: the kinds to measure. only: a part of a case's name."""

    gpus: int
    results: Mapping[int | None, Notebook]
    lanes: Sequence[int | None]
    only: str
    iterations: int

    def measure(self, part: str, name: str, schedule: Schedule, size: int, piece: int, lane: int | None) -> None:
        """Runs a schedule once, unless the results have it already or time is up."""
        keys, notes = {"case": name, "size_bytes": size, "piece_bytes": piece, "lane_GBps": lane}, self.results[lane]
        if notes.out_of_time or lane not in self.lanes or notes.has(part, **keys) or self.only not in name:
            return
        place = places(schedule.topology, self.gpus) if schedule.topology.ranks > self.gpus else None
        cut: dict[str, Any] = {"lane_blocks": 1, "lane_rate": lane and lane * 1e9, "piece_bytes": piece}
        cut |= {"gpus": place, "warmup": 2, "iterations": self.iterations, "apart": True}
        done = execute(schedule, size, executor="cupy", **cut)
        time_us, algbw, _ = measured(done)
        found = {"wrong": done.wrong, "time_s": done.time_s, "times_s": list(done.times_s)}
        notes.add(part, {**keys, "gpus": place, **found})
        print(f"{name:<52} {size:>11} {piece >> 10:>5} KiB {lane or '':>4} {time_us:>10.1f} us {algbw:>7.1f} GB/s")
        if done.wrong:
            print("WRONG", name, size, done.wrong)

    def measure_lines(self, lane: int | None) -> None:
        """Lines of GPUs, for what a lane of this kind is."""
        for name, schedule in lines(self.gpus):
            for size in LINE_SIZES if lane is FULL else LINE_SIZES[:-1]:
                # Many small pieces of a large vector show nothing new and take long.
                for piece in [piece for piece in LINE_PIECES if size // 8 >= piece >= size // 1024]:
                    self.measure("lines", name, schedule, size, piece, lane)

    def measure_case(self, case: Case, path: Path, sizes: Sequence[int]) -> None:
        """A case, by the schedule in a file."""
        schedule, lane = read_schedule(path), case.lane(self.gpus)
        for size in sizes:
            self.measure("cases", case.name, schedule, size, piece_for(schedule, size, lane), lane)


def run(folder: Path, bench: Bench) -> None:
    """Measures lines for both kinds of lanes, then every case that has a schedule in `folder`."""
    chosen = list(cases(bench.gpus))
    for lane in sorted({case.lane(bench.gpus) for case, _ in chosen}, key=bool):
        bench.measure_lines(lane)
    for case, sizes in chosen:
        path = folder / f"{case.name}.json"
        if path.exists():
            bench.measure_case(case, path, sizes)
    if any(notes.out_of_time for notes in bench.results.values()):
        print("out of time; run again to go on")


def open_results(gpus: int, out: Path, budget: float) -> dict[int | None, Notebook]:
    """The results of both kinds of lanes, to go on with."""
    command = f"python3 validate/recipes/emulated.py --schedules FOLDER --gpus {gpus} --budget {budget:g}"
    deadline = time.monotonic() + budget
    files = {FULL: f"emulated-{gpus}gpu.json", HALF: f"emulated-{gpus}gpu-shared.json"}
    every = {lane: Notebook(out / name, provenance(gpus, command), resume=True) for lane, name in files.items()}
    for notes in every.values():
        notes.deadline = deadline
    return every


def main() -> None:
    parser = arguments(__doc__, 4, 200)
    add_steps(parser, "schedules")
    parser.add_argument("--only", default="", help="run only what has this in its name")
    parser.add_argument("--lanes", choices=("full", "half", "both"), default="both", help="one device on a GPU, or two")
    parser.add_argument("--iterations", type=int, default=8)
    options = parser.parse_args()

    def use(folder: Path) -> None:
        lanes = {"full": (FULL,), "half": (HALF,), "both": (FULL, HALF)}[options.lanes]
        results = open_results(options.gpus, options.out, options.budget)
        run(folder, Bench(options.gpus, results, lanes, options.only, options.iterations))

    take_steps(parser, options, lambda folder: make(folder, options.gpus), use)


if __name__ == "__main__":
    script(main, __file__)
