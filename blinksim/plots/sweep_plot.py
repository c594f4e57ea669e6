"""A sweep as a picture: lines for one numeric axis, bars for one category, heat maps for two axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from blinksim.collective import Collective, busbw_factor
from blinksim.errors import InputError
from blinksim.plots import style
from blinksim.units import format_size

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from blinksim.answers.sweep import Sweep

# Colours times dashes: more lines cannot be told apart.
_MOST_LINES = len(style.COLOURS) * len(style.DASHES)
_MOST_PANELS = 6
# Inches of a map.
_WIDEST = 22.0
# Of a map: the largest over the smallest value from which on colours stand for powers, and cells with numbers.
_WIDE, _MOST_NUMBERS = 20, 400
_BOUND = "bound on the rate"
_FILES = (".yaml", ".yml", ".xml", ".txt", ".json")
_NAMES = {
    **{measure.column: measure.label for measure in style.MEASURES.values()},
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
        values = list(dict.fromkeys(row[column] for row in self.rows))
        return sorted(values) if self.numeric(column) else values

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

    def reach(self) -> list[float]:
        """What the axis has to hold: of times only the answers, since the least time may be next to nothing."""
        limits = [limit for row in self.rows if (limit := self.limit(row)) is not None]
        return self.answers() + ([] if self.value == "time_s" else limits)

    @property
    def unit(self) -> str:
        """The name of what is drawn, with its unit."""
        return label(self.value) + (" (s)" if self.value == "time_s" else "")

    def limit(self, row: dict[str, Any]) -> float | None:
        """The bound at a point in the unit of what is drawn; None if it is unknown or the value has none."""
        most = row.get("bound_algbw_GBps")
        measure = next((measure for measure in style.MEASURES.values() if measure.column == self.value), None)
        if not most or measure is None or row["ranks"] is None:
            return None
        return measure.of(most * 1e9, row["size_bytes"], float(busbw_factor(self.collective.name, row["ranks"])))


def label(column: str) -> str:
    """The name of a column for people: ``xe_bandwidth_GBps`` as ``xe bandwidth (GB/s)``."""
    if column in _NAMES:
        return _NAMES[column]
    for ending, unit in _ENDINGS:
        if column.endswith(ending):
            return style.plain(column.removesuffix(ending).replace("_", " ") + unit)
    return style.plain(column.replace("_", " "))


def tick(column: str, value: Any) -> str:
    """A value of a column for people."""
    if column == "size_bytes":
        return format_size(value)
    return f"{value:.4g}" if isinstance(value, float) else style.plain(str(value))


def entry(column: str, value: Any) -> str:
    """A value with the name of its column where it would not speak alone: ``nodes 4``, but ``ring``."""
    if not isinstance(value, (int, float)) or column == "size_bytes":
        return tick(column, value)
    name, bracket, unit = label(column).partition(" (")
    return f"{name} {tick(column, value)}" + (f" {unit.removesuffix(')')}" if bracket else "")


def sweep(found: Sweep, value: str = "algbw") -> Figure:
    """The rates or times of a sweep along its varying axes.

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
    column = style.MEASURES[value].column if value in style.MEASURES else value
    rows = found.rows()
    if column not in rows[0] or not any(isinstance(row[column], (int, float)) for row in rows):
        raise InputError(f"{value!r} is no column of numbers here; draw one of {', '.join(style.MEASURES)}")
    along = found.varying()
    if not along:
        raise InputError("one point is no picture; vary something, or give several sizes")
    if len(along) > 3:
        raise InputError(f"{len(along)} things vary ({', '.join(along)}); a picture holds three, so fix one")
    table = Table(rows, column, found.collective)
    (across, down, panel), drawn_as_lines = _arranged(table, along)
    if not drawn_as_lines:
        return _maps(table, across, str(down), panel, _title(found))
    if not table.numeric(across):
        return _bars(table, across, _title(found))
    return _lines(table, across, down, panel, _title(found))


