"""What can be written: machines and schedules as blinksim's own files, schedules in the formats of runtimes, by name.

Modules are imported when a format is used.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from blinksim.errors import InputError, unknown

if TYPE_CHECKING:
    from blinksim.schedule.model import Schedule
    from blinksim.textio.exported import Exported
    from blinksim.topology.graph import Topology

FormatName = Literal["nccl-graph", "nccl-graph-set", "msccl-xml", "mscclpp-json"]
"""The formats of schedules, for editors and type checkers; ``-`` and ``_`` are alike."""


@dataclass(frozen=True, slots=True)
class Format:
    """name: as users write it. module: one with ``export(schedule, channels)``. folder: several files."""

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
        Format("msccl-xml", "blinksim.formats.msccl.msccl_xml", "any schedule, for RCCL and the MSCCL runtimes"),
        Format("mscclpp-json", "blinksim.formats.msccl.mscclpp_json", "any schedule, as an execution plan of MSCCL++"),
    )
}


def find(name: str) -> Format:
    """The format called `name` (``-`` and ``_`` alike); raises `InputError` with the nearest names."""
    key = name.lower().replace("_", "-")
    if key not in FORMATS:
        raise unknown("format", name, FORMATS, hint="(machines: `blinksim topo export`)")
    return FORMATS[key]


def write(thing: Schedule | Topology, path: str | os.PathLike[str], force: bool = False) -> None:
    """Writes a schedule (.json, .json.gz) or a machine (.yaml) to a file.

    Parameters
    ----------
    thing : Schedule or Topology
        What to write.
    path : str or path
        Where; the ending must fit.
    force : bool
        Replace a file that exists.

    Raises
    ------
    InputError
        For an ending that does not fit, an existing file without `force`, and anything else than these two.
    FileError
        If the file cannot be written.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.write(bs.load("dgx1-v100", edits="without gpu7"), "seven.yaml")
    >>> bs.load("seven.yaml").ranks
    7
    """
    from blinksim.formats import machine_yaml
    from blinksim.formats.schedule_json import write_schedule
    from blinksim.schedule.model import Schedule
    from blinksim.textio.text_files import write_text
    from blinksim.topology.graph import Topology

    name = os.fspath(path)
    if isinstance(thing, Schedule):
        if not name.endswith((".json", ".json.gz")):
            raise InputError(f"{name}: a schedule file ends in .json or .json.gz")
        write_schedule(thing, path, force)
    elif isinstance(thing, Topology):
        if not name.endswith((".yaml", ".yml")):
            raise InputError(f"{name}: a machine file ends in .yaml")
        write_text(path, machine_yaml.write(thing), force)
    else:
        raise InputError(f"a {type(thing).__name__} has no file format; schedules and machines have")


def export(schedule: Schedule, name: FormatName | str, channels: int | None = None) -> Exported:
    """A schedule in the format of a runtime.

    Parameters
    ----------
    schedule : Schedule
        What to export.
    name : str
        ``nccl-graph``, ``nccl-graph-set``, ``msccl-xml`` or ``mscclpp-json``.
    channels : int, optional
        The most channels that it may use. Default: the format's own limit.

    Returns
    -------
    Exported
        The files as text, the variables that load them, and what shows that they are in force.

    Raises
    ------
    InputError
        For an unknown format, or a limit that it does not have.
    InfeasibleError
        If the format cannot express the schedule.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.export(bs.synthesize("dgx1-v100", "allreduce", "chains").schedule, "nccl-graph")
    >>> sorted(found.environment)
    ['NCCL_ALGO', 'NCCL_GRAPH_FILE', 'NCCL_MAX_NCHANNELS', 'NCCL_PROTO']
    """
    return find(name).export(schedule, channels)
