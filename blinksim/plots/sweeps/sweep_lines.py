"""A sweep as lines along a number, in panels for a third thing that varies, or as bars for one category."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from blinksim.errors import InputError
from blinksim.plots.measures import number_axis, value_axis
from blinksim.plots.style import COLOURS, DASHES, MARKERS, figure, lighten, wrapped
from blinksim.plots.sweeps.sweep_table import Table, entry, heading, label, tick

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours times dashes: more lines cannot be told apart.
MOST_LINES = len(COLOURS) * len(DASHES)
MOST_PANELS = 6
_BOUND = "bound on the rate"


def lines(table: Table, across: str, down: str | None, panel: str | None, title: str) -> Figure:
    """A line for each value of `down` along `across`, and a panel for each value of `panel`, all to one scale."""
    from matplotlib.figure import Figure as Canvas

    panels = table.values(panel) if panel else [None]
    if len(panels) > MOST_PANELS:
        raise InputError(f"{len(panels)} panels for {panel} are too many (at most {MOST_PANELS})")
    wide = min(3, len(panels))
    tall = math.ceil(len(panels) / wide)
    width = 8.5 if len(panels) == 1 else 4.2 * wide + 1.8
    drawn = Canvas(figsize=(width, 5.0 if len(panels) == 1 else 3.4 * tall + 0.6), layout="constrained", dpi=150)
    series = table.values(down) if down else [None]
    for number, value in enumerate(panels):
        axes = drawn.add_subplot(tall, wide, number + 1)
        lighten(axes)
        part = table.part(panel, value)
        _panel(axes, part, across, down, series)
        number_axis(axes, table.values(across), sizes=across == "size_bytes")
        value_axis(axes, _reach(table), times=table.value == "time_s")
        axes.set_xlabel(label(across))
        axes.set_ylabel(label(table.value))
        if panel:
            axes.set_title(heading(panel, value), fontsize=9, loc="left")
    handles, names = _legend(drawn)
    if len(names) > 1:
        kind = label(down) if down else None
        drawn.axes[wide - 1].legend(
            handles, names, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0),
            title=kind, title_fontsize=8, alignment="left",
        )  # fmt: skip
    lost = sum(row[table.value] is None for row in table.rows)
    words = f"{title}; {lost} of {len(table.rows)} points without an answer" if lost else title
    drawn.suptitle(wrapped(words, width), fontsize=10, x=0.01, ha="left")
    return drawn


def _reach(table: Table) -> list[float]:
    """What the axis of values has to hold: of times only the answers, since the least time may be next to nothing."""
    limits = [limit for row in table.rows if (limit := table.limit(row)) is not None]
    return table.answers() + ([] if table.value == "time_s" else limits)


def _panel(axes: Axes, table: Table, across: str, down: str | None, series: list[object]) -> None:
    bounds: dict[tuple[tuple[float, float | None], ...], list[tuple[str, object]]] = {}
    for place, value in enumerate(series):
        rows = sorted(table.part(down, value).rows, key=lambda row: row[across])
        at = [row[across] for row in rows]
        colour = COLOURS[place % len(COLOURS)]
        axes.plot(
            at,
            [math.nan if row[table.value] is None else row[table.value] for row in rows],
            color=colour,
            linestyle=DASHES[place // len(COLOURS)],
            marker=MARKERS[place % len(MARKERS)],
            markersize=4,
            linewidth=1.6,
            label=entry(down, value) if down else label(table.value).partition(" (")[0],
        )
        limits = tuple((row[across], table.limit(row)) for row in rows if table.limit(row) is not None)
        if limits:
            bounds.setdefault(limits, []).append((colour, value))
    for points, owners in bounds.items():
        # Algorithms with the same bound share a line; one with a bound of its own (NVLS) has it in its colour.
        shared = down is None or (down == "asked" and len(owners) > 1) or len(bounds) == 1
        name = _BOUND if down != "asked" or len(bounds) == 1 else f"{_BOUND}, {', '.join(str(v) for _, v in owners)}"
        axes.plot(
            *zip(*points, strict=True),
            color="#000000" if shared else owners[0][0],
            linestyle="--",
            linewidth=1.0,
            label=name,
        )


def _legend(drawn: Figure) -> tuple[list[Artist], list[str]]:
    """The lines of all panels by name, each name once, bounds at the end."""
    found: dict[str, Artist] = {}
    for axes in drawn.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(name, handle)
    names = sorted(found, key=lambda name: name.startswith(_BOUND))
    return [found[name] for name in names], names


def bars(table: Table, along: str, title: str) -> Figure:
    """A bar for each value of one category, its number at the end, and a mark for the bound."""
    from matplotlib.lines import Line2D

    rows = table.rows
    drawn, axes = figure(8.5, max(2.2, 1.3 + 0.34 * len(rows)))
    marked = False
    for place, row in enumerate(rows):
        value, limit = row[table.value], table.limit(row)
        if value is None:
            axes.annotate("no answer", (0, place), xytext=(3, 0), textcoords="offset points", va="center",
                          fontsize=8, color="#555555")  # fmt: skip
        else:
            axes.barh(place, value, height=0.7, color=COLOURS[0])
            axes.annotate(f"{value:.4g}", (value, place), xytext=(-4, 0), textcoords="offset points", va="center",
                          ha="right", fontsize=8, color="white")  # fmt: skip
        if limit is not None:
            axes.vlines(limit, place - 0.42, place + 0.42, color="#000000", linestyle="--", linewidth=1.2)
            marked = True
    axes.set_yticks(range(len(rows)), [tick(along, row[along]) for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.05 * max(_reach(table)))
    axes.set_xlabel(label(table.value) + (" (s)" if table.value == "time_s" else ""))
    axes.set_ylabel(label(along))
    axes.grid(False, axis="y")
    if marked:
        handle = Line2D([], [], color="#000000", linestyle="--", linewidth=1.2, label=_BOUND)
        axes.legend(handles=[handle], fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.set_title(wrapped(title, 7.5), fontsize=10, loc="left")
    return drawn
