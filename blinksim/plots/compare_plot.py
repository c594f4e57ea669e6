"""A comparison as a picture: algbw against size, a line per algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blinksim.plots.style import COLOURS, MARKERS, figure, size_axis
from blinksim.units import format_size_about

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from blinksim.answers.compare import Comparison


def compare(comparison: Comparison, most: int = 8) -> Figure:
    """algbw against size on logarithmic axes, a line per algorithm, the crossovers marked.

    Parameters
    ----------
    comparison : Comparison
        What to draw.
    most : int
        Algorithms to draw: those that come closest to the best one at any size.

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
    drawn, axes = figure()
    rates: dict[str, dict[int, float]] = {name: {} for name in comparison.algorithms}
    for found in comparison.projections:
        for projection in found:
            rates[projection.algorithm][projection.size] = projection.algbw / 1e9
    best = {p.size: p.algbw / 1e9 for p in comparison.best()}
    closest = sorted(rates, key=lambda name: -max(rate / best[size] for size, rate in rates[name].items()))
    shown = sorted(closest[:most], key=lambda name: -rates[name][comparison.sizes[-1]])
    for place, name in enumerate(shown):
        axes.plot(
            list(rates[name]),
            list(rates[name].values()),
            color=COLOURS[place % len(COLOURS)],
            marker=MARKERS[place % len(MARKERS)],
            markersize=4,
            linewidth=1.6,
            label=name.replace("_", " "),
        )
    axes.set_yscale("log")
    axes.set_ylabel("algbw (GB/s)")
    ticks = [size for place, size in enumerate(comparison.sizes) if place % max(1, len(comparison.sizes) // 8) == 0]
    size_axis(axes, ticks)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    marked = [crossing for crossing in comparison.crossovers if crossing.faster in shown]
    for number, crossing in enumerate(marked):
        # Neighbours may be closer than their words are wide, so they stand on different lines.
        axes.axvline(crossing.size, color="#888888", linewidth=0.8, linestyle=":")
        axes.annotate(
            f"{crossing.faster.replace('_', ' ')}\nfrom {format_size_about(crossing.size)}",
            (crossing.size, 0.02 + 0.085 * (number % 3)),
            xycoords=("data", "axes fraction"),
            xytext=(3, 0),
            textcoords="offset points",
            fontsize=7,
            color="#555555",
        )
    topology = comparison.topology
    axes.set_title(
        f"{comparison.collective} on {topology.name}: {topology.ranks} ranks, {', '.join(topology.link_classes)}, "
        f"{topology.rates} rates",
        fontsize=10,
        loc="left",
    )
    axes.legend(fontsize=8, frameon=False)
    return drawn
