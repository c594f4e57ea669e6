"""Published measurements as a picture: measured, expected and bound against size, and their ratios."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from blinksim.answers.measurements.measured import SOURCE, Measured
from blinksim.answers.measurements.public import job_of
from blinksim.collective import busbw_factor
from blinksim.errors import InputError
from blinksim.plots import style
from blinksim.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from blinksim.answers.measurements.public import MeasuredCell, PublicMeasurements

_WIDTH, _HEIGHT = 8.5, 7.0
_GREY = "#666666"
# Errors beyond are drawn at the edge, in percent; and the band within which nine in ten large messages shall be.
_MOST_ERROR, _BAND = 60, 20
_STYLES: dict[str, Literal["-", "--", ":"]] = {"expected_s": "-", "predicted_s": "--", "bound": ":"}
_WORDS = {"expected_s": "expected by constants", "predicted_s": "what NCCL predicts for itself", "bound": "bound"}
Job = list["MeasuredCell"]


def measured(found: PublicMeasurements | Measured, collective: str = "", y: str = "busbw", most: int = 5) -> Figure:
    """Measured rate, expected rate and bound against size; below, the error of the expected rate.

    Markers are measured times, hollow ones those that constants were fitted to. Solid lines are what constants say,
    dashed ones what NCCL predicts for itself, dotted ones the bound. Of Aurora, measured and projected times
    of each number of nodes and ranks.

    Parameters
    ----------
    found : PublicMeasurements or Measured
        What to draw.
    collective : str
        Which collective; by default allreduce, or the first that was measured.
    y : str
        ``busbw``, ``algbw`` or ``time``.
    most : int
        Jobs to draw: those on the most GPUs.

    Returns
    -------
    Figure
        A matplotlib figure; `save` writes it.

    Raises
    ------
    InputError
        For a collective that was not measured there.

    Examples
    --------
    >>> import blinksim as bs
    >>> picture = bs.plot.measured(bs.measured("nd-h200-v5"))
    """
    shown_as = style.measure(y)
    known = list(dict.fromkeys(row["collective"] for row in found.rows()))
    name = collective or ("allreduce" if "allreduce" in known else known[0])
    if name not in known:
        raise InputError(f"no {name} of {found.machine} was published; there are {', '.join(known)}")
    if isinstance(found, Measured):
        return _projected(found, shown_as)
    curves: dict[tuple[Any, ...], Job] = {}
    for row in sorted(found.cells, key=lambda row: row.cell.size):
        if row.cell.collective == name:
            curves.setdefault((*job_of(row.cell), row.cell.dtype), []).append(row)
    shown = sorted(curves.values(), key=lambda job: -job[0].cell.gpus)[:most]
    drawn = style.canvas(_WIDTH, _HEIGHT)
    above, below = drawn.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    values: list[float] = []
    for place, job in enumerate(shown):
        values += _curves(above, below, shown_as, job, style.look(place))
    for axes in (above, below):
        style.lighten(axes)
    style.number_axis(above, sorted({row.cell.size for job in shown for row in job}))
    style.value_axis(above, values, shown_as.column)
    above.set_ylabel(shown_as.label)
    below.axhspan(-_BAND, _BAND, color="#eeeeee", zorder=0)
    below.axhline(0, color=_GREY, linewidth=0.8)
    below.set_yticks([-40, -_BAND, 0, _BAND, 40], ["-40 %", f"-{_BAND} %", "0", f"+{_BAND} %", "+40 %"])
    below.set(xlabel="size", ylabel="time expected\nover measured", ylim=(-1.1 * _MOST_ERROR, 1.1 * _MOST_ERROR))
    left = f"; {len(shown)} of {len(curves)} jobs" if len(shown) < len(curves) else ""
    style.title(above, f"{name} on {found.machine}, as published{left}", _WIDTH)
    _legend(drawn, shown)
    return drawn


def _projected(found: Measured, shown_as: style.Measure) -> Figure:
    """A row for each number of nodes and ranks: what was measured, and what each preset gives."""
    values: dict[str, dict[str, float]] = {}
    for cell in found.cells:
        row = f"{cell.place}, {format_size(cell.size)}"
        factor = float(busbw_factor("allreduce", cell.nodes * cell.ranks_per_node))
        for name, time_ms in (("measured", cell.measured_ms), (cell.preset, cell.time_ms)):
            values.setdefault(name, {})[row] = shown_as.of(1e3 * cell.size / time_ms, cell.size, factor)
    rows = [*values["measured"]]
    drawn, axes = style.figure(_WIDTH, 1.3 + 0.3 * len(rows))
    for place, (name, along) in enumerate(values.items()):
        axes.plot([*along.values()], [*map(rows.index, along)], linestyle="none", label=name, **style.look(place))
    style.row_axis(axes, rows)
    axes.set(xlim=(0, None), xlabel=shown_as.label)
    axes.xaxis.set_major_formatter(partial(style.number, column=shown_as.column))
    style.title(axes, f"allreduce on {found.machine}, measured and projected", _WIDTH, note=SOURCE)
    style.legend(axes)
    return drawn


def _curves(above: Axes, below: Axes, shown_as: style.Measure, job: Job, look: dict[str, Any]) -> list[float]:
    """Markers, lines and errors of a job; returns the values that the upper axis must hold.

    An error is how far an expected time is from the measured one, in percent; NCCL's own without constants.
    """
    factor = float(busbw_factor(job[0].cell.collective, job[0].cell.gpus))
    values: list[float] = []
    for fitted, face in ((False, look["color"]), (True, "white")):
        points = look | {"linestyle": "none", "zorder": 3, "markerfacecolor": face}
        cells = [row for row in job if row.fitted == fitted]
        times = {row.cell.size: row.cell.time_s for row in cells}
        values += shown_as.curve(above, times, factor, markersize=4.5, **points)
        errors = {row.cell.size: row.best_error_pct for row in cells if row.best_error_pct is not None}
        within = [max(-_MOST_ERROR, min(_MOST_ERROR, error)) for error in errors.values()]
        below.plot([*errors], within, markersize=3.5, **points)
    for what, width in (("expected_s", 1.4), ("predicted_s", 0.9)):
        times = {row.cell.size: getattr(row, what) for row in job if getattr(row, what) is not None}
        values += shown_as.curve(above, times, factor, color=look["color"], linestyle=_STYLES[what], linewidth=width)
    if job[0].bound is not None:
        times = {row.cell.size: row.cell.size / float(job[0].bound.rate) for row in job}
        dotted = {"color": look["color"], "linestyle": _STYLES["bound"], "linewidth": 1.2}
        limit = shown_as.curve(above, times, factor, **dotted)
        values += limit if shown_as.name != "time" else []
    return values


def _legend(drawn: Figure, shown: list[Job]) -> None:
    """Colours and markers of the jobs, and what lines and hollow markers mean, as far as they occur."""
    from matplotlib.lines import Line2D

    jobs = [Line2D([], [], label=_label(job, shown), **style.look(place)) for place, job in enumerate(shown)]
    entries = []
    cells = [row for job in shown for row in job]
    grey: dict[str, Any] = {"color": _GREY, "linestyle": "none", "marker": "o", "markersize": 4.5}
    if any(not row.fitted for row in cells):
        entries.append(Line2D([], [], label="measured", **grey))
    if any(row.fitted for row in cells):
        entries.append(Line2D([], [], label="measured, constants fitted to it", markerfacecolor="white", **grey))
    for key, words in _WORDS.items():
        if any(getattr(row, key) is not None for row in cells):
            entries.append(Line2D([], [], color=_GREY, linestyle=_STYLES[key], label=words))
    # A column each: a legend fills them one after the other.
    for column in (jobs, entries):
        column += [Line2D([], [], linestyle="none", label=" ")] * (max(len(jobs), len(entries)) - len(column))
    drawn.legend(handles=[*jobs, *entries], fontsize=8, frameon=False, loc="outside lower left", ncols=2)


def _label(job: Job, shown: list[Job]) -> str:
    """What tells a job apart: set, GPUs and nodes, and NVLS, placement and types where those of a set differ."""
    cell = job[0].cell
    words = [f"{cell.gpus} GPUs" if cell.gpus > 1 else "1 GPU"]
    words += [f"{cell.nodes} nodes"] if cell.nodes > 1 else []
    alike = [other[0].cell for other in shown if other[0].cell.set is cell.set and other[0].cell.gpus == cell.gpus]
    words += [f"NVLS {cell.nvls}"] if len({like.nvls for like in alike}) > 1 else []
    words += [f"{cell.placement} of place"] if len({like.placement for like in alike}) > 1 else []
    words += [cell.dtype] if len({like.dtype for like in alike}) > 1 else []
    return style.plain(f"{cell.set.name}: {', '.join(words)}")
