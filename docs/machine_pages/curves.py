"""The curves of a machine's page: bus bandwidth of an allreduce by size, predicted, measured, and the bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from facts import Facts

import blinksim as bs
from blinksim.plots.style import COLOURS, MARKERS, number_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BYTES = ("int8", "uint8")
"""Elements that switches do not add."""
_WIDTH, _HEIGHT = 5.4, 3.7


def curves(found: Facts) -> Figure:
    """Sizes in bytes against GB/s, with the bound as a line across."""
    drawn, axes = bs.plot.figure(_WIDTH, _HEIGHT)
    predicted, library = found["predicted"], found["library"]
    bound = next(row for row in found["bounds"] if row["collective"] == "allreduce")
    sizes = [row["size"] for row in predicted["rows"]]
    label = f"quickest known, {predicted['rates']} rates"
    axes.plot(sizes, [row["busbw"] for row in predicted["rows"]], color=COLOURS[0], linewidth=1.6, label=label)
    for key, line, label in (
        ("own_busbw", ":", "what NCCL expects of itself"),
        ("real_busbw", "--", f"{library['name']} as it really runs"),
    ):
        some = [row for row in library["rows"] if row[key]]
        if some:
            axes.plot([row["size"] for row in some], [row[key] for row in some], color=COLOURS[1], linestyle=line,
                      linewidth=1.6, label=label)  # fmt: skip
    some = [row for row in library["rows"] if row["low_busbw"]]
    if some:
        axes.fill_between([row["size"] for row in some], [row["low_busbw"] for row in some],
                          [row["high_busbw"] for row in some], color=COLOURS[1], alpha=0.15, linewidth=0,
                          label="where published times lie")  # fmt: skip
    axes.axhline(bound["busbw"], color="#444444", linestyle=(0, (1, 3)), linewidth=1.3, label="bound")
    if bound["in_network"]:
        rate = bound["in_network"] * bound["busbw"] / bound["algbw"]
        axes.axhline(rate, color="#999999", linestyle="-.", linewidth=1.3, label="bound where switches add")
    cells = found["measured"]["cells"]
    for place, (name, small) in enumerate(dict.fromkeys((cell["set"], cell["dtype"] in BYTES) for cell in cells)):
        mine = [cell for cell in cells if (cell["set"], cell["dtype"] in BYTES) == (name, small)
                and sizes[0] <= cell["size"] <= sizes[-1]]  # fmt: skip
        axes.plot([cell["size"] for cell in mine], [cell["busbw"] for cell in mine], linestyle="none", markersize=3.4,
                  marker=MARKERS[place % len(MARKERS)], color=COLOURS[2 + place % (len(COLOURS) - 2)],
                  label=f"measured: {name}{' (bytes)' if small else ''}")  # fmt: skip
    axes.set_xlabel("size")
    axes.set_ylabel("busbw in GB/s")
    number_axis(axes, sizes)
    axes.set_ylim(bottom=0)
    of = f", {found['measured']['gpus']} GPUs measured" if cells and found["measured"]["gpus"] != found["gpus"] else ""
    axes.set_title(f"allreduce on {found['gpus']} GPUs of {found['name']}{of}", fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
    return drawn
