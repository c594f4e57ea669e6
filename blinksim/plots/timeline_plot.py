"""Pictures of simulated runs: what every link did over time, and how busy each was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blinksim.plots.style import COLOURS, figure
from blinksim.units import format_size, format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from blinksim.simulation.timeline import Timeline

# Bars of fewer pixels than this cannot be told apart.
_MOST_BARS = 20_000
_HATCHES = ("", "//", "\\\\", "xx", "..")


def _axis(seconds: float) -> tuple[float, str]:
    """(units per second, unit) that suit a time axis."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return scale, unit
    return 1e9, "ns"


def gantt(timeline: Timeline, most_links: int = 40) -> Figure:
    """Time to the right, a row for each of the `most_links` busiest links, a bar a piece, a colour a chunk.

    Beyond eight trees colours come again with hatching. The title says what is left out.

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
    from matplotlib.patches import Patch

    rows = [use.resource for use in timeline.uses[:most_links]]
    place = {name: row for row, name in enumerate(sorted(rows))}
    scale, unit = _axis(timeline.time_s)
    drawn, axes = figure(10.0, max(2.5, 1.6 + 0.22 * len(rows)))
    bars: dict[int, list[tuple[int, float, float]]] = {}
    last, count = 0.0, 0
    for transfer in timeline.transfers(_MOST_BARS):
        count += 1
        last = transfer.start_s
        if transfer.resource in place:
            bar = (place[transfer.resource], transfer.start_s * scale, transfer.time_s * scale)
            bars.setdefault(transfer.chunk, []).append(bar)
    fine = timeline.pieces <= 64
    for chunk, listed in sorted(bars.items()):
        axes.barh(
            [bar[0] for bar in listed],
            [bar[2] for bar in listed],
            left=[bar[1] for bar in listed],
            height=0.8,
            color=COLOURS[chunk % len(COLOURS)],
            hatch=_HATCHES[chunk // len(COLOURS) % len(_HATCHES)] if fine else "",
            edgecolor="white",
            linewidth=0.3 if fine else 0.0,
        )
    # A run with too many pieces to draw is shown up to where they end.
    cut = count < timeline.transfer_count
    end = last if cut else timeline.time_s * 1.02
    for seconds, label, line, side in ((timeline.bound_s, "needed by loads", "--", "right"),
                                       (timeline.time_s, "end", "-", "left")):  # fmt: skip
        if seconds <= end:
            axes.axvline(seconds * scale, color="#555555", linewidth=0.9, linestyle=line)
            axes.annotate(label, (seconds * scale, 1.0), xycoords=("data", "axes fraction"), fontsize=7, ha=side,
                          va="bottom", color="#555555")  # fmt: skip
    axes.set_yticks(list(place.values()), list(place), fontsize=7)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, end * scale)
    axes.set_xlabel(f"time ({unit})")
    axes.grid(False, axis="y")
    notes = []
    if len(timeline.uses) > len(rows):
        notes.append(f"{len(rows)} of {len(timeline.uses)} links")
    if cut:
        notes.append(f"the first {format_time(last)}")
    axes.set_title(_title(timeline) + (f" ({'; '.join(notes)})" if notes else ""), fontsize=9, loc="left", pad=14)
    named = sorted(bars)[:12]
    if len(bars) > 1:
        handles = [
            Patch(
                facecolor=COLOURS[chunk % len(COLOURS)],
                hatch=_HATCHES[chunk // len(COLOURS) % len(_HATCHES)],
                edgecolor="white",
                label=f"chunk {chunk}",
            )
            for chunk in named
        ]
        more = f"and {len(bars) - len(named)} more" if len(bars) > len(named) else None
        axes.legend(handles=handles, fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0),
                    title=more, title_fontsize=7)  # fmt: skip
    return drawn


def utilisation(timeline: Timeline, most_links: int = 40) -> Figure:
    """A bar for each of the `most_links` busiest links: the share of the time in which it was busy.

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
    uses = timeline.uses[:most_links]
    drawn, axes = figure(8.0, max(2.0, 1.2 + 0.22 * len(uses)))
    kinds = list(dict.fromkeys(use.kind for use in timeline.uses))
    for row, use in enumerate(uses):
        axes.barh(row, 100 * use.busy, height=0.75, color=COLOURS[kinds.index(use.kind) % len(COLOURS)])
        axes.annotate(f"{100 * use.busy:.0f}", (100 * use.busy, row), xytext=(3, 0), textcoords="offset points",
                      va="center", fontsize=6, color="#555555")  # fmt: skip
    axes.set_yticks(range(len(uses)), [use.resource for use in uses], fontsize=7)
    axes.set_ylim(len(uses) - 0.5, -0.5)
    axes.set_xlim(0, 105)
    axes.set_xlabel("busy (% of the time)")
    axes.grid(False, axis="y")
    left = f" ({len(uses)} of {len(timeline.uses)} links)" if len(timeline.uses) > len(uses) else ""
    axes.set_title(_title(timeline) + left, fontsize=9, loc="left")
    return drawn


def _title(timeline: Timeline) -> str:
    schedule = timeline.schedule
    return (
        f"{schedule.collective} of {format_size(timeline.size)} on {schedule.topology.name} by {schedule.algorithm}: "
        f"{format_time(timeline.time_s)}"
    )
