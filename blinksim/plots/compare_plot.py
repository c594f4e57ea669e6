"""Curves against the size as pictures: comparisons of algorithms and machines, published measurements; and a front.

A comparison is a line per algorithm; measurements stand beside what is expected of them and the bound; a
front of latency and bandwidth has a point for each schedule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from blinksim.answers.compare import Comparison, MachineComparison, columns
from blinksim.answers.measurements.public import SOURCE, Measured, MeasuredCell, PublicMeasurements, job_of
from blinksim.answers.pareto import Pareto
from blinksim.answers.project import Answer
from blinksim.collective import busbw_factor
from blinksim.errors import InputError
from blinksim.graphs.connectivity import grouped
from blinksim.plots import style
from blinksim.timing.library_model import SHARE
from blinksim.units import format_size, format_size_about

_WIDTH = 8.5
_ENVELOPE, _SEARCHED, _LIBRARY = "#cfcfcf", "#d62728", "#1f77b4"


def compare(comparison: Comparison, most: int | None = None, y: str = "algbw") -> Figure:
    """The rates or times against size, a line per algorithm, the crossovers marked and the bounds dashed.

    Where no algorithms were named: what the library takes with its interval, what the best schedule could
    take, and the bound. Elsewhere the bound is the one that all algorithms keep: the higher one where NCCL
    lets switches add, or is at other rates.

    Parameters
    ----------
    comparison : Comparison
        What to draw.
    most : int
        Algorithms to draw at most, besides those that lead somewhere; as many as the table has unless given.
    y : str
        ``algbw``, ``busbw`` or ``time``.

    Returns
    -------
    Figure
        A matplotlib figure; `save` writes it.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.compare("dgx1-v100", "allreduce", ["1KiB", "1MiB", "1GiB"], ["ring", "direct"])
    >>> picture = bs.plot.compare(found)
    """
    shown_as, times = style.measure(y), y == "time"
    if comparison.answers:
        return _three_figures(comparison, shown_as)
    drawn, axes = style.figure(_WIDTH)
    topology, sizes = comparison.topology, comparison.sizes
    factor = float(busbw_factor(comparison.collective.name, topology.ranks))
    shown, _ = columns(comparison.projections, comparison.contest.named, most or 0)
    listed = [projection for entries in comparison.projections for projection in entries]
    quickest = {entry.size: entry.time_s for entry in comparison.best()}
    broad = {"color": _ENVELOPE, "linewidth": 6, "solid_capstyle": "round", "zorder": 0.5}
    shown_as.curve(axes, quickest, factor, label="quickest", **broad)
    values: list[float] = []
    for place, name in enumerate(shown):
        mine = {entry.size: entry.time_s for entry in listed if entry.algorithm == name}
        seen = style.look(place) | {"markersize": 4, "linewidth": 1.6, "label": style.plain(name)}
        values += shown_as.curve(axes, mine, factor, **seen)
    # Schedules that were made for one size, where nothing else is quicker.
    made = {size: entry for size, entry in comparison.made.items() if entry.time_s <= quickest[size]}
    star = {"linestyle": "none", "marker": "*", "markersize": 60**0.5, "markeredgewidth": 1.5, "color": _SEARCHED}
    label = f"{', '.join(dict.fromkeys(entry.algorithm for entry in made.values()))} for one size (simulated)"
    searched = {size: entry.time_s for size, entry in made.items()}
    values += shown_as.curve(axes, searched, factor, zorder=3, label=label, **star)
    values += _bounds(axes, comparison, shown, shown_as)
    _crossovers(axes, comparison, shown, above=times)
    models = ", ".join(dict.fromkeys(projection.model for projection in listed))
    left = f"; {len(shown)} of {len(comparison.algorithms)} algorithms" * (len(shown) < len(comparison.algorithms))
    words = f"{comparison.collective} on {style.drawn_machine(topology)}: {topology.ranks} ranks"
    note = f"{', '.join(topology.link_classes)}; {comparison.rates}; model {models}{left}"
    _finished(axes, sizes, shown_as, values, words, note)
    return drawn


def compare_machines(comparison: MachineComparison, y: str = "busbw") -> Figure:
    """What a collective takes on several machines with their libraries, each line in its interval.

    Of one size a row for each, beside what the best schedule could take and the bound.

    y: ``algbw``, ``busbw`` or ``time``.
    """
    shown_as, values = style.measure(y), list[float]()
    sizes = sorted({one.size for answers in comparison.answers.values() for one in answers})
    if not sizes[1:]:
        return _rows(comparison, sizes[0], shown_as)
    drawn, axes = style.figure(_WIDTH)
    for place, (name, answers) in enumerate(comparison.answers.items()):
        # Dashes leave a line that lies below them to be seen.
        look = {"color": style.look(place)["color"], "linestyle": style.DASHES[place % len(style.DASHES)]}
        look["label"] = f"{style.plain(name)}, {len(answers[0].members)} GPUs"
        values += _with_library(axes, answers, shown_as, look)
    bases = {one.details["basis"] for answers in comparison.answers.values() for one in answers}
    note = f"bands: {SHARE} runs" + "; dots: measured" * ("measured" in bases)
    _finished(axes, sizes, shown_as, values, f"{comparison.collective} with the machines' libraries", note)
    return drawn


def _rows(comparison: MachineComparison, size: int, shown_as: style.Measure) -> Figure:
    """A row for each machine: what its library takes in its interval, what could be, and the bound."""
    names = [f"{style.plain(name)}, {len(one.members)} GPUs" for name, [one] in comparison.answers.items()]
    drawn, axes = style.figure(_WIDTH, max(2.2, 1.5 + 0.45 * len(names)))
    rows = list[list[float]]()
    for [one] in comparison.answers.values():
        factor = float(busbw_factor(one.collective.name, len(one.members)))
        others = one.could and one.could.best, one.least
        could_s, least_s = (getattr(other, "time_s", math.nan) for other in others)
        seconds = one.low_s, one.high_s, one.time_s, could_s, least_s
        rows.append([shown_as.of(size / time_s, size, factor) for time_s in seconds])
    low, high, takes, could, bound = np.array(rows).T
    places = np.arange(len(names))
    axes.barh(places, high - low, height=0.5, left=low, color=_LIBRARY, alpha=0.25, label=f"{SHARE} runs")
    axes.vlines(takes, places - 0.25, places + 0.25, color=_LIBRARY, linewidth=2.2, label="takes with library")
    axes.plot(could, places, "D", color=_SEARCHED, label="could take (best schedule)")
    axes.vlines(bound, places - 0.42, places + 0.42, color="#000000", linestyle="--", label="bound")
    axes.set(xlim=(0, 1.07 * np.nanmax(rows)), xlabel=shown_as.label)
    axes.xaxis.set_major_formatter(partial(style.number, column=shown_as.column))
    style.row_axis(axes, names)
    style.title(axes, f"{comparison.collective} of {format_size(size)} with the machines' libraries", _WIDTH)
    style.legend(axes)
    return drawn


def _three_figures(comparison: Comparison, shown_as: style.Measure) -> Figure:
    """What the library takes with its interval, what the best schedule could take, and the bound."""
    drawn, axes = style.figure(_WIDTH)
    answers = comparison.answers
    factor = float(busbw_factor(comparison.collective.name, len(answers[0].members)))
    measured = any(one.details["basis"] == "measured" for one in answers)
    words = f"takes with {answers[0].library}" + (" (dots: measured)" if measured else "")
    values = _with_library(axes, answers, shown_as, {"color": _LIBRARY, "label": words}, f"{SHARE} runs")
    could = {one.size: one.could.best.time_s for one in answers if one.could is not None}
    values += shown_as.curve(axes, could, factor, label="could take (best schedule)", color=_SEARCHED, linewidth=1.6)
    look: Any = {"label": "bound", "color": "#000000", "linestyle": "--", "linewidth": 1.2}
    bound = shown_as.curve(axes, comparison.least_s, factor, **look)
    values += bound if shown_as.name != "time" else []
    where = f"{len(answers[0].members)} GPUs of {style.drawn_machine(comparison.topology)}"
    _finished(axes, [one.size for one in answers], shown_as, values, f"{comparison.collective} on {where}")
    return drawn


def _with_library(
    axes: Axes, answers: Sequence[Answer], shown_as: style.Measure, look: dict[str, Any], band: str = ""
) -> list[float]:
    """Draws what a library takes in its interval, with a dot where it was measured; the values."""
    factor = float(busbw_factor(answers[0].collective.name, len(answers[0].members)))
    low = [shown_as.of(one.size / one.low_s, one.size, factor) for one in answers]
    high = [shown_as.of(one.size / one.high_s, one.size, factor) for one in answers]
    times = {one.size: one.time_s for one in answers}
    # Of one size, the band is as wide as a line.
    width = 0 if len(times) > 1 else 6
    axes.fill_between([*times], low, high, color=look["color"], alpha=0.2, linewidth=width, label=band or None)
    dots = [place for place, one in enumerate(answers) if one.details["basis"] == "measured"]
    look = look | {"linewidth": 2.2, "marker": "o" if dots else "", "markersize": 5, "markevery": dots}
    return [*low, *high, *shown_as.curve(axes, times, factor, **look)]


def _finished(
    axes: Axes, sizes: Sequence[int], shown_as: style.Measure, values: list[float], title: str, note: str = ""
) -> None:
    axes.set(xlabel="size", ylabel=shown_as.label)
    style.number_axis(axes, sizes)
    style.value_axis(axes, values, shown_as.column)
    style.title(axes, title, _WIDTH, note=note)
    style.legend(axes)


def _bounds(axes: Axes, comparison: Comparison, shown: list[str], shown_as: style.Measure) -> list[float]:
    """Draws the bounds on time and on the rate, and what switches that add allow beyond it; what the axis must hold.

    The bound on the rate is the one that holds for all projections, whatever their rates.
    """
    factor = float(busbw_factor(comparison.collective.name, comparison.topology.ranks))
    listed = [projection for entries in comparison.projections for projection in entries]
    line = {"color": "#000000", "linewidth": 1.0}
    values = shown_as.curve(axes, comparison.least_s, factor, linestyle="-.", label="bound at this size", **line)
    top = max((entry.bound for entry in listed if entry.bound is not None), key=lambda bound: bound.rate, default=None)
    fastest = max(float(entry.algbw) for entry in listed if entry.algorithm in shown)
    if top is None or fastest > 1.001 * float(top.rate):
        return values
    bounds = [(top.rate, "bound on the rate", "--")]
    if top.in_network is not None:
        bounds = [(top.rate, "bound if switches only forward", "--"), (top.in_network[0], "bound if switches add", ":")]
    for rate, label, dashes in bounds:
        times = {size: size / float(rate) for size in comparison.sizes}
        limit = shown_as.curve(axes, times, factor, linestyle=dashes, label=label, **line)
        # The least time goes to nothing with the size; it would press the lines into the upper half.
        values += limit if shown_as.name != "time" else []
    return values


def _crossovers(axes: Axes, comparison: Comparison, shown: list[str], *, above: bool) -> None:
    """A line at every size at which the lead changes; above: its words stand at the top, where times leave room."""
    first, last = comparison.sizes[0], comparison.sizes[-1]
    marked = [crossing for crossing in comparison.crossovers if crossing.faster in shown]
    for number, crossing in enumerate(marked):
        # Neighbours may be closer than their words are wide, so they stand on different lines; beside the
        # right edge words stand to the left of their line.
        axes.axvline(crossing.size, color="#888888", linewidth=0.8, linestyle=":")
        left = math.log(crossing.size / first, last / first) > 0.8
        words = style.plain(f"{crossing.faster}\nfrom {format_size_about(crossing.size)}")
        place = crossing.size, abs(above - 0.02 - 0.085 * (number % 3))
        look: dict[str, Any] = {"ha": "right" if left else "left", "va": "top" if above else "bottom"}
        look |= {"xycoords": ("data", "axes fraction"), "bbox": style.PAPER, "color": "#555555"}
        style.beside(axes, words, place, (-3 if left else 3, 0), **look)


# Above and below the points, of their height.
_MARGIN = 0.12
# Where a number may stand beside its point, in points of the page, and how far it must be from others, across
# and up.
_BESIDE = ((6, 4), (6, -11), (-12, 4), (-12, -11), (-3, 9), (-3, -16), (14, 4), (14, -11))
_APART = (11.0, 10.0)


def pareto(front: Pareto) -> Figure:
    """The bandwidth of every schedule against its latency, with the bound.

    Parameters
    ----------
    front : Pareto
        What to draw. Filled points are the quickest at some size, hollow ones nowhere.

    Returns
    -------
    Figure
        A matplotlib figure; `save` writes it.

    Examples
    --------
    >>> import blinksim as bs
    >>> picture = bs.plot.pareto(bs.pareto("ring:4@25GB/s", "allreduce", seconds=1))
    """
    drawn, axes = style.figure(_WIDTH)
    points = front.points
    latencies = [point.latency_s for point in points]
    rates = [point.bandwidth / 1e9 for point in points]
    # Pipelined schedules pay for overheads again with every piece, so that their points may lie above the
    # line.
    along = [(point.latency_s, point.bandwidth / 1e9) for point in points if point.quickest]
    axes.plot(*zip(*along, strict=True), color="#bbbbbb", linewidth=0.8, zorder=1)
    for number, (point, x, y) in enumerate(zip(points, latencies, rates, strict=True), start=1):
        colour = style.COLOURS[(number - 1) % len(style.COLOURS)]
        face = colour if point.quickest else "none"
        label = style.plain(f"{number}  {point.name}")
        axes.scatter([x], [y], s=36, facecolors=face, edgecolors=colour, label=label, zorder=2)
    axes.axhline(front.bound.rate_GBps, color="#000000", linestyle="--", linewidth=1.0, label="bound on the rate")
    axes.set(xlabel="latency", ylabel="algbw for large sizes (GB/s)")
    style.number_axis(axes, latencies, "latency_s")
    margin = _MARGIN * (max(*rates, front.bound.rate_GBps) - min(rates)) or front.bound.rate_GBps
    axes.set_ylim(max(0.0, min(rates) - margin), max(*rates, front.bound.rate_GBps) + margin)
    # The number of every point beside it, where it covers neither another number nor another point.
    moved = axes.transData.transform([*zip(latencies, rates, strict=True)])
    places: list[tuple[float, float]] = (moved * 72 / axes.figure.dpi).tolist()
    taken = list(places)
    for number, place in enumerate(places, start=1):

        def room(offset: tuple[int, int], place: tuple[float, float] = place) -> float:
            """How far the nearest other thing is, in widths of a number; 1 or more is enough."""
            middle = (place[0] + offset[0] + 3, place[1] + offset[1] + 3)
            return min(max(abs(middle[axis] - other[axis]) / _APART[axis] for axis in (0, 1)) for other in taken)

        best = next((offset for offset in _BESIDE if room(offset) >= 1), max(_BESIDE, key=room))
        taken.append((place[0] + best[0] + 3, place[1] + best[1] + 3))
        style.beside(axes, str(number), (latencies[number - 1], rates[number - 1]), best, fontsize=8)
    topology = front.topology
    words = f"{front.collective} on {style.drawn_machine(topology)}: {topology.ranks} ranks"
    note = f"filled: the quickest at some size; {', '.join(topology.link_classes)}; {topology.rates} rates"
    style.title(axes, words, _WIDTH, note=f"{note}; model alpha-beta")
    style.legend(axes)
    return drawn


_HEIGHT = 7.0
_GREY = "#666666"
# Errors beyond are drawn at the edge, in percent; and the band within which nine in ten large messages shall
# be.
_MOST_ERROR, _BAND = 60, 20
_STYLES: dict[str, Literal["-", "--", ":"]] = {"expected_s": "-", "predicted_s": "--", "bound": ":"}
_WORDS = {"expected_s": "expected by constants", "predicted_s": "what NCCL predicts for itself", "bound": "bound"}
Job = list["MeasuredCell"]


def measured(found: PublicMeasurements | Measured, collective: str = "", y: str = "busbw", most: int = 5) -> Figure:
    """Measured rate, expected rate and bound against size; below, the error of the expected rate.

    Markers are measured times, hollow ones those that constants were fitted to. Solid lines are what
    constants say, dashed ones what NCCL predicts for itself, dotted ones the bound. Of Aurora, measured and
    projected times of each number of nodes and ranks.

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
    rows = sorted((row for row in found.cells if row.cell.collective == name), key=lambda row: row.cell.size)
    curves = grouped(((*job_of(row.cell), row.cell.dtype), row) for row in rows)
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
    _measured_legend(drawn, shown)
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


def _measured_legend(drawn: Figure, shown: list[Job]) -> None:
    """Colours and markers of the jobs, and what lines and hollow markers mean, as far as they occur."""
    jobs = [Line2D([], [], label=_label(job, shown), **style.look(place)) for place, job in enumerate(shown)]
    entries = []
    cells = [row for job in shown for row in job]
    grey: dict[str, Any] = {"color": _GREY, "linestyle": "none", "marker": "o", "markersize": 4.5}
    for fitted, words, face in ((False, "measured", _GREY), (True, "measured, constants fitted to it", "white")):
        if any(row.fitted == fitted for row in cells):
            entries.append(Line2D([], [], label=words, markerfacecolor=face, **grey))
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
    told = {"nvls": f"NVLS {cell.nvls}", "placement": f"{cell.placement} of place", "dtype": cell.dtype}
    words += [text for key, text in told.items() if len({getattr(like, key) for like in alike}) > 1]
    return style.plain(f"{cell.set.name}: {', '.join(words)}")
