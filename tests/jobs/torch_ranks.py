"""What the ranks of a job of torch.distributed do in the tests; a script, so that every rank imports PyTorch afresh.

Usage: torch_ranks.py CASE RANK RANKS FOLDER. It prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

import blinksim as bs
import blinksim.torch
from blinksim import machines
from blinksim.gpu.jobs import group

warnings.simplefilter("ignore", FutureWarning)  # torch renames its calls


def collectives(rank: int, ranks: int) -> dict[str, bool]:
    """Every form of call, against its definition."""
    total, good = sum(range(ranks)), {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        values = torch.full((1000,), rank, dtype=dtype)
        dist.all_reduce(values)
        good[f"sum of {dtype}"] = bool((values == total).all())
    for op, expected in (("MAX", ranks - 1), ("MIN", 0), ("PRODUCT", 0), ("AVG", total / ranks)):
        values = torch.full((70,), float(rank))
        dist.all_reduce(values, op=getattr(dist.ReduceOp, op))
        good[op] = bool((values == expected).all())
    matrix = torch.full((30, 7), float(rank)).t()
    dist.all_reduce(matrix)
    good["not contiguous"] = bool((matrix == total).all())
    shifted = torch.full((1001,), float(rank))[1:]
    dist.all_reduce(shifted)
    good["not aligned"] = bool((shifted == total).all())
    listed = [torch.zeros(5) for _ in range(ranks)]
    dist.all_gather(listed, torch.full((5,), float(rank)))
    good["all_gather"] = all(bool((part == other).all()) for other, part in enumerate(listed))
    whole = torch.zeros(6 * ranks)
    whole[6 * rank : 6 * rank + 6] = rank
    dist.all_gather_into_tensor(whole, whole[6 * rank : 6 * rank + 6])
    good["all_gather_into_tensor in place"] = bool((whole == torch.arange(ranks).repeat_interleave(6)).all())
    part = torch.zeros(4)
    dist.reduce_scatter_tensor(part, torch.arange(4.0 * ranks) + rank)
    good["reduce_scatter_tensor"] = bool((part == torch.arange(4.0 * rank, 4 * rank + 4) * ranks + total).all())
    dist.reduce_scatter(part, [torch.full((4,), float(other)) for other in range(ranks)], op=dist.ReduceOp.AVG)
    good["reduce_scatter"] = bool((part == rank).all())
    values = torch.full((9,), float(rank))
    dist.broadcast(values, 1)
    good["broadcast"] = bool((values == 1).all())
    values = torch.full((9,), float(rank))
    dist.reduce(values, 1)
    good["reduce"] = rank != 1 or bool((values == total).all())
    flags = torch.tensor([rank == 1])
    dist.broadcast(flags, 1)
    good["bool"] = bool(flags.all())
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(3)]
    good["async"] = all(work.wait() and work.is_completed() and work.is_success() for work in works)
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    good["future"] = bool((future.wait() == 2 * ranks).all())
    objects: list[Any] = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank})
    good["objects"] = objects == [{"rank": other} for other in range(ranks)]
    dist.barrier()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            swapped = torch.zeros(ranks)
            dist.all_to_all_single(swapped, torch.full((ranks,), float(rank)))
    told = [str(entry.message) for entry in said if "Gloo does it" in str(entry.message)]
    good["elsewhere"] = bool((swapped == torch.arange(ranks)).all())
    good["said once"] = len(told) == (rank == 0)
    # Forms of one call, by a group of one rank: no schedule is run in it.
    alone = dist.new_group([rank], backend="cpu:blinksim_numpy", use_local_synchronization=True)
    dist.barrier(group=alone)
    whole, part = torch.zeros(4), torch.full((4,), float(rank))
    dist.all_gather_into_tensor(whole, part, group=alone)
    good["all_gather_into_tensor of one"] = bool((whole == rank).all())
    dist.reduce_scatter_tensor(whole, part + 1, group=alone)
    good["reduce_scatter_tensor of one"] = bool((whole == rank + 1).all())
    dist.all_reduce(part, group=alone)
    good["all_reduce of one"] = bool((part == rank).all())
    pair = dist.new_group([0, 1], backend="cpu:blinksim_numpy")
    values = torch.ones(3)
    if rank < 2:
        dist.all_reduce(values, group=pair)
    good["another group"] = bool((values == (2 if rank < 2 else 1)).all())
    return good


def forms(rank: int, ranks: int) -> dict[str, bool]:
    """What frameworks and torch's own tests ask for beside the usual calls."""
    group, good = dist.group.WORLD, {}
    assert group is not None
    pair = torch.tensor([rank, rank + 1])
    group.allreduce(pair).wait()  # of one tensor, and not of each of its elements
    good["a tensor alone"] = pair.tolist() == [sum(range(ranks)), sum(range(1, ranks + 1))]
    most = torch.full((3,), float(rank))
    group.allreduce([most], dist.ReduceOp.MAX).wait()
    group.broadcast(most + rank, 1).wait()
    good["an op alone"] = bool((most == ranks - 1).all())
    got = torch.zeros(4)
    operations = [dist.P2POp(dist.irecv, got, rank), dist.P2POp(dist.isend, torch.ones(4), rank)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    good["to itself"] = bool((got == 1).all())
    ring, around = torch.zeros(4), torch.full((4,), float(rank))
    operations = [dist.P2POp(dist.isend, around, (rank + 1) % ranks), dist.P2POp(dist.irecv, ring, (rank - 1) % ranks)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    good["around"] = bool((ring == (rank - 1) % ranks).all())
    part = group.split_group([0, ranks - 1], group_name="part")
    good["split"] = (part is None) == (rank not in (0, ranks - 1))
    if part is not None:
        values = torch.full((5,), float(rank))
        part.allreduce(values).wait()
        part._set_sequence_number_for_group()
        good["split"] = bool((values == ranks - 1).all()) and part.group_name == "part"
        part.shutdown()
    # init_process_group with device_id= binds a device so; NCCL is not asked to split what is not its own.
    gpu = torch.device("cuda", 0)
    able = group._get_backend(torch.device("cuda"))
    good["splits"] = able.supports_splitting and not able.supports_time_estimate
    able.eager_connect_single_device(gpu)
    good["bound"] = group.bound_device_id == gpu and not group._get_backend(gpu).supports_splitting
    with torch.autograd.profiler.profile() as profile:
        dist.all_reduce(torch.ones(3))
    good["profiled"] = any(event.name == f"{dist.get_backend()}:all_reduce" for event in profile.function_events)
    # Ranks that have no more data join; the count of the others is asked for in the backward pass.
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    with model.join(divide_by_initial_world_size=False):
        for step in range(2 + rank):
            model.zero_grad()
            model(torch.full((1, 1), float(rank))).sum().backward()
            active = range(max(0, step - 1), ranks)
            (weight,) = model.parameters()
            assert weight.grad is not None
            good[f"joined {step}"] = abs(float(weight.grad) - sum(active) / len(active)) < 1e-6
    return good


def compiled(rank: int, ranks: int) -> dict[str, Any]:
    """A compiled step of DDP is that of one that is not: the compiler does not look into the backend."""
    found = []
    for compile_it in (False, True):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        model: Any = torch.nn.parallel.DistributedDataParallel(net, static_graph=True)
        if compile_it:
            model = torch.compile(model, backend="aot_eager")
        for _ in range(3):
            model(torch.full((2, 8), float(rank))).sum().backward()
        found.append(torch.cat([each.grad.flatten() for each in net.parameters() if each.grad is not None]))
    return {"difference": float((found[0] - found[1]).abs().max())}


def training(rank: int, ranks: int) -> dict[str, Any]:
    """A small network by DistributedDataParallel, and by one process with all the data."""

    def network() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).double()

    alone, model = network(), torch.nn.parallel.DistributedDataParallel(network())
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (alone, model)]
    for step in range(10):
        torch.manual_seed(step)
        data = torch.randn(ranks, 6, 8).double()
        for optimizer, loss in zip(
            optimizers, ((alone(data) ** 2).mean(), (model(data[rank]) ** 2).mean()), strict=True
        ):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    pairs = zip(alone.parameters(), model.parameters(), strict=True)
    return {"difference": max(float((a - b).detach().abs().max()) for a, b in pairs), "loss": float(loss)}


