"""A comparison as a picture: algbw, busbw or time against size, a line per algorithm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from blinksim.answers.compare import COLUMNS, columns
from blinksim.collective import busbw_factor
from blinksim.plots import style
from blinksim.timing.library_model import SHARE
from blinksim.units import format_size_about

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from blinksim.answers.compare import Comparison
    from blinksim.answers.machine_comparison import MachineComparison
    from blinksim.answers.project import Answer
    from blinksim.timing.projection_result import Projection

_WIDTH = 8.5
_ENVELOPE, _SEARCHED, _LIBRARY = "#cfcfcf", "#d62728", "#1f77b4"


def compare(comparison: Comparison, most: int = COLUMNS, y: str = "algbw") -> Figure:
    """The rates or times against size, a line per algorithm, the crossovers marked and the bounds dashed.

    Where no algorithms were named: what the library takes with its interval, what the best schedule could take, and
    the bound. Elsewhere the bound is the one that all algorithms keep: the higher one where NCCL lets switches add, or
    is at other rates.

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
    shown, _ = columns(comparison.projections, most)
    listed = [projection for entries in comparison.projections for projection in entries]
    best = {entry.size: entry.size / float(entry.algbw) for entry in comparison.best()}
    broad = {"color": _ENVELOPE, "linewidth": 6, "solid_capstyle": "round", "zorder": 0.5}
    shown_as.curve(axes, best, factor, label="quickest", **broad)
    values: list[float] = []
    for place, name in enumerate(shown):
        mine = {entry.size: entry.size / float(entry.algbw) for entry in listed if entry.algorithm == name}
        seen = style.look(place) | {"markersize": 4, "linewidth": 1.6, "label": style.plain(name)}
        values += shown_as.curve(axes, mine, factor, **seen)
    # Schedules that were made for one size, where nothing else is quicker.
    quickest = {entry.size: entry.time_s for entry in comparison.best()}
    made = {size: entry for size, entry in comparison.made.items() if entry.time_s <= quickest[size]}
    star = {"linestyle": "none", "marker": "*", "markersize": 60**0.5, "markeredgewidth": 1.5, "color": _SEARCHED}
    label = f"{', '.join(dict.fromkeys(entry.algorithm for entry in made.values()))} for one size (simulated)"
    searched = {size: entry.time_s for size, entry in made.items()}
    values += shown_as.curve(axes, searched, factor, zorder=3, label=label, **star)
    values += _bounds(axes, comparison, listed, shown, shown_as)
    _crossovers(axes, comparison, shown, above=times)
    models = ", ".join(dict.fromkeys(projection.model for projection in listed))
    left = f"; {len(shown)} of {len(comparison.algorithms)} algorithms" * (len(shown) < len(comparison.algorithms))
    words = f"{comparison.collective} on {style.drawn_machine(topology)}: {topology.ranks} ranks"
    note = f"{', '.join(topology.link_classes)}; {comparison.rates}; model {models}{left}"
    _finished(axes, sizes, shown_as, values, words, note)
    return drawn


def compare_machines(comparison: MachineComparison, y: str = "busbw") -> Figure:
    """What a collective takes on several machines with their libraries, each line in its interval.

    y: ``algbw``, ``busbw`` or ``time``.
    """
    shown_as = style.measure(y)
    drawn, axes = style.figure(_WIDTH)
    values = list[float]()
    for place, (name, answers) in enumerate(comparison.answers.items()):
        label = f"{style.plain(name)}, {len(answers[0].members)} GPUs"
        values += _with_library(axes, answers, shown_as, style.look(place)["color"], label)
    sizes = [one.size for answers in comparison.answers.values() for one in answers]
    _finished(axes, sorted({*sizes}), shown_as, values, f"{comparison.collective} with the machines' libraries")
    return drawn


