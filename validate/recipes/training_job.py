"""blinksim.torch beside NCCL on the GPUs of this machine, one process for each: times, training, data, a killed rank.

    PYTHONPATH=. NCCL_NVLS_ENABLE=0 python3 validate/recipes/training_job.py --gpus 4 --out results

``--parts`` picks some. Times are those of ``--calls`` (5 from 64 MiB on) in a captured CUDA graph, replayed nine times:
the median, averaged over the ranks. A small transformer is trained from the same start and on the same data with NCCL,
with schedules, and with NCCL again, which shows how much steps scatter by themselves: in turn, `BURST` steps each, as a
host's pace drifts. By DDP on all ranks, by DDP on a pair of ranks, whose sums do not depend on the order, and by FSDP,
with batches for which GPUs wait for the host and with such as keep them busy.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from validate.recipes.arguments import arguments, script
from validate.recipes.notes import Notebook, provenance

PARTS = ("times", "host", "ddp", "pair", "checks", "fsdp", "fsdp_busy", "faults")
SIZES = tuple(1 << power for power in range(10, 29, 2))
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")
CALLS, LONG_CALLS, LONG = "CALLS", 5, 1 << 26
STEPS = {"ddp": 1000, "pair": 100, "fsdp": 200, "fsdp_busy": 100}
FAULTS = ("another size", "late", "killed")
BURST, BATCH = 10, {"fsdp_busy": 128}
Rows = list[dict[str, Any]]


def start(rank: int, ranks: int, port: int) -> Any:
    """Joins a job of torch.distributed on this host, whose backend is blinksim; returns the module."""
    import torch
    import torch.distributed as dist

    import blinksim.torch  # noqa: F401 - registers the backend

    torch.cuda.set_device(rank)
    dist.init_process_group("cuda:blinksim", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    return dist


def call(dist: Any, collective: str, source: Any, target: Any, group: Any = None) -> None:
    """A collective on dense tensors; the root is rank 0."""
    if collective == "allreduce":
        dist.all_reduce(target, group=group)
    elif collective == "allgather":
        dist.all_gather_into_tensor(target, source, group=group)
    elif collective == "reducescatter":
        dist.reduce_scatter_tensor(target, source, group=group)
    elif collective == "broadcast":
        dist.broadcast(target, 0, group=group)
    else:
        dist.reduce(target, 0, group=group)


def tensors(torch: Any, collective: str, count: int, ranks: int, dtype: Any, seed: int) -> tuple[Any, Any]:
    """(source, target) of a call whose whole vector has `count` elements; small whole numbers, so sums are exact."""
    maker = torch.Generator(device="cuda").manual_seed(seed)

    def made(size: int) -> Any:
        return torch.randint(0, 4, (size,), device="cuda", generator=maker).to(dtype)

    if collective == "allgather":
        return made(count // ranks), torch.zeros(count, dtype=dtype, device="cuda")
    if collective == "reducescatter":
        return made(count), torch.zeros(count // ranks, dtype=dtype, device="cuda")
    target = made(count)
    return target, target


def checks(torch: Any, dist: Any, nccl: Any, rank: int, ranks: int) -> Rows:
    """Every collective, with types and reductions, against NCCL."""
    rows: Rows = []
    types = ("float32", "bfloat16", "int64")
    for collective in COLLECTIVES:
        for count in (ranks, 1000 * ranks, 250_000 * ranks, 5_000_001 * ranks):
            for name in types if count < 10**6 else types[:1]:
                dtype = getattr(torch, name)
                ours, theirs = (tensors(torch, collective, count, ranks, dtype, rank) for _ in range(2))
                call(dist, collective, *ours)
                call(dist, collective, *theirs, group=nccl)
                # Only the root's result counts in a reduction.
                wrong = 0 if collective == "reduce" and rank else int((ours[1] != theirs[1]).sum())
                rows.append({"collective": collective, "count": count, "dtype": name, "op": "SUM", "wrong": wrong})
    for op, name in (("AVG", "float32"), ("AVG", "bfloat16"), ("MIN", "float32")):
        made = [tensors(torch, "allreduce", 3001, ranks, getattr(torch, name), rank)[1] for _ in range(2)]
        dist.all_reduce(made[0], op=getattr(dist.ReduceOp, op))
        dist.all_reduce(made[1], op=getattr(dist.ReduceOp, op), group=nccl)
        wrong = int((made[0] != made[1]).sum())
        rows.append({"collective": "allreduce", "count": 3001, "dtype": name, "op": op, "wrong": wrong})
    rows += odd_tensors(torch, dist, rank, ranks)
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(everyone, [row["wrong"] for row in rows], group=nccl)
    return [{**row, "wrong": sum(wrong[at] for wrong in everyone)} for at, row in enumerate(rows)]


def odd_tensors(torch: Any, dist: Any, rank: int, ranks: int) -> Rows:
    """What is not a dense vector at a multiple of 16 bytes, lists, and two groups whose calls overlap."""
    total = sum(range(ranks))
    matrix = torch.full((300, 70), float(rank), device="cuda").t()
    dist.all_reduce(matrix)
    shifted = torch.full((10_001,), float(rank), device="cuda")[1:]
    dist.all_reduce(shifted)
    whole = torch.zeros(ranks * 1000, device="cuda")
    own = whole[rank * 1000 : (rank + 1) * 1000].fill_(rank)
    dist.all_gather_into_tensor(whole, own)
    listed = [torch.zeros(33, device="cuda") for _ in range(ranks)]
    dist.all_gather(listed, torch.full((33,), float(rank), device="cuda"))
    half = dist.new_group(list(range(ranks)))
    first, second = (torch.full((100_000,), float(rank), device="cuda") for _ in range(2))
    works = [dist.all_reduce(first, async_op=True), dist.all_reduce(second, group=half, async_op=True)]
    for work in works:
        work.wait()
    objects: list[Any] = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    good = {
        "not contiguous": bool((matrix == total).all()),
        "not aligned": bool((shifted == total).all()),
        "allgather in place": bool((whole == torch.arange(ranks, device="cuda").repeat_interleave(1000)).all()),
        "list of tensors": all(bool((part == other).all()) for other, part in enumerate(listed)),
        "two groups at once": bool((first == total).all() and (second == total).all()),
        "objects": objects == [{"rank": other} for other in range(ranks)],
    }
    return [{"case": name, "wrong": int(not fine)} for name, fine in good.items()]


def times(torch: Any, dist: Any, nccl: Any, rank: int, ranks: int) -> Rows:
    """Microseconds a call, graph against graph."""
    rows: Rows = []
    for collective in COLLECTIVES:
        for size in SIZES:
            found = {}
            for name, group in (("blinksim", None), ("nccl", nccl)):
                source, target = tensors(torch, collective, size // 4, ranks, torch.float32, rank)
                found[name] = time_graph(torch, lambda: call(dist, collective, source, target, group), size)  # noqa: B023
            mean = torch.tensor([found["blinksim"], found["nccl"]], device="cuda")
            dist.all_reduce(mean, group=nccl)
            ours, theirs = (mean / ranks).tolist()
            rows.append({"collective": collective, "size_bytes": size, "blinksim_us": ours, "nccl_us": theirs})
    return rows


def host(torch: Any, dist: Any, nccl: Any, rank: int, ranks: int) -> Rows:
    """Microseconds of the host's time for a call of 1 KiB: so short on the GPU that the GPU waits for the host."""
    found, values, calls = {}, torch.zeros(256, device="cuda"), 1000
    for name, group in (("blinksim", None), ("nccl", nccl)) * 2:
        for count in (100, calls):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(count):
                dist.all_reduce(values, group=group)
            found[f"{name}_us"] = (time.perf_counter() - begin) / calls * 1e6
            torch.cuda.synchronize()
    return [{"collective": "allreduce", "size_bytes": 1024, **found}]


