"""A sweep as a picture: lines for one numeric axis, bars for one category, heat maps for two axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from blinksim.answers.sweep import Sweep
from blinksim.collective import Collective, busbw_factor
from blinksim.errors import InputError
from blinksim.plots import style
from blinksim.units import format_size

# Colours times dashes: more lines cannot be told apart.
_MOST_LINES = len(style.COLOURS) * len(style.DASHES)
_MOST_PANELS = 6
# Inches of a map.
_WIDEST = 22.0
# Of a map: the largest over the smallest value from which on colours stand for powers, and cells with
# numbers.
_WIDE, _MOST_NUMBERS = 20, 400
_BOUND = "bound on the rate"
_FILES = (".yaml", ".yml", ".xml", ".txt", ".json")
_NAMES = {measure.column: measure.label for measure in style.MEASURES.values()}
_NAMES |= {"of_bound": "share of bound", "size_bytes": "size", "asked": "algorithm"}
# Points up to which two numbers along an axis are bars: nobody knows what lies between them.
_MOST_BARS = 12


@dataclass(frozen=True)
class Table:
    """rows: of the sweep, or of one panel. value: the column that is drawn."""

    rows: Sequence[dict[str, Any]]
    value: str
    collective: Collective | str

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

    def limit(self, row: dict[str, Any]) -> float | None:
        """The bound at a point in the unit of what is drawn; None if it is unknown or the value has none."""
        most = row.get("bound_algbw_GBps")
        measure = next((measure for measure in style.MEASURES.values() if measure.column == self.value), None)
        if not most or measure is None or row["ranks"] is None:
            return None
        factor = float(busbw_factor(getattr(self.collective, "name", ""), row["ranks"]))
        return measure.of(most * 1e9, row["size_bytes"], factor)


def label(column: str) -> str:
    """The name of a column for people: ``xe_bandwidth_GBps`` as ``xe bandwidth (GB/s)``."""
    # Times are written with their unit.
    words = column.removesuffix("_s").replace("_GBps", " (GB/s)").replace("_", " ")
    return _NAMES.get(column, style.plain(words))


def entry(column: str, value: Any) -> str:
    """A value with the name of its column where it would not speak alone: ``nodes 4``, but ``ring``."""
    if not isinstance(value, (int, float)) or column == "size_bytes":
        return style.number(value, column=column)
    name, bracket, unit = label(column).partition(" (")
    return f"{name} {style.number(value, column=column)}" + (f" {unit.removesuffix(')')}" if bracket else "")


def sweep(found: Sweep, value: str = "algbw") -> Figure:
    """The rates or times of a sweep along its varying axes.

    Lines along sizes, nodes or another number; bars for one category, such as edits or algorithms; a heat map
    for two; panels for a third thing that varies. Points without an answer stay empty: gaps in lines, hatched
    in maps.

    Parameters
    ----------
    found : Sweep
        What to draw.
    value : str
        ``time``, ``algbw``, ``busbw`` or a column of numbers; ``terms`` for times as bars of what takes them,
        where the rows say that by link class.

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
    asked = "time" if value == "terms" and found.classes else value
    column = style.MEASURES[asked].column if asked in style.MEASURES else asked
    rows = found.rows()
    if column not in rows[0] or not any(isinstance(row[column], (int, float)) for row in rows):
        known = ", ".join(style.MEASURES)
        raise InputError(f"{value!r} is no column of numbers here; draw one of {known}, or terms of a preset")
    if not (along := found.varying()):
        raise InputError("one point is no picture; vary something, or give several sizes")
    if len(along) > 3:
        raise InputError(f"{len(along)} things vary ({', '.join(along)}); a picture holds three, so fix one")
    table, (title, note) = Table(rows, column, found.collective), _title(found)
    (across, down, panel), drawn_as_lines = _arranged(table, along)
    few = len(rows) <= _MOST_BARS and len(table.values(across)) < 3
    if value == "terms" or (drawn_as_lines and (few or not table.numeric(across))):
        drawn = _bars(table, along, found.classes if value == "terms" else ())
    else:
        drawn = _lines(table, across, down, panel) if drawn_as_lines else _maps(table, across, str(down), panel)
    title += f"; {len(found.failed)} of {len(rows)} points without an answer" * bool(found.failed)
    style.title(drawn, title, drawn.get_figwidth(), note=note)
    return drawn


