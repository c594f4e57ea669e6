"""A traffic matrix as a picture: a square per pair of ranks, and the sums of each rank beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from blinksim.plots.style import COLOURS, canvas, lighten, wrapped
from blinksim.units import format_size_about

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from blinksim.traffic import Traffic

_WIDTH, _HEIGHT = 7.6, 6.6
# The most that a pair has over the median, from which on colours stand for powers.
_SKEWED = 20
# Squares across, each of one pair or more, so that all have a few dots. Points around bars, so that none is lost.
_MOST_SQUARES, _EDGE = 256, 0.5
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def traffic(matrix: Traffic) -> Figure:
    """Bytes from every rank (down) to every rank (across), with sums of rows and columns at the sides.

    What ranks keep is left out. Pairs with nothing stay white.

    Parameters
    ----------
    matrix : Traffic
        What to draw.

    Returns
    -------
    Figure
        A matplotlib figure; `save` writes it.

    Examples
    --------
    >>> import blinksim as bs
    >>> picture = bs.plot.traffic(bs.expert_traffic(16, tokens=256, skew=0.8))
    >>> bs.plot.save(picture, "traffic.png").name
    'traffic.png'
    """
    from matplotlib.colors import LogNorm, Normalize

    amounts = matrix.matrix.astype(float)
    np.fill_diagonal(amounts, 0.0)
    sent, received = amounts.sum(axis=1), amounts.sum(axis=0)
    drawn = canvas(_WIDTH, _HEIGHT)
    grid = drawn.add_gridspec(2, 2, width_ratios=(1, 4), height_ratios=(1, 4))
    square, above, left = (drawn.add_subplot(grid[place]) for place in ((1, 1), (0, 1), (1, 0)))
    unit, name = _unit(float(amounts.max()))
    each = -(-matrix.ranks // _MOST_SQUARES)
    most_of, some = _pooled(amounts, each), amounts[amounts > 0] / unit
    shown, side = np.where(most_of > 0, most_of / unit, np.nan), each * len(most_of) - 0.5
    # On an even scale a few hot pairs leave all others in one colour.
    skewed = float(some.max()) > _SKEWED * float(np.median(some))
    norm = LogNorm(float(some.min()), float(some.max())) if skewed else Normalize(0, float(some.max()))
    extent = (-0.5, side, side, -0.5)
    picture = square.imshow(shown, cmap="viridis_r", norm=norm, aspect="auto", extent=extent, interpolation="nearest")
    square.set(xlim=(-0.5, matrix.ranks - 0.5), ylim=(matrix.ranks - 0.5, -0.5))
    square.set_xlabel("to rank")
    square.set_ylabel("from rank")
    square.yaxis.set_label_position("right")
    square.yaxis.tick_right()
    label = f"{name} from one rank to another" + (f", the most of {each} x {each} pairs" if each > 1 else "")
    scale = drawn.colorbar(picture, ax=square, label=label, pad=0.1)
    if skewed:
        scale.ax.yaxis.set_major_formatter("{x:g}")
    places = np.arange(matrix.ranks)
    unit, name = _unit(float(max(sent.max(), received.max())))
    above.bar(places, received / unit, width=1.0, color=COLOURS[0], edgecolor=COLOURS[0], linewidth=_EDGE)
    above.set_ylabel(f"received, {name}")
    left.barh(places, sent / unit, height=1.0, color=COLOURS[1], edgecolor=COLOURS[1], linewidth=_EDGE)
    left.set_xlabel(f"sent, {name}")
    most = 1.05 * float(max(sent.max(), received.max())) / unit
    above.set_xlim(square.get_xlim())
    above.set_ylim(0, most)
    left.set_ylim(square.get_ylim())
    left.set_xlim(most, 0)
    for axes in (above, left):
        lighten(axes)
    above.tick_params(labelbottom=False)
    left.spines["left"].set_visible(False)
    left.tick_params(labelleft=False, left=False)
    busiest = max(float(sent.max()), float(received.max())) * matrix.ranks / matrix.total
    title = (
        f"traffic of {matrix.ranks} ranks: {format_size_about(matrix.total)}; the busiest rank sends or receives "
        f"{busiest:.3g} times the average"
    )
    drawn.suptitle(wrapped(title, _WIDTH), fontsize=10, x=0.01, ha="left")
    return drawn


def _pooled(amounts: npt.NDArray[np.float64], each: int) -> npt.NDArray[np.float64]:
    """The largest of every `each` rows and columns; amounts: (n, n)."""
    more = -len(amounts) % each
    padded = np.pad(amounts, (0, more))
    count = len(padded) // each
    return np.asarray(padded.reshape(count, each, count, each).max(axis=(1, 3)))


def _unit(most: float) -> tuple[int, str]:
    return next(((unit, name) for unit, name in _UNITS if most >= unit), (1, "B"))
