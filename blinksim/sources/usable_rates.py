"""What published times say of a machine's collectives: constants fitted to part of the tables, and how good they are.

`parts.csv` says which cells constants were fitted to, `constants.csv` holds what came out, `spreads.csv` how far the
other cells are from predictions, `remarks.csv` why some are far, and `relatives.csv` which machine stands in for one
without tables. ``validate/recipes/usable_rates.py`` makes constants and spreads.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from blinksim import data_files
from blinksim.cost.origin import FitError
from blinksim.errors import FileError
from blinksim.sources.library_rates import Constant, LibraryRates
from blinksim.sources.public_tables import Cell
from blinksim.textio import text_files

EVERY = "all"
"""What `spreads.csv` calls all machines together."""
EXPECTED, LINKS = "expected", "links"
"""What measured times are compared to: times by constants, or by links alone at nominal rates."""
STEPS = (
    (0, "below 32 KiB"),
    (32 * 2**10, "32 to 512 KiB"),
    (512 * 2**10, "512 KiB to 8 MiB"),
    (8 * 2**20, "8 to 64 MiB"),
    (64 * 2**20, "64 MiB to 1 GiB"),
    (2**30, "from 1 GiB"),
)
"""The sizes that `spreads.csv` tells apart: the first of each, in bytes, and their name."""
MANY = 10
"""Cells from which on quantiles are taken."""
# Cells below which quantiles say nothing.
_FEWEST = 4


def folder() -> Path:
    """Where the tables are."""
    return data_files.folder("models") / "usable"


@dataclass(frozen=True, slots=True)
class Part:
    """Cells of a set that constants were fitted to.

    collectives, gpus: empty for all. least: bytes of the smallest. every: each so many-th size, in their order, 1 for
    all of them; the first of them is not the smallest size.
    """

    set: str
    collectives: tuple[str, ...]
    gpus: tuple[int, ...]
    least: int
    every: int

    def holds(self, cell: Cell, place: int) -> bool:
        """True for a cell of the part; place: its number among the sizes of its job, from 0."""
        return (
            cell.set.name == self.set
            and (not self.collectives or cell.collective in self.collectives)
            and (not self.gpus or cell.gpus in self.gpus)
            and cell.size >= self.least
            and place % self.every == self.every // 2
        )


@dataclass(frozen=True, slots=True)
class Spread:
    """How measured times compare to predicted ones: low, middle and high are quantiles (10, 50, 90 %) of their ratio.

    Of fewer than `MANY` cells low and high are the ends. what: `EXPECTED` or `LINKS`. scope, sizes: of the cells, one
    of `SCOPES` and of `STEPS`.
    """

    machine: str
    what: str
    scope: str
    sizes: str
    cells: int
    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Remark:
    """Why cells of a set are far from predictions.

    set: its name, or how those of several begin. collectives: empty for all. gpus, sizes: least and most, 0 for any.
    fault: True if the cells do not count when predictions are judged. kind, why: in words.
    """

    set: str
    collectives: tuple[str, ...]
    gpus: tuple[int, int]
    sizes: tuple[int, int]
    fault: bool
    kind: str
    why: str

    def holds(self, cell: Cell) -> bool:
        """True for a cell that it is about."""
        return (
            cell.set.name.startswith(self.set)
            and (not self.collectives or cell.collective in self.collectives)
            and _within(cell.gpus, self.gpus)
            and _within(cell.size, self.sizes)
        )


def _within(value: int, ends: tuple[int, int]) -> bool:
    return ends[0] <= value and (not ends[1] or value <= ends[1])


@cache
def remarks() -> tuple[Remark, ...]:
    """All remarks, those that go before others first. Raises `FileError` with the line of a row that cannot be used."""
    found = []
    for where, row in _rows("remarks.csv"):
        try:
            gpus = int(row["least_gpus"]), int(row["most_gpus"])
            sizes = int(row["least"]), int(row["most"])
            collectives = tuple(row["collectives"].split())
            remark = Remark(row["set"], collectives, gpus, sizes, row["fault"] == "yes", row["kind"], row["why"])
        except (KeyError, ValueError):
            raise FileError(where[0], "is no remark on a set", where[1]) from None
        found.append(remark)
    return tuple(found)


def remark_of(cell: Cell) -> Remark | None:
    """The first remark that is about a cell."""
    return next((remark for remark in remarks() if remark.holds(cell)), None)


@cache
def parts() -> tuple[Part, ...]:
    """All parts. Raises `FileError` with the line of a row that cannot be used."""
    found = []
    for where, row in _rows("parts.csv"):
        try:
            gpus = tuple(map(int, row["gpus"].split()))
            part = Part(row["set"], tuple(row["collectives"].split()), gpus, int(row["least"]), int(row["every"]))
        except (KeyError, ValueError):
            raise FileError(where[0], "is no part of a table", where[1]) from None
        found.append(part)
    return tuple(found)


def fitted(cell: Cell, place: int) -> bool:
    """True if constants were fitted to a cell; place: its number among the sizes of its job, from 0."""
    return any(part.holds(cell, place) for part in parts())


@cache
def rates(machine: str, library: str, scope: str) -> tuple[LibraryRates, ...]:
    """The constants of a library on a machine of the catalogue, the better form first; empty if there are none."""
    found: dict[tuple[str, str, str, str], dict[str, Constant]] = {}
    heads: dict[tuple[str, str, str, str], tuple[tuple[int, int], FitError]] = {}
    for where, row in _rows("constants.csv"):
        if (row["machine"], row["library"], row["scope"]) != (machine, library, scope):
            continue
        key = machine, library, scope, row["form"]
        try:
            numbers = [float(row[name]) if row[name] else None for name in ("value", "low", "high")]
            value = numbers[0]
            assert value is not None
            heads[key] = (
                (int(row["least_gpus"]), int(row["most_gpus"])),
                FitError(float(row["median"]), float(row["p90"]), int(row["cells"])),
            )
        except (KeyError, ValueError, AssertionError):
            raise FileError(where[0], "is no row of a constant", where[1]) from None
        found.setdefault(key, {})[row["constant"]] = Constant(value, numbers[1], numbers[2])
    return tuple(LibraryRates(*key, heads[key][0], constants, heads[key][1]) for key, constants in found.items())


@cache
def relative(machine: str) -> tuple[str, str] | None:
    """The machine with tables that is nearest to one without, and why it is; None if none is near."""
    for _, row in _rows("relatives.csv"):
        if row["machine"] == machine:
            return row["relative"], row["why"]
    return None


@cache
def spreads() -> dict[tuple[str, str, str, str], Spread]:
    """All spreads by machine (`EVERY` for all together), what, scope and sizes."""
    found = {}
    for where, row in _rows("spreads.csv"):
        key = row["machine"], row["what"], row["scope"], row["sizes"]
        try:
            found[key] = Spread(*key, int(row["cells"]), *(float(row[name]) for name in ("low", "middle", "high")))
        except (KeyError, ValueError):
            raise FileError(where[0], "is no row of a spread", where[1]) from None
    return found


def sizes_of(size: int) -> str:
    """Which of `STEPS` a size in bytes is in."""
    return next(name for least, name in reversed(STEPS) if size >= least)


def spread_of(machine: str, what: str, scope: str, size: int) -> Spread | None:
    """The spread of a machine (`EVERY` for all) at a size, or at the nearest smaller one that has enough cells.

    None if nobody measured any.
    """
    for least, sizes in reversed(STEPS):
        found = spreads().get((machine, what, scope, sizes)) if least <= size else None
        if found is not None and found.cells >= _FEWEST:
            return found
    return None


def _rows(name: str) -> Iterator[tuple[tuple[Path, int], dict[str, str]]]:
    path = folder() / name
    if not path.is_file():
        return
    for number, row in enumerate(csv.DictReader(text_files.read_text(path, what="table").splitlines()), start=2):
        if None in row or None in row.values():
            raise FileError(path, "has more or fewer cells in this line than in its first", number)
        yield (path, number), row