def _arranged(table: Table, along: list[str]) -> tuple[tuple[str, str | None, str | None], bool]:
    """What goes along the x axis, what tells lines or rows apart, and a panel for each of what; True for lines.

    Lines along a number where there is one that lines can be drawn along, else maps.
    """
    count = {name: len(table.values(name)) for name in along}
    if len(along) == 1:
        return (along[0], None, None), True
    # The finest number goes to the right; of equally fine ones the one that was asked to vary, which comes
    # before size.
    across = max(filter(table.numeric, along), key=count.__getitem__, default=None)
    rest = [name for name in along if name != across]
    # Algorithms are lines where they can be, since lines are what one compares; panels go to what has fewest
    # values.
    panel = min(rest, key=lambda name: (name == "asked", count[name])) if len(along) == 3 else None
    down = next((name for name in rest if name != panel), None)
    if across and down and count[down] <= _MOST_LINES:
        return (across, down, panel), True
    panel = min(along, key=count.__getitem__) if len(along) == 3 else None
    rest = [name for name in along if name != panel]
    across = "size_bytes" if "size_bytes" in rest else rest[-1]
    return (across, next(name for name in rest if name != across), panel), False


def _title(found: Sweep) -> tuple[str, str]:
    """Collective, machine, size, ranks; and rates, algorithm, model: what is the same at every point."""
    rows, varying = found.rows(), found.varying()
    name = PurePath(found.machine).name if found.machine.endswith(_FILES) else found.machine
    nodes = 1 if "nodes" in varying else found.base.nodes
    words = [f"{found.collective} on {style.machine_words(name, found.base.edits, nodes)}"]
    sizes, ranks, asked = (_same(row[key] for row in rows) for key in ("size_bytes", "ranks", "asked"))
    words += [format_size(size) for size in sizes if len(sizes) == 1]
    words += [f"{count} ranks" for count in ranks if len(ranks) == 1]
    notes = list[str]()
    tables = _same(row["rates"] for row in rows if not (row["reason"] or row.get("library")))
    for held in tables if "rates" not in varying else ():
        names = ", ".join(_same(row["asked"] for row in rows if row["rates"] == held))
        notes.append(f"{held} rates" + f" ({names})" * (len(tables) > 1))
    said = {"best": "best algorithm", "library": f"with {' or '.join(_same(row.get('library') for row in rows))}"}
    notes += [said.get(name, name) for name in asked if len(asked) == 1]
    return ", ".join(words), "; ".join([*notes, "model " + ", ".join(_same(row["model"] for row in rows))])


def _same(values: Any) -> list[Any]:
    return [value for value in dict.fromkeys(values) if value]


def _panels(table: Table, panel: str | None, inches: tuple[float, float]) -> tuple[Figure, list[tuple[Axes, Table]]]:
    """A figure with axes for each value of `panel`, and the rows that go there; inches: of one of them."""
    values = table.values(panel) if panel else [None]
    if len(values) > _MOST_PANELS:
        raise InputError(f"{len(values)} panels for {panel} are too many (at most {_MOST_PANELS})")
    wide = min(3, len(values))
    tall = math.ceil(len(values) / wide)
    drawn, parts = style.canvas(min(_WIDEST, wide * inches[0]), min(_WIDEST, tall * inches[1])), []
    for number, value in enumerate(values):
        axes = drawn.add_subplot(tall, wide, number + 1)
        if panel:
            words = f"{label(panel)}: {style.number(value, column=panel)}"
            axes.set_title(entry(panel, value) if isinstance(value, (int, float)) else words, fontsize=9, loc="left")
        parts.append((axes, table.part(panel, value)))
    return drawn, parts


def _lines(table: Table, across: str, down: str | None, panel: str | None) -> Figure:
    """A line for each value of `down` along `across`, and a panel for each value of `panel`, all to one scale."""
    drawn, parts = _panels(table, panel, (4.8, 3.7) if panel else (8.5, 5.0))
    series = table.values(down) if down else [None]
    handles: dict[str, Artist] = {}
    for axes, part in parts:
        style.lighten(axes)
        _panel(axes, part, across, down, series)
        style.number_axis(axes, table.values(across), across)
        style.value_axis(axes, table.reach(), table.value)
        axes.set(xlabel=label(across), ylabel=label(table.value))
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    # Each name once, bounds at the end.
    names = sorted(handles, key=lambda name: name.startswith(_BOUND))
    if len(names) > 1:
        corner = drawn.axes[min(3, len(parts)) - 1]
        kind = label(down) if down else None
        style.legend(corner, [handles[name] for name in names], names, title=kind, title_fontsize=8, alignment="left")
    return drawn


