"""The Aurora allreduce projection (2025): its five tables, cell by cell, beside the measurements."""

from __future__ import annotations

from collections.abc import Iterator

from blinksim.answers.measurements.public import ProjectedCell, projected_cells
from blinksim.papers.tables import Figure, Table
from blinksim.results import total
from blinksim.timing.projection import equations, load_preset

TITLE = "Aurora allreduce projection, 2025"
SLIPS = (
    "16 nodes, 1 rank each, with PCIe: 394.2 ms should be 394.3. The PCIe term depends on the ranks of a node alone: "
    "2, 4 and 8 nodes bound it to 190.454 to 190.507 ms, and 16 nodes would need less than 190.446",
    "16 nodes, 12 ranks each, with PCIe: 63.7 ms should be 63.6. 2, 4 and 8 nodes bound the PCIe term to 15.851 to "
    "15.941 ms, and 16 nodes would need more than 15.952",
    "one node: the efficiencies of 74, 66 and 46 % do not follow from the times beside them, which give 78.6, 76.1 and "
    "53.3; Xe links of 16 GB/s without MDFI would give them",
)


def tables() -> Iterator[Table]:
    """Times and efficiencies of each table, then what the chain of equation 1 gives, which no table uses."""
    cells = projected_cells()
    for name in dict.fromkeys(cell.table for cell in cells):
        mine = [cell for cell in cells if cell.table == name]
        rows = [
            *(Figure(cell.place, cell.model_ms, cell.time_ms, "ms", _flags(cell, "model")) for cell in mine),
            *(
                Figure(f"{cell.place}: efficiency", float(cell.efficiency_pct), 100 * cell.time_ms / cell.measured_ms,
                       "%", _flags(cell, "efficiency"))
                for cell in mine
            ),
        ]  # fmt: skip
        yield Table(name, f"equation {mine[0].equation}", tuple(rows))
    chain = load_preset("aurora-chain")
    alone = {cell.nodes: cell for cell in cells if cell.ranks_per_node == 1}
    compared = [
        Figure(cell.place, cell.measured_ms, 1e3 * total(equations(chain, cell.size, nodes, 1)), "ms")
        for nodes, cell in alone.items()
    ]
    yield Table("The chain, beside measured times", "equation 1, which no table uses", tuple(compared))


def _flags(cell: ProjectedCell, kind: str) -> str:
    return cell.note if any(flag.startswith(kind) for flag in cell.flags) else ""
