"""Pictures of simulated runs: the busiest links over time, and the utilisation of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from blinksim.plots.style import COLOURS, beside, drawn_machine, figure, legend, natural, plain, wrapped
from blinksim.textio.text_table import count
from blinksim.units import format_size, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from blinksim.timing.timeline import Spans, Timeline, Use

Real = npt.NDArray[np.float64]
MOST_LINKS = 20
# A row of more bars than this shows no bar; a band of shares is drawn instead.
_MOST_BARS = 250
_BINS = 400
_HATCHES = ("", "//")
# Chunks beyond these colours and hatches are not told apart.
_MOST_CHUNKS = len(COLOURS) * len(_HATCHES)
_WIDTH = 10.0


def _axis(seconds: float) -> tuple[float, str]:
    """(units per second, unit) that suit a time axis."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return scale, unit
    return 1e9, "ns"


def _busiest(timeline: Timeline, most: int) -> list[Use]:
    """The busiest links first; of those equally busy, in the order of their names."""
    return sorted(timeline.uses, key=lambda use: (-use.busy, natural(use.resource)))[:most]


def _limiting(timeline: Timeline, most: int) -> tuple[list[Use], list[Use]]:
    """The links that the time goes by on, the longest first, in up to half of the rows; and the busiest others."""
    spent: dict[str, float] = {}
    for leg in timeline.critical_path:
        spent[leg.place] = spent.get(leg.place, 0.0) + leg.time_s
    ordered = _busiest(timeline, len(timeline.uses))
    path = sorted((use for use in ordered if use.resource in spent), key=lambda use: -spent[use.resource])
    first = path[: (most + 1) // 2]
    return first, [use for use in ordered if use not in first][: most - len(first)]


def gantt(timeline: Timeline, most_links: int = MOST_LINKS) -> Figure:
    """A Gantt chart: time to the right, a row for each of the links that matter most.

    The links of the critical path (`critical_path`) are on top, the longest first, then the busiest others.

    A bar is a piece, a colour a chunk. Where a link carries too many pieces to tell apart, or several at once, a band
    shows the share of the time in which it is busy.

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
    path, others = _limiting(timeline, most_links)
    uses = [*path, *others]
    spans = timeline.spans([use.resource for use in uses])
    scale, unit = _axis(timeline.time_s)
    hidden = len(timeline.uses) - len(uses)
    drawn, axes = figure(_WIDTH, max(2.5, 1.7 + 0.24 * (len(uses) + bool(hidden))))
    if int(np.bincount(spans.row, minlength=1).max()) > _MOST_BARS:
        _band(axes, timeline, spans, len(uses), scale)
    else:
        _bars(axes, spans, scale)
    _marks(axes, timeline, scale)
    _link_rows(axes, uses, hidden)
    axes.set_xlim(0, timeline.time_s * 1.02 * scale)
    axes.set_xlabel(f"time ({unit})")
    words = _title(timeline)
    if path and others:
        axes.axhline(len(path) - 0.5, color="#555555", linewidth=0.9)
        words += "; above the line the critical path, below it the busiest other links"
    if timeline.recorded_pieces < timeline.pieces:
        words += f"; drawn are the first {timeline.recorded_pieces:,} of {timeline.pieces:,} pieces"
    axes.set_title(wrapped(words, _WIDTH), fontsize=9, loc="left", pad=14)
    return drawn


def _link_rows(axes: Axes, uses: list[Use], hidden: int) -> None:
    """A row for each link, the first on top, and one for those that are not shown."""
    names = [plain(use.resource) for use in uses] + ([f"and {count(hidden, 'more link')}"] if hidden else [])
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")


def _marks(axes: Axes, timeline: Timeline, scale: float) -> None:
    """The end, and the time that the loads of the links need."""
    early = timeline.bound_s < 0.2 * timeline.time_s
    for seconds, label, line, side in (
        (timeline.bound_s, "needed by loads", "--", "left" if early else "right"),
        (timeline.time_s, "end", "-", "left"),
    ):
        axes.axvline(seconds * scale, color="#555555", linewidth=0.9, linestyle=line)
        offset = (2 if side == "left" else -2, 0)
        place = {"xycoords": ("data", "axes fraction"), "ha": side, "va": "bottom"}
        beside(axes, label, (seconds * scale, 1.0), offset, color="#555555", **place)


def _bars(axes: Axes, spans: Spans, scale: float) -> None:
    """A bar for each piece, in the colour of its chunk; in one colour where there are too many chunks."""
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    chunks = np.unique(spans.chunk).tolist()
    # One colour for all where there are too many chunks.
    groups = [(spans.chunk == chunk, f"chunk {chunk}") for chunk in chunks]
    if len(chunks) > _MOST_CHUNKS:
        groups = [(np.ones(len(spans.chunk), dtype=np.bool_), f"{len(chunks)} chunks")]
    handles = []
    for place, (mine, name) in enumerate(groups):
        colour, hatch = COLOURS[place % len(COLOURS)], _HATCHES[place // len(COLOURS)]
        bars = PolyCollection(
            list(_corners(spans, mine, scale)), facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0.3
        )
        axes.add_collection(bars)
        handles.append(Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=name))
    if len(handles) > 1:
        legend(axes, handles=handles, fontsize=7, bbox_to_anchor=(1.01, 1.0))


def _corners(spans: Spans, mine: npt.NDArray[np.bool_], scale: float) -> Real:
    """(bars, 4, 2): the rectangles of the bars chosen."""
    left, right, row = spans.start[mine] * scale, spans.end[mine] * scale, spans.row[mine]
    low, high = row - 0.4, row + 0.4
    return np.stack([np.stack(corner, -1) for corner in ((left, low), (right, low), (right, high), (left, high))], 1)


def _band(axes: Axes, timeline: Timeline, spans: Spans, rows: int, scale: float) -> None:
    """A row of cells for each link: the share of each stretch of time in which it was busy."""
    shares = busy_shares(spans, rows, timeline.time_s, _BINS)
    edges = np.linspace(0, timeline.time_s * scale, _BINS + 1)
    # Gaps between the rows, so that they read as bands.
    bottoms = np.arange(rows)[:, None] + np.array([-0.4, 0.4])
    padded = np.insert(shares, range(1, rows), np.nan, axis=0)
    image = axes.pcolormesh(edges, bottoms.ravel(), padded, cmap="Blues", vmin=0, vmax=1, rasterized=True)
    drawn = axes.figure
    stretch = format_time(float(f"{timeline.time_s / _BINS:.2g}"))
    drawn.colorbar(image, ax=axes, label=f"busy share of {stretch}", pad=0.02)


def busy_shares(spans: Spans, rows: int, whole: float, bins: int) -> Real:
    """(rows, bins): how much of each of `bins` equal stretches of `whole` seconds each row was busy."""
    edges = np.linspace(0, whole, bins + 1)
    found = np.zeros((rows, bins))
    for row in range(rows):
        mine = spans.row == row
        start, end = _merged(spans.start[mine], spans.end[mine])
        # Busy until a time: what has passed since every beginning, less what has passed since every end.
        found[row] = np.diff(_passed(edges, start) - _passed(edges, end)) * bins / whole
    return found.clip(0, 1)


def _merged(start: Real, end: Real) -> tuple[Real, Real]:
    """The stretches in which at least one piece is there."""
    order = np.argsort(start)
    start, last = start[order], np.maximum.accumulate(end[order])
    apart = start[1:] > last[:-1]
    return start[np.append(True, apart)], last[np.append(apart, True)]


def _passed(at: Real, since: Real) -> Real:
    """The sum of ``max(0, at - since)`` for every time in `at`; `since` is ascending."""
    count = np.searchsorted(since, at)
    return np.asarray(count * at - np.concatenate(([0.0], np.cumsum(since)))[count])


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
    drawn, axes = figure(8.0, max(2.0, 1.2 + 0.24 * (len(uses) + bool(hidden))))
    kinds = list(dict.fromkeys(use.kind for use in timeline.uses))
    for row, use in enumerate(uses):
        axes.barh(row, 100 * use.busy, height=0.75, color=COLOURS[kinds.index(use.kind) % len(COLOURS)])
        share = f"{100 * use.busy:.0f}"
        beside(axes, share, (100 * use.busy, row), (3, 0), va="center", fontsize=6, color="#555555")
    _link_rows(axes, uses, hidden)
    axes.set_xlim(0, 105)
    axes.set_xlabel("busy (% of the time)")
    axes.set_title(wrapped(_title(timeline), 7.0), fontsize=9, loc="left")
    return drawn


def _title(timeline: Timeline) -> str:
    schedule = timeline.schedule
    topology = schedule.topology
    return (
        f"{schedule.collective} of {format_size(timeline.size)} on {drawn_machine(topology)} by {schedule.algorithm}, "
        f"{topology.rates} rates, simulated: {format_time(timeline.time_s)}"
    )
