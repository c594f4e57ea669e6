"""What this project measured itself: programs of its schedules and NCCL, in ``models/full-speed``, by machine."""

from __future__ import annotations

import csv
from dataclasses import dataclass

from blinksim import data_files
from blinksim.errors import FileError
from blinksim.textio import text_files

NCCL = "nccl"
"""The algorithm of rows that NCCL made, by its own choice and without NVLS."""


@dataclass(frozen=True, slots=True)
class Run:
    """A median time in seconds, out of place and float32. size: bytes; protocol: empty for NCCL."""

    collective: str
    gpus: int
    algorithm: str
    protocol: str
    size: int
    time_s: float


def runs(machine: str) -> list[Run]:
    """The runs on a machine of the catalogue, none if there are none; raises `FileError` for a row that is none.

    >>> fastest = min(run.time_s for run in runs("hgx-h200") if run.gpus == 8)
    >>> 5e-6 < fastest < 20e-6
    True
    """
    path = data_files.folder("models") / "full-speed" / f"{machine}.csv"
    if not path.is_file():
        return []
    found = []
    for number, row in enumerate(csv.DictReader(text_files.read_text(path, what="table").splitlines()), start=2):
        try:
            names = row["collective"], int(row["gpus"]), row["algorithm"], row["protocol"]
            found.append(Run(*names, int(row["size_bytes"]), float(row["time_us"]) / 1e6))
        except (KeyError, TypeError, ValueError):
            raise FileError(path, "is no run: collective,gpus,algorithm,protocol,size_bytes,time_us", number) from None
    return found
