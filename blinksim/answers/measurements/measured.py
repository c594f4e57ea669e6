"""Published times of a machine, each beside a model's time and the bound; Aurora's beside its projection."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from blinksim import data_files
from blinksim.errors import InputError
from blinksim.formats.shipped.machine_names import catalogue_file
from blinksim.results import Result, keyed, total
from blinksim.textio.text_files import read_rows
from blinksim.textio.text_table import count, table
from blinksim.timing.measured import library_rates, public_tables
from blinksim.timing.projection import equations, load_preset
from blinksim.units import format_size, parse_size

if TYPE_CHECKING:
    from blinksim.answers.measurements.public import PublicMeasurements

# The machine whose published times stand beside a projection, and where both are published.
PROJECTED, SOURCE = "aurora", "Aurora allreduce projection, 2025; models/aurora-projected.csv"
_HEADING = ("nodes", "ranks a node", "size", "measured ms", "model ms", "printed", "efficiency", "printed", "note")


@dataclass(frozen=True, slots=True)
class ProjectedCell:
    """A cell of a table of the Aurora projection: times in milliseconds and the efficiency in percent as printed.

    size: bytes. flags: what is wrong with the cell (`model-slip`, `efficiency-inconsistent`,
    `efficiency-rounding`).
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
    def place(self) -> str:
        """Such as ``2 nodes, 12 ranks each``."""
        return f"{count(self.nodes, 'node')}, {count(self.ranks_per_node, 'rank')}{' each' * (self.nodes > 1)}"

    @property
    def time_ms(self) -> float:
        """The time that the equations of its preset give."""
        return 1e3 * total(equations(load_preset(self.preset), self.size, self.nodes, self.ranks_per_node))

    @property
    def reached_pct(self) -> float:
        """That time as a percentage of the measured one."""
        return 100 * self.time_ms / self.measured_ms

    @classmethod
    def of(cls, times: dict[tuple[int, int, int], float], row: dict[str, str]) -> ProjectedCell:
        """The cell of a row of ``models/aurora-projected.csv``.

        times: measured ms by nodes, ranks and bytes.
        """
        nodes, ranks, size = int(row["nodes"]), int(row["ranks_per_node"]), parse_size(row["size"])
        found: Any = dict(row, nodes=nodes, ranks_per_node=ranks, size=size, flags=tuple(row["flags"].split()))
        model_ms, measured_ms = float(row["model_ms"]), times[nodes, nodes * ranks, size]
        return cls(**found | {"model_ms": model_ms, "measured_ms": measured_ms})


@cache
def projected_cells() -> tuple[ProjectedCell, ...]:
    """The published cells of the Aurora projection, in the order of its tables."""
    path = data_files.folder("models") / "aurora-projected.csv"
    # To six digits: as they were printed.
    known = public_tables.cells(PROJECTED)
    times = {(one.nodes, one.gpus, one.size): float(f"{1e3 * one.time_s:.6g}") for one in known}
    return tuple(read_rows(path, partial(ProjectedCell.of, times), "cell of a projection"))


@dataclass(frozen=True, repr=False)
class Measured(Result):
    """The published cells of Aurora, each beside its projection.

    Attributes
    ----------
    machine : str
        ``aurora``.
    cells : tuple of ProjectedCell
        In the order of the published tables.

    Examples
    --------
    >>> import blinksim as bs
    >>> row = bs.measured("aurora").rows()[0]
    >>> row["nodes"], round(row["model_ms"], 1), row["measured_ms"]
    (2, 108.7, 402.7)
    """

    machine: str
    cells: tuple[ProjectedCell, ...]

    def rows(self) -> list[dict[str, Any]]:
        """One row per cell; times in milliseconds, as published."""
        keys = "table nodes ranks_per_node size_bytes=size model=preset model_ms=time_ms published_model_ms=model_ms"
        keys += " measured_ms efficiency_pct=reached_pct published_efficiency_pct=efficiency_pct note"
        return [keyed(found, f"{keys} collective", collective="allreduce") for found in self.cells]

    def to_dict(self) -> dict[str, Any]:
        """The rows and their source."""
        return {"machine": self.machine, "source": SOURCE, "rows": self.rows()}

    def sentence(self) -> str:
        """The answer in one line."""
        shares = [cell.reached_pct for cell in self.cells]
        reach = f"{min(shares):.3g} to {max(shares):.3g} % of what the model allows"
        return f"{self.machine}: {len(self.cells)} published measurements reach {reach}"

    def text(self) -> str:
        """The sentence, a table for each published table, and the source."""
        lines = [self.sentence()]
        for name in dict.fromkeys(found.table for found in self.cells):
            cells = list[list[str]]()
            for one in (one for one in self.cells if one.table == name):
                times = f"{one.measured_ms:g} {one.time_ms:.4g} {one.model_ms:g}".split()
                row = [str(one.nodes), str(one.ranks_per_node), format_size(one.size), *times]
                cells.append([*row, f"{one.reached_pct:.3g} %", f"{one.efficiency_pct} %", one.note])
            lines += [f"\n{name}", table(_HEADING, cells, left=(8,))]
        return "\n".join([*lines, f"\n  source: {SOURCE}"])


def measured(machine: str, quality: str = "ABC") -> Measured | PublicMeasurements:
    """The published measurements of a machine, beside the times of the models.

    Parameters
    ----------
    machine : str
        A machine of the catalogue of which there are tables, by any of its names; `public_tables.machines`
        lists them.
    quality : str
        Which tables to take: A, whole ones with machine and number of GPUs; B, with something derived; C,
        excerpts.

    Returns
    -------
    PublicMeasurements or Measured
        One row per published cell: time, NCCL's prediction for itself where NCCL ran, and the bound. For
        Aurora a `Measured`, beside the times of its preset.

    Raises
    ------
    InputError
        For machines without published tables.

    Examples
    --------
    >>> import blinksim as bs
    >>> len(bs.measured("aurora").rows())
    29
    >>> row = bs.measured("p6-b200").rows()[-1]
    >>> row["collective"], row["gpus"], round(row["busbw_GBps"])
    ('allreduce', 8, 682)
    """
    name, known = catalogue_file(machine).stem, public_tables.machines()
    if name not in known:
        near = library_rates.relatives().get(name)
        cure = f"the nearest machine with some is {near[0]}; " if near else ""
        raise InputError(f"no measurements of {name} are known; {cure}there are those of {', '.join(known)}")
    if name == PROJECTED:
        return Measured(name, projected_cells())
    from blinksim.answers.measurements.public import public_measurements

    return public_measurements(name, quality)