def sharded(rank: int, ranks: int) -> dict[str, Any]:
    """The same by FSDP, where this PyTorch shards on the CPU."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    alone = torch.nn.Sequential(torch.nn.Linear(8, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (alone, model)]
    for step in range(5):
        torch.manual_seed(step)
        data = torch.randn(ranks, 6, 8)
        for optimizer, loss in zip(
            optimizers, ((alone(data) ** 2).mean(), (model(data[rank]) ** 2).mean()), strict=True
        ):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    pairs = zip(alone.parameters(), model.parameters(), strict=True)
    return {"difference": max(float((a - b.full_tensor()).detach().abs().max()) for a, b in pairs)}


def predicted(rank: int, ranks: int) -> dict[str, Any]:
    """Rules by the model of this machine, which for once is part of a DGX-1V."""

    def this_machine(rates: str = "nominal") -> Any:
        return machines.load("dgx1-v100")

    machines.this_machine = this_machine
    values = torch.full((300_000,), float(rank))
    dist.broadcast(values, 1)
    return {"right": bool((values == 1).all())}


def killed(rank: int, ranks: int) -> dict[str, Any]:
    """The last rank dies; the others get an error, and go on in a group without it."""
    dist.all_reduce(torch.ones(10))
    rest = dist.new_group(list(range(ranks - 1)), backend="cpu:blinksim_numpy")
    if rank == ranks - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    message = ""
    try:
        for _ in range(2):
            dist.all_reduce(torch.ones(10))
    except Exception as error:
        message = str(error)
    values = torch.ones(10)
    dist.all_reduce(values, group=rest)
    return {"message": message, "anew": bool((values == ranks - 1).all())}


def several_hosts(rank: int, ranks: int) -> dict[str, Any]:
    """Every rank on a host of its own but the last: all goes to Gloo, and within a host to schedules."""
    good = {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for turn in range(2):
            values = torch.full((100,), float(rank))
            dist.all_reduce(values)
            good[f"sum {turn}"] = bool((values == sum(range(ranks))).all())
        dist.barrier()
        whole = torch.zeros(ranks)
        dist.all_gather_into_tensor(whole, torch.full((1,), float(rank)))
        good["gathered"] = bool((whole == torch.arange(ranks)).all())
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
        model(torch.full((1, 3), float(rank))).sum().backward()
        mean = sum(range(ranks)) / ranks
        good["DDP"] = all(bool((x.grad == (mean if x.ndim > 1 else 1)).all()) for x in model.parameters())
    told = [str(entry.message) for entry in said if "Gloo does it" in str(entry.message)]
    whole_job = f"blinksim: the ranks are on {ranks - 1} hosts, and schedules run on one; Gloo does it"
    good["said once"] = told == [whole_job] * (rank == 0)
    inside = dist.new_group([ranks - 2, ranks - 1], backend="cpu:blinksim_numpy")
    alone = dist.new_group([rank], backend="cpu:blinksim_numpy", use_local_synchronization=True)
    dist.barrier(group=alone)
    values = torch.ones(3)
    if rank >= ranks - 2:
        dist.all_reduce(values, group=inside)
    good["inside"] = bool((values == (2 if rank >= ranks - 2 else 1)).all())
    return good


TENANTS = bs.Question("dgx1-v100", edits=("without gpu[4-7]",), relays="others", relays_reduce=True)


def tenants(rank: int, ranks: int) -> dict[str, Any]:
    """Two pairs, each of which sends through both ranks of the other one."""
    found = bs.together(TENANTS, ["0,1", "2,3:broadcast"])
    groups = blinksim.torch.new_groups(found, device="cpu")
    good = {"members": [one is not dist.GroupMember.NON_GROUP_MEMBER for one in groups] == [rank < 2, rank > 1]}
    pair, other = groups
    # One pair makes three calls while the other makes one: relays follow the calls of each by themselves.
    for turn, count in enumerate((1, 1000, 300_001)):
        values, sent = torch.full((count,), rank + 1, dtype=torch.int64), torch.full((count,), float(rank + turn))
        for _ in range(3 if rank < 2 else 0):
            dist.all_reduce(values, group=pair)
        if rank > 1:
            dist.broadcast(sent, 2, group=other)
        good[f"sum of {count}"] = bool((values == (12 if rank < 2 else rank + 1)).all())
        good[f"copy of {count}"] = rank < 2 or bool((sent == 2 + turn).all())
    # Calls that the schedules are not for, and of the whole job.
    if rank < 2:
        whole = torch.zeros(4)
        dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)), group=pair)
        good["gathered"] = whole.tolist() == [0, 0, 1, 1]
        dist.barrier(group=pair)
    values = torch.full((9,), float(rank))
    dist.all_reduce(values)
    good["all"] = bool((values == sum(range(ranks))).all())
    pairs = bs.together("full:4@50GB/s", ["0,1", "2,3"])
    wrong: dict[str, Any] = {
        "allreduce on 8 GPUs: give": "dgx1-v100-8-allreduce",
        "groups that share 4 GPUs": bs.together("dgx1-v100", ["0-3", "4-7"]),
    }
    wrong["in rising order"] = bs.together(TENANTS, ["1,0", "2,3"])
    wrong["the share"] = replace(pairs.schedule, share_num=pairs.schedule.share_num // 2)
    for words, schedule in wrong.items():
        try:
            blinksim.torch.new_groups(schedule, device="cpu")
        except bs.InputError as error:
            good[words] = words in str(error)
        else:
            good[words] = False
    return good


def tenant_killed(rank: int, ranks: int) -> dict[str, Any]:
    """A process that relays for a pair is killed: both ranks of the pair get an error in time."""
    pair, _ = blinksim.torch.new_groups(bs.together(TENANTS, ["0,1", "2,3"]), device="cpu")
    values, message = torch.ones(1000), ""
    dist.barrier()
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)
    try:
        for _ in range(3 if rank < 2 else 0):
            dist.all_reduce(values, group=pair)
    except blinksim.torch.GroupError as error:
        message = str(error)
    return {"message": message}


if __name__ == "__main__":
    case, rank, ranks, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    os.environ["BLINKSIM_LOG"] = "1"
    os.environ["BLINKSIM_PLAN"] = "predict" if case == "predicted" else ""
    if case == "several_hosts":
        own = f"node{min(rank, ranks - 2)}"
        group.this_host = lambda: own
    dist.init_process_group(
        "cpu:blinksim_numpy", store=dist.FileStore(f"{folder}/store", ranks), rank=rank, world_size=ranks
    )
    print(
        json.dumps(
            {
                "collectives": collectives,
                "forms": forms,
                "compiled": compiled,
                "training": training,
                "sharded": sharded,
                "predicted": predicted,
                "killed": killed,
                "several_hosts": several_hosts,
                "tenants": tenants,
                "tenant_killed": tenant_killed,
            }[case](rank, ranks)
        )
    )
    if case not in ("killed", "tenants", "tenant_killed"):
        dist.destroy_process_group()
    sys.stdout.flush()
