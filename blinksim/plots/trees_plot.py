"""Trees of a schedule as a picture: a panel and a colour each, over the links that it leaves idle."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from blinksim.plots import style
from blinksim.plots.layout import view
from blinksim.plots.topology_plot import bare, check_devices, devices, route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from blinksim.plots.layout import View
    from blinksim.schedule.model import Schedule, ScheduleLike
    from blinksim.schedule.symmetric import SymmetricSchedule

# Denominators of fractions that say more than per cent do.
_READABLE = 100
# Inches of a picture across, and of a panel upwards.
_WIDTH, _TALLEST, _LOWEST = 10.4, 2.75, 1.6
# Panels side by side by how many times as wide as high the machine is, and rows that fit on a page.
_COLUMNS = ((1.6, 4), (3.2, 2), (math.inf, 1))
_ROWS = {4: 3, 2: 4, 1: 4}


def trees(schedule: ScheduleLike, most: int | None = None) -> Figure:
    """Trees or paths of a schedule's chunks, largest first: arrows for copies, plain lines if also reduced.

    Of more chunks than panels, one of each shape is drawn: the same share, the same number of sends from each
    rank and the same lengths. Of a large cluster one node is drawn in full, the others as boxes.

    Parameters
    ----------
    schedule : Schedule or Synthesis
        Whose chunks to draw; one by symmetry is not written out for it.
    most : int, optional
        Panels. Default: as many as fit on a page, at most 12.

    Returns
    -------
    Figure
        A matplotlib figure; `save` writes it.

    Raises
    ------
    InputError
        For more than 400 devices that would have to be drawn.

    Examples
    --------
    >>> import blinksim as bs
    >>> picture = bs.plot.trees(bs.synthesize("dgx1-v100", "broadcast").schedule, most=2)
    """
    from blinksim.schedule.model import as_schedule
    from blinksim.schedule.symmetric import SymmetricSchedule

    # Of a schedule by symmetry the base is drawn; times: how many images every chunk has.
    compact = getattr(schedule, "compact", schedule)
    given = compact if isinstance(compact, SymmetricSchedule) else as_schedule(schedule)
    whole = given.base if isinstance(given, SymmetricSchedule) else given
    times = given.times.tolist() if isinstance(given, SymmetricSchedule) else [1] * whole.chunks
    shown = view(whole.topology)
    check_devices(shown)
    low_x, high_x, low_y, high_y = shown.corners()
    wide = (high_x - low_x) / (high_y - low_y)
    columns = next(number for ratio, number in _COLUMNS if wide <= ratio)
    most = most or columns * _ROWS[columns]
    alike = _alike(whole, times, most)
    columns = min(columns, len(alike))
    rows = math.ceil(len(alike) / columns)
    across = _WIDTH / max(columns, 4 if wide <= _COLUMNS[0][0] else 1)
    height = max(_LOWEST, min(_TALLEST, across / wide + 0.35))
    drawn = style.canvas(across * columns, height * rows + 0.4)
    idle = sorted({(line.a, line.b) for line in shown.lines(whole.topology.links)})
    for number, chunk in enumerate(alike):
        axes = drawn.add_subplot(rows, columns, number + 1)
        bare(axes, shown)
        for a, b in idle:
            axes.plot(*zip(*route(shown.places, a, b), strict=True), color="#dddddd", linewidth=1.0, zorder=0)
        _arrows(axes, shown, whole, chunk, style.COLOURS[number % len(style.COLOURS)])
        devices(axes, whole.topology, shown, size=130)
        share = whole.share(chunk)
        # People read some fractions as one, others better in per cent.
        part = f"{share}" if share.denominator <= _READABLE else f"{100 * float(share):.3g} %"
        again = f", {alike[chunk]:,} alike" if alike[chunk] > 1 else ""
        axes.set_title(f"{part} of the data{again}", fontsize=8)
    style.title(drawn, _title(given, whole, alike, sum(times)), drawn.get_figwidth(), 9)
    return drawn


def _alike(schedule: Schedule, times: Sequence[int], most: int) -> dict[int, int]:
    """The chunks to draw, those with the largest shares first, and how many each stands for."""
    order = sorted(range(schedule.chunks), key=lambda chunk: (-schedule.share(chunk), chunk))
    if schedule.chunks <= most:
        return {chunk: times[chunk] for chunk in order}
    lengths = np.array([len(schedule.links_of(route)) for route in range(int(schedule.route.max()) + 1)])
    shapes: dict[tuple[object, ...], int] = {}
    counts: dict[int, int] = {}
    for chunk in order:
        mine = schedule.chunk == chunk
        degrees = np.sort(np.bincount(schedule.src[mine])).tobytes()
        shape = (schedule.share(chunk), degrees.lstrip(b"\0"), np.sort(lengths[schedule.route[mine]]).tobytes())
        first = shapes.setdefault(shape, chunk)
        counts[first] = counts.get(first, 0) + times[chunk]
    return dict(list(counts.items())[:most])


def _arrows(axes: Axes, shown: View, schedule: Schedule, chunk: int, colour: str) -> None:
    """The sends of a chunk, every link once, as far as both of its ends are drawn."""
    from blinksim.schedule.model import COPY

    mine = schedule.chunk == chunk
    copies = mine & (schedule.op == COPY)
    routes = np.unique(schedule.route[copies if copies.any() else mine]).tolist()
    used = (schedule.topology.links[link] for route in routes for link in schedule.links_of(route))
    order = {name: place for place, name in enumerate(shown.places)}
    for a, b in dict.fromkeys((shown.stands_for.get(link.src), shown.stands_for.get(link.dst)) for link in used):
        if a is None or b is None or a == b:
            continue
        arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 2.0, "shrinkA": 7, "shrinkB": 7}
        if len(route(shown.places, a, b)) > 2:
            arrow["connectionstyle"] = f"arc3,rad={-0.2 if order[a] < order[b] else 0.2}"
        axes.annotate("", xy=shown.places[b], xytext=shown.places[a], arrowprops=arrow, zorder=2)


def _title(given: Schedule | SymmetricSchedule, schedule: Schedule, alike: dict[int, int], chunks: int) -> str:
    stood_for, shapes = sum(alike.values()), len(alike)
    if stood_for < chunks:
        left = f"{stood_for:,} of {chunks:,}"
        hidden = f", the {left} largest" if stood_for == shapes else f", one of each of {shapes} shapes ({left})"
    else:
        kinds = ", all of one shape" if shapes == 1 else f", one of each of {shapes} shapes"
        hidden = kinds if stood_for > shapes else ""
    both = schedule.collective.name == "allreduce" and schedule.form == "forest"
    reduced = "; data is reduced up the same trees first" if both else ""
    machine = schedule.topology
    return (
        f"{schedule.algorithm} {schedule.collective} on {style.drawn_machine(machine)}, {machine.rates} rates: "
        f"{given.parts()}{hidden}{reduced}"
    )
