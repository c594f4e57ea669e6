"""The runtime formats that a schedule can be written in, by name; modules are imported when a format is used."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from blinksim.errors import unknown

if TYPE_CHECKING:
    from blinksim.schedule.model import Schedule
    from blinksim.textio.exported import Exported


@dataclass(frozen=True, slots=True)
class Format:
    """name: as in ``--format``. module: one with ``export(schedule, channels)``. folder: several files."""

    name: str
    module: str
    summary: str
    folder: bool = False

    def export(self, schedule: Schedule, channels: int | None = None) -> Exported:
        """`schedule` in this format; `channels`: the most that it may use, None for the format's own limit.

        Raises `InfeasibleError` for what the format cannot say, and `InputError` for a limit that it does not have.
        """
        module = import_module(self.module)
        exported: Exported = module.export(schedule, channels)
        return exported


FORMATS = {
    entry.name: entry
    for entry in (
        Format("nccl-graph", "blinksim.nccl.export.graph_export", "chains or rings for stock NCCL (NCCL_GRAPH_FILE)"),
        Format(
            "nccl-graph-set",
            "blinksim.nccl.export.graph_set",
            "one communicator and file per chain, idle GPUs help",
            folder=True,
        ),
        Format("msccl-xml", "blinksim.formats.msccl_xml", "any schedule, for RCCL and the MSCCL runtimes"),
        Format("mscclpp-json", "blinksim.formats.mscclpp_json", "any schedule, as an execution plan of MSCCL++"),
    )
}


def find(name: str) -> Format:
    """The format called `name` (``-`` and ``_`` alike); raises `InputError` with the nearest names."""
    key = name.lower().replace("_", "-")
    if key not in FORMATS:
        raise unknown("format", name, FORMATS, hint="(machines: blinksim topo export --format nccl-topo)")
    return FORMATS[key]
