"""The runtime formats that a schedule can be written in, by name; modules are imported when a format is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from blinksim.errors import InputError, unknown

if TYPE_CHECKING:
    from blinksim.schedule.model import Schedule


@dataclass(frozen=True)
class Exported:
    """A schedule in a runtime's format, with how to load it there.

    files: text by file name; the only key is empty where there is one file. summary: what it holds, in a line. facts:
    what was checked. environment: variables and their values, in which ``{file}`` is where the file went. proof: what
    shows that the runtime uses it. notes: what to know. caution: what to beware of.
    """

    files: Mapping[str, str]
    summary: str
    facts: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    proof: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    caution: str = ""

    def variables(self, file: str) -> dict[str, str]:
        """The environment for a file (or folder) written to `file`."""
        return {name: value.replace("{file}", file) for name, value in self.environment.items()}


@dataclass(frozen=True, slots=True)
class Format:
    """name: as in ``--format``. module: in this package, with ``export(schedule, channels)``. folder: several files."""

    name: str
    module: str
    summary: str
    folder: bool = False

    def export(self, schedule: Schedule, channels: int | None = None) -> Exported:
        """`schedule` in this format; `channels`: the most that it may use, None for the format's own limit.

        Raises `InfeasibleError` for what the format cannot say, and `InputError` for a limit that it does not have.
        """
        module = import_module(f"blinksim.formats.{self.module}")
        exported: Exported = module.export(schedule, channels)
        return exported


FORMATS = {
    entry.name: entry
    for entry in (
        Format("nccl-graph", "nccl_graph_export", "chains or rings for stock NCCL (NCCL_GRAPH_FILE)"),
        Format("nccl-graph-set", "nccl_graph_set", "one communicator and file per chain, idle GPUs help", folder=True),
        Format("msccl-xml", "msccl_xml", "any schedule, for RCCL and the MSCCL runtimes"),
        Format("mscclpp-json", "mscclpp_json", "any schedule, as an execution plan of MSCCL++"),
    )
}


def find(name: str) -> Format:
    """The format called `name` (``-`` and ``_`` alike); raises `InputError` with the nearest names."""
    key = name.lower().replace("_", "-")
    if key not in FORMATS:
        raise unknown("format", name, FORMATS, hint="(machines: blinksim topo export --format nccl-topo)")
    return FORMATS[key]


def most_channels(given: int | None, default: int, highest: int, why: str) -> int:
    """The limit on channels in force; raises `InputError` unless it lies between 1 and `highest`."""
    if given is not None and not 1 <= given <= highest:
        raise InputError(f"{given} channels: give 1 to {highest} ({why})")
    return default if given is None else given
