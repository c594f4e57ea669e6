"""What people train with, on NCCL and on blinksim.torch: the same losses, and what goes where.

    PYTHONPATH=. NCCL_NVLS_ENABLE=0 python3 validate/recipes/frameworks.py --gpus 2 --out results

Every case is a job of ``torchrun`` on all GPUs, once with each backend; its figures are losses or sums of results,
which must agree within 1e-4. What a case changes for blinksim is one line, here the value of `backend`. ``--cpu`` tries
those that need no GPU, on Gloo and blinksim_numpy.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

from validate.recipes.arguments import arguments, script
from validate.recipes.notes import Notebook, provenance

STEPS = 20
TIMEOUT_S = 150.0
# One line of each job differs.
BACKENDS = {"nccl": "nccl", "blinksim": "cuda:blinksim"}
ON_CPU = {"nccl": "gloo", "blinksim": "cpu:blinksim_numpy"}
NEAR = 1e-4
Figures = list[float]


class Job:
    """One rank: the modules of torch, the device, a network and its data."""

    def __init__(self, backend: str) -> None:
        import torch
        import torch.distributed as dist

        import blinksim.torch  # noqa: F401 - registers the backends

        self.torch, self.dist, self.backend = torch, dist, backend
        self.rank, self.ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
        kind = "cpu" if backend in ON_CPU.values() else "cuda"
        self.device = torch.device(kind, 0 if kind == "cpu" else self.rank)
        self.ids = None if kind == "cpu" else [self.rank]
        torch.manual_seed(0)

    def start(self, **more: Any) -> None:
        """Joins the job; nobody calls torch.cuda.set_device."""
        self.dist.init_process_group(self.backend, **more)

    def network(self) -> Any:
        nn = self.torch.nn
        self.torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(3)]
        return nn.Sequential(*layers, nn.Linear(64, 1))

    def batch(self, step: int) -> tuple[Any, Any]:
        maker = self.torch.Generator().manual_seed(1000 * step + self.rank)
        given = self.torch.randn(32, 64, generator=maker)
        return given.to(self.device), given[:, :4].sum(1, keepdim=True).to(self.device)

    def loss(self, model: Any, step: int) -> Any:
        given, wanted = self.batch(step)
        return self.torch.nn.functional.mse_loss(model(given), wanted)

    def train(self, model: Any, steps: int = STEPS) -> Figures:
        """The losses of all ranks' data, by plain steps."""
        optimizer = self.torch.optim.AdamW(model.parameters(), lr=1e-3)
        found = []
        for step in range(steps):
            loss = self.loss(model, step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(self.mean(loss))
        return found

    def mean(self, loss: Any) -> float:
        joint = loss.detach().float().clone()
        self.dist.all_reduce(joint)
        return float(joint) / self.ranks

    def parallel(self, **more: Any) -> Any:
        model = self.network().to(self.device)
        return self.torch.nn.parallel.DistributedDataParallel(model, device_ids=self.ids, **more)


def ddp(job: Job) -> Figures:
    job.start()
    return job.train(job.parallel())


def accumulated(job: Job) -> Figures:
    job.start()
    model = job.parallel()
    optimizer, found = job.torch.optim.SGD(model.parameters(), lr=1e-2), []
    for step in range(STEPS):
        last = step % 4 == 3
        with nullcontext() if last else model.no_sync():
            loss = job.loss(model, step)
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        found.append(job.mean(loss))
    return found


def mixed(job: Job) -> Figures:
    job.start()
    model = job.parallel()
    optimizer, found = job.torch.optim.SGD(model.parameters(), lr=1e-2), []
    scaler = job.torch.amp.GradScaler(job.device.type)
    for step in range(STEPS):
        with job.torch.autocast(job.device.type, dtype=job.torch.float16):
            loss = job.loss(model, step)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found.append(job.mean(loss))
    return found


def compiled(job: Job) -> Figures:
    job.start()
    return job.train(job.torch.compile(job.parallel()))


def fsdp(job: Job) -> Figures:
    from torch.distributed.fsdp import FullyShardedDataParallel

    job.start()
    return job.train(FullyShardedDataParallel(job.network().to(job.device), device_id=job.device))


def sharded(job: Job) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(job.device.type, (job.ranks,))
    model = job.network().to(job.device)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp2(job: Job) -> Figures:
    job.start()
    return job.train(sharded(job))


def dtensor(job: Job) -> Figures:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    job.start()
    mesh = init_device_mesh(job.device.type, (job.ranks,))
    whole = job.torch.arange(64.0 * 8, device=job.device).reshape(64, 8)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    partial = rows.redistribute(mesh, [Replicate()]).to_local() * (job.rank + 1)
    summed = type(rows).from_local(partial, mesh, [Partial()]).redistribute(mesh, [Shard(0)])
    parts = (rows.full_tensor(), columns.full_tensor(), summed.full_tensor(), columns.to_local())
    return [float(part.sum()) for part in parts]


def checkpoint(job: Job) -> Figures:
    import torch.distributed.checkpoint as saved
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    job.start()
    model = sharded(job)
    found = job.train(model, 5)
    folder = [tempfile.mkdtemp()]
    job.dist.broadcast_object_list(folder, 0, device=job.device)
    saved.save(get_model_state_dict(model), checkpoint_id=folder[0])
    again = sharded(job)
    state = get_model_state_dict(again)
    saved.load(state, checkpoint_id=folder[0])
    set_model_state_dict(again, state)
    return [*found, *job.train(again, 5)]


def functional(job: Job) -> Figures:
    from torch.distributed import _functional_collectives as calls

    job.start()
    group, own = job.dist.group.WORLD, job.torch.arange(8.0, device=job.device) + job.rank
    found = [calls.all_reduce(own, "sum", group), calls.all_gather_tensor(own, 0, group)]
    found += [calls.reduce_scatter_tensor(own, "sum", 0, group), calls.broadcast(own, 1, group)]
    found += [calls.all_to_all_single(own, None, None, group)]
    return [float(calls.wait_tensor(part).sum()) for part in found]


def groups(job: Job) -> Figures:
    """Bound to a device; with options; split; subgroups; sends and receives at once."""
    dist, torch = job.dist, job.torch
    job.start(**({"device_id": job.device} if job.ids else {}))
    dist.barrier()
    found, everyone = [], list(range(job.ranks))
    options = dist.ProcessGroupNCCL.Options() if job.ids else None
    made = [dist.new_group(everyone, pg_options=options), dist.new_subgroups(job.ranks)[0]]
    if job.ids:
        made += [dist.split_group(split_ranks=[everyone]), dist.new_group(everyone, backend="nccl")]
    for group in made:
        values = torch.full((5,), job.rank + 1.0, device=job.device)
        dist.all_reduce(values, group=group)
        found.append(float(values.sum()))
    values, got = torch.full((5,), job.rank + 1.0, device=job.device), torch.zeros(5, device=job.device)
    there, back = (job.rank + 1) % job.ranks, (job.rank - 1) % job.ranks
    sends = [dist.P2POp(dist.isend, values, there), dist.P2POp(dist.irecv, got, back)]
    for work in dist.batch_isend_irecv(sends):
        work.wait()
    found.append(float(got.sum()))
    dist.barrier()
    return found


def elastic(job: Job) -> Figures:
    """The last rank fails; torchrun starts all of them again."""
    job.start()
    model = job.parallel()
    found = job.train(model, 5)
    if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) == 0:
        if job.rank == job.ranks - 1:
            raise SystemExit(3)
        job.train(model, 5)  # without that rank
    return found