def _panel(axes: Axes, table: Table, across: str, down: str | None, series: list[Any]) -> None:
    bounds: dict[tuple[tuple[float, float | None], ...], list[tuple[str, object]]] = {}
    for place, value in enumerate(series):
        rows = sorted(table.part(down, value).rows, key=lambda row: row[across])
        at = [row[across] for row in rows]
        answers = [math.nan if row[table.value] is None else row[table.value] for row in rows]
        name = style.number(value, column=down) if down else label(table.value).partition(" (")[0]
        dashes = style.DASHES[place // len(style.COLOURS)]
        axes.plot(at, answers, linestyle=dashes, markersize=4, linewidth=1.6, label=name, **style.look(place))
        limits = tuple((row[across], table.limit(row)) for row in rows if table.limit(row) is not None)
        if limits:
            bounds.setdefault(limits, []).append((style.look(place)["color"], value))
    for points, owners in bounds.items():
        # Algorithms with the same bound share a line; one with a bound of its own (NVLS) has it in its
        # colour.
        shared = down is None or (down == "asked" and len(owners) > 1) or len(bounds) == 1
        name = _BOUND if down != "asked" or len(bounds) == 1 else f"{_BOUND}, {', '.join(str(v) for _, v in owners)}"
        colour = "#000000" if shared else owners[0][0]
        axes.plot(*zip(*points, strict=True), color=colour, linestyle="--", linewidth=1.0, label=name)


def _bars(table: Table, along: Sequence[str], classes: Sequence[str]) -> Figure:
    """A bar and a number for each point, a mark for the bound; classes: what the value consists of."""
    rows, column = table.rows, table.value
    drawn, axes = style.figure(8.5, max(2.2, 1.3 + 0.34 * len(rows)))
    ends = dict.fromkeys((place for place, row in enumerate(rows) if row[column] is not None), 0.0)
    for number, name in enumerate(classes or [column]):
        look: dict[str, Any] = {"color": style.COLOURS[number], "hatch": style.HATCHES[number], "edgecolor": "white"}
        widths = [rows[place][name] for place in ends]
        axes.barh([*ends], widths, height=0.7, left=[*ends.values()], label=label(name), **look)
        ends = {place: end + width for (place, end), width in zip(ends.items(), widths, strict=True)}
    for place, row in enumerate(rows):
        words = style.number(row[column], column=column) if place in ends else "no answer"
        style.beside(axes, words, (ends.get(place, 0), place), (3, 0), va="center", color="#555555")
    limits = [(limit, place) for place, row in enumerate(rows) if (limit := table.limit(row)) is not None]
    if limits:
        at, middle = np.array(limits).T
        axes.vlines(at, middle - 0.42, middle + 0.42, color="#000000", linestyle="--", label=_BOUND)
    if classes or limits:
        style.legend(axes)
    style.row_axis(axes, [", ".join(entry(name, row[name]) for name in along) for row in rows])
    axes.set(xlim=(0, 1.12 * max(table.reach())), xlabel=label(column))
    axes.xaxis.set_major_formatter(partial(style.number, column=column))
    return drawn


def _maps(table: Table, across: str, down: str, panel: str | None) -> Figure:
    """A column of cells for each value of `across`, a row for each of `down`, the numbers written into them."""
    columns, lines, answers = table.values(across), table.values(down), table.answers()
    each = max(4.5, 0.75 * len(columns) + 2.2), max(2.4, 0.45 * len(lines) + 1.6)
    drawn, parts = _panels(table, panel, each)
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
            words = style.number(grid[y, x], column=table.value)
            axes.text(x, y, words, ha="center", va="center", fontsize=7, color=shade)
        names = [style.number(value, column=across) for value in columns]
        axes.set_xticks(range(len(columns)), names, rotation=30, ha="right", fontsize=8)
        axes.set_yticks(range(len(lines)), [style.number(value, column=down) for value in lines], fontsize=8)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set(xlabel=label(across), ylabel=label(down))
    written = partial(style.number, column=table.value)
    bar = drawn.colorbar(image, ax=drawn.axes, label=label(table.value), format=written)
    if powers:
        # Not as powers of ten, of which there is but one or two.
        bar.set_ticks(LogLocator(subs=(1, 2, 5)))
        bar.minorticks_off()
    return drawn
