"""More ranks than GPUs: are the calls of eight right, before there are eight GPUs to run them?

    PYTHONPATH=. python3 validate/recipes/job_ranks.py --gpus 4 --ranks 8 --out results

Processes of one GPU take turns by slices of time, so seconds say nothing of speed. Each collective runs by every rule
that so many GPUs would follow, at sizes from 1 KiB to 256 MiB; a rule's program, tables and memory are those of a GPU
each. Results are compared with the definition of the collective, on whole numbers, so that sums are exact.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from typing import Any

from blinksim.collective import ON_TREES
from blinksim.gpu.execution.gpu_devices import require_cupy
from blinksim.gpu.jobs.backend import GpuBackend
from blinksim.gpu.jobs.group import FolderStore, Group
from blinksim.gpu.jobs.job_plan import JobPlan
from blinksim.gpu.programs.dtypes import element_type
from blinksim.gpu.programs.of_calls import Call
from validate.recipes.arguments import arguments, script
from validate.recipes.notes import Notebook, provenance

SIZES = tuple(1 << power for power in range(10, 29, 2))
TIMEOUT_S = 60.0


def given_by(rank: int, count: int) -> Any:
    """What a rank puts in; elements differ from their neighbours and ranks from each other."""
    cupy = require_cupy()
    return ((cupy.arange(count) * (2 * rank + 3) + rank) % 251).astype(cupy.float32)


def expected(call: Call, rank: int, ranks: int) -> Any:
    """What the target of a rank must hold afterwards."""
    cupy, part = require_cupy(), call.count // call.parts(ranks)
    if call.collective == "allgather":
        return cupy.concatenate([given_by(other, part) for other in range(ranks)])
    if call.collective == "broadcast":
        return given_by(call.root, call.count)
    if call.collective == "reduce" and rank != call.root:
        return given_by(rank, call.count)
    total = given_by(0, call.count)
    for other in range(1, ranks):
        total += given_by(other, call.count)
    return total[rank * part : (rank + 1) * part] if call.collective == "reducescatter" else total


def work(rank: int, ranks: int, gpus: int, folder: str, answers: Any) -> None:
    """All calls on one rank; puts (rank, rows) into the queue."""
    cupy, kind, rows = require_cupy(), element_type("float32"), list[dict[str, Any]]()
    cupy.cuda.Device(rank % gpus).use()
    group = Group(FolderStore(folder), rank, JobPlan.for_switch(ranks), GpuBackend(rank % gpus), timeout_s=TIMEOUT_S)
    for collective in ON_TREES:
        for size in SIZES:
            root = ranks - 1 if collective in ("broadcast", "reduce") else 0
            call = Call(collective, size // kind.itemsize, kind, root=root)
            part = call.count // call.parts(ranks)
            source = given_by(rank, part if collective == "allgather" else call.count)
            target = source
            if call.parts(ranks) > 1:
                target = cupy.full(part if collective == "reducescatter" else call.count, -1, dtype=cupy.float32)
            wanted = expected(call, rank, ranks)
            cupy.cuda.Device().synchronize()
            turn, begin = group.prepare(call)[0], time.perf_counter()
            group.run(call, source.data.ptr, target.data.ptr)
            group.finish()
            row = {"collective": collective, "size_bytes": size, "by": turn.by, "rounds": turn.rounds}
            wrong = int((target != wanted).sum())
            rows.append({**row, "wrong": wrong, "seconds": round(time.perf_counter() - begin, 4)})
    group.close()
    answers.put((rank, rows))


def main() -> None:
    parser = arguments(__doc__, gpus=4)
    parser.add_argument("--ranks", type=int, default=8)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    context, folder = multiprocessing.get_context("spawn"), tempfile.mkdtemp()
    answers: Any = context.Queue()
    job = given.ranks, given.gpus, folder, answers
    processes = [context.Process(target=work, args=(rank, *job)) for rank in range(given.ranks)]
    for process in processes:
        process.start()
    found = dict(answers.get(timeout=500) for _ in processes)
    for process in processes:
        process.join()
    notes = Notebook(given.out / f"job-ranks-{given.gpus}gpu.json", provenance(given.gpus, " ".join(sys.argv)))
    for rows in zip(*(found[rank] for rank in range(given.ranks)), strict=True):
        wrong = sum(row["wrong"] for row in rows)
        notes.add("calls", {"ranks": given.ranks, **rows[0], "wrong": wrong})
        print({**rows[0], "wrong": wrong}, flush=True)


if __name__ == "__main__":
    script(main, __file__)
