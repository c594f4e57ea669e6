"""Times algorithms and both protocols between processes, one for each GPU: the rules of a job are chosen from them.

    PYTHONPATH=. python3 validate/recipes/job_scan.py --gpus 4 --out results --plan plan.json
    PYTHONPATH=. python3 validate/recipes/job_scan.py --gpus 4 --out results --blocks 64 96 128 --least 16MiB

Without PyTorch: calls of a group in a captured CUDA graph, the median of three replays on rank 0. ``--plan`` writes the
rules that follow, for jobs on this machine (``BLINKSIM_PLAN``).
"""

from __future__ import annotations

import csv
import json
import math
import multiprocessing
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median

from blinksim.algorithms.registry import REGISTRY
from blinksim.collective import ON_TREES
from blinksim.gpu.execution.gpu_devices import require_cupy
from blinksim.gpu.jobs.backend import GpuBackend
from blinksim.gpu.jobs.group import FolderStore, Group
from blinksim.gpu.jobs.job_plan import JobPlan, Rule
from blinksim.gpu.programs.dtypes import element_type
from blinksim.gpu.programs.of_calls import BLOCKS, Call
from blinksim.units import size_of
from validate.recipes.arguments import arguments, script

ALGORITHMS = (
    "direct", "two_shot", "ring", "chain", "binary", "double_binary", "halving_doubling", "recursive_doubling",
)  # fmt: skip
SIZES = tuple(1 << power for power in range(10, 29, 2))
# Packets lose beyond, flags before; a direct allreduce sends everything to everyone.
MOST_PACKETS, LEAST_SIMPLE, MOST_DIRECT = 1 << 24, 1 << 20, 1 << 22
CALLS, LONG_CALLS, LONG = 20, 5, 1 << 26
# A rule goes on to the next size where it is so near to the quickest.
ALIKE = 1.01


def worth_a_look(collective: str, size: int, algorithm: str, protocol: str) -> bool:
    if not REGISTRY[algorithm].supports(collective):
        return False
    if (collective, algorithm) == ("allreduce", "direct") and size > MOST_DIRECT:
        return False
    return size <= MOST_PACKETS if protocol == "ll128" else size >= LEAST_SIMPLE


def time_call(group: Group, call: Call, source: int, target: int) -> float:
    """Microseconds."""
    backend = group.backend
    assert isinstance(backend, GpuBackend)
    cupy, stream = require_cupy(), backend.stream
    group.run(call, source, target)
    group.finish()
    calls = LONG_CALLS if call.nbytes >= LONG else CALLS
    stream.begin_capture()
    for _ in range(calls):
        group.run(call, source, target)
    graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    found = []
    for _ in range(3):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record(stream)
        graph.launch(stream)
        end.record(stream)
        stream.synchronize()
        found.append(cupy.cuda.get_elapsed_time(begin, end) / calls * 1e3)
    group.check()
    return float(median(found))


def work(rank: int, ranks: int, folder: str, blocks: list[int], sizes: list[int], path: Path) -> None:
    cupy = require_cupy()
    cupy.cuda.Device(rank).use()
    rows: list[tuple[object, ...]] = []
    for number in blocks:
        group = Group(FolderStore(f"{folder}/{number}"), rank, JobPlan.for_switch(ranks), GpuBackend(rank, 0, number))
        rows += scan(group, sizes)
        group.close()
    if rank == 0:
        with path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["collective", "size_bytes", "algorithm", "protocol", "blocks", "time_us"])
            writer.writerows(rows)


def scan(group: Group, sizes: list[int]) -> list[tuple[object, ...]]:
    """Everything worth a look, by one group."""
    cupy, kind, rows = require_cupy(), element_type("float32"), list[tuple[object, ...]]()
    ranks, plan = group.ranks, group.planner.plan
    for collective in ON_TREES:
        for size in sizes:
            count = size // kind.itemsize
            source = cupy.ones(count, dtype=cupy.float32)
            call = Call(collective, count, kind)
            target = source if call.parts(ranks) == 1 else cupy.ones(count, dtype=cupy.float32)
            cupy.cuda.Device().synchronize()
            for algorithm in ALGORITHMS:
                for protocol in ("ll128", "simple"):
                    if not worth_a_look(collective, size, algorithm, protocol):
                        continue
                    group.choose_by(plan.with_rules([Rule(collective, None, algorithm, protocol)], "the scan"))
                    time = time_call(group, call, source.data.ptr, target.data.ptr)
                    rows.append((collective, size, algorithm, protocol, group.backend.blocks, f"{time:.1f}"))
    return rows


def rules_of(rows: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """The rules of a plan that takes what was quickest; a rule ends half way to the next size. rows: as in the file."""
    times: dict[str, dict[int, dict[tuple[str, str], float]]] = {}
    for row in rows:
        cell = times.setdefault(row["collective"], {}).setdefault(int(row["size_bytes"]), {})
        cell[row["algorithm"], row["protocol"]] = float(row["time_us"])
    rules: list[dict[str, str]] = []
    for collective, by_size in times.items():
        own: list[dict[str, str]] = []
        held = ("", "")
        for size, found in sorted(by_size.items()):
            first = min(found, key=lambda name: found[name])
            if found.get(held, math.inf) > ALIKE * found[first]:
                held = first
                own.append({"collective": collective, "up_to": "", "algorithm": first[0], "protocol": first[1]})
            own[-1]["up_to"] = f"{2 * size >> 10}KiB"
        del own[-1]["up_to"]
        rules += own
    return rules


def main() -> None:
    parser = arguments(__doc__, gpus=4)
    parser.add_argument("--blocks", type=int, nargs="+", default=[BLOCKS], help="most thread blocks of a launch")
    parser.add_argument("--least", type=size_of, default=SIZES[0], help="the smallest vector")
    parser.add_argument("--most", type=size_of, default=SIZES[-1], help="the largest vector")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="write the rules that follow there")
    given = parser.parse_args()
    if given.plan and len(given.blocks) > 1:
        parser.error("--plan is for one number of --blocks")
    sizes = [size for size in SIZES if given.least <= size <= given.most]
    given.out.mkdir(parents=True, exist_ok=True)
    path, folder = given.out / f"job-scan-{given.gpus}gpu.csv", tempfile.mkdtemp()
    context = multiprocessing.get_context("spawn")
    job = given.gpus, folder, given.blocks, sizes, path
    ranks = [context.Process(target=work, args=(rank, *job)) for rank in range(given.gpus)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if given.plan:
        with path.open(newline="") as file:
            given.plan.write_text(json.dumps(rules_of(csv.DictReader(file)), indent=1) + "\n")
        print(f"export BLINKSIM_PLAN={given.plan.resolve()}")


if __name__ == "__main__":
    script(main, __file__)
