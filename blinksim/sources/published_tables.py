"""The published tables of the Aurora projection, cell by cell, beside the times that blinksim computes."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from blinksim import data_files
from blinksim.cost.presets import load_preset
from blinksim.cost.projection import equations
from blinksim.cost.terms import total
from blinksim.errors import FileError, InputError
from blinksim.textio import text_files
from blinksim.units import parse_size


@dataclass(frozen=True, slots=True)
class Published:
    """A cell of a published table: times in milliseconds and the efficiency in percent as printed.

    size: bytes. flags: what is wrong with the cell (`model-slip`, `efficiency-inconsistent`, `efficiency-rounding`).
    """

    table: str
    equation: str
    preset: str
    nodes: int
    ranks_per_node: int
    size: int
    model_ms: float
    measured_ms: float
    efficiency_pct: str
    flags: tuple[str, ...]
    note: str

    @property
    def efficiency_recomputed_pct(self) -> float:
        """100 times the published model time over the measured one."""
        return 100 * self.model_ms / self.measured_ms


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A published cell beside the computed time (milliseconds), and what is odd about the cell."""

    cell: Published
    time_ms: float

    @property
    def delta_ms(self) -> float:
        """The computed time less the published one."""
        return self.time_ms - self.cell.model_ms


def reproduce(cells: Sequence[Published] | None = None) -> tuple[Reproduction, ...]:
    """Every published cell (default: all of them) with the time that its preset gives for it."""
    cells = published() if cells is None else cells
    return tuple(
        Reproduction(cell, 1e3 * total(equations(load_preset(cell.preset), cell.size, cell.nodes, cell.ranks_per_node)))
        for cell in cells
    )


def published(path: Path | None = None) -> tuple[Published, ...]:
    """The published cells of the Aurora projection (`models/aurora-measured.csv`), in the order of the tables.

    Raises `FileError` with the line of a row that cannot be used.
    """
    path = path or data_files.folder("models") / "aurora-measured.csv"
    lines = text_files.read_text(path, what="table").splitlines()
    start = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    rows = []
    for number, row in enumerate(csv.DictReader(lines[start:]), start=start + 2):
        try:
            rows.append(
                Published(
                    table=row["table"],
                    equation=row["equation"],
                    preset=row["preset"],
                    nodes=int(row["nodes"]),
                    ranks_per_node=int(row["ranks_per_node"]),
                    size=parse_size(row["size"]),
                    model_ms=float(row["model_ms"]),
                    measured_ms=float(row["measured_ms"]),
                    efficiency_pct=row["efficiency_pct"],
                    flags=tuple(row["flags"].split()),
                    note=row["note"],
                )
            )
        except KeyError as error:
            raise FileError(path, f"the column {error} is missing", start + 1) from None
        except (ValueError, AttributeError, TypeError, InputError) as error:
            raise FileError(path, f"the row cannot be read: {error}", number) from None
    return tuple(rows)
