"""The result of an export: files as text, and how to load them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from blinksim.errors import InputError


@dataclass(frozen=True)
class Exported:
    """A schedule in a runtime's format, with how to load it there.

    Attributes
    ----------
    files : mapping of str to str
        Text by file name; the only key is empty where there is one file.
    summary : str
        What it holds, in a line.
    facts : tuple of str
        What was checked.
    environment : mapping of str to str
        Variables and their values, in which ``{file}`` is where the file went, and ``{folder}`` the folder of it.
    proof : tuple of str
        What shows that the runtime uses it.
    notes : tuple of str
        What to know.
    caution : str
        What to beware of.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.export(bs.synthesize("dgx1-v100", "allreduce", "chains").schedule, "nccl-graph")
    >>> found.variables("graph.xml")["NCCL_GRAPH_FILE"]
    'graph.xml'
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
        folder = os.path.dirname(file) or "."
        return {
            name: value.replace("{file}", file).replace("{folder}", folder) for name, value in self.environment.items()
        }

    @property
    def whole_folder(self) -> bool:
        """True if the runtime reads every file of the folder."""
        return any("{folder}" in value for value in self.environment.values())


def most_channels(given: int | None, default: int, highest: int, why: str) -> int:
    """The limit on channels in force; raises `InputError` unless it lies between 1 and `highest`."""
    if given is not None and not 1 <= given <= highest:
        raise InputError(f"{given} channels: give 1 to {highest} ({why})")
    return default if given is None else given
