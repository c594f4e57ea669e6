"""Pictures of links: their loads by a schedule, and in a simulated run what they do over time and how busy they are."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from blinksim.graphs.arrays import Floats
from blinksim.graphs.connectivity import summed
from blinksim.plots import style
from blinksim.results import count
from blinksim.schedule.candidate import as_compact, carried
from blinksim.schedule.model import ScheduleLike
from blinksim.textio.name_ranges import natural
from blinksim.timing.simulator import Spans, Timeline, Use
from blinksim.units import format_rate, format_size, format_time

_PANEL_HEIGHT, _PANEL_WIDTH = 4.0, 5.2


def loads(*schedules: ScheduleLike) -> Figure:
    """The busy share of each link at the greatest rate that the loads allow, a line per link class.

    Links stand in the order of their loads, so a flat line is an even load. Several schedules stand side by
    side.

    Parameters
    ----------
    *schedules : Schedule or Synthesis
        What to draw, such as two algorithms for the same traffic; those by symmetry are not written out for
        it.

    Returns
    -------
    Figure
        A matplotlib figure; `save` writes it.

    Raises
    ------
    InputError
        For anything but schedules.

    Examples
    --------
    >>> import blinksim as bs
    >>> machine = bs.load("hgx-h100", nodes=2).select()
    >>> picture = bs.plot.loads(*(bs.synthesize(machine, "alltoall", name) for name in ("direct", "rail_aligned")))
    >>> len(picture.axes)
    2
    """
    given = [as_compact(one) for one in schedules]
    drawn, row = style.panels(max(1, len(given)), max(6.4, _PANEL_WIDTH * len(given)), _PANEL_HEIGHT, share_y=True)
    for schedule, axes in zip(given, row, strict=False):
        shared, loaded, times = carried(schedule)
        busy = [load / rate for load, rate in zip(loaded, shared.rate, strict=True)]
        most = max(busy, default=Fraction(0)) or Fraction(1)
        # Adders have no part in moving data.
        adders = set(shared.adders.values())
        places = [place for place in range(len(busy)) if place not in adders]
        kinds = list(dict.fromkeys(shared.kinds[place] for place in places))
        for number, kind in enumerate(kinds):
            alike = [place for place in places if shared.kinds[place] == kind]
            each = np.array([100 * float(busy[place] / most) for place in alike])
            values = np.sort(np.repeat(each, [times[place] for place in alike]))[::-1]
            colour, dashes = style.COLOURS[number % len(style.COLOURS)], style.DASHES[number % len(style.DASHES)]
            edges, label = np.linspace(0, 100, len(values) + 1), f"{kind}, {count(len(values), 'link')}"
            look: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": 1.8}
            axes.stairs(values, edges, label=label, baseline=None, **look)
        rate = f"{format_rate(1 / most)} algbw" if any(busy) else "nothing is sent"
        words = f"{schedule.collective} by {schedule.algorithm} on {style.drawn_machine(schedule.topology)}"
        width = drawn.get_figwidth() / len(given) - 0.8
        axes.set_title(f"{style.wrapped(words, width)}\n{rate}", fontsize=10, loc="left")
        axes.set(xlabel="links of a class, busiest first, %", xlim=(0, 100), ylim=(0, 105))
        axes.legend(fontsize=8, frameon=False, loc="best")
    row[0].set_ylabel("busy, % of the time")
    return drawn


MOST_LINKS = 20
# A row of more bars than this shows no bar; a band of shares is drawn instead.
_MOST_BARS = 250
_BINS = 400
_HATCHES = ("", "//")
# Chunks beyond these colours and hatches are not told apart.
_MOST_CHUNKS = len(style.COLOURS) * len(_HATCHES)
_WIDTH = 10.0


def _busiest(timeline: Timeline, most: int) -> list[Use]:
    """The busiest links first; of those equally busy, in the order of their names."""
    return sorted(timeline.uses, key=lambda use: (-use.busy, natural(use.resource)))[:most]


def gantt(timeline: Timeline, most_links: int = MOST_LINKS) -> Figure:
    """A Gantt chart: time to the right, a row for each of the links that matter most.

    The links of the critical path (`critical_path`) are on top, the longest first, then the busiest others.

    A bar is a piece, a colour a chunk. Where a link carries too many pieces to tell apart, or several at
    once, a band shows the share of the time in which it is busy.

    Parameters
    ----------
    timeline : Timeline
        What to draw.
    most_links : int
        Rows.

    Returns
    -------
    Figure
        A matplotlib figure; `save` writes it.

    Examples
    --------
    >>> import blinksim as bs
    >>> pair = bs.load("dgx1-v100").select("0-3")
    >>> run = bs.simulate(bs.synthesize(pair, "broadcast", "chain").schedule, "64MiB", pieces=4)
    >>> picture = bs.plot.gantt(run)
    """
    spent = summed((leg.place, leg.time_s) for leg in timeline.critical_path)
    ordered = _busiest(timeline, len(timeline.uses))
    path = sorted((use for use in ordered if use.resource in spent), key=lambda use: -spent[use.resource])
    path = path[: (most_links + 1) // 2]
    others = [use for use in ordered if use not in path][: most_links - len(path)]
    uses = [*path, *others]
    spans = timeline.spans([use.resource for use in uses])
    hidden = len(timeline.uses) - len(uses)
    drawn, axes = style.figure(_WIDTH, max(2.5, 1.7 + 0.24 * (len(uses) + bool(hidden))))
    if int(np.bincount(spans.row, minlength=1).max()) > _MOST_BARS:
        # A row of cells for each link: the share of each stretch of time in which it was busy.
        rows = len(uses)
        shares = busy_shares(spans, rows, timeline.time_s, _BINS)
        edges = np.linspace(0, timeline.time_s, _BINS + 1)
        # Gaps between the rows, so that they read as bands.
        bottoms = np.arange(rows)[:, None] + np.array([-0.4, 0.4])
        padded = np.insert(shares, range(1, rows), np.nan, axis=0)
        image = axes.pcolormesh(edges, bottoms.ravel(), padded, cmap="Blues", vmin=0, vmax=1, rasterized=True)
        stretch = format_time(float(f"{timeline.time_s / _BINS:.2g}"))
        axes.figure.colorbar(image, ax=axes, label=f"busy share of {stretch}", pad=0.02)
    else:
        _bars(axes, spans)
    # The end, and the time that the loads of the links need.
    early = timeline.bound_s < 0.2 * timeline.time_s
    for seconds, label, line, side in (
        (timeline.bound_s, "needed by loads", "--", "left" if early else "right"),
        (timeline.time_s, "end", "-", "left"),
    ):
        axes.axvline(seconds, color="#555555", linewidth=0.9, linestyle=line)
        place = {"xycoords": ("data", "axes fraction"), "ha": side, "va": "bottom"}
        style.beside(axes, label, (seconds, 1.0), (2 if side == "left" else -2, 0), color="#555555", **place)
    _link_rows(axes, uses, hidden)
    axes.set(xlim=(0, 1.02 * timeline.time_s), xlabel="time")
    axes.xaxis.set_major_formatter(partial(style.number, column="time_s"))
    notes = list[str]()
    if path and others:
        axes.axhline(len(path) - 0.5, color="#555555", linewidth=0.9)
        notes.append("above the line the critical path, below it the busiest other links")
    if timeline.recorded_pieces < timeline.pieces:
        notes.append(f"drawn are the first {timeline.recorded_pieces:,} of {timeline.pieces:,} pieces")
    style.title(axes, _title(timeline), _WIDTH, 9, pad=14, note="; ".join(notes))
    return drawn


def _link_rows(axes: Axes, uses: list[Use], hidden: int) -> None:
    """A row for each link, the first on top, and one for those that are not shown."""
    names = [style.plain(use.resource) for use in uses] + ([f"and {count(hidden, 'more link')}"] if hidden else [])
    style.row_axis(axes, names, 7)


def _bars(axes: Axes, spans: Spans) -> None:
    """A bar for each piece, in the colour of its chunk; in one colour where there are too many chunks."""
    chunks = np.unique(spans.chunk).tolist()
    # One colour for all where there are too many chunks.
    groups = [(spans.chunk == chunk, f"chunk {chunk}") for chunk in chunks]
    if len(chunks) > _MOST_CHUNKS:
        groups = [(np.ones(len(spans.chunk), dtype=np.bool_), f"{len(chunks)} chunks")]
    handles = []
    for place, (mine, name) in enumerate(groups):
        colour, hatch = style.COLOURS[place % len(style.COLOURS)], _HATCHES[place // len(style.COLOURS)]
        left, right, row = spans.start[mine], spans.end[mine], spans.row[mine]
        corners = ((left, row - 0.4), (right, row - 0.4), (right, row + 0.4), (left, row + 0.4))
        bars = list(np.stack([np.stack(corner, -1) for corner in corners], 1))
        look: dict[str, Any] = {"facecolor": colour, "hatch": hatch, "edgecolor": "white"}
        axes.add_collection(PolyCollection(bars, linewidth=0.3, **look))
        handles.append(Patch(label=name, **look))
    if len(handles) > 1:
        style.legend(axes, handles=handles, fontsize=7, bbox_to_anchor=(1.01, 1.0))


def busy_shares(spans: Spans, rows: int, whole: float, bins: int) -> Floats:
    """(rows, bins): how much of each of `bins` equal stretches of `whole` seconds each row was busy."""
    edges, shares = np.linspace(0, whole, bins + 1), np.zeros((rows, bins))
    for row in range(rows):
        mine = np.flatnonzero(spans.row == row)
        order = mine[np.argsort(spans.start[mine])]
        # The stretches in which at least one piece is there.
        start, last = spans.start[order], np.maximum.accumulate(spans.end[order])
        apart = start[1:] > last[:-1]
        ends = np.stack((start[np.append(True, apart)], last[np.append(apart, True)]), axis=1)
        # How long it was busy until the beginning and until the end of each stretch.
        until = np.cumsum(np.diff(ends, axis=1, prepend=ends[:, :1]))
        shares[row] = np.diff(np.interp(edges, ends.ravel(), until)) * bins / whole
    return shares.clip(0, 1)


def utilisation(timeline: Timeline, most_links: int = MOST_LINKS) -> Figure:
    """A bar for each of the busiest links: the share of the time in which it was busy.

    Parameters
    ----------
    timeline : Timeline
        What to draw.
    most_links : int
        Bars.

    Returns
    -------
    Figure
        A matplotlib figure; `save` writes it.

    Examples
    --------
    >>> import blinksim as bs
    >>> run = bs.simulate(bs.synthesize("dgx1-v100", "allreduce", "ring").schedule, "64MiB")
    >>> picture = bs.plot.utilisation(run)
    """
    uses = _busiest(timeline, most_links)
    hidden = len(timeline.uses) - len(uses)
    drawn, axes = style.figure(8.0, max(2.0, 1.2 + 0.24 * (len(uses) + bool(hidden))))
    kinds = list(dict.fromkeys(use.kind for use in timeline.uses))
    for row, use in enumerate(uses):
        axes.barh(row, 100 * use.busy, height=0.75, color=style.COLOURS[kinds.index(use.kind) % len(style.COLOURS)])
        share = f"{100 * use.busy:.0f}"
        style.beside(axes, share, (100 * use.busy, row), (3, 0), va="center", fontsize=6, color="#555555")
    _link_rows(axes, uses, hidden)
    axes.set(xlim=(0, 105), xlabel="busy (% of the time)")
    style.title(axes, _title(timeline), 7.0, 9)
    return drawn


def _title(timeline: Timeline) -> str:
    schedule = timeline.schedule
    topology = schedule.topology
    what = f"{schedule.collective} of {format_size(timeline.size)} on {style.drawn_machine(topology)}"
    return f"{what} by {schedule.algorithm}, {topology.rates} rates, simulated: {format_time(timeline.time_s)}"
