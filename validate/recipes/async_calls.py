"""What a call with ``async_op`` costs more than one that is waited for at once, in a CUDA graph, beside NCCL.

    PYTHONPATH=. NCCL_NVLS_ENABLE=0 python3 validate/recipes/async_calls.py --gpus 4 --out results

Such a call runs on a stream of its own, and that of the caller waits for it. For what CUDA takes for that, kernels that
do next to nothing are captured on one stream and on two in turn.
"""

from __future__ import annotations

import sys
from functools import partial
from statistics import median
from typing import Any

from blinksim.gpu.execution.gpu_devices import require_cupy
from validate.recipes.arguments import arguments, script
from validate.recipes.notes import Notebook, provenance
from validate.recipes.training_job import Rows, run, start, tensors, time_graph

SIZES, KERNELS = (1 << 10, 1 << 18), 50
TINY = 'extern "C" __global__ void tiny(int* x) { if (threadIdx.x == 0) atomicAdd(x, 1); }'


def kernels(streams: int) -> float:
    """Microseconds of a kernel in a graph of `KERNELS`, on one stream or on two that wait for each other in turn."""
    cupy = require_cupy()
    cuda, runtime = cupy.cuda, cupy.cuda.runtime
    tiny, count = cupy.RawKernel(TINY, "tiny"), cupy.zeros(1, dtype=cupy.int32)
    caller, own = (cuda.Stream(non_blocking=True) for _ in range(2))
    events = [cuda.Event(block=False, disable_timing=True) for _ in range(2 * KERNELS)]
    tiny((1,), (512,), (count,))
    cuda.Device().synchronize()
    caller.begin_capture()
    for before, after in zip(events[::2], events[1::2], strict=True):
        if streams == 2:
            runtime.eventRecord(before.ptr, caller.ptr)
            runtime.streamWaitEvent(own.ptr, before.ptr)
        with own if streams == 2 else caller:
            tiny((1,), (512,), (count,))
        if streams == 2:
            runtime.eventRecord(after.ptr, own.ptr)
            runtime.streamWaitEvent(caller.ptr, after.ptr)
    graph = caller.end_capture()
    found = []
    for _ in range(22):
        begin, end = cuda.Event(), cuda.Event()
        begin.record(caller)
        graph.launch(caller)
        end.record(caller)
        caller.synchronize()
        found.append(cuda.get_elapsed_time(begin, end) / KERNELS * 1e3)
    return float(median(found[1:]))


def job(rank: int, ranks: int, port: int) -> Rows:
    """Microseconds of calls; (collective, size) of both libraries, waited for at once and not."""
    import torch

    dist = start(rank, ranks, port)
    groups, rows = {"blinksim": None, "nccl": dist.new_group(backend="nccl")}, list[dict[str, Any]]()

    def call(collective: str, values: Any, group: Any, own_stream: bool) -> None:
        if collective == "reduce":
            work = dist.reduce(values, 0, group=group, async_op=own_stream)
        else:
            work = dist.all_reduce(values, group=group, async_op=own_stream)
        if own_stream:
            work.wait()

    for collective in ("allreduce", "reduce"):
        for size in SIZES:
            values = tensors(torch, "allreduce", size // 4, ranks, torch.float32, rank)[1]
            row: dict[str, Any] = {"collective": collective, "size_bytes": size}
            for name, group in groups.items():
                for what, own_stream in (("us", False), ("async_us", True)):
                    given = collective, values, group, own_stream
                    row[f"{name}_{what}"] = time_graph(torch, partial(call, *given), size)
            rows.append(row)
    dist.destroy_process_group()
    return rows


def main() -> None:
    parser = arguments(__doc__, gpus=4)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    notes = Notebook(given.out / f"async-calls-{given.gpus}gpu.json", provenance(given.gpus, " ".join(sys.argv)))
    notes.add("kernels", {f"{streams}_streams_us": kernels(streams) for streams in (1, 2)})
    found = run(job, given.gpus)[0]
    for row in found if not isinstance(found, str) else []:
        notes.add("calls", row)
    print(notes.content["kernels"], *(found if not isinstance(found, str) else [found]), sep="\n")


if __name__ == "__main__":
    script(main, __file__)
