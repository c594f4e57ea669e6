"""A traffic matrix as a picture: a square per pair of ranks, and the sums of each rank beside it."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from blinksim.plots import style
from blinksim.traffic import Traffic
from blinksim.units import format_size_about

_WIDTH, _HEIGHT = 7.6, 6.6
# The most that a pair has over the median, from which on colours stand for powers.
_SKEWED = 20
# Squares across, each of one pair or more, so that all have a few dots. Points around bars, so that none is
# lost.
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
    amounts = matrix.matrix.astype(float)
    np.fill_diagonal(amounts, 0.0)
    sent, received = amounts.sum(axis=1), amounts.sum(axis=0)
    drawn = style.canvas(_WIDTH, _HEIGHT)
    grid = drawn.add_gridspec(2, 2, width_ratios=(1, 4), height_ratios=(1, 4))
    square, above, left = (drawn.add_subplot(grid[place]) for place in ((1, 1), (0, 1), (1, 0)))
    unit, name = _unit(float(amounts.max()))
    each = -(-matrix.ranks // _MOST_SQUARES)
    # The largest of every `each` rows and columns.
    squares = -(-len(amounts) // each)
    padded = np.pad(amounts, (0, -len(amounts) % each)).reshape(squares, each, squares, each)
    most_of, some = padded.max(axis=(1, 3)), amounts[amounts > 0] / unit
    shown, side = np.where(most_of > 0, most_of / unit, np.nan), each * squares - 0.5
    # On an even scale a few hot pairs leave all others in one colour.
    skewed = float(some.max()) > _SKEWED * float(np.median(some))
    norm = style.colour_scale(float(some.min()), float(some.max()), powers=skewed)
    extent = (-0.5, side, side, -0.5)
    picture = square.imshow(shown, cmap="viridis_r", norm=norm, aspect="auto", extent=extent, interpolation="nearest")
    limits = {"xlim": (-0.5, matrix.ranks - 0.5), "ylim": (matrix.ranks - 0.5, -0.5)}
    square.set(xlabel="to rank", ylabel="from rank", **limits)
    square.yaxis.set_label_position("right")
    square.yaxis.tick_right()
    label = f"{name} from one rank to another" + (f", the most of {each} x {each} pairs" if each > 1 else "")
    scale = drawn.colorbar(picture, ax=square, label=label, pad=0.1)
    if skewed:
        scale.ax.yaxis.set_major_formatter("{x:g}")
    places = np.arange(matrix.ranks)
    unit, name = _unit(float(max(sent.max(), received.max())))
    most = 1.05 * float(max(sent.max(), received.max())) / unit
    blue, red = style.COLOURS[:2]
    above.bar(places, received / unit, width=1.0, color=blue, edgecolor=blue, linewidth=_EDGE)
    left.barh(places, sent / unit, height=1.0, color=red, edgecolor=red, linewidth=_EDGE)
    for axes in (above, left):
        style.lighten(axes)
    above.set(ylabel=f"received, {name}", xlim=square.get_xlim(), ylim=(0, most))
    left.set(xlabel=f"sent, {name}", ylim=square.get_ylim(), xlim=(most, 0))
    above.tick_params(labelbottom=False)
    left.spines["left"].set_visible(False)
    left.tick_params(labelleft=False, left=False)
    busiest = max(float(sent.max()), float(received.max())) * matrix.ranks / matrix.total
    uneven = f"the busiest rank sends or receives {busiest:.3g} times the average"
    whole = f"traffic of {matrix.ranks} ranks: {format_size_about(matrix.total)}"
    style.title(drawn, f"{whole}; {uneven}", _WIDTH)
    return drawn


def _unit(most: float) -> tuple[int, str]:
    return next(((unit, name) for unit, name in _UNITS if most >= unit), (1, "B"))
