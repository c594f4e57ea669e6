"""Published measurements as a picture: measured, expected and bound against size, and their ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from blinksim.answers.measurements.public_jobs import job_of
from blinksim.collective import busbw_factor
from blinksim.errors import InputError
from blinksim.plots.style import Measure, canvas, lighten, look, measure, number_axis, plain, value_axis, wrapped

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


def measured(found: PublicMeasurements, collective: str = "", y: str = "busbw", most: int = 5) -> Figure:
    """Measured rate, expected rate and bound against size; below, the error of the expected rate.

    Markers are measured times, hollow ones those that constants were fitted to. Solid lines are what constants say,
    dashed ones what NCCL predicts for itself, dotted ones the bound.

    Parameters
    ----------
    found : PublicMeasurements
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
    shown_as = measure(y)
    known = list(dict.fromkeys(one.cell.collective for one in found.cells))
    name = collective or ("allreduce" if "allreduce" in known else known[0])
    if name not in known:
        raise InputError(f"no {name} of {found.machine} was published; there are {', '.join(known)}")
    jobs = _jobs([one for one in found.cells if one.cell.collective == name])
    shown = sorted(jobs, key=lambda job: -job[0].cell.gpus)[:most]
    drawn = canvas(_WIDTH, _HEIGHT)
    above, below = drawn.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    values: list[float] = []
    for place, job in enumerate(shown):
        values += _curves(above, shown_as, job, look(place))
        _errors(below, job, look(place))
    for axes in (above, below):
        lighten(axes)
    sizes = sorted({one.cell.size for job in shown for one in job})
    number_axis(above, sizes, sizes=True)
    value_axis(above, values, times=y == "time")
    above.set_ylabel(shown_as.label)
    _error_axis(below)
    left = f"; {len(shown)} of {len(jobs)} jobs" if len(shown) < len(jobs) else ""
    above.set_title(wrapped(f"{name} on {found.machine}, as published{left}", _WIDTH), fontsize=10, loc="left")
    _legend(drawn, shown)
    return drawn


def _curves(axes: Axes, shown_as: Measure, job: Job, style: dict[str, Any]) -> list[float]:
    """Markers and lines of a job; returns the values that the axis must hold."""
    factor = float(busbw_factor(job[0].cell.collective, job[0].cell.gpus))

    def values(cells: Job, times: list[float]) -> list[float]:
        return [
            shown_as.of(one.cell.size / time, one.cell.size, factor) for one, time in zip(cells, times, strict=True)
        ]

    drawn = []
    for fitted, face in ((False, style["color"]), (True, "white")):
        cells = [one for one in job if one.fitted == fitted]
        told = values(cells, [one.cell.time_s for one in cells])
        axes.plot(_sizes(cells), told, linestyle="none", markersize=4.5, zorder=3, markerfacecolor=face, **style)
        drawn += told
    for what, width in (("expected_s", 1.4), ("predicted_s", 0.9)):
        cells = [one for one in job if getattr(one, what) is not None]
        line = values(cells, [getattr(one, what) for one in cells])
        axes.plot(_sizes(cells), line, color=style["color"], linestyle=_STYLES[what], linewidth=width)
        drawn += line
    bound = job[0].bound
    if bound is None:
        return drawn
    limit = values(job, [one.cell.size / float(bound.rate) for one in job])
    axes.plot(_sizes(job), limit, color=style["color"], linestyle=_STYLES["bound"], linewidth=1.2)
    return drawn + (limit if shown_as.name != "time" else [])


def _errors(axes: Axes, job: Job, style: dict[str, Any]) -> None:
    """How far the expected times are from the measured ones, in percent; NCCL's own where no constants are known."""
    for fitted, face in ((False, style["color"]), (True, "white")):
        cells = [one for one in job if one.fitted == fitted and one.best_error_pct is not None]
        errors = [max(-_MOST_ERROR, min(_MOST_ERROR, one.best_error_pct or 0.0)) for one in cells]
        axes.plot(_sizes(cells), errors, linestyle="none", markersize=3.5, zorder=3, markerfacecolor=face, **style)


def _error_axis(axes: Axes) -> None:
    axes.axhspan(-_BAND, _BAND, color="#eeeeee", zorder=0)
    axes.axhline(0, color=_GREY, linewidth=0.8)
    axes.set_ylim(-1.1 * _MOST_ERROR, 1.1 * _MOST_ERROR)
    axes.set_yticks([-40, -_BAND, 0, _BAND, 40], ["-40 %", f"-{_BAND} %", "0", f"+{_BAND} %", "+40 %"])
    axes.set_ylabel("time expected\nover measured")
    axes.set_xlabel("size")


def _sizes(cells: Job) -> list[int]:
    return [one.cell.size for one in cells]


def _legend(drawn: Figure, shown: list[Job]) -> None:
    """Colours and markers of the jobs, and what lines and hollow markers mean, as far as they occur."""
    from matplotlib.lines import Line2D

    jobs = [Line2D([], [], label=label, **look(place)) for place, label in enumerate(_labels(shown))]
    entries = []
    cells = [one for job in shown for one in job]
    grey: dict[str, Any] = {"color": _GREY, "linestyle": "none", "marker": "o", "markersize": 4.5}
    if any(not one.fitted for one in cells):
        entries.append(Line2D([], [], label="measured", **grey))
    if any(one.fitted for one in cells):
        entries.append(Line2D([], [], label="measured, constants fitted to it", markerfacecolor="white", **grey))
    for key, words in _WORDS.items():
        if any(getattr(one, key) is not None for one in cells):
            entries.append(Line2D([], [], color=_GREY, linestyle=_STYLES[key], label=words))
    # A column each: a legend fills them one after the other.
    for column in (jobs, entries):
        column += [Line2D([], [], linestyle="none", label=" ")] * (max(len(jobs), len(entries)) - len(column))
    drawn.legend(handles=[*jobs, *entries], fontsize=8, frameon=False, loc="outside lower left", ncols=2)


def _labels(shown: list[Job]) -> list[str]:
    """What tells the jobs apart: set, GPUs and nodes, and NVLS, placement and types where those of a set differ."""
    told = []
    for job in shown:
        cell = job[0].cell
        words = [f"{cell.gpus} GPUs" if cell.gpus > 1 else "1 GPU"]
        words += [f"{cell.nodes} nodes"] if cell.nodes > 1 else []
        alike = [other[0].cell for other in shown if other[0].cell.set is cell.set and other[0].cell.gpus == cell.gpus]
        words += [f"NVLS {cell.nvls}"] if len({one.nvls for one in alike}) > 1 else []
        words += [f"{cell.placement} of place"] if len({one.placement for one in alike}) > 1 else []
        words += [cell.dtype] if len({one.dtype for one in alike}) > 1 else []
        told.append(plain(f"{cell.set.name}: {', '.join(words)}"))
    return told


def _jobs(cells: Job) -> list[Job]:
    """The cells by curve, sizes ascending."""
    jobs: dict[tuple[Any, ...], Job] = {}
    for one in sorted(cells, key=lambda one: one.cell.size):
        jobs.setdefault((*job_of(one.cell), one.cell.dtype), []).append(one)
    return list(jobs.values())
