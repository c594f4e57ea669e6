"""What the axes of pictures show: time, algbw or busbw upwards, sizes and counts to the right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from blinksim.errors import unknown
from blinksim.units import format_size, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Largest over smallest value from which an axis is logarithmic.
_WIDE = 20
_MOST_TICKS = 10


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


MEASURES = {
    "time": Measure("time", "time_s", "time"),
    "algbw": Measure("algbw", "algbw_GBps", "algbw (GB/s)"),
    "busbw": Measure("busbw", "busbw_GBps", "busbw (GB/s)"),
}


def measure(name: str) -> Measure:
    """The measure called `name`; raises `InputError` for any other name."""
    if name not in MEASURES:
        raise unknown("measure", name, MEASURES)
    return MEASURES[name]


def value_axis(axes: Axes, values: Sequence[float], *, times: bool = False) -> None:
    """A y axis that holds `values` and their markers: from nothing, or logarithmic where they are far apart.

    times: the values are seconds.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    if low > 0 and high / low >= _WIDE:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.3, high * 1.3)
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if high / low < 2000 else (1,)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, 1.07 * high if high > 0 else 1.0)
    axes.yaxis.set_major_formatter(lambda value, _: format_time(float(f"{value:.4g}")) if times else f"{value:g}")


def number_axis(axes: Axes, numbers: Sequence[float], *, sizes: bool = False) -> None:
    """An x axis with a tick for each of `numbers`, or for some of them: logarithmic where they are far apart.

    sizes: the numbers are bytes.
    """
    from matplotlib.ticker import NullLocator

    known = sorted(set(numbers))
    low, high = known[0], known[-1]
    if low > 0 and (high / low >= 8 or _geometric(known)):
        axes.set_xscale("log", base=2)
        edge = (high / low) ** 0.04
        axes.set_xlim(low / edge, high * edge)
    else:
        edge = 0.04 * (high - low) or 0.5
        axes.set_xlim(low - edge, high + edge)
    step = -(-len(known) // _MOST_TICKS)
    ticks = known[::-step][::-1]
    names = [format_size(int(tick)) if sizes else f"{tick:.4g}" for tick in ticks]
    axes.set_xticks(ticks, names, rotation=30 if sum(map(len, names)) > 60 else 0)
    axes.xaxis.set_minor_locator(NullLocator())


def _geometric(numbers: Sequence[float]) -> bool:
    """True for 2, 4, 8: every number is the same multiple of the one before."""
    ratios = {round(high / low, 6) for low, high in pairwise(numbers)}
    return len(numbers) > 2 and len(ratios) == 1