def time_graph(torch: Any, launch: Callable[[], None], size: int) -> float:
    """Microseconds of one call among those of a captured graph."""
    calls = LONG_CALLS if size >= LONG else int(os.environ.get(CALLS, "50"))
    for _ in range(3):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            launch()
    graph.replay()
    torch.cuda.synchronize()
    found = []
    for _ in range(9):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1e3 / calls)
    return float(median(found))


def transformer(torch: Any) -> Any:
    """A decoder of 3 layers and 46 million parameters, for sequences of 256 tokens out of 4096."""
    nn = torch.nn

    class Small(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(4096, 1024), nn.Embedding(256, 1024)
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(1024, 8, 4096, 0.0, "gelu", batch_first=True, norm_first=True)
                for _ in range(3)
            )
            self.head = nn.Linear(1024, 4096)

        def forward(self, text: Any) -> Any:
            values = self.tokens(text) + self.places.weight
            mask = nn.Transformer.generate_square_subsequent_mask(256, device=text.device)
            for layer in self.layers:
                values = layer(values, src_mask=mask, is_causal=True)
            return self.head(values)

    torch.manual_seed(0)
    return Small().cuda()


class Training:
    """The transformer in training by a group. batch: sequences of a rank. bucket_mb: DDP's default is 25."""

    def __init__(
        self, torch: Any, dist: Any, group: Any, rank: int, how: str, batch: int = 32, bucket_mb: int = 25
    ) -> None:
        self.torch, self.dist, self.group, self.batch = torch, dist, group, batch
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.use_deterministic_algorithms(True)
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        model = transformer(torch)
        if how.startswith("fsdp"):
            from torch.distributed.device_mesh import DeviceMesh
            from torch.distributed.fsdp import fully_shard

            mesh = DeviceMesh.from_group(group, "cuda")
            for layer in model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        else:
            model = torch.nn.parallel.DistributedDataParallel(
                model, device_ids=[rank], gradient_as_bucket_view=True, process_group=group, bucket_cap_mb=bucket_mb
            )
        self.model, self.optimizer = model, torch.optim.AdamW(model.parameters(), lr=1e-4)
        self.maker = torch.Generator(device="cuda").manual_seed(1000 + rank)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self) -> None:
        """One step; its loss and seconds go into the lists."""
        torch, begin = self.torch, time.perf_counter()
        # Every token follows from the one before it, so that there is something to learn.
        first = torch.randint(0, 4096, (self.batch, 1), device="cuda", generator=self.maker)
        text = (first + 13 * torch.arange(257, device="cuda")) % 4096
        loss = torch.nn.functional.cross_entropy(self.model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        joint = loss.detach().clone()
        self.dist.all_reduce(joint, op=self.dist.ReduceOp.AVG, group=self.group)
        self.losses.append(float(joint))  # the step has ended
        self.seconds.append(time.perf_counter() - begin)


def training(torch: Any, dist: Any, rank: int, ranks: int, how: str) -> Rows:
    """The same training with both, in turn."""
    members = [0, 1] if how == "pair" else list(range(ranks))
    # Each with channels and memory of its own, so that NCCL beside NCCL shows what these are worth.
    kinds = {"nccl": "nccl", "blinksim": None, "nccl again": "nccl"}
    groups = {name: dist.new_group(members, backend=kind) for name, kind in kinds.items()}
    if rank not in members:
        return []
    batch = BATCH.get(how, 32)
    trained = {name: Training(torch, dist, group, rank, how, batch) for name, group in groups.items()}
    rows: Rows = []
    for name, bursts in in_turn(trained, STEPS[how]).items():
        row = {"backend": name, "ranks": dist.get_world_size(groups[name]), "batch": batch, "step_ms": median(bursts)}
        rows.append({**row, "bursts_ms": bursts, "losses": trained[name].losses})
    return rows


def in_turn(trained: dict[str, Training], steps: int) -> dict[str, list[float]]:
    """So many steps of each, burst by burst; who begins changes.

    Returns the milliseconds that a step takes in each burst, without the first two, which warm up.
    """
    order = list(trained)
    for _ in range(steps // BURST):
        for name in order:
            for _ in range(BURST):
                trained[name].step()
        order = order[1:] + order[:1]
    starts = range(2 * BURST, steps, BURST)
    return {name: [1e3 * median(one.seconds[at : at + BURST]) for at in starts] for name, one in trained.items()}


def job(rank: int, ranks: int, port: int, parts: list[str], path: Path) -> Rows:
    """All parts but the last one, in one job; rank 0 writes the results."""
    import torch

    dist = start(rank, ranks, port)
    nccl = dist.new_group(backend="nccl")
    notes = Notebook(path, provenance(ranks, " ".join(sys.argv)), resume=True) if rank == 0 else None
    for part in parts:
        begin = time.perf_counter()
        if part in STEPS:
            rows = training(torch, dist, rank, ranks, part)
        else:
            rows = {"times": times, "host": host, "checks": checks}[part](torch, dist, nccl, rank, ranks)
        dist.all_reduce(torch.ones(1, device="cuda"), group=nccl)
        torch.cuda.synchronize()
        if notes is not None:
            for row in rows:
                notes.add(part, row)
                print({key: value for key, value in row.items() if key not in ("losses", "bursts_ms")}, flush=True)
            print(part, f"took {time.perf_counter() - begin:.1f} s", flush=True)
    dist.destroy_process_group()
    return []


def faults(rank: int, ranks: int, port: int) -> Rows:
    """The last rank calls something else, is late, is killed: what all see, and groups and a job made anew."""
    import torch

    os.environ["BLINKSIM_TIMEOUT"] = "3"
    dist, rows = start(rank, ranks, port), list[dict[str, Any]]()
    for fault in FAULTS:
        if fault == "killed":
            dist.destroy_process_group()
            dist = start(rank, ranks, port + 1)
        group, count = dist.new_group(list(range(ranks))), 1000
        rest = list(range(ranks - (fault == "killed")))
        dist.all_reduce(torch.ones(count, device="cuda"), group=group)
        torch.cuda.synchronize()
        anew = dist.new_group(rest)
        if rank == ranks - 1:
            if fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(4 if fault == "late" else 0)
            count -= fault == "another size"
        values, begin, message = torch.ones(count, device="cuda"), time.perf_counter(), ""
        try:
            for _ in range(2):
                dist.all_reduce(values, group=group)
                torch.cuda.synchronize()
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
        took, again = time.perf_counter() - begin, torch.ones(1000, device="cuda")
        dist.all_reduce(again, group=anew)
        torch.cuda.synchronize()
        good = {"spoilt": bool(values.isnan().all()), "anew": bool((again == len(rest)).all())}
        rows.append({"fault": fault, "rank": rank, "message": message, "seconds": took, **good})
    return rows


def run(work: Callable[..., Rows], ranks: int, *given: Any) -> list[Rows | str]:
    """What a function returns in a process for each rank; what went wrong for those that gave no answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    processes = [context.Process(target=_work, args=(work, r, ranks, port, given, answers)) for r in range(ranks)]
    for process in processes:
        process.start()
    found: list[Rows | str] = ["no answer"] * ranks
    end = time.monotonic() + 240
    while any(process.is_alive() for process in processes) or not answers.empty():
        if time.monotonic() > end:
            for process in processes:
                process.kill()
            break
        try:
            rank, rows = answers.get(timeout=0.2)
        except Exception:  # the queue is empty
            continue
        found[rank] = rows
    print("exit codes", [process.exitcode for process in processes], flush=True)
    return found


def _work(work: Callable[..., Rows], rank: int, ranks: int, port: int, given: Any, answers: Any) -> None:
    try:
        answers.put((rank, work(rank, ranks, port, *given)))
    except Exception as error:
        answers.put((rank, f"{type(error).__name__}: {error}"))
        raise


def main() -> None:
    parser = arguments(__doc__, gpus=4)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--calls", type=int, default=50, help="in a graph")
    given = parser.parse_args()
    os.environ[CALLS] = str(given.calls)  # the processes inherit it
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"training-job-{given.gpus}gpu.json"
    together = [part for part in given.parts if part != "faults"]
    if together:
        for answer in run(job, given.gpus, together, path):
            print(answer or "", end="")
    if "faults" in given.parts:
        notes = Notebook(path, provenance(given.gpus, " ".join(sys.argv)), resume=True)
        for rows in run(faults, given.gpus):
            print(rows)
            for row in rows if not isinstance(rows, str) else ():
                notes.add("faults", row)


if __name__ == "__main__":
    script(main, __file__)
