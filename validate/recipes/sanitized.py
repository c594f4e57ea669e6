"""Every sort of call of blinksim.torch on each GPU, small ones, for compute-sanitizer to watch.

    PYTHONPATH=. BLINKSIM_TIMEOUT=120 NCCL_NVLS_ENABLE=0 compute-sanitizer --target-processes all --tool memcheck \\
        torchrun --nproc-per-node gpu validate/recipes/sanitized.py

No rank says which GPU is the current one, so all but the first rank call on one that is not. Prints how many calls
there were and how many gave wrong data; ``--tool synccheck`` and ``racecheck`` watch other things.
"""

import os
from itertools import product

import torch
import torch.distributed as dist

import blinksim.torch  # noqa: F401 - registers the backend

SIZES = (1, 1000, 65536, 2**20)
"""Elements of a rank."""
TYPES = (torch.float32, torch.bfloat16, torch.int32)


def main() -> None:
    rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("cuda:blinksim")
    total, last, wrong = ranks * (ranks + 1) // 2, ranks - 1, []
    for size, dtype, async_op in product(SIZES, TYPES, (False, True)):

        def tensor(value: int, count: int = size, dtype: torch.dtype = dtype) -> torch.Tensor:
            return torch.full((count,), value, dtype=dtype, device=f"cuda:{rank}")

        whole, gathered, part, sent, summed = (tensor(rank + 1, n) for n in (size, size * ranks, size, size, size))
        calls = [
            (dist.all_reduce(whole, async_op=async_op), whole, total),
            (dist.all_gather_into_tensor(gathered, tensor(3), async_op=async_op), gathered, 3),
            (dist.reduce_scatter_tensor(part, tensor(rank + 1, size * ranks), async_op=async_op), part, total),
            (dist.broadcast(sent, last, async_op=async_op), sent, ranks),
            (dist.reduce(summed, last, async_op=async_op), *((summed, total) if rank == last else (sent, ranks))),
        ]
        for work, found, value in calls:
            if work is not None:
                work.wait()
            wrong.append(bool((found != value).any()))
    print(f"rank {rank}: {len(wrong)} calls, {sum(wrong)} wrong", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
