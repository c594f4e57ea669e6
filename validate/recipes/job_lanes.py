"""Schedules on the lanes of a DGX-1V in a training job: NCCL's rings, packed trees, and for each size what is quickest.

    PYTHONPATH=. python3 validate/recipes/job_lanes.py --make FOLDER
    PYTHONPATH=. NCCL_NVLS_ENABLE=0 python3 validate/recipes/job_lanes.py --schedules FOLDER --gpus 4 --out results

The first writes the schedules and needs OR-Tools but no GPU; the second needs GPUs but no solver. A process runs each
GPU, every lane of a link is one thread block of its launch, and nothing leaves a GPU any other way. Rings are those of
NCCL's search on the same part. What is quickest is said by the simulated program (`program_time.py`), with the numbers
of a lane as it was measured before: `by_size` has a rule for every range of sizes, of rings, trees and messages in few
rounds. All move the gradients of the transformer of `training_job.py`, in turn, a burst of steps each.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from blinksim.errors import BlinksimError
from validate.recipes.arguments import add_steps, arguments, script, take_steps
from validate.recipes.figures import HERE
from validate.recipes.notes import Notebook, provenance
from validate.recipes.sized import WAYS, known_lane, machines_for
from validate.recipes.training_job import Rows, Training, call, in_turn, run, start, tensors, time_graph

if TYPE_CHECKING:
    from blinksim.schedule.model import Schedule

MACHINE, PARTS, ALGORITHMS, BY_SIZE = "dgx1-v100", ("0145", "0123"), ("nccl", "packed"), "by_size"
SIZES = tuple(1 << power for power in range(16, 29, 2))
# Where the search looks for messages in few rounds, and where rules may change: a rule ends half way to the next size.
SMALL, RULES = (64 << 10, 256 << 10, 1 << 20), tuple(1 << power for power in range(16, 29))
# Trees need long vectors to fill: all gradients at once, as well as DDP's default. Steps of each.
BUCKETS_MB, STEPS = (25, 200), 200
# So that no vector is moved in more than one launch; blocks of such a launch, as in a job by default.
BUFFER, BLOCKS = "2GiB", 64


def make(folder: Path) -> None:
    """Writes the schedules, each with the rules by which a job runs it, and the rules by size."""
    from blinksim.answers.synthesize import synthesize
    from blinksim.collective import Collective
    from blinksim.formats.schedule_json import write_schedule
    from blinksim.gpu.execution.emulate import lanes_apart
    from validate.recipes.emulated import Case, build

    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        every = {name: build(Case(MACHINE, part, "allreduce", name)) for name in ALGORITHMS}
        for size in SMALL:
            lanes = machines_for(part, size)[0]
            made = synthesize(lanes, Collective("allreduce"), size=size, messages="single").schedule
            try:
                lanes_apart(made)
            except BlinksimError as error:  # a message that passes through a GPU has no lane of its own
                print(f"{part} {size >> 10} KiB: left out, {error}")
            else:
                every[f"{made.algorithm}-{size >> 10}KiB"] = made
        for name, schedule in every.items():
            write_schedule(schedule, folder / f"{part}-{name}.json", force=True)
        for name in ALGORITHMS:
            write_rules(folder, part, name, [(None, name)])
        best = [(size, quickest(every, size)) for size in RULES]
        rows = [(list(alike)[-1][0], name) for name, alike in groupby(best, key=lambda row: row[1])]
        write_rules(folder, part, BY_SIZE, [(size * 3 // 2, name) for size, name in rows[:-1]] + [(None, rows[-1][1])])


def write_rules(folder: Path, part: str, name: str, rows: list[tuple[int | None, str]]) -> None:
    """rows: (bytes that a rule is for, at most, or None; name of a schedule)."""
    rules: list[dict[str, Any]] = []
    for most, schedule in rows:
        limit = {} if most is None else {"up_to": f"{most >> 10}KiB"}
        what = {"schedule": f"{part}-{schedule}.json", "lane_blocks": 1}
        rules.append({"collective": "allreduce", **limit, **what})
        print(part, name, limit.get("up_to", "any size"), schedule)
    (folder / f"{part}-{name}-rules.json").write_text(json.dumps(rules))


def quickest(every: dict[str, Schedule], size: int) -> str:
    """The name of the schedule whose program, as a job runs it, takes the least time for a vector of `size` bytes."""
    from blinksim.gpu.execution.emulate import emulate, wire_piece
    from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
    from validate.recipes.calibration import further_source
    from validate.recipes.program_time import program_time

    source = further_source(json.loads((HERE / "results" / WAYS).read_text()))
    kind = ELEMENT_TYPES["float32"]
    times = {}
    for name, schedule in every.items():
        piece = wire_piece(schedule, size)
        program, _ = emulate(
            schedule, size // kind.itemsize, kind, 1, piece, in_place=True, staged=True, most_blocks=BLOCKS
        )
        times[name] = program_time(program, known_lane(), size, source)
    return min(times, key=lambda name: times[name])


def job(rank: int, ranks: int, port: int, folder: Path, path: Path) -> Rows:
    """Everything, in one job; rank 0 writes the results."""
    import torch

    dist = start(rank, ranks, port)
    nccl = dist.new_group(backend="nccl")
    notes = Notebook(path, provenance(ranks, " ".join(sys.argv)), resume=True) if rank == 0 else None
    os.environ["BLINKSIM_BUFFER"] = BUFFER
    for part in PARTS:
        groups: dict[str, Any] = {}
        for name in (*ALGORITHMS, BY_SIZE):
            rules = folder / f"{part}-{name}-rules.json"
            os.environ["BLINKSIM_PLAN"] = str(rules)
            groups[name] = dist.new_group(list(range(ranks)))
            _note(notes, "rules", {"members": part, "algorithm": name, "rules": json.loads(rules.read_text())})
        what = {"machine": MACHINE, "members": part}
        for row in times(torch, dist, nccl, groups, rank, ranks):
            _note(notes, "times", {**what, **row})
        for bucket in BUCKETS_MB:
            for row in steps(torch, dist, groups, rank, bucket):
                _note(notes, "ddp", {**what, "bucket_mb": bucket, **row})
    dist.destroy_process_group()
    return []


def times(torch: Any, dist: Any, nccl: Any, groups: dict[str, Any], rank: int, ranks: int) -> Rows:
    """Microseconds of an allreduce by the schedules of each group, and how many elements of all ranks are wrong."""
    rows: Rows = []
    for size in SIZES:
        for name, group in groups.items():
            ours, theirs = (tensors(torch, "allreduce", size // 4, ranks, torch.float32, rank) for _ in range(2))
            call(dist, "allreduce", *ours, group=group)
            call(dist, "allreduce", *theirs, group=nccl)
            wrong = float((ours[1] != theirs[1]).sum())
            found = time_graph(torch, lambda: call(dist, "allreduce", *ours, group=group), size)  # noqa: B023
            sums = torch.tensor([found, wrong], device="cuda")
            dist.all_reduce(sums, group=nccl)
            total, wrong = sums.tolist()
            rows.append({"algorithm": name, "size_bytes": size, "time_us": total / ranks, "wrong": int(wrong)})
    return rows


def steps(torch: Any, dist: Any, groups: dict[str, Any], rank: int, bucket_mb: int) -> Rows:
    """The same training with each group, in turn."""
    trained = {name: Training(torch, dist, group, rank, "ddp", bucket_mb=bucket_mb) for name, group in groups.items()}
    return [
        {"algorithm": name, "step_ms": median(bursts), "bursts_ms": bursts, "losses": trained[name].losses}
        for name, bursts in in_turn(trained, STEPS).items()
    ]


def _note(notes: Notebook | None, part: str, row: dict[str, Any]) -> None:
    if notes is not None:
        notes.add(part, row)
        print({key: value for key, value in row.items() if key not in ("losses", "bursts_ms", "rules")}, flush=True)


def main() -> None:
    parser = arguments(__doc__, gpus=4)
    add_steps(parser, "schedules")
    given = parser.parse_args()

    def use(folder: Path) -> None:
        given.out.mkdir(parents=True, exist_ok=True)
        for answer in run(job, given.gpus, folder.resolve(), given.out / f"job-lanes-{given.gpus}gpu.json"):
            print(answer or "", end="")

    take_steps(parser, given, make, use)


if __name__ == "__main__":
    script(main, __file__)