def trainer(job: Job) -> Figures:
    import transformers

    job.start()
    rows = [
        {"x": given, "labels": wanted} for given, wanted in zip(*(each.cpu() for each in job.batch(0)), strict=True)
    ]

    class Wrapped(job.torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = job.network()

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            return {"loss": job.torch.nn.functional.mse_loss(self.inner(x), labels)}

    given = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(), max_steps=STEPS, logging_steps=1, report_to=[], per_device_train_batch_size=8,
        save_strategy="no", disable_tqdm=True, seed=0, learning_rate=1e-3,
    )  # fmt: skip
    run = transformers.Trainer(Wrapped(), given, train_dataset=rows)
    run.train()
    return [row["loss"] for row in run.state.log_history if "loss" in row]


def accelerated(job: Job) -> Figures:
    from accelerate import Accelerator, InitProcessGroupKwargs

    accelerator = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(backend=job.backend)])
    model, optimizer = accelerator.prepare(job.network(), None)[0], None
    optimizer = accelerator.prepare(job.torch.optim.AdamW(model.parameters(), lr=1e-3))
    found = []
    for step in range(STEPS):
        loss = job.loss(model, step)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        found.append(float(accelerator.gather(loss.detach().reshape(1)).mean()))
    return found


def lightning(job: Job, sharding: bool = False) -> Figures:
    import pytorch_lightning as pl
    from pytorch_lightning.strategies import DDPStrategy, FSDPStrategy

    found: Figures = []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = job.network()

        def training_step(self, index: Any, _: int) -> Any:
            loss = job.loss(self.inner, int(index))
            found.append(job.mean(loss))
            return loss

        def configure_optimizers(self) -> Any:
            return job.torch.optim.AdamW(self.parameters(), lr=1e-3)

    strategy = (FSDPStrategy if sharding else DDPStrategy)(process_group_backend=job.backend)
    run = pl.Trainer(
        max_steps=STEPS, accelerator="gpu", devices=job.ranks, strategy=strategy, logger=False,
        use_distributed_sampler=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    run.fit(Module(), job.torch.utils.data.DataLoader(range(STEPS), batch_size=1))
    return found


def lightning_fsdp(job: Job) -> Figures:
    return lightning(job, sharding=True)


CASES: dict[str, Callable[[Job], Figures]] = {
    case.__name__: case
    for case in (
        ddp, accumulated, mixed, compiled, fsdp, fsdp2, dtensor, checkpoint, functional, groups, elastic, trainer,
        accelerated, lightning, lightning_fsdp,
    )
}  # fmt: skip
CPU_CASES = ("ddp", "accumulated", "compiled", "fsdp2", "groups")


def rank_of(case: str, backend: str) -> None:
    """What torchrun runs."""
    job = Job(backend)
    figures = CASES[case](job)
    if job.rank == 0:
        print("FIGURES", json.dumps(figures), flush=True)
    if job.dist.is_initialized():
        job.dist.destroy_process_group()


def run(case: str, backend: str, ranks: int) -> dict[str, Any]:
    """The figures of a case, what runs on schedules and what goes elsewhere; or why it failed."""
    restarts = ["--max-restarts", "1"] if case == "elastic" else []
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    line += [*restarts, "-m", "validate.recipes.frameworks", "--case", case, "--backend", backend]
    environment = os.environ | {"BLINKSIM_LOG": "1", "PYTHONWARNINGS": "default::UserWarning", "OMP_NUM_THREADS": "1"}
    # A second attempt would read what the first has left in its store, whatever the backend.
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    try:
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as late:
        return {"failed": f"no end after {TIMEOUT_S:g} s", "tail": (late.stderr or b"").decode()[-1500:]}
    found = re.search("^FIGURES (.*)$", done.stdout, re.MULTILINE)
    if done.returncode or not found:
        return {"failed": f"exit status {done.returncode}", "tail": done.stderr[-1500:]}
    scheduled = sorted({match.split(" of ")[0] for match in re.findall("blinksim: ([a-z]+ of .*):", done.stderr)})
    elsewhere = sorted(set(re.findall("blinksim: (.*; (?:NCCL|Gloo) does it)", done.stderr)))
    return {"figures": json.loads(found[1]), "scheduled": scheduled, "elsewhere": elsewhere}


def compared(case: str, ranks: int, backends: dict[str, str]) -> dict[str, Any]:
    """One row: the two jobs, one after the other."""
    found = {name: run(case, backend, ranks) for name, backend in backends.items()}
    row: dict[str, Any] = {"case": case, "ranks": ranks}
    for name, one in found.items():
        if "failed" in one:
            row[f"{name}_failed"] = one
    if len(row) == 2:
        ours, theirs = found["blinksim"]["figures"], found["nccl"]["figures"]
        off = [abs(a - b) / max(abs(b), 1e-9) for a, b in zip(ours, theirs, strict=True)]
        row |= {"figures": len(ours), "first": theirs[0], "last": theirs[-1], "worst_relative": max(off)}
        row |= {"agrees": max(off) < NEAR, **{key: found["blinksim"][key] for key in ("scheduled", "elsewhere")}}
    return row


def main() -> None:
    parser = arguments(__doc__, gpus=2)
    parser.add_argument("--cases", nargs="+", choices=CASES)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--case", choices=CASES, help="as one rank of a job")
    parser.add_argument("--backend")
    given = parser.parse_args()
    if given.case:
        warnings.simplefilter("ignore", FutureWarning)
        rank_of(given.case, given.backend)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    backends, cases = (ON_CPU, CPU_CASES) if given.cpu else (BACKENDS, tuple(CASES))
    notes = None
    if not given.cpu:
        notes = Notebook(given.out / f"frameworks-{given.gpus}gpu.json", provenance(given.gpus, " ".join(sys.argv)))
    with ThreadPoolExecutor(given.jobs) as threads:
        jobs = [threads.submit(compared, case, given.gpus, backends) for case in given.cases or cases]
        for job in jobs:
            row = job.result()
            print(json.dumps(row), flush=True)
            if notes is not None:
                notes.add("cases", row)


if __name__ == "__main__":
    script(main, __file__)
