"""The house style of pictures: palette, grid, axes with units, legends, and reproducible files.

The palette is told apart with any colour vision (Okabe and Ito, Color Universal Design, 2008).
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from blinksim.errors import InputError, one_of
from blinksim.textio.text_files import check_target, write_bytes
from blinksim.topology.graph import Topology
from blinksim.units import format_size_about, format_time

# Okabe and Ito's palette, told apart by people with any colour vision; markers tell the lines apart without
# it.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", ":")
HATCHES = ("", "//", "..", "xx", "\\\\", "oo", "++", "--")
FORMATS = (".png", ".svg", ".pdf")
# Behind words that stand on lines.
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
# Letters of the title's size that fit on an inch.
_LETTERS = 13
# Edits that a title names one by one.
_MOST_EDITS = 3
# Largest over smallest value from which an axis is logarithmic.
_WIDE = 20
_MOST_TICKS, _MOST_SIZES = 15.0, 9.5
# Formats that note the time of day in the file unless it is taken out.
_UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def figure(width: float = 8.0, height: float = 5.0) -> tuple[Figure, Axes]:
    """An empty figure in the house style: no window, a light grid, no frame on top and right.

    >>> import blinksim as bs
    >>> picture, axes = bs.plot.figure(4, 3)
    >>> lines = axes.plot([1, 2], [3, 4])
    """
    drawn, (axes,) = panels(1, width, height)
    return drawn, axes


def panels(
    columns: int, width: float = 10.0, height: float = 4.4, *, share_y: bool = False
) -> tuple[Figure, list[Axes]]:
    """Empty axes side by side in the house style; with `share_y` on one scale.

    >>> import blinksim as bs
    >>> picture, both = bs.plot.panels(2, share_y=True)
    >>> len(both)
    2
    """
    drawn = canvas(width, height)
    row: list[Axes] = list(drawn.subplots(1, columns, sharey=share_y, squeeze=False)[0])
    for axes in row:
        lighten(axes)
    return drawn, row


def size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    """A logarithmic x axis of message sizes in bytes, with ticks at `sizes`.

    >>> import blinksim as bs
    >>> picture, axes = bs.plot.figure()
    >>> bs.plot.size_axis(axes, [2**10, 2**20])
    >>> axes.get_xscale()
    'log'
    """
    number_axis(axes, sizes)
    axes.set_xlabel("size")


def lighten(axes: Axes) -> None:
    """A light grid behind the data, no frame on top and right."""
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)


def canvas(width: float, height: float) -> Figure:
    """A figure without axes: no window, room for titles and legends."""
    return Figure(figsize=(width, height), layout="constrained", dpi=150)


def look(place: int) -> dict[str, Any]:
    """The colour and the marker of a line, which tell it apart."""
    return {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}


def legend(axes: Axes, *entries: Any, **more: Any) -> None:
    """A legend to the right of the axes, of their lines or of the entries that are given."""
    place = {"fontsize": 8, "frameon": False, "loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    axes.legend(*entries, **{**place, **more})


def title(over: Figure | Axes, words: str, inches: float, size: float = 10, *, note: str = "", **more: Any) -> None:
    """The title of a figure or of axes: at the left, in as many lines as `inches` make it.

    note: how the figures came about, in small letters at the bottom.
    """
    text = wrapped(words, inches)
    if hasattr(over, "suptitle"):
        over.suptitle(text, fontsize=size, x=0.01, ha="left", **more)
    else:
        over.set_title(text, fontsize=size, loc="left", **more)
    if note:
        over.figure.supxlabel(wrapped(note, 1.4 * inches), x=0.01, ha="left", fontsize=7, color="#555555")


def row_axis(axes: Axes, names: Sequence[str], size: float = 8) -> None:
    """A y axis with a row for each name, the first on top."""
    axes.set_yticks(range(len(names)), names, fontsize=size)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")


def colour_scale(low: float, high: float, *, powers: bool) -> Normalize:
    """Colours for the values from `low` to `high`: in powers, or evenly from 0."""
    return LogNorm(low, high) if powers else Normalize(min(0.0, low), high)


def beside(axes: Axes, text: str, place: tuple[float, float], offset: tuple[float, float], **more: Any) -> None:
    """Small words at an offset in points from a place."""
    axes.annotate(text, place, xytext=offset, textcoords="offset points", **{"fontsize": 7, **more})


def plain(text: str) -> str:
    """`text` with dollar signs that matplotlib prints instead of reading mathematics between them."""
    return re.sub(r"(?<!\\)\$", r"\\$", text)


def wrapped(text: str, inches: float) -> str:
    """A title that fits on `inches`, as one or several lines, without mathematics."""
    return plain("\n".join(textwrap.wrap(text, max(20, int(inches * _LETTERS)))))


def machine_words(name: str, edits: Sequence[str] = (), nodes: int = 1) -> str:
    """What a picture is of: ``dgx1-v100 without gpu0-gpu3``, ``8 x hgx-h100``; many edits by their number."""
    changed = ", ".join(edits) if len(edits) <= _MOST_EDITS else f"after {len(edits)} edits"
    # "without gpu0-gpu3" reads on; "degrade …" and the like begin anew.
    changed = f" {changed}" if changed.startswith(("without ", "after ")) else f", {changed}"
    return f"{f'{nodes} x ' if nodes > 1 else ''}{name}{changed if edits else ''}"


def drawn_machine(topology: Topology) -> str:
    """`machine_words` of a topology."""
    return machine_words(topology.name, topology.edits, topology.nodes)


@dataclass(frozen=True)
class Measure:
    """name: as people ask for it. column: in the rows of a sweep. label: on the axis."""

    name: str
    column: str
    label: str

    def of(self, algbw: float, size: float, factor: float) -> float:
        """The value at `algbw` bytes/s for `size` bytes. factor: busbw over algbw."""
        if self.name == "time":
            return size / algbw
        return algbw / 1e9 * (factor if self.name == "busbw" else 1.0)

    def curve(self, axes: Axes, times: Mapping[int, float], factor: float, **look: Any) -> list[float]:
        """Draws the values at `times`, seconds by size, if there are any, and returns them."""
        if values := [self.of(size / time, size, factor) for size, time in times.items()]:
            [line] = axes.plot([*times], values, **look)
            # A line through one point has no length.
            if not values[1:] and line.get_marker() in ("", "None"):
                line.set(marker="_", markersize=14, markevery=None)
        return values


MEASURES = {
    "time": Measure("time", "time_s", "time"),
    "algbw": Measure("algbw", "algbw_GBps", "algbw (GB/s)"),
    "busbw": Measure("busbw", "busbw_GBps", "busbw (GB/s)"),
}


def measure(name: str) -> Measure:
    """The measure called `name`; raises `InputError` for any other name."""
    return MEASURES[one_of("measure", name, MEASURES)]


def number(value: float | str, _: object = None, *, column: str) -> str:
    """A value of a column for people, also at a tick: ``64 MiB``, ``4.7 ms``, ``10,000``, ``ring``."""
    if isinstance(value, str):
        return plain(value)
    if column == "size_bytes":
        return format_size_about(value)
    if column.endswith("_s"):
        return format_time(float(f"{value:.4g}"))
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def value_axis(axes: Axes, values: Sequence[float], column: str) -> None:
    """A y axis that holds `values` of a column and their markers: from 0, or logarithmic if far apart."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    if low > 0 and high / low >= _WIDE:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.3, high * 1.3)
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if high / low < 2000 else (1,)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, 1.07 * high if high > 0 else 1.0)
    axes.yaxis.set_major_formatter(partial(number, column=column))


