"""Part of a DGX-1V on the GPUs of this machine, lane by lane, inside a training job: packed trees beside NCCL's rings.

    PYTHONPATH=. python3 validate/recipes/job_lanes.py --make FOLDER
    PYTHONPATH=. NCCL_NVLS_ENABLE=0 python3 validate/recipes/job_lanes.py --schedules FOLDER --gpus 4 --out results

The first writes the schedules and needs OR-Tools but no GPU; the second needs GPUs but no solver. A process runs each
GPU, every lane of a link is one thread block of its launch, and nothing leaves a GPU any other way. Rings are those of
NCCL's search on the same part. Both move the gradients of the transformer of `training_job.py`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from validate.recipes.arguments import add_steps, arguments, script, take_steps
from validate.recipes.notes import Notebook, provenance
from validate.recipes.training_job import Rows, call, run, start, tensors, time_graph, train

MACHINE, PARTS, ALGORITHMS = "dgx1-v100", ("0145", "0123"), ("nccl", "packed")
SIZES = tuple(1 << power for power in range(20, 29, 2))
# Trees need long vectors to fill: all gradients at once, as well as DDP's default. Sequences of a step, and steps.
BUCKETS_MB, BATCH, STEPS = (25, 200), 32, 250
# So that no vector is moved in more than one launch.
BUFFER = "2GiB"


def make(folder: Path) -> None:
    """Writes the schedules, each with the rules by which a job runs it."""
    from blinksim.formats.schedule_json import write_schedule
    from validate.recipes.emulated import Case, build

    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        for algorithm in ALGORITHMS:
            name = f"{part}-{algorithm}"
            write_schedule(build(Case(MACHINE, part, "allreduce", algorithm)), folder / f"{name}.json", force=True)
            rules = [{"collective": "allreduce", "schedule": f"{name}.json", "lane_blocks": 1}]
            (folder / f"{name}-rules.json").write_text(json.dumps(rules))


def job(rank: int, ranks: int, port: int, folder: Path, path: Path) -> Rows:
    """Everything, in one job; rank 0 writes the results."""
    import torch

    dist = start(rank, ranks, port)
    nccl = dist.new_group(backend="nccl")
    notes = Notebook(path, provenance(ranks, " ".join(sys.argv)), resume=True) if rank == 0 else None
    os.environ["BLINKSIM_BUFFER"] = BUFFER
    for part in PARTS:
        groups: dict[str, Any] = {}
        for algorithm in ALGORITHMS:
            os.environ["BLINKSIM_PLAN"] = str(folder / f"{part}-{algorithm}-rules.json")
            groups[algorithm] = dist.new_group(list(range(ranks)))
        for algorithm, group in groups.items():
            what = {"machine": MACHINE, "members": part, "algorithm": algorithm}
            for row in times(torch, dist, nccl, group, rank, ranks):
                _note(notes, "times", {**what, **row})
        for bucket in BUCKETS_MB:
            for algorithm, group in groups.items():
                losses, step = train(torch, dist, group, rank, "ddp", STEPS, BATCH, bucket)
                what = {"machine": MACHINE, "members": part, "algorithm": algorithm}
                _note(notes, "ddp", {**what, "bucket_mb": bucket, "step_ms": step * 1e3, "losses": losses})
    dist.destroy_process_group()
    return []


def times(torch: Any, dist: Any, nccl: Any, group: Any, rank: int, ranks: int) -> Rows:
    """Microseconds of an allreduce by the schedule of a group, and how many elements of all ranks are wrong."""
    rows: Rows = []
    for size in SIZES:
        ours, theirs = (tensors(torch, "allreduce", size // 4, ranks, torch.float32, rank) for _ in range(2))
        call(dist, "allreduce", *ours, group=group)
        call(dist, "allreduce", *theirs, group=nccl)
        wrong = float((ours[1] != theirs[1]).sum())
        found = time_graph(torch, lambda: call(dist, "allreduce", *ours, group=group), size)  # noqa: B023
        sums = torch.tensor([found, wrong], device="cuda")
        dist.all_reduce(sums, group=nccl)
        total, wrong = sums.tolist()
        rows.append({"size_bytes": size, "time_us": total / ranks, "wrong": int(wrong)})
    return rows


def _note(notes: Notebook | None, part: str, row: dict[str, Any]) -> None:
    if notes is not None:
        notes.add(part, row)
        print({key: value for key, value in row.items() if key != "losses"}, flush=True)


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
