"""A schedule's trees, each in a panel and a colour of its own, over the links that it leaves idle."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from blinksim.errors import InputError
from blinksim.plots.layout import layout
from blinksim.plots.style import COLOURS, drawn_machine, wrapped
from blinksim.plots.topology_plot import bare, devices, pairs, way

if TYPE_CHECKING:
    from fractions import Fraction

    from matplotlib.figure import Figure

    from blinksim.schedule.model import ScheduleLike

MOST_RANKS = 64
# Denominators of fractions that say more than per cent do.
_READABLE = 100


def trees(schedule: ScheduleLike, most: int = 12) -> Figure:
    """The ways of a schedule's chunks, those with the largest shares first: arrows for what is copied, lines without
    for what is also reduced the other way.

    Parameters
    ----------
    schedule : Schedule or Synthesis
        Whose chunks to draw.
    most : int
        Panels.

    Returns
    -------
    Figure
        A matplotlib figure; `save` writes it.

    Raises
    ------
    InputError
        For more than 64 ranks, whose trees no picture can show.

    Examples
    --------
    >>> import blinksim as bs
    >>> picture = bs.plot.trees(bs.synthesize("dgx1-v100", "broadcast").schedule, most=2)
    """
    from matplotlib.figure import Figure as Canvas

    from blinksim.schedule.model import COPY, as_schedule

    schedule = as_schedule(schedule)
    machine = schedule.topology
    check_ranks(machine.ranks)
    order = sorted(range(schedule.chunks), key=lambda chunk: (-schedule.share(chunk), chunk))
    shown = order[: min(most, schedule.chunks)]
    columns = min(4, len(shown))
    rows = math.ceil(len(shown) / columns)
    drawn = Canvas(figsize=(2.6 * columns, 2.75 * rows + 0.4), layout="constrained", dpi=150)
    places = layout(machine)
    for number, chunk in enumerate(shown):
        axes = drawn.add_subplot(rows, columns, number + 1)
        bare(axes)
        for a, b in pairs(machine):
            axes.plot(*zip(*way(places, a, b), strict=True), color="#dddddd", linewidth=1.0, zorder=0)
        mine = schedule.chunk == chunk
        copies = mine & (schedule.op == COPY)
        sends = copies if copies.any() else mine
        colour = COLOURS[number % len(COLOURS)]
        for route in schedule.route[sends]:
            for link in (machine.links[i] for i in schedule.links_of(int(route))):
                arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 2.0, "shrinkA": 7, "shrinkB": 7}
                if len(way(places, link.src, link.dst)) > 2:
                    forward = machine.index[link.src] < machine.index[link.dst]
                    arrow["connectionstyle"] = f"arc3,rad={-0.2 if forward else 0.2}"
                axes.annotate("", xy=places[link.dst], xytext=places[link.src], arrowprops=arrow, zorder=2)
        devices(axes, machine, places, size=130)
        axes.set_title(_share(schedule.share(chunk)), fontsize=8)
    hidden = f", the {len(shown)} largest of {schedule.chunks}" if len(shown) < schedule.chunks else ""
    both_ways = schedule.collective.name == "allreduce" and schedule.form == "forest"
    reduced = "; data is reduced up the same trees first" if both_ways else ""
    drawn.suptitle(
        wrapped(
            f"{schedule.algorithm} {schedule.collective} on {drawn_machine(machine)}, {machine.rates} rates: "
            f"{schedule.parts()}{hidden}{reduced}",
            drawn.get_figwidth(),
        ),
        fontsize=9,
        x=0.01,
        ha="left",
    )
    return drawn


def check_ranks(ranks: int) -> None:
    """Raises `InputError` for more ranks than whose trees a picture can show."""
    if ranks > MOST_RANKS:
        raise InputError(f"the trees of {ranks:,} ranks are too many to draw (at most {MOST_RANKS} ranks)")


def _share(share: Fraction) -> str:
    """The part of the data that a chunk is: a fraction where people read it as one, else per cent."""
    if share.denominator <= _READABLE:
        return f"{share} of the data"
    return f"{100 * float(share):.3g} % of the data"