def number_axis(axes: Axes, numbers: Sequence[float], column: str = "size_bytes") -> None:
    """An x axis with ticks for those of `numbers`, of a column, that have room: logarithmic if far apart."""
    known = sorted(set(numbers))
    low, high = known[0], known[-1]
    # 2, 4, 8: every number is the same multiple of the one before.
    geometric = len(known) > 2 and low > 0 and len({round(b / a, 6) for a, b in pairwise(known)}) == 1
    if low > 0 and (high / low >= 8 or geometric):
        axes.set_xscale("log", base=2)
        edge = (high / low) ** 0.04
        axes.set_xlim(low / edge, high * edge)
    else:
        edge = 0.04 * (high - low) or 0.5
        axes.set_xlim(low - edge, high + edge)
    # Round sizes if there are some, and none too near to the next.
    place, most = math.log2 if axes.get_xscale() == "log" else float, _MOST_TICKS
    if column == "size_bytes":
        rounds, most = [size for size in known if int(size).bit_count() == 1], _MOST_SIZES
        known = rounds if len(rounds) > 1 else known
    ticks = known[-1:]
    for tick in known[-2::-1]:
        if place(ticks[0]) - place(tick) > (place(high) - place(low)) / most:
            ticks.insert(0, tick)
    names = [number(tick, column=column) for tick in ticks]
    axes.set_xticks(ticks, names, rotation=30 if sum(map(len, names)) > 60 else 0)
    axes.xaxis.set_minor_locator(NullLocator())


def check(path: str | Path, *, force: bool = False) -> Path:
    """The path of a picture, if it can be written; raises as `save` does, before the work for it begins.

    >>> import blinksim as bs
    >>> bs.plot.check("machine.svg").suffix
    '.svg'
    """
    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise InputError(f"{target}: a picture ends in {', '.join(FORMATS)}")
    check_target(target, force)
    return target


def save(drawn: Figure, path: str | Path, *, force: bool = False) -> Path:
    """Write a figure as PNG, SVG or PDF, by its ending; the same figure gives the same bytes.

    Parameters
    ----------
    drawn : Figure
        What to write.
    path : str or path
        Where.
    force : bool
        Replace a file that exists.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    InputError
        For another ending, an existing file and a folder that is not there.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.plot.save(bs.plot.topology("ring:4"), "ring.png").name
    'ring.png'
    """
    target = check(path, force=force)
    kind = target.suffix[1:].lower()
    picture = BytesIO()
    with rc_context({"svg.hashsalt": "blinksim"}):
        # Without the margins that pictures of a fixed aspect leave, and nothing cut off.
        drawn.savefig(picture, format=kind, bbox_inches="tight", pad_inches=0.08, metadata=_UNDATED.get(kind))
    write_bytes(target, picture.getvalue(), force)
    return target
