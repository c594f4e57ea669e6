"""A front of latency and bandwidth as a picture: a point for each schedule, the bound dashed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blinksim.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from blinksim.answers.pareto import Pareto

_WIDTH = 8.5


# Above and below the points, of their height.
_MARGIN = 0.12
# Where a number may stand beside its point, in points of the page, and how far it must be from others, across and up.
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
    # Pipelined schedules pay for overheads again with every piece, so that their points may lie above the line.
    front_line = [at for at, point in enumerate(points) if point.quickest]
    along = [latencies[at] for at in front_line], [rates[at] for at in front_line]
    axes.plot(*along, color="#bbbbbb", linewidth=0.8, zorder=1)
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
    dots = axes.figure.dpi / 72
    moved = [axes.transData.transform(place) for place in zip(latencies, rates, strict=True)]
    places = [(float(across) / dots, float(up) / dots) for across, up in moved]
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
