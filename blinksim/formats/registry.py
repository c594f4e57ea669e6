"""Formats of schedules for runtimes by name: the modules of `blinksim.formats.runtimes`, loaded when used.

To add one, write a module there that has a ``FORMAT``; its name is that of the file, with ``-`` for ``_``.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from blinksim.formats import runtimes

if TYPE_CHECKING:
    from blinksim.schedule.candidate import Candidate
    from blinksim.schedule.model import Schedule
    from blinksim.textio.text_files import Exported
    from blinksim.topology.graph import Topology

TUNER = "nccl-tuner"
"""The format of rules for NCCL's tuner, which are made of measured times."""


@dataclass(frozen=True)
class GivenFile:
    """A file that may be one of a runtime. document: parsed JSON, None for XML. text: of XML, else empty."""

    path: str
    document: object = None
    text: str = ""


@dataclass(frozen=True)
class Format:
    """A format of schedules.

    name: as users write it. write: a schedule with at most so many channels. folder: several files. takes:
    True for a file of this format. read: its schedule on a machine; the rank of the root, for files that do
    not name it.
    """

    name: str
    write: Callable[[Schedule, int | None], Exported] | None = None
    folder: bool = False
    takes: Callable[[GivenFile], bool] | None = None
    read: Callable[[GivenFile, Topology, int], Candidate] | None = None

    def export(self, schedule: Schedule, channels: int | None = None) -> Exported:
        """`schedule` in this format; `channels`: the most that it may use, None for the format's own limit.

        Raises `InfeasibleError` for what the format cannot say, and `InputError` for a limit that it does not
        have.
        """
        from blinksim.errors import InfeasibleError
        from blinksim.schedule.model import refuse

        refuse(schedule, f"no {self.name} that blinksim writes says that; its own files and the NumPy executor can")
        if schedule.groups:
            raise InfeasibleError(f"{self.name} holds one collective, not {schedule.does}; take one of them")
        if self.write is None:
            raise InfeasibleError(f"{self.name} is only read")
        return self.write(schedule, channels)


class _Formats(Mapping[str, Format]):
    """The formats by name, in the order of their files."""

    def __iter__(self) -> Iterator[str]:
        return (module.name.replace("_", "-") for module in pkgutil.iter_modules(runtimes.__path__))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: str) -> Format:
        if name not in list(self):
            raise KeyError(name)
        entry: Format = import_module(f"{runtimes.__name__}.{name.replace('-', '_')}").FORMAT
        return entry


FORMATS = _Formats()


def taken(given: GivenFile) -> Format | None:
    """The format that a file has, None for none of a runtime."""
    return next((form for form in FORMATS.values() if form.takes is not None and form.takes(given)), None)
