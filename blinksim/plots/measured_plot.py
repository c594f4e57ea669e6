"""Published measurements as a picture: measured, predicted and bound against size, a colour per job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blinksim.collective import busbw_factor
from blinksim.errors import InputError
from blinksim.plots.measures import measure, number_axis, value_axis
from blinksim.plots.style import COLOURS, MARKERS, figure, plain, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from blinksim.answers.measurements.public import MeasuredCell, PublicMeasurements

_WIDTH = 8.5


def measured(found: PublicMeasurements, collective: str = "", y: str = "busbw", most: int = 5) -> Figure:
    """What was measured (markers), what NCCL predicts for itself (dashed) and the bound (dotted), against size.

    Parameters
    ----------
    found : PublicMeasurements
        What to draw.
    collective : str
        Which collective; by default allreduce, or the first that was measured.
    y : str
        ``busbw``, ``algbw`` or ``time``.
    most : int
        Jobs to draw: those on the most GPUs.

    Returns
    -------
    Figure
        A matplotlib figure; `save` writes it.

    Raises
    ------
    InputError
        For a collective that was not measured there.

    Examples
    --------
    >>> import blinksim as bs
    >>> picture = bs.plot.measured(bs.measured("nd-h200-v5"))
    """
    shown_as = measure(y)
    known = list(dict.fromkeys(one.cell.collective for one in found.cells))
    name = collective or ("allreduce" if "allreduce" in known else known[0])
    if name not in known:
        raise InputError(f"no {name} of {found.machine} was published; there are {', '.join(known)}")
    jobs = _jobs([one for one in found.cells if one.cell.collective == name])
    shown = sorted(jobs, key=lambda job: -job[0].cell.gpus)[:most]
    drawn, axes = figure(_WIDTH)
    values: list[float] = []
    for place, job in enumerate(shown):
        cell, colour = job[0].cell, COLOURS[place % len(COLOURS)]
        factor = float(busbw_factor(name, cell.gpus))
        sizes = [one.cell.size for one in job]
        real = [shown_as.of(one.cell.size / one.cell.time_s, one.cell.size, factor) for one in job]
        nodes = "" if cell.nodes == 1 else f", {cell.nodes} nodes"
        label = plain(f"{cell.set.name}: {cell.gpus} GPUs{nodes}")
        marker = MARKERS[place % len(MARKERS)]
        axes.plot(sizes, real, color=colour, marker=marker, markersize=4, linewidth=1.2, label=label)
        guessed = [(one.cell.size, one.cell.size / one.predicted_s) for one in job if one.predicted_s is not None]
        line = [shown_as.of(rate, size, factor) for size, rate in guessed]
        axes.plot([size for size, _ in guessed], line, color=colour, linestyle="--", linewidth=1.2)
        bound = job[0].bound
        limit = [shown_as.of(float(bound.rate), size, factor) for size in sizes] if bound is not None else []
        axes.plot(sizes[: len(limit)], limit, color=colour, linestyle=":", linewidth=1.2)
        values += [*real, *line, *([] if y == "time" else limit)]
    axes.set_xlabel("size")
    axes.set_ylabel(shown_as.label)
    number_axis(axes, sorted({one.cell.size for job in shown for one in job}), sizes=True)
    value_axis(axes, values, times=y == "time")
    left = f"; {len(shown)} of {len(jobs)} jobs" if len(shown) < len(jobs) else ""
    title = f"{name} on {found.machine}, published: dashed what NCCL predicts for itself, dotted the bound{left}"
    axes.set_title(wrapped(title, _WIDTH), fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return drawn


def _jobs(cells: list[MeasuredCell]) -> list[list[MeasuredCell]]:
    """The cells by set, GPUs and use of the switches, sizes ascending."""
    jobs: dict[tuple[str, int, int, str], list[MeasuredCell]] = {}
    for one in sorted(cells, key=lambda one: one.cell.size):
        jobs.setdefault((one.cell.set.name, one.cell.nodes, one.cell.gpus, one.cell.nvls), []).append(one)
    return list(jobs.values())
