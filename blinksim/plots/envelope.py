"""What lies around the lines of a comparison: their lower envelope, what a search found, and the bound on time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from blinksim.plots.measures import Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from blinksim.answers.compare import Comparison

_ENVELOPE, _SEARCHED = "#cfcfcf", "#d62728"


def envelope(axes: Axes, comparison: Comparison, shown_as: Measure, factor: float) -> None:
    """A broad line behind the others along the quickest algorithm of every size."""
    line = [shown_as.of(float(best.algbw), best.size, factor) for best in comparison.best()]
    axes.plot(
        comparison.sizes, line, color=_ENVELOPE, linewidth=6, solid_capstyle="round", zorder=0.5, label="quickest"
    )


def least_times(axes: Axes, comparison: Comparison, shown_as: Measure, factor: float) -> list[float]:
    """The bound on time for every size, where it is known; its values."""
    least = {
        size: next((one.least.time_s for one in found if one.least), None)
        for size, found in zip(comparison.sizes, comparison.projections, strict=True)
    }
    known = {size: time for size, time in least.items() if time}
    line = [shown_as.of(size / time, size, factor) for size, time in known.items()]
    if line:
        label = "no schedule is quicker"
        axes.plot([*known], line, color="#000000", linestyle="-.", linewidth=1.0, label=label)
    return line


def searched(
    axes: Axes, comparison: Comparison, times: Mapping[int, float], shown_as: Measure, factor: float
) -> list[float]:
    """Stars for schedules that were made for one size, by size in bytes and seconds, where nothing else is quicker.

    Returns their values.
    """
    best = {one.size: one.time_s for one in comparison.best()}
    times = {size: time for size, time in times.items() if time <= best[size]}
    line = [shown_as.of(size / time, size, factor) for size, time in times.items()]
    if line:
        label = "few rounds for one size (simulated)"
        axes.scatter([*times], line, marker="*", s=60, color=_SEARCHED, zorder=3, label=label)
    return line
