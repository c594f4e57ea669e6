"""The Aurora allreduce projection (2025): its five tables, cell by cell, beside the measurements."""

from __future__ import annotations

from collections.abc import Iterator

from blinksim.answers.measurements.public import ProjectedCell, projected_cells
from blinksim.papers.tables import Figure, Table
from blinksim.results import total
from blinksim.timing.projection import equations, load_preset

TITLE = "Aurora allreduce projection, 2025"


def tables() -> Iterator[Table]:
    """Times and efficiencies of each table, then what the chain of equation 1 gives, which no table uses."""
    cells = projected_cells()
    for name in dict.fromkeys(cell.table for cell in cells):
        mine = [cell for cell in cells if cell.table == name]
        rows = [Figure(cell.place, cell.model_ms, cell.time_ms, "ms", _flags(cell, "model")) for cell in mine]
        for cell in mine:
            said, ours = float(cell.efficiency_pct), 100 * cell.time_ms / cell.measured_ms
            rows.append(Figure(f"{cell.place}: efficiency", said, ours, "%", _flags(cell, "efficiency")))
        yield Table(name, f"equation {mine[0].equation}", tuple(rows))
    chain = load_preset("aurora-chain")
    alone = {cell.nodes: cell for cell in cells if cell.ranks_per_node == 1}
    times = ((cell, 1e3 * total(equations(chain, cell.size, nodes, 1))) for nodes, cell in alone.items())
    compared = [Figure(cell.place, cell.measured_ms, ms, "ms") for cell, ms in times]
    what = "equation 1, which no table uses: how far the document's own model is off"
    yield Table("The chain, beside measured times", what, tuple(compared), measured=True)


def _flags(cell: ProjectedCell, kind: str) -> str:
    return cell.note if any(flag.startswith(kind) for flag in cell.flags) else ""
