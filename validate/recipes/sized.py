"""Schedules for a size on emulated lanes: is the one that ``synth --size`` takes the quickest of all that are measured?

    PYTHONPATH=. python3 validate/recipes/sized.py --make FOLDER --gpus 4
    PYTHONPATH=. NCCL_NVLS_ENABLE=0 python3 validate/recipes/sized.py --schedules FOLDER --gpus 4 --out results

The first writes schedule files and needs OR-Tools but no GPU; the second runs them and needs GPUs but no solver. The
machine is a part of a DGX-1V whose lanes are links of their own, with the rate, overhead and latency that lines of GPUs
had when they were emulated (`lane.py`). Such a lane sends every chunk by itself, and the choice counts single messages.
Rivals are all that the registry builds, on these lanes and on the links they are lanes of; those that the simulated
program (`program_time.py`) sees more than half behind the first are left out. Each schedule runs in pieces of several
sizes, and its best time counts.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Before CuPy loads NCCL: in-switch reduction is another machine than the one that is measured here.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

from blinksim.collective import Collective
from blinksim.errors import BlinksimError
from blinksim.results import table
from blinksim.units import format_size, format_time
from validate.recipes.arguments import add_steps, arguments, script, take_steps
from validate.recipes.figures import HERE
from validate.recipes.lane import Lane, fit_lane

if TYPE_CHECKING:
    from blinksim.schedule.model import Schedule
    from blinksim.topology.graph import Topology

MACHINE, PARTS = "dgx1-v100", {4: ("0123",)}
COLLECTIVES, SIZES = ("allreduce", "allgather", "broadcast"), (64 << 10, 1 << 20, 16 << 20)
# What the lines of this result say of a lane, with the kernel that is run today, and what a sum costs beside.
LINES, WAYS = "emulated-8gpu.json", "ways-8gpu.json"
# Seconds for a rival; how many times as long as the quickest one may take; what counts as equally quick.
BUILD_S, TOO_LONG, ALIKE = 8, 1.5, 1.05
CHOICES = "choices.json"


@cache
def known_lane() -> Lane:
    """What a lane does when it is emulated."""
    return fit_lane(json.loads((HERE / "results" / LINES).read_text())["lines"])


def machines_for(part: str, size: int) -> tuple[Topology, Topology]:
    """The part with lanes as measured: every lane a link of its own, and links of several lanes."""
    from blinksim import machines
    from blinksim.gpu.execution.emulate import lane_links

    lane, whole = known_lane(), machines.load(MACHINE).select([f"gpu{i}" for i in part])
    rate, overhead, latency = Fraction(round(lane.rate(size))), lane.overhead_s, lane.latency_s
    links = whole.with_links(
        [replace(link, lane_bandwidth=rate, overhead=overhead, latency=latency) for link in whole.links]
    )
    return lane_links(links)[0], links


def pieces_for(schedule: Schedule, size: int) -> list[int]:
    """Bytes of a piece: what should fill the pipeline, half and twice that, and messages as the schedule has them."""
    from blinksim.gpu.execution.emulate import wire_piece

    usual = wire_piece(schedule, size)
    return sorted({min(piece, size) for piece in (usual // 2, usual, 2 * usual, size)})


def expected(schedule: Schedule, size: int) -> float:
    """Seconds that the program should take with its best pieces."""
    from blinksim.gpu.execution.emulate import emulate
    from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
    from validate.recipes.calibration import further_source
    from validate.recipes.program_time import program_time

    source = further_source(json.loads((HERE / "results" / WAYS).read_text()))
    kind, pieces = ELEMENT_TYPES["float32"], pieces_for(schedule, size)
    programs = [emulate(schedule, size // kind.itemsize, kind, 1, piece)[0] for piece in pieces]
    return min(program_time(program, known_lane(), size, source) for program in programs)


def rivals(part: str, collective: str, size: int) -> Iterator[tuple[str, Schedule]]:
    """All that the registry builds quickly, on lanes and on links, by name."""
    from blinksim.algorithms.registry import REGISTRY
    from blinksim.answers.synthesize import synthesize

    for where, machine in zip(("lanes", "links"), machines_for(part, size), strict=True):
        for entry in REGISTRY.values():
            limit: dict[str, Any] = {"time_limit": BUILD_S} if "time_limit" in entry.options() else {}
            if entry.supports(collective):
                try:
                    made = synthesize(machine, Collective(collective), entry.name, size=size, **limit)
                    yield f"{entry.name}-{where}", made.schedule
                except BlinksimError as error:
                    print(f"skipped {entry.name} on {where}: {error}")


def make(folder: Path, gpus: int) -> None:
    """Writes the schedule that is chosen for every question, and its rivals."""
    from blinksim.answers.synthesize import synthesize
    from blinksim.formats.schedule_json import write_schedule

    folder.mkdir(parents=True, exist_ok=True)
    choices = []
    for part, collective, size in ((p, c, s) for p in PARTS[gpus] for c in COLLECTIVES for s in SIZES):
        made = synthesize(machines_for(part, size)[0], Collective(collective), size=size, messages="single")
        assert made.at is not None
        chosen = f"{made.schedule.algorithm}-lanes"
        every = {**dict(rivals(part, collective, size)), chosen: made.schedule}
        times = {}
        for name, schedule in every.items():
            try:
                times[name] = expected(schedule, size)
            except BlinksimError as error:
                print(f"skipped {name}: {error}")
        first = min(times.values())
        kept = sorted(name for name in times if name == chosen or times[name] <= TOO_LONG * first)
        for name in kept:
            write_schedule(every[name], folder / f"{part}-{collective}-{size}-{name}.json", force=True)
        question = {"members": part, "collective": collective, "size_bytes": size}
        service = made.at.projection.details.get("service")
        said = {"simulated_s": made.at.time_s, "service": service, "expected_s": {x: times[x] for x in kept}}
        choices.append({**question, "chosen": chosen, **said})
        ahead = f"expected {format_time(times[chosen])}, the quickest {format_time(first)}, {len(kept)} schedules"
        print(f"{part} {collective} {format_size(size)}: {chosen}, simulated {format_time(made.at.time_s)}, {ahead}")
    (folder / CHOICES).write_text(json.dumps(choices, indent=1))


def run(folder: Path, gpus: int, out: Path, budget: float) -> None:
    """Runs every schedule with all of its pieces, and prints the cells."""
    from blinksim.formats.schedule_json import read_schedule
    from blinksim.gpu.execution.run import execute
    from validate.recipes.notes import Notebook, measured, provenance

    command = f"python3 validate/recipes/sized.py --schedules FOLDER --gpus {gpus} --budget {budget:g}"
    out.mkdir(parents=True, exist_ok=True)
    notes = Notebook(out / f"sized-{gpus}gpu.json", provenance(gpus, command), resume=True)
    notes.deadline = time.monotonic() + budget
    for choice in json.loads((folder / CHOICES).read_text()):
        question = {key: choice[key] for key in ("members", "collective", "size_bytes")}
        if notes.has("choices", **question):
            continue
        size = choice["size_bytes"]
        for name in choice["expected_s"]:
            schedule = read_schedule(folder / f"{choice['members']}-{choice['collective']}-{size}-{name}.json")
            for piece in pieces_for(schedule, size):
                if notes.out_of_time:
                    print("out of time; run again to go on")
                    return
                cut: dict[str, Any] = {"lane_blocks": 1, "piece_bytes": piece, "apart": True}
                done = execute(schedule, size, executor="cupy", warmup=5, iterations=20, **cut)
                row = {**question, "schedule": name, "piece_bytes": piece, "wrong": done.wrong, "time_s": done.time_s}
                notes.add("times", row)
                print(f"{name:<28} {size:>9} {piece:>9} {measured(done)[0]:>9.1f} us, {done.wrong} wrong", flush=True)
        notes.add("choices", choice)
    print(text(notes.content))


@dataclass(frozen=True)
class Cell:
    """A question, what was chosen for it and what is quickest, by name and in seconds.

    by_program_s: of the schedule that the simulated program says is quickest. among: schedules measured.
    """

    members: str
    collective: str
    size: int
    chosen: str
    chosen_s: float
    simulated_s: float
    expected_s: float
    quickest: str
    quickest_s: float
    by_program_s: float
    among: int

    @property
    def ratio(self) -> float:
        return self.chosen_s / self.quickest_s


def cells(content: Mapping[str, Any]) -> list[Cell]:
    """The cells of a result, every schedule with its best pieces."""
    found = []
    for choice in content["choices"]:
        part, collective, size = question = tuple(choice[key] for key in ("members", "collective", "size_bytes"))
        best: dict[str, float] = {}
        for row in content["times"]:
            if (row["members"], row["collective"], row["size_bytes"]) == question:
                best[row["schedule"]] = min(row["time_s"], best.get(row["schedule"], row["time_s"]))
        first, chosen = min(best, key=lambda name: best[name]), choice["chosen"]
        expected = choice["expected_s"]
        said, program = (choice["simulated_s"], expected[chosen]), best[min(expected, key=lambda name: expected[name])]
        found.append(Cell(part, collective, size, chosen, best[chosen], *said, first, best[first], program, len(best)))
    return found


def text(content: Mapping[str, Any]) -> str:
    """A table of the cells, and how many are met."""
    times = ("simulated", "expected", "measured")
    head = ("GPUs", "collective", "size", "chosen", *times, "quickest", "measured", "ratio")
    found = cells(content)
    rows = [
        [cell.members, cell.collective, format_size(cell.size), cell.chosen]
        + [format_time(x) for x in (cell.simulated_s, cell.expected_s, cell.chosen_s)]
        + [cell.quickest, format_time(cell.quickest_s), f"{cell.ratio:.3f}"]
        for cell in found
    ]
    met = sum(cell.ratio <= ALIKE for cell in found)
    by_program = sum(cell.by_program_s <= ALIKE * cell.quickest_s for cell in found)
    said = f"{met} of {len(found)} within {ALIKE - 1:.0%} of the quickest; by the simulated program, {by_program}"
    return f"{table(head, rows, left=(0, 1, 3, 7))}\n{said}"


def main() -> None:
    parser = arguments(__doc__, 4, 200)
    add_steps(parser, "schedules")
    options = parser.parse_args()
    if options.gpus not in PARTS:
        parser.error(f"--gpus {options.gpus}: there are parts for {', '.join(map(str, PARTS))} GPUs")
    take_steps(
        parser,
        options,
        lambda folder: make(folder, options.gpus),
        lambda folder: run(folder, options.gpus, options.out, options.budget),
    )


if __name__ == "__main__":
    script(main, __file__)
