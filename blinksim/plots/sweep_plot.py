"""A sweep as a picture: a heat map where two things vary, lines where one does, panels for a third."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from blinksim.errors import InputError
from blinksim.plots.style import COLOURS, MARKERS, figure
from blinksim.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from blinksim.answers.sweeps.sweep import Sweep

_NAMES = {
    "algbw_GBps": "algbw (GB/s)",
    "busbw_GBps": "busbw (GB/s)",
    "time_s": "time (s)",
    "of_bound": "share of bound",
}
MOST_PANELS = 6


def sweep(found: Sweep, value: str = "algbw_GBps") -> Figure:
    """The `value` column of a sweep: lines if one thing varies, a heat map if two, panels of heat maps if three.

    Points without an answer stay empty and are hatched.

    Parameters
    ----------
    found : Sweep
        What to draw.
    value : str
        A column of numbers.

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
    if value not in found.rows()[0] or not any(isinstance(row[value], (int, float)) for row in found.rows()):
        raise InputError(f"{value!r} is no column of numbers here; draw one of {', '.join(_NAMES)}")
    along = found.varying()
    if not along:
        raise InputError("one point is no picture; vary something, or give several sizes")
    if len(along) == 1:
        return _lines(found, along[0], value)
    if len(along) > 3:
        raise InputError(f"{len(along)} things vary ({', '.join(along)}); a picture holds three, so fix one")
    # Sizes run along the x axis; panels go to the axis with the fewest values.
    panel = min(along, key=lambda name: len(_values(found, name))) if len(along) == 3 else None
    rest = [name for name in along if name != panel]
    across = "size_bytes" if "size_bytes" in rest else rest[-1]
    down = next(name for name in rest if name != across)
    return _maps(found, across, down, panel, value)


def label(column: str) -> str:
    """The name of a column for people: ``xe_bandwidth_GBps`` as ``xe bandwidth (GB/s)``."""
    if column in _NAMES:
        return _NAMES[column]
    known = {"size_bytes": "size", "asked": "algorithm"}
    for ending, unit in (("_GBps", " (GB/s)"), ("_s", " (s)")):
        if column.endswith(ending) and column not in known:
            return column.removesuffix(ending).replace("_", " ") + unit
    return known.get(column, column.replace("_", " "))


def _tick(column: str, value: Any) -> str:
    if column == "size_bytes":
        return format_size(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("_", " ")


def _values(found: Sweep, column: str) -> list[Any]:
    return list(dict.fromkeys(row[column] for row in found.rows()))


def _title(found: Sweep) -> str:
    return f"{found.collective} on {found.machine}, model {found.rows()[0]['model']}"


def _lines(found: Sweep, along: str, value: str) -> Figure:
    drawn, axes = figure()
    rows = [row for row in found.rows() if row[value] is not None]
    numbers = all(isinstance(row[along], (int, float)) for row in rows)
    at = [row[along] if numbers else place for place, row in enumerate(rows)]
    axes.plot(at, [row[value] for row in rows], color=COLOURS[0], marker=MARKERS[0], markersize=4, label=label(value))
    if "bound_algbw_GBps" in rows[0] and value == "algbw_GBps":
        bounds = [row["bound_algbw_GBps"] for row in rows]
        axes.plot(at, bounds, color="#000000", linestyle="--", linewidth=1.0, label="best that is possible")
        axes.legend(fontsize=8, frameon=False)
    if numbers and min(at) > 0 and max(at) / min(at) >= 8:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    axes.set_xticks(at, [_tick(along, row[along]) for row in rows], rotation=0 if numbers else 20, ha="center")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(label(along))
    axes.set_ylabel(label(value))
    axes.set_title(_title(found), fontsize=10, loc="left")
    return drawn


def _maps(found: Sweep, across: str, down: str, panel: str | None, value: str) -> Figure:
    from matplotlib.figure import Figure as Canvas

    columns, lines = _values(found, across), _values(found, down)
    panels = _values(found, panel) if panel else [None]
    if len(panels) > MOST_PANELS:
        raise InputError(f"{len(panels)} panels for {panel} are too many (at most {MOST_PANELS})")
    answers = [row[value] for row in found.rows() if row[value] is not None]
    low, high = min(answers), max(answers)
    wide = min(3, len(panels))
    tall = math.ceil(len(panels) / wide)
    size = (max(4.5, 0.75 * len(columns) + 2.2) * wide, max(2.4, 0.45 * len(lines) + 1.6) * tall)
    drawn = Canvas(figsize=(min(22.0, size[0]), min(22.0, size[1])), layout="constrained", dpi=150)
    image: Any = None
    for number, entry in enumerate(panels):
        axes = drawn.add_subplot(tall, wide, number + 1)
        rows = [row for row in found.rows() if panel is None or row[panel] == entry]
        image = _map(axes, rows, (across, columns), (down, lines), value, (low, high))
        if panel:
            axes.set_title(f"{label(panel)}: {_tick(panel, entry)}", fontsize=9, loc="left")
    drawn.colorbar(image, ax=drawn.axes, label=label(value), shrink=0.9)
    drawn.suptitle(_title(found), fontsize=10, x=0.01, ha="left")
    return drawn


def _map(
    axes: Axes,
    rows: Sequence[dict[str, Any]],
    across: tuple[str, list[Any]],
    down: tuple[str, list[Any]],
    value: str,
    span: tuple[float, float],
) -> Any:
    import numpy as np
    from matplotlib.colors import LogNorm, Normalize

    (x_name, columns), (y_name, lines) = across, down
    grid = np.full((len(lines), len(columns)), np.nan)
    for row in rows:
        if row[value] is not None:
            grid[lines.index(row[y_name]), columns.index(row[x_name])] = row[value]
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
    names = [_tick(x_name, entry) for entry in columns]
    axes.set_xticks(range(len(columns)), names, rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(len(lines)), [_tick(y_name, entry) for entry in lines], fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(label(x_name))
    axes.set_ylabel(label(y_name))
    return image