def _arranged(table: Table, along: list[str]) -> tuple[tuple[str, str | None, str | None], bool]:
    """What goes along the x axis, what tells lines or rows apart, and a panel for each of what; True for lines.

    Lines along a number where there is one that lines can be drawn along, else maps.
    """
    count = {name: len(table.values(name)) for name in along}
    if len(along) == 1:
        return (along[0], None, None), True
    # The finest number goes to the right; of equally fine ones the one that was asked to vary, which comes before size.
    across = max(filter(table.numeric, along), key=count.__getitem__, default=None)
    rest = [name for name in along if name != across]
    # Algorithms are lines where they can be, since lines are what one compares; panels go to what has fewest values.
    panel = min(rest, key=lambda name: (name == "asked", count[name])) if len(along) == 3 else None
    down = next((name for name in rest if name != panel), None)
    if across and down and count[down] <= _MOST_LINES:
        return (across, down, panel), True
    panel = min(along, key=count.__getitem__) if len(along) == 3 else None
    rest = [name for name in along if name != panel]
    across = "size_bytes" if "size_bytes" in rest else rest[-1]
    return (across, next(name for name in rest if name != across), panel), False


def _title(found: Sweep) -> str:
    """Collective, machine, and of size, nodes, rates, algorithm and model what is the same at every point."""
    rows, varying = found.rows(), found.varying()
    name = PurePath(found.machine).name if found.machine.endswith(_FILES) else found.machine
    nodes = 1 if "nodes" in varying else found.base.nodes
    words = [f"{found.collective} on {style.machine_words(name, found.base.edits, nodes)}"]
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


def _panels(
    table: Table, panel: str | None, inches: Callable[[int, int], tuple[float, float]]
) -> tuple[Figure, list[tuple[Axes, Table]]]:
    """A figure with axes for each value of `panel`, and the rows that go there; inches: of rows and columns of them."""
    values = table.values(panel) if panel else [None]
    if len(values) > _MOST_PANELS:
        raise InputError(f"{len(values)} panels for {panel} are too many (at most {_MOST_PANELS})")
    wide = min(3, len(values))
    tall = math.ceil(len(values) / wide)
    drawn, parts = style.canvas(*inches(wide, tall)), []
    for number, value in enumerate(values):
        axes = drawn.add_subplot(tall, wide, number + 1)
        if panel:
            named = entry(panel, value) if isinstance(value, (int, float)) else f"{label(panel)}: {tick(panel, value)}"
            axes.set_title(named, fontsize=9, loc="left")
        parts.append((axes, table.part(panel, value)))
    return drawn, parts


def _lines(table: Table, across: str, down: str | None, panel: str | None, title: str) -> Figure:
    """A line for each value of `down` along `across`, and a panel for each value of `panel`, all to one scale."""
    drawn, parts = _panels(
        table, panel, lambda wide, tall: (8.5, 5.0) if wide == 1 else (4.2 * wide + 1.8, 3.4 * tall + 0.6)
    )
    series = table.values(down) if down else [None]
    handles: dict[str, Artist] = {}
    for axes, part in parts:
        style.lighten(axes)
        _panel(axes, part, across, down, series)
        style.number_axis(axes, table.values(across), sizes=across == "size_bytes")
        style.value_axis(axes, table.reach(), times=table.value == "time_s")
        axes.set(xlabel=label(across), ylabel=label(table.value))
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    # Each name once, bounds at the end.
    names = sorted(handles, key=lambda name: name.startswith(_BOUND))
    if len(names) > 1:
        corner = drawn.axes[min(3, len(parts)) - 1]
        kind = label(down) if down else None
        style.legend(corner, [handles[name] for name in names], names, title=kind, title_fontsize=8, alignment="left")
    lost = sum(row[table.value] is None for row in table.rows)
    words = f"{title}; {lost} of {len(table.rows)} points without an answer" if lost else title
    style.title(drawn, words, drawn.get_figwidth())
    return drawn


