"""Link loads of a schedule as a picture: every link of a class from the busiest to the idlest."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from blinksim.plots import style
from blinksim.schedule.model import ScheduleLike, as_schedule
from blinksim.schedule.symmetric import SymmetricSchedule, carried
from blinksim.textio.text_table import count
from blinksim.units import format_rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEIGHT, _WIDTH = 4.0, 5.2


def loads(*schedules: ScheduleLike) -> Figure:
    """The busy share of each link at the greatest rate that the loads allow, a line per link class.

    Links stand in the order of their loads, so a flat line is an even load. Several schedules stand side by side.

    Parameters
    ----------
    *schedules : Schedule or Synthesis
        What to draw, such as two algorithms for the same traffic; those by symmetry are not written out for it.

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
    compact = [getattr(one, "compact", one) for one in schedules]
    given = [one if isinstance(one, SymmetricSchedule) else as_schedule(one) for one in compact]
    drawn, row = style.panels(max(1, len(given)), max(6.4, _WIDTH * len(given)), _HEIGHT, share_y=True)
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
