"""NCCL's graph files: chains or rings for stock NCCL (NCCL_GRAPH_FILE)."""

from __future__ import annotations

from blinksim.formats.registry import Format
from blinksim.nccl.graph_export import export

FORMAT = Format("nccl-graph", export)
