"""A front of latency and bandwidth as a picture: a point for each schedule, the bound dashed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blinksim.plots.style import COLOURS, drawn_machine, figure, plain, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from blinksim.answers.pareto import Pareto

_WIDTH = 8.5


def pareto(front: Pareto) -> Figure:
    """The bandwidth of every schedule against its latency, with what no schedule exceeds.

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
    >>> picture = bs.plot.pareto(bs.pareto("dgx1-v100", "broadcast", seconds=2))
    """
    drawn, axes = figure(_WIDTH)
    points = front.points
    latencies = [point.latency_s * 1e6 for point in points]
    rates = [point.bandwidth / 1e9 for point in points]
    # Pipelined schedules pay for latency again with every piece, so that their points may lie above the line.
    front_line = [at for at, point in enumerate(points) if point.quickest_from is not None]
    along = [latencies[at] for at in front_line], [rates[at] for at in front_line]
    axes.plot(*along, color="#bbbbbb", linewidth=0.8, zorder=1)
    for number, (point, x, y) in enumerate(zip(points, latencies, rates, strict=True), start=1):
        colour = COLOURS[(number - 1) % len(COLOURS)]
        face = colour if point.quickest_from is not None else "none"
        label = plain(f"{number}  {point.name.replace('few_steps', 'few steps').replace('_', ' ')}")
        axes.scatter([x], [y], s=36, facecolors=face, edgecolors=colour, label=label, zorder=2)
        axes.annotate(str(number), (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8)
    axes.axhline(front.bound.rate_GBps, color="#000000", linestyle="--", linewidth=1.0, label="best that is possible")
    axes.set_xlabel("latency (us)")
    axes.set_ylabel("algbw for large sizes (GB/s)")
    axes.set_xlim(0, 1.08 * max(latencies))
    axes.set_ylim(0, 1.08 * max(*rates, front.bound.rate_GBps))
    topology = front.topology
    title = (
        f"{front.collective} on {drawn_machine(topology)}: {topology.ranks} ranks, {', '.join(topology.link_classes)}, "
        f"{topology.rates} rates, model alpha-beta; filled: the quickest at some size"
    )
    axes.set_title(wrapped(title, _WIDTH), fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return drawn
