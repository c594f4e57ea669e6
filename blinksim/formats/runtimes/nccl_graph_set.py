"""Sets of NCCL's graph files: one communicator and file for each chain, so that idle GPUs help."""

from __future__ import annotations

from blinksim.formats.registry import Format
from blinksim.nccl.graph_export import export_set

FORMAT = Format("nccl-graph-set", export_set, folder=True)
