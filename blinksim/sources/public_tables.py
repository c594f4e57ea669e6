"""What others measured and published, set by set: the tables in ``models/measured``.

A set is what one page, log or table shows. ``sets.csv`` says on which machine of the catalogue, with which library, and
where it is published; the file of the machine holds the cells. Sizes are counted as nccl-tests counts them, which is
how this package counts them too.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from blinksim import data_files
from blinksim.collective import COLLECTIVES, busbw_factor
from blinksim.errors import FileError, InputError, unknown
from blinksim.textio import text_files

QUALITIES = {
    "A": "a whole log or table with machine and number of GPUs",
    "B": "a whole table, but bus bandwidth only, or machine or number derived",
    "C": "an excerpt or single figures",
}
"""What the letters of `Set.quality` say."""
_BYTES = ("int8", "uint8")
BANDS = ((0, "below 512 KiB"), (512 * 2**10, "512 KiB to 64 MiB"), (64 * 2**20, "from 64 MiB"))
"""The sizes that are summed up together: the first of each band, in bytes, and its name."""


def band_of(size: int) -> str:
    """Which of `BANDS` a size in bytes is in."""
    return next(name for least, name in reversed(BANDS) if size >= least)


@dataclass(frozen=True, slots=True)
class Set:
    """Where cells come from.

    algorithm: what the library was told to take, empty if it chose by itself; members: the GPUs of every node that took
    part, empty for its first ones.
    """

    name: str
    machine: str
    quality: str
    library: str
    version: str
    algorithm: str
    members: str
    source: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A measured time in seconds.

    dtype: of the elements, empty if it is not published. nvls: whether switches could add: ``on``, ``off``, ``n.a.`` or
    ``unknown``.
    """

    set: Set
    collective: str
    nodes: int
    gpus: int
    dtype: str
    size: int
    placement: str
    nvls: str
    time_s: float

    @property
    def adds_in_switches(self) -> bool:
        """False if NVLS was off, or is not made for the elements: switches do not add bytes."""
        return self.nvls != "off" and self.dtype not in _BYTES

    @property
    def busbw(self) -> float:
        """Bytes/s."""
        return self.size / self.time_s * float(busbw_factor(self.collective, self.gpus))


def folder() -> Path:
    """Where the tables are."""
    return data_files.folder("models") / "measured"


def sets() -> dict[str, Set]:
    """All sets by name. Raises `FileError` with the line of a row that cannot be used."""
    found: dict[str, Set] = {}
    for where, row in _rows(folder() / "sets.csv"):
        if row["quality"] not in QUALITIES:
            raise FileError(where[0], str(unknown("quality", row["quality"], QUALITIES)), where[1])
        if row["set"] in found:
            raise FileError(where[0], f"the set {row['set']} is given twice", where[1])
        name = row.pop("set")
        found[name] = Set(name, **row)
    return found


def machines() -> list[str]:
    """The machines of the catalogue of which there are tables, sorted."""
    return sorted({found.machine for found in sets().values()})


def cells(machine: str) -> list[Cell]:
    """The cells of a machine, in the order of its file; a time that is not published is derived from busbw.

    Raises `FileError` with the line of a row that cannot be used, `InputError` for a machine without tables.
    """
    known = sets()
    path = folder() / f"{machine}.csv"
    if not path.is_file():
        raise unknown("machine with published measurements", machine, machines())
    return [_cell(where, row, known, machine) for where, row in _rows(path)]


def _cell(where: tuple[Path, int], row: dict[str, str], known: dict[str, Set], machine: str) -> Cell:
    try:
        one = known[row["set"]]
        nodes, gpus, size = int(row["nodes"]), int(row["gpus"]), int(row["size_bytes"])
        if one.machine != machine or row["collective"] not in COLLECTIVES or min(nodes, gpus - 1, size) < 1:
            raise ValueError
        if row["time_us"]:
            time = float(row["time_us"]) / 1e6
        else:
            time = size / (float(row["busbw_GBps"]) * 1e9) * float(busbw_factor(row["collective"], gpus))
        if time <= 0:
            raise ValueError
    except (KeyError, ValueError, ZeroDivisionError, InputError):
        shown = ",".join(row.values())[:80]
        raise FileError(where[0], f"is no measured cell of {machine}: {shown}", where[1]) from None
    return Cell(one, row["collective"], nodes, gpus, row["dtype"], size, row["placement"], row["nvls"], time)


def _rows(path: Path) -> Iterator[tuple[tuple[Path, int], dict[str, str]]]:
    """The rows of a table with where they are; raises `FileError` for one of another length."""
    lines = text_files.read_text(path, what="table").splitlines()
    for number, row in enumerate(csv.DictReader(lines), start=2):
        if None in row or None in row.values():
            raise FileError(path, "has more or fewer cells in this line than in its first", number)
        yield (path, number), row
