"""A traffic matrix as a picture: a square for every pair of ranks, and what each rank sends and receives beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from blinksim.plots.style import COLOURS, lighten, wrapped
from blinksim.units import format_size_about

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from blinksim.traffic.matrix import Traffic

_WIDTH, _HEIGHT = 7.6, 6.6
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def traffic(matrix: Traffic) -> Figure:
    """The bytes from every rank (down) to every rank (across), and the sums of rows and columns at the sides.

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
    from matplotlib.figure import Figure

    amounts = matrix.matrix.astype(float)
    np.fill_diagonal(amounts, 0.0)
    sent, received = amounts.sum(axis=1), amounts.sum(axis=0)
    drawn = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained", dpi=150)
    grid = drawn.add_gridspec(2, 2, width_ratios=(1, 4), height_ratios=(1, 4))
    square, above, left = (drawn.add_subplot(grid[place]) for place in ((1, 1), (0, 1), (1, 0)))
    unit, name = _unit(float(amounts.max()))
    picture = square.imshow(np.where(amounts > 0, amounts / unit, np.nan), cmap="viridis_r", vmin=0, aspect="auto")
    square.set_xlabel("to rank")
    square.set_ylabel("from rank")
    square.yaxis.set_label_position("right")
    square.yaxis.tick_right()
    drawn.colorbar(picture, ax=square, label=f"{name} from one rank to another", pad=0.1)
    places = np.arange(matrix.ranks)
    unit, name = _unit(float(max(sent.max(), received.max())))
    above.bar(places, received / unit, width=1.0, color=COLOURS[0])
    above.set_ylabel(f"received, {name}")
    left.barh(places, sent / unit, height=1.0, color=COLOURS[1])
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


def _unit(most: float) -> tuple[int, str]:
    return next(((unit, name) for unit, name in _UNITS if most >= unit), (1, "B"))
