"""A sweep as heat maps: two categories, and a panel for each value of a third thing that varies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from blinksim.errors import InputError
from blinksim.plots.style import wrapped
from blinksim.plots.sweeps.sweep_lines import MOST_PANELS
from blinksim.plots.sweeps.sweep_table import Table, heading, label, tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDEST = 22.0


def maps(table: Table, across: str, down: str, panel: str | None, title: str) -> Figure:
    """A column of cells for each value of `across`, a row for each of `down`, the numbers written into them."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure as Canvas
    from matplotlib.ticker import LogLocator

    columns, lines = table.values(across), table.values(down)
    panels = table.values(panel) if panel else [None]
    if len(panels) > MOST_PANELS:
        raise InputError(f"{len(panels)} panels for {panel} are too many (at most {MOST_PANELS})")
    answers = table.answers()
    span = (min(answers), max(answers))
    wide = min(3, len(panels))
    tall = math.ceil(len(panels) / wide)
    size = (max(4.5, 0.75 * len(columns) + 2.2) * wide, max(2.4, 0.45 * len(lines) + 1.6) * tall)
    width = min(_WIDEST, size[0])
    drawn = Canvas(figsize=(width, min(_WIDEST, size[1])), layout="constrained", dpi=150)
    image: Any = None
    for number, value in enumerate(panels):
        axes = drawn.add_subplot(tall, wide, number + 1)
        image = _map(axes, table.part(panel, value), (across, columns), (down, lines), span)
        if panel:
            axes.set_title(heading(panel, value), fontsize=9, loc="left")
    name = label(table.value) + (" (s)" if table.value == "time_s" else "")
    bar = drawn.colorbar(image, ax=drawn.axes, label=name, format=lambda value, _: f"{value:.4g}")
    if isinstance(image.norm, LogNorm):
        # Not as powers of ten, of which there is but one or two.
        bar.set_ticks(LogLocator(subs=(1, 2, 5)))
        bar.minorticks_off()
    drawn.suptitle(wrapped(title, width), fontsize=10, x=0.01, ha="left")
    return drawn


def _map(
    axes: Axes,
    table: Table,
    across: tuple[str, list[Any]],
    down: tuple[str, list[Any]],
    span: tuple[float, float],
) -> Any:
    import numpy as np
    from matplotlib.colors import LogNorm, Normalize

    (x_name, columns), (y_name, lines) = across, down
    grid = np.full((len(lines), len(columns)), np.nan)
    for row in table.rows:
        if row[table.value] is not None:
            grid[lines.index(row[y_name]), columns.index(row[x_name])] = row[table.value]
    low, high = span
    norm = LogNorm(low, high) if low > 0 and high / low > 20 else Normalize(min(0.0, low), high)
    axes.set_facecolor("#ffffff")
    axes.patch.set_hatch("////")
    axes.patch.set_edgecolor("#bbbbbb")
    # cividis looks the same to people with and without colour-blindness, and prints in grey.
    image = axes.imshow(grid, aspect="auto", cmap="cividis", norm=norm)
    if grid.size <= 400:
        for y, x in np.argwhere(~np.isnan(grid)):
            dark = norm(grid[y, x]) < 0.55
            text = f"{grid[y, x]:.3g}"
            axes.text(x, y, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    names = [tick(x_name, value) for value in columns]
    axes.set_xticks(range(len(columns)), names, rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(len(lines)), [tick(y_name, value) for value in lines], fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(label(x_name))
    axes.set_ylabel(label(y_name))
    return image
