"""Pictures: consistent, with units, readable without colour. Each function returns a matplotlib Figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from blinksim.errors import InputError
from blinksim.units import format_size, format_size_about

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from blinksim.study.compare import Comparison

# Okabe and Ito's palette, told apart by people with any colour vision; markers tell the lines apart without it.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
FORMATS = (".png", ".svg", ".pdf")


def figure(width: float = 8.0, height: float = 5.0) -> tuple[Figure, Axes]:
    """An empty figure in the house style: no window, a light grid, no frame on top and right."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, height), layout="constrained", dpi=150)
    axes = drawn.add_subplot()
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    return drawn, axes


def check(path: str | Path, *, force: bool = False) -> Path:
    """Whether a picture can be written to `path`, before the work for it begins; raises as `save` does."""
    from blinksim.formats.text_files import check_target

    target = Path(path)
    if target.suffix.lower() not in FORMATS:
        raise InputError(f"{target}: a picture ends in {', '.join(FORMATS)}")
    check_target(target, force)
    return target


def save(drawn: Figure, path: str | Path, *, force: bool = False) -> Path:
    """Writes a figure as PNG, SVG or PDF, by the ending; an existing file only with `force`.

    Raises `InputError` for another ending, an existing file and a folder that is not there.
    """
    from io import BytesIO

    from blinksim.formats.text_files import write_bytes

    target = check(path, force=force)
    picture = BytesIO()
    drawn.savefig(picture, format=target.suffix[1:].lower())
    write_bytes(target, picture.getvalue(), force)
    return target


def compare(comparison: Comparison, most: int = 8) -> Figure:
    """algbw against size on logarithmic axes, a line per algorithm, the crossovers marked.

    Draws the `most` algorithms that come closest to the best one at any size; the title says what is shown.
    """
    drawn, axes = figure()
    rates: dict[str, dict[int, float]] = {name: {} for name in comparison.algorithms}
    for found in comparison.projections:
        for projection in found:
            rates[projection.algorithm][projection.size] = projection.algbw / 1e9
    best = {p.size: p.algbw / 1e9 for p in comparison.best()}
    closest = sorted(rates, key=lambda name: -max(rate / best[size] for size, rate in rates[name].items()))
    shown = sorted(closest[:most], key=lambda name: -rates[name][comparison.sizes[-1]])
    for place, name in enumerate(shown):
        axes.plot(
            list(rates[name]),
            list(rates[name].values()),
            color=COLOURS[place % len(COLOURS)],
            marker=MARKERS[place % len(MARKERS)],
            markersize=4,
            linewidth=1.6,
            label=name.replace("_", " "),
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("size")
    axes.set_ylabel("algbw (GB/s)")
    ticks = [size for place, size in enumerate(comparison.sizes) if place % max(1, len(comparison.sizes) // 8) == 0]
    axes.set_xticks(ticks, [format_size(size) for size in ticks])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for crossing in comparison.crossovers:
        if crossing.faster in shown:
            axes.axvline(crossing.size, color="#888888", linewidth=0.8, linestyle=":")
            axes.annotate(
                f"{crossing.faster.replace('_', ' ')}\nfrom {format_size_about(crossing.size)}",
                (crossing.size, 0.02),
                xycoords=("data", "axes fraction"),
                xytext=(3, 0),
                textcoords="offset points",
                fontsize=7,
                color="#555555",
            )
    topology = comparison.topology
    axes.set_title(
        f"{comparison.collective} on {topology.name}: {topology.ranks} ranks, {', '.join(topology.link_classes)}, "
        f"{topology.rates} rates",
        fontsize=10,
        loc="left",
    )
    axes.legend(fontsize=8, frameon=False)
    return drawn