def _panel(axes: Axes, table: Table, across: str, down: str | None, series: list[object]) -> None:
    bounds: dict[tuple[tuple[float, float | None], ...], list[tuple[str, object]]] = {}
    for place, value in enumerate(series):
        rows = sorted(table.part(down, value).rows, key=lambda row: row[across])
        at = [row[across] for row in rows]
        answers = [math.nan if row[table.value] is None else row[table.value] for row in rows]
        name = entry(down, value) if down else label(table.value).partition(" (")[0]
        dashes = style.DASHES[place // len(style.COLOURS)]
        axes.plot(at, answers, linestyle=dashes, markersize=4, linewidth=1.6, label=name, **style.look(place))
        limits = tuple((row[across], table.limit(row)) for row in rows if table.limit(row) is not None)
        if limits:
            bounds.setdefault(limits, []).append((style.look(place)["color"], value))
    for points, owners in bounds.items():
        # Algorithms with the same bound share a line; one with a bound of its own (NVLS) has it in its colour.
        shared = down is None or (down == "asked" and len(owners) > 1) or len(bounds) == 1
        name = _BOUND if down != "asked" or len(bounds) == 1 else f"{_BOUND}, {', '.join(str(v) for _, v in owners)}"
        colour = "#000000" if shared else owners[0][0]
        axes.plot(*zip(*points, strict=True), color=colour, linestyle="--", linewidth=1.0, label=name)


def _bars(table: Table, along: str, title: str) -> Figure:
    """A bar for each value of one category, its number at the end, and a mark for the bound."""
    from matplotlib.lines import Line2D

    rows = table.rows
    drawn, axes = style.figure(8.5, max(2.2, 1.3 + 0.34 * len(rows)))
    marked = False
    for place, row in enumerate(rows):
        value, limit = row[table.value], table.limit(row)
        if value is None:
            style.beside(axes, "no answer", (0, place), (3, 0), va="center", fontsize=8, color="#555555")
        else:
            axes.barh(place, value, height=0.7, color=style.COLOURS[0])
            style.beside(
                axes, f"{value:.4g}", (value, place), (-4, 0), va="center", ha="right", fontsize=8, color="white"
            )
        if limit is not None:
            axes.vlines(limit, place - 0.42, place + 0.42, color="#000000", linestyle="--", linewidth=1.2)
            marked = True
    style.row_axis(axes, [tick(along, row[along]) for row in rows])
    axes.set(xlim=(0, 1.05 * max(table.reach())), xlabel=table.unit, ylabel=label(along))
    if marked:
        style.legend(axes, handles=[Line2D([], [], color="#000000", linestyle="--", linewidth=1.2, label=_BOUND)])
    style.title(axes, title, 7.5)
    return drawn


def _maps(table: Table, across: str, down: str, panel: str | None, title: str) -> Figure:
    """A column of cells for each value of `across`, a row for each of `down`, the numbers written into them."""
    import numpy as np
    from matplotlib.ticker import LogLocator

    columns, lines, answers = table.values(across), table.values(down), table.answers()
    each = max(4.5, 0.75 * len(columns) + 2.2), max(2.4, 0.45 * len(lines) + 1.6)
    drawn, parts = _panels(
        table, panel, lambda wide, tall: (min(_WIDEST, each[0] * wide), min(_WIDEST, each[1] * tall))
    )
    low, high = min(answers), max(answers)
    powers = low > 0 and high / low > _WIDE
    norm = style.colour_scale(low, high, powers=powers)
    image: Any = None
    for axes, part in parts:
        grid = np.full((len(lines), len(columns)), np.nan)
        for row in part.rows:
            if row[part.value] is not None:
                grid[lines.index(row[down]), columns.index(row[across])] = row[part.value]
        axes.set_facecolor("#ffffff")
        axes.patch.set(hatch="////", edgecolor="#bbbbbb")
        # cividis looks the same to people with and without colour-blindness, and prints in grey.
        image = axes.imshow(grid, aspect="auto", cmap="cividis", norm=norm)
        for y, x in np.argwhere(~np.isnan(grid)) if grid.size <= _MOST_NUMBERS else ():
            shade = "white" if norm(grid[y, x]) < 0.55 else "black"
            axes.text(x, y, f"{grid[y, x]:.3g}", ha="center", va="center", fontsize=7, color=shade)
        names = [tick(across, value) for value in columns]
        axes.set_xticks(range(len(columns)), names, rotation=30, ha="right", fontsize=8)
        axes.set_yticks(range(len(lines)), [tick(down, value) for value in lines], fontsize=8)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set(xlabel=label(across), ylabel=label(down))
    bar = drawn.colorbar(image, ax=drawn.axes, label=table.unit, format=lambda value, _: f"{value:.4g}")
    if powers:
        # Not as powers of ten, of which there is but one or two.
        bar.set_ticks(LogLocator(subs=(1, 2, 5)))
        bar.minorticks_off()
    style.title(drawn, title, drawn.get_figwidth())
    return drawn