def _three_figures(comparison: Comparison, shown_as: style.Measure) -> Figure:
    """What the library takes with its interval, what the best schedule could take, and the bound."""
    drawn, axes = style.figure(_WIDTH)
    answers = comparison.answers
    factor = float(busbw_factor(comparison.collective.name, len(answers[0].members)))
    measured = any(one.details["basis"] == "measured" for one in answers)
    words = f"takes with {answers[0].library}" + (" (dots: measured)" if measured else "")
    values = _with_library(axes, answers, shown_as, _LIBRARY, words, f"{SHARE} published times")
    could = {one.size: one.could.best.time_s for one in answers if one.could is not None}
    least = {one.size: one.least.time_s for one in answers if one.least is not None}
    values += shown_as.curve(axes, could, factor, label="could take (best schedule)", color=_SEARCHED, linewidth=1.6)
    bound = shown_as.curve(axes, least, factor, label="bound", color="#000000", linestyle="--", linewidth=1.2)
    values += bound if shown_as.name != "time" else []
    where = f"{len(answers[0].members)} GPUs of {style.drawn_machine(comparison.topology)}"
    _finished(axes, [one.size for one in answers], shown_as, values, f"{comparison.collective} on {where}")
    return drawn


def _with_library(
    axes: Axes, answers: Sequence[Answer], shown_as: style.Measure, color: str, label: str, band: str = ""
) -> list[float]:
    """Draws what a library takes in its interval, with a dot where it was measured; the values."""
    factor = float(busbw_factor(answers[0].collective.name, len(answers[0].members)))
    low = [shown_as.of(one.size / one.low_s, one.size, factor) for one in answers]
    high = [shown_as.of(one.size / one.high_s, one.size, factor) for one in answers]
    sizes = [one.size for one in answers]
    axes.fill_between(sizes, low, high, color=color, alpha=0.2, linewidth=0, label=band or None)
    dots = [place for place, one in enumerate(answers) if one.details["basis"] == "measured"]
    look = {"color": color, "linewidth": 2.2, "marker": "o", "markersize": 5, "markevery": dots}
    times = {one.size: one.time_s for one in answers}
    return [*low, *high, *shown_as.curve(axes, times, factor, label=label, **look)]


def _finished(
    axes: Axes, sizes: Sequence[int], shown_as: style.Measure, values: list[float], title: str, note: str = ""
) -> None:
    axes.set(xlabel="size", ylabel=shown_as.label)
    style.number_axis(axes, sizes)
    style.value_axis(axes, values, shown_as.column)
    style.title(axes, title, _WIDTH, note=note)
    style.legend(axes)


def _bounds(
    axes: Axes, comparison: Comparison, listed: list[Projection], shown: list[str], shown_as: style.Measure
) -> list[float]:
    """Draws the bounds on time and on the rate, and what switches that add allow beyond it; what the axis must hold.

    The bound on the rate is the one that holds for all projections, whatever their rates.
    """
    factor = float(busbw_factor(comparison.collective.name, comparison.topology.ranks))
    line = {"color": "#000000", "linewidth": 1.0}
    least = {entry.size: entry.least.time_s for entry in listed if entry.least and entry.least.time_s}
    values = shown_as.curve(axes, least, factor, linestyle="-.", label="bound at this size", **line)
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
        # Neighbours may be closer than their words are wide, so they stand on different lines; beside the right edge
        # words stand to the left of their line.
        axes.axvline(crossing.size, color="#888888", linewidth=0.8, linestyle=":")
        left = math.log(crossing.size / first, last / first) > 0.8
        style.beside(
            axes,
            style.plain(f"{crossing.faster}\nfrom {format_size_about(crossing.size)}"),
            (crossing.size, abs(above - 0.02 - 0.085 * (number % 3))),
            (-3 if left else 3, 0),
            xycoords=("data", "axes fraction"),
            ha="right" if left else "left",
            va="top" if above else "bottom",
            bbox=style.PAPER,
            color="#555555",
        )
