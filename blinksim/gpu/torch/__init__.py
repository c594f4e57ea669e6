"""Backends of torch.distributed that run schedules in a PyTorch job, registered by ``import blinksim.torch``.

``blinksim`` runs the collectives of CUDA tensors on GPUs of one host, one process for each::

    import blinksim.torch
    torch.distributed.init_process_group("cuda:blinksim")

``blinksim_numpy`` runs the same programs on CPU tensors through shared memory, for trials and tests without
GPUs. What a backend does not do goes to NCCL, or to Gloo on the CPU, and is reported once.
`blinksim.gpu.torch.process_group` has the environment variables.
"""

from __future__ import annotations

from functools import partial as _partial

from blinksim.errors import MissingError

try:
    import torch.distributed as _dist
except ImportError:
    raise MissingError("blinksim.torch needs PyTorch: pip install 'blinksim[torch]'") from None

from blinksim.gpu.jobs.group import GroupError as GroupError
from blinksim.gpu.torch.process_group import BlinksimProcessGroup as BlinksimProcessGroup, batched, create

_dist.Backend.register_backend("blinksim", _partial(create, cpu=False), extended_api=True, devices=["cuda"])
_dist.Backend.register_backend("blinksim_numpy", _partial(create, cpu=True), extended_api=True, devices=["cpu"])
# torch asks for its own class of groups, by name, before it sends and receives at once.
_dist.batch_isend_irecv = _dist.distributed_c10d.batch_isend_irecv = batched(_dist.batch_isend_irecv)
