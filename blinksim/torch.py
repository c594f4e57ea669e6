"""Backends of torch.distributed: ``import blinksim.torch`` registers them, as `blinksim.gpu.torch` describes."""

from __future__ import annotations

from blinksim.gpu.torch import BlinksimProcessGroup as BlinksimProcessGroup
from blinksim.gpu.torch import GroupError as GroupError
