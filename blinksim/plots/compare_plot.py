"""A comparison as a picture: algbw, busbw or time against size, a line per algorithm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from blinksim.answers.compare import COLUMNS, columns
from blinksim.answers.measurements.beside import measured_beside
from blinksim.collective import busbw_factor
from blinksim.plots.style import (
    COLOURS,
    PAPER,
    Measure,
    beside,
    drawn_machine,
    figure,
    legend,
    look,
    measure,
    number_axis,
    plain,
    value_axis,
    wrapped,
)
from blinksim.units import format_size_about

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from blinksim.answers.compare import Comparison

_WIDTH = 8.5
# Inches that an entry of the legend may be wide, about.
_LEGEND = 2.3
# What a library took that chose by itself.
_GREY = "#666666"
_ENVELOPE, _SEARCHED = "#cfcfcf", "#d62728"
_HOLLOW = ("x", "+", "s", "^", "D")


def compare(comparison: Comparison, most: int = COLUMNS, y: str = "algbw") -> Figure:
    """The rates or times against size, a line per algorithm, the crossovers marked and the bounds dashed.

    The title says what is shown. Hollow markers are what was measured on the machine, where the project knows of it: of
    an algorithm in the colour of its line, of a library that chose by itself in grey. The bound is the one that all of
    them keep: the higher one where NCCL lets switches add, or is at other rates.

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
    shown_as = measure(y)
    drawn, axes = figure(_WIDTH)
    rates: dict[str, dict[int, float]] = {name: {} for name in comparison.algorithms}
    for found in comparison.projections:
        for projection in found:
            rates[projection.algorithm][projection.size] = float(projection.algbw)
    shown, _ = columns(comparison.projections, most)
    factor = float(busbw_factor(comparison.collective.name, comparison.topology.ranks))
    values: list[float] = []
    _envelope(axes, comparison, shown_as, factor)
    for place, name in enumerate(shown):
        line = [shown_as.of(rate, size, factor) for size, rate in rates[name].items()]
        values += line
        axes.plot([*rates[name]], line, markersize=4, linewidth=1.6, label=plain(name), **look(place))
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(shown)}
    values += _measured(axes, comparison, colours, shown_as, factor)
    values += _searched(axes, comparison, shown_as, factor)
    values += _least_times(axes, comparison, shown_as, factor)
    fastest = max(rate for name in shown for rate in rates[name].values())
    limits = _bound(axes, comparison, shown_as, factor, fastest)
    # The least time goes to nothing with the size; it would press the lines into the upper half.
    values += [] if y == "time" else limits
    axes.set_xlabel("size")
    axes.set_ylabel(shown_as.label)
    number_axis(axes, comparison.sizes, sizes=True)
    value_axis(axes, values, times=y == "time")
    _crossovers(axes, comparison, shown, above=y == "time")
    axes.set_title(wrapped(_title(comparison, len(shown)), _WIDTH), fontsize=10, loc="left")
    legend(axes)
    return drawn


def _title(comparison: Comparison, shown: int) -> str:
    topology = comparison.topology
    listed = [projection for found in comparison.projections for projection in found]
    models = ", ".join(dict.fromkeys(projection.model for projection in listed))
    left = f"; {shown} of {len(comparison.algorithms)} algorithms" if shown < len(comparison.algorithms) else ""
    return (
        f"{comparison.collective} on {drawn_machine(topology)}: {topology.ranks} ranks, "
        f"{', '.join(topology.link_classes)}, {comparison.rates}, model {models}{left}"
    )


def _bound(axes: Axes, comparison: Comparison, shown_as: Measure, factor: float, fastest: float) -> list[float]:
    """Draws the bound that holds for all projections, whatever their rates, and what switches that add allow beyond it.

    Returns the values of both, none without a bound.
    """
    known = [p.bound for found in comparison.projections for p in found if p.bound is not None]
    top = max(known, key=lambda bound: bound.rate, default=None)
    if top is None or fastest > 1.001 * float(top.rate):
        return []
    bounds = [(top.rate, "bound on the rate", "--")]
    if top.in_network is not None:
        bounds = [(top.rate, "bound if switches only forward", "--"), (top.in_network[0], "bound if switches add", ":")]
    values: list[float] = []
    for rate, label, style in bounds:
        line = [shown_as.of(float(rate), size, factor) for size in comparison.sizes]
        axes.plot(comparison.sizes, line, color="#000000", linestyle=style, linewidth=1.0, label=label)
        values += line
    return values


