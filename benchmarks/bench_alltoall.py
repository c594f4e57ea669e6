"""Alltoall and the traffic of experts on 8 to 2,048 GPUs: CPU seconds, memory, and how far schedules are from bounds.

    python benchmarks/bench_alltoall.py [--runs N] [--gpus 8,64,512] [--machine hgx-h100]
    python benchmarks/bench_alltoall.py --messages [--nodes 8,64,512,4096] [--machine hgx-h100]

The second form times equal blocks by alpha and beta, from few messages to many, beside the bound of their bytes.

One process for every row, so that its memory is its own. Traffic: equal blocks; the dispatch of experts (4,096 tokens
of 14 KiB a GPU, top 8 of 4 experts a GPU) with an even router, with Zipf's exponent 0.8, and with 1.2; one GPU that
takes 20 times as much as the others; a node whose GPUs take 10 times as much; a fiftieth of all pairs at random; bands,
in which ranks send to the 24 before and after them; and a sparse matrix of heavy-tailed blocks. Aims: the exact bound
of any matrix on 1,024 GPUs in 2 s; on 512 GPUs a verified schedule within 5 % of it in 30 s. PCCL reports 11.68 minutes
for an alltoall of 512 NPUs on a machine of its own choice (arXiv 2606.07019): a figure for scale, not a comparison of
like with like.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from time import process_time

import numpy as np

import blinksim as bs
from blinksim.algorithms.registry import candidates
from blinksim.collective import Collective
from blinksim.timing.alpha_beta import cost
from blinksim.timing.contest import said_once
from blinksim.traffic import Traffic
from blinksim.units import format_time, size_of

KINDS = (
    "equal", "experts", "experts, 0.8", "experts, 1.2", "hot GPU", "hot node", "random", "banded", "heavy tail",
)  # fmt: skip
_BLOCK = 2**16
SIZES = ("64KiB", "1MiB", "16MiB", "64MiB", "256MiB", "1GiB", "8GiB")


def traffic_of(kind: str, ranks: int, local: int) -> Traffic:
    """local: ranks of a node."""
    if kind.startswith("experts"):
        skew = float(kind.partition(", ")[2] or 0)
        # Fewer tokens than a call has: the matrix is scaled, its shape stays.
        return bs.expert_traffic(ranks, tokens=512, token_size="112KiB", experts_per_rank=4, skew=skew)
    random, matrix = np.random.default_rng(1), np.full((ranks, ranks), _BLOCK)
    if kind == "hot GPU":
        matrix[:, ranks // 3] *= 20
    elif kind == "hot node":
        first = ranks // 3 // local * local
        matrix[:, first : first + local] *= 10
    elif kind == "random":
        matrix = random.integers(1, 16 * _BLOCK, matrix.shape) * (random.random(matrix.shape) < 0.02)
        matrix[0, -1] += 1
    elif kind == "banded":
        apart = np.abs(np.subtract.outer(np.arange(ranks), np.arange(ranks)))
        matrix = np.maximum(25 - np.minimum(apart, ranks - apart), 0) * _BLOCK
    elif kind == "heavy tail":
        amounts = random.pareto(1.2, matrix.shape) * 1e6
        matrix = (amounts * (random.random(matrix.shape) < 0.1)).astype(np.int64)
    return Traffic(matrix)


def measure(machine: str, gpus: int, kind: str) -> dict[str, object]:
    """Seconds of the bound, of the schedule and of its verification, and its gap; in a process of its own."""
    each = bs.load(machine).select().ranks
    part = bs.load(machine, nodes=-(-gpus // each)).select()
    collective = Collective("alltoallv", traffic=traffic_of(kind, part.ranks, each))
    found: dict[str, object] = {"gpus": part.ranks}
    start = process_time()
    bound = bs.bound(part, collective)
    found["bound"], found["kind"] = process_time() - start, bound.headline.kind
    start = process_time()
    made = bs.synthesize(part, collective)
    found["schedule"], found["ok"] = process_time() - start, made.verdict.ok
    found["sends"], found["steps"] = made.schedule.sends, made.schedule.steps
    found["gap"] = float(1 - made.rate / bound.rate)
    found["MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def few_messages(machine: str, nodes: int) -> None:
    """Prints the times of every algorithm that has alltoall, size by size."""
    part, alltoall = bs.load(machine, nodes=nodes).select(), Collective("alltoall")
    entries = candidates("alltoall")
    built = {entry.name: said_once(entry, part, alltoall) or entry.parallel(part, alltoall) for entry in entries}
    rate = float(bs.bound(part, alltoall).rate)
    print(f"\n{nodes} nodes  {'bound':>10}", *(f"{name:>14}" for name in built))
    for text in SIZES:
        size = size_of(text)
        times = (format_time(cost(candidate, size).time_s) for candidate in built.values())
        print(f"{text:>9}  {format_time(size / rate):>10}", *(f"{time:>14}" for time in times), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--gpus", default="8,16,32,64,128,256,512,1024")
    parser.add_argument("--machine", default="hgx-h100")
    parser.add_argument("--messages", action="store_true")
    parser.add_argument("--nodes", default="8,64,512,4096")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.messages:
        for nodes in map(int, options.nodes.split(",")):
            few_messages(options.machine, nodes)
        return
    if options.one:
        gpus, kind = options.one.split(":")
        print(json.dumps(measure(options.machine, int(gpus), kind)))
        return
    print(f"{options.machine}; CPU seconds: the least of {options.runs} runs, the schedule with its verification\n")
    print(
        f"{'GPUs':>5}  {'traffic':14}{'bound':>8}{'':>7}{'schedule':>10}{'gap':>10}{'sends':>11}{'steps':>7}{'MiB':>7}"
    )
    for gpus in map(int, options.gpus.split(",")):
        for kind in KINDS:
            line = [sys.executable, __file__, "--machine", options.machine, "--one", f"{gpus}:{kind}"]
            rows = [
                json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
                for _ in range(options.runs)
            ]
            best = {key: min(row[key] for row in rows) for key in ("bound", "schedule", "MiB")}
            row = rows[0]
            if not row["ok"]:
                raise SystemExit(f"{gpus} GPUs, {kind}: the schedule is wrong")
            print(
                f"{row['gpus']:5}  {kind:14}{best['bound']:8.2f}{row['kind']:>7}{best['schedule']:10.2f}"
                f"{row['gap']:10.1e}{row['sends']:11,}{row['steps']:7}{best['MiB']:7.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
