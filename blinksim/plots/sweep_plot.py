"""A sweep as a picture: lines along what is a number, bars for one category, heat maps for two."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from blinksim.errors import InputError
from blinksim.plots.measures import MEASURES
from blinksim.plots.style import machine_words
from blinksim.plots.sweeps import sweep_lines, sweep_maps
from blinksim.plots.sweeps.sweep_table import Table
from blinksim.units import format_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from blinksim.answers.sweep import Sweep

_FILES = (".yaml", ".yml", ".xml", ".txt", ".json")


@dataclass(frozen=True)
class Axes:
    """Which column goes where: along the x axis, what tells lines (or rows of a map) apart, a panel for each."""

    across: str
    down: str | None = None
    panel: str | None = None
    lines: bool = True


def sweep(found: Sweep, value: str = "algbw") -> Figure:
    """The rates or times of a sweep along what varies.

    Lines along sizes, nodes or another number; bars for one category, such as edits or algorithms; a heat map for two;
    panels for a third thing that varies. Points without an answer stay empty: gaps in lines, hatched in maps.

    Parameters
    ----------
    found : Sweep
        What to draw.
    value : str
        ``time``, ``algbw``, ``busbw`` or a column of numbers.

    Returns
    -------
    Figure
        A matplotlib figure; `save` writes it.

    Raises
    ------
    InputError
        For a column that is not a number, and if more varies than a picture can hold.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.sweep("dgx1-v100", "allreduce", ["1MiB", "1GiB"], {"nvlink lanes": [1, 2]}, algorithms=["ring"])
    >>> picture = bs.plot.sweep(found, "time_s")
    """
    column = MEASURES[value].column if value in MEASURES else value
    rows = found.rows()
    if column not in rows[0] or not any(isinstance(row[column], (int, float)) for row in rows):
        raise InputError(f"{value!r} is no column of numbers here; draw one of {', '.join(MEASURES)}")
    along = found.varying()
    if not along:
        raise InputError("one point is no picture; vary something, or give several sizes")
    if len(along) > 3:
        raise InputError(f"{len(along)} things vary ({', '.join(along)}); a picture holds three, so fix one")
    table = Table(rows, column, found.collective)
    chosen = arranged(table, along)
    title = _title(found)
    if not chosen.lines:
        assert chosen.down is not None
        return sweep_maps.maps(table, chosen.across, chosen.down, chosen.panel, title)
    if not table.numeric(chosen.across):
        return sweep_lines.bars(table, chosen.across, title)
    return sweep_lines.lines(table, chosen.across, chosen.down, chosen.panel, title)


def arranged(table: Table, along: list[str]) -> Axes:
    """Lines along a number where there is one that lines can be drawn along, else maps."""
    count = {name: len(table.values(name)) for name in along}
    numbers = [name for name in along if table.numeric(name)]
    if len(along) == 1:
        return Axes(along[0])
    # The finest number goes to the right; of equally fine ones the one that was asked to vary, which comes before size.
    across = max(numbers, key=lambda name: count[name]) if numbers else None
    rest = [name for name in along if name != across]
    # Algorithms are lines where they can be, since lines are what one compares; panels go to what has fewest values.
    panel = min(rest, key=lambda name: (name == "asked", count[name])) if len(along) == 3 else None
    down = next((name for name in rest if name != panel), None)
    if across and down and count[down] <= sweep_lines.MOST_LINES:
        return Axes(across, down, panel)
    panel = min(along, key=lambda name: count[name]) if len(along) == 3 else None
    rest = [name for name in along if name != panel]
    across = "size_bytes" if "size_bytes" in rest else rest[-1]
    return Axes(across, next(name for name in rest if name != across), panel, lines=False)


def _title(found: Sweep) -> str:
    """Collective, machine, and of size, nodes, rates, algorithm and model what is the same at every point."""
    rows, varying = found.rows(), found.varying()
    name = PurePath(found.machine).name if found.machine.endswith(_FILES) else found.machine
    nodes = 1 if "nodes" in varying else found.base.nodes
    words = [f"{found.collective} on {machine_words(name, found.base.edits, nodes)}"]
    sizes = {row["size_bytes"] for row in rows}
    if len(sizes) == 1:
        words.append(format_size(sizes.pop()))
    ranks = {row["ranks"] for row in rows if row["ranks"] is not None}
    if len(ranks) == 1:
        words.append(f"{ranks.pop()} ranks")
    tables = _same(row["rates"] for row in rows if not row["reason"])
    if len(tables) > 1 and "rates" not in varying:
        at = {table: _same(row["asked"] for row in rows if row["rates"] == table) for table in tables}
        words += [f"{table} rates ({', '.join(names)})" for table, names in at.items()]
    elif tables and "rates" not in varying:
        words.append(f"{', '.join(tables)} rates")
    asked = {row["asked"] for row in rows}
    if len(asked) == 1:
        words += [f"{name} algorithm" if name == "best" else name for name in asked]
    words.append("model " + ", ".join(_same(row["model"] for row in rows)))
    return ", ".join(words)


def _same(values: Any) -> list[str]:
    return [value for value in dict.fromkeys(values) if value]
