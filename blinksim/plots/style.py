"""The house style of pictures: one palette, one grid, units on every axis, files written whole and reproducibly.

The palette is told apart with any colour vision (Okabe and Ito, Color Universal Design, 2008).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blinksim.errors import InputError
from blinksim.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from blinksim.topology.graph import Topology


# Okabe and Ito's palette, told apart by people with any colour vision; markers tell the lines apart without it.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", ":")
FORMATS = (".png", ".svg", ".pdf")
# Behind words that stand on lines.
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
# Letters of the title's size that fit on an inch.
_LETTERS = 13
# Edits that a title names one by one.
_MOST_EDITS = 3
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
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, height), layout="constrained", dpi=150)
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
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(sizes), [format_size(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("size")


def lighten(axes: Axes) -> None:
    """A light grid behind the data, no frame on top and right."""
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)


def plain(text: str) -> str:
    """`text` with dollar signs that matplotlib prints instead of reading mathematics between them."""
    return re.sub(r"(?<!\\)\$", r"\\$", text)


def wrapped(text: str, inches: float) -> str:
    """A title that fits on `inches`, as one or several lines, without mathematics."""
    return plain("\n".join(textwrap.wrap(text, max(20, int(inches * _LETTERS)))))


def machine_words(name: str, edits: Sequence[str] = (), nodes: int = 1) -> str:
    """What a picture is of: ``dgx1-v100 without gpu0-gpu3``, ``hgx-h100, 8 nodes``; many edits by their number."""
    changed = ", ".join(edits) if len(edits) <= _MOST_EDITS else f"after {len(edits)} edits"
    # "without gpu0-gpu3" reads on; "degrade …" and the like begin anew.
    changed = f" {changed}" if changed.startswith(("without ", "after ")) else f", {changed}"
    return f"{name}{changed if edits else ''}{f', {nodes} nodes' if nodes > 1 else ''}"


def drawn_machine(topology: Topology) -> str:
    """`machine_words` of a topology."""
    return machine_words(topology.name, topology.edits, topology.nodes)


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """A key that sorts ``gpu2`` before ``gpu10``."""
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in re.findall(r"[0-9]+|[^0-9]+", name))


def check(path: str | Path, *, force: bool = False) -> Path:
    """The path of a picture, if it can be written; raises as `save` does, before the work for it begins.

    >>> import blinksim as bs
    >>> bs.plot.check("machine.svg").suffix
    '.svg'
    """
    from blinksim.textio.whole_files import check_target

    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise InputError(f"{target}: a picture ends in {', '.join(FORMATS)}")
    check_target(target, force)
    return target


def save(drawn: Figure, path: str | Path, *, force: bool = False) -> Path:
    """Writes a figure as PNG, SVG or PDF, by the ending. The same figure gives the same bytes.

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
    from io import BytesIO

    from matplotlib import rc_context

    from blinksim.textio.whole_files import write_bytes

    target = check(path, force=force)
    kind = target.suffix[1:].lower()
    picture = BytesIO()
    with rc_context({"svg.hashsalt": "blinksim"}):
        # Without the margins that pictures of a fixed aspect leave, and nothing cut off.
        drawn.savefig(picture, format=kind, bbox_inches="tight", pad_inches=0.08, metadata=_UNDATED.get(kind))
    write_bytes(target, picture.getvalue(), force)
    return target