def _envelope(axes: Axes, comparison: Comparison, shown_as: Measure, factor: float) -> None:
    """A broad line behind the others along the quickest algorithm of every size."""
    line = [shown_as.of(float(best.algbw), best.size, factor) for best in comparison.best()]
    axes.plot(
        comparison.sizes, line, color=_ENVELOPE, linewidth=6, solid_capstyle="round", zorder=0.5, label="quickest"
    )


def _least_times(axes: Axes, comparison: Comparison, shown_as: Measure, factor: float) -> list[float]:
    """The bound on time for every size, where it is known; its values."""
    least = {
        size: next((one.least.time_s for one in found if one.least), None)
        for size, found in zip(comparison.sizes, comparison.projections, strict=True)
    }
    known = {size: time for size, time in least.items() if time}
    line = [shown_as.of(size / time, size, factor) for size, time in known.items()]
    if line:
        label = "bound at this size"
        axes.plot([*known], line, color="#000000", linestyle="-.", linewidth=1.0, label=label)
    return line


def _searched(axes: Axes, comparison: Comparison, shown_as: Measure, factor: float) -> list[float]:
    """Stars for schedules that were made for one size, where nothing else is quicker; their values."""
    best = {one.size: one.time_s for one in comparison.best()}
    made = {size: one for size, one in comparison.made.items() if one.time_s <= best[size]}
    times = {size: one.time_s for size, one in made.items()}
    line = [shown_as.of(size / time, size, factor) for size, time in times.items()]
    if line:
        label = f"{', '.join(dict.fromkeys(one.algorithm for one in made.values()))} for one size (simulated)"
        axes.scatter([*times], line, marker="*", s=60, color=_SEARCHED, zorder=3, label=label)
    return line


def _measured(
    axes: Axes, comparison: Comparison, colours: dict[str, str], shown_as: Measure, factor: float
) -> list[float]:
    """Draws what was measured between the smallest and the largest size; its values, none where nothing was."""
    values: list[float] = []
    first, last = comparison.sizes[0], comparison.sizes[-1]
    entries: dict[str, str] = {}
    spare = iter(_HOLLOW)
    for points in measured_beside(comparison.topology, comparison.collective.name):
        times = {size: time for size, time in sorted(points.times.items()) if first <= size <= last}
        if not times or (points.algorithm and points.algorithm not in colours):
            continue
        line = [shown_as.of(size / time, size, factor) for size, time in times.items()]
        values += line
        marker = "o" if points.algorithm else next(spare, "x")
        _hollow(axes, list(times), line, marker, colours.get(points.algorithm, _GREY))
        entries[f"measured: {points.source}"] = marker
    # One entry stands for the programs of all algorithms.
    for label, marker in entries.items():
        _hollow(axes, [], [], marker, _GREY, wrapped(label, _LEGEND))
    return values


def _hollow(axes: Axes, x: list[int], y: list[float], marker: str, colour: str, label: str = "_measured") -> None:
    axes.plot(
        x, y, linestyle="none", marker=marker, markersize=7, markerfacecolor="none", markeredgecolor=colour, label=label
    )


def _crossovers(axes: Axes, comparison: Comparison, shown: list[str], *, above: bool) -> None:
    """A line at every size at which the lead changes; above: its words stand at the top, where times leave room."""
    first, last = comparison.sizes[0], comparison.sizes[-1]
    marked = [crossing for crossing in comparison.crossovers if crossing.faster in shown]
    for number, crossing in enumerate(marked):
        # Neighbours may be closer than their words are wide, so they stand on different lines; beside the right edge
        # words stand to the left of their line.
        axes.axvline(crossing.size, color="#888888", linewidth=0.8, linestyle=":")
        left = math.log(crossing.size / first, last / first) > 0.8
        beside(
            axes,
            plain(f"{crossing.faster}\nfrom {format_size_about(crossing.size)}"),
            (crossing.size, abs(above - 0.02 - 0.085 * (number % 3))),
            (-3 if left else 3, 0),
            xycoords=("data", "axes fraction"),
            ha="right" if left else "left",
            va="top" if above else "bottom",
            bbox=PAPER,
            color="#555555",
        )
