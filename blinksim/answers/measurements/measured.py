"""Published measurements beside what the model of their machine says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blinksim.errors import unknown
from blinksim.results import Result
from blinksim.sources.published_tables import Reproduction, reproduce
from blinksim.textio.text_table import table
from blinksim.units import format_size

# Machines of which tables with measurements are published, and where.
SOURCES = {"aurora": "Aurora allreduce projection, 2025; models/aurora-measured.csv"}


@dataclass(frozen=True, repr=False)
class Measured(Result):
    """The cells of all published tables of a machine."""

    machine: str
    cells: tuple[Reproduction, ...]

    def rows(self) -> list[dict[str, Any]]:
        """One row per cell; times in milliseconds, as published."""
        return [
            {
                "table": found.cell.table,
                "nodes": found.cell.nodes,
                "ranks_per_node": found.cell.ranks_per_node,
                "size_bytes": found.cell.size,
                "model": found.cell.preset,
                "model_ms": found.time_ms,
                "published_model_ms": found.cell.model_ms,
                "measured_ms": found.cell.measured_ms,
                "efficiency_pct": 100 * found.time_ms / found.cell.measured_ms,
                "published_efficiency_pct": found.cell.efficiency_pct,
                "note": found.cell.note,
            }
            for found in self.cells
        ]

    def to_dict(self) -> dict[str, Any]:
        """The rows and their source."""
        return {"machine": self.machine, "source": SOURCES[self.machine], "rows": self.rows()}

    def sentence(self) -> str:
        """The answer in one line."""
        shares = [row["efficiency_pct"] for row in self.rows()]
        return (
            f"{self.machine}: {len(self.cells)} published measurements reach {min(shares):.3g} to {max(shares):.3g} % "
            "of what the model allows"
        )

    def text(self) -> str:
        """The sentence, a table for each published table, and the source."""
        lines = [self.sentence()]
        for name in dict.fromkeys(found.cell.table for found in self.cells):
            cells = [
                (
                    str(found.cell.nodes),
                    str(found.cell.ranks_per_node),
                    format_size(found.cell.size),
                    f"{found.time_ms:.4g}",
                    f"{found.cell.measured_ms:.4g}",
                    f"{100 * found.time_ms / found.cell.measured_ms:.3g} %",
                    found.cell.note,
                )
                for found in self.cells
                if found.cell.table == name
            ]
            heading = ("nodes", "ranks a node", "size", "model ms", "measured ms", "efficiency", "note")
            lines += [f"\n{name}", table(heading, cells, left=(6,))]
        return "\n".join([*lines, f"\n  source: {SOURCES[self.machine]}"])

    def __repr__(self) -> str:
        return f"<Measured: {self.sentence()}>"


def measured(machine: str) -> Measured:
    """The published measurements of a machine, beside the times of its preset.

    Parameters
    ----------
    machine : str
        A name of `SOURCES`.

    Returns
    -------
    Measured
        One row per published cell.

    Raises
    ------
    InputError
        For machines without published tables.

    Examples
    --------
    >>> from blinksim.answers.measurements.measured import measured
    >>> len(measured("aurora").rows())
    29
    """
    name = machine.lower()
    if name not in SOURCES:
        raise unknown("machine with published measurements", machine, SOURCES)
    return Measured(name, reproduce())
