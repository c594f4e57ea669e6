"""The rows of a sweep as pictures need them: values of a column, words for ticks, the bound beside an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blinksim.collective import Collective, busbw_factor
from blinksim.plots.measures import MEASURES
from blinksim.plots.style import plain
from blinksim.units import format_size

_NAMES = {
    **{measure.column: measure.label for measure in MEASURES.values()},
    "of_bound": "share of bound",
    "size_bytes": "size",
    "asked": "algorithm",
}
_ENDINGS = (("_GBps", " (GB/s)"), ("_s", " (s)"))


@dataclass(frozen=True)
class Table:
    """rows: of the sweep, or of one panel. value: the column that is drawn."""

    rows: Sequence[dict[str, Any]]
    value: str
    collective: Collective

    def values(self, column: str) -> list[Any]:
        """What stands in a column, each once: numbers ascending, texts in the order of the rows."""
        found = list(dict.fromkeys(row[column] for row in self.rows))
        return sorted(found) if self.numeric(column) else found

    def numeric(self, column: str) -> bool:
        """True if everything in the column is a number."""
        return all(isinstance(row[column], (int, float)) and not isinstance(row[column], bool) for row in self.rows)

    def part(self, column: str | None, entry: Any) -> Table:
        """The rows with `entry` in `column`; all rows without a column."""
        if column is None:
            return self
        return Table([row for row in self.rows if row[column] == entry], self.value, self.collective)

    def answers(self) -> list[float]:
        """The values that are drawn, as far as there are answers."""
        return [row[self.value] for row in self.rows if row[self.value] is not None]

    def limit(self, row: dict[str, Any]) -> float | None:
        """The bound at a point in the unit of what is drawn; None if it is unknown or the value has none."""
        most = row.get("bound_algbw_GBps")
        measure = next((measure for measure in MEASURES.values() if measure.column == self.value), None)
        if not most or measure is None or row["ranks"] is None:
            return None
        return measure.of(most * 1e9, row["size_bytes"], float(busbw_factor(self.collective.name, row["ranks"])))


def label(column: str) -> str:
    """The name of a column for people: ``xe_bandwidth_GBps`` as ``xe bandwidth (GB/s)``."""
    if column in _NAMES:
        return _NAMES[column]
    for ending, unit in _ENDINGS:
        if column.endswith(ending):
            return plain(column.removesuffix(ending).replace("_", " ") + unit)
    return plain(column.replace("_", " "))


def tick(column: str, value: Any) -> str:
    """A value of a column for people."""
    if column == "size_bytes":
        return format_size(value)
    return f"{value:.4g}" if isinstance(value, float) else plain(str(value))


def entry(column: str, value: Any) -> str:
    """A value with the name of its column where it would not speak alone: ``nodes 4``, but ``ring``."""
    if not isinstance(value, (int, float)) or column == "size_bytes":
        return tick(column, value)
    name, bracket, unit = label(column).partition(" (")
    return f"{name} {tick(column, value)}" + (f" {unit.removesuffix(')')}" if bracket else "")


def heading(column: str, value: Any) -> str:
    """The title of a panel: ``edit: none``, ``nodes 4``."""
    return entry(column, value) if isinstance(value, (int, float)) else f"{label(column)}: {tick(column, value)}"
