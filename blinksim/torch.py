"""Backends of torch.distributed, registered by ``import blinksim.torch`` (see `blinksim.gpu.torch`)."""

from __future__ import annotations

from blinksim.gpu.torch import BlinksimProcessGroup as BlinksimProcessGroup, GroupError as GroupError
from blinksim.gpu.torch.process_group import new_groups as new_groups
