"""The pictures of validate/report.md: how far predictions are off, and our schedules beside NCCL."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from matplotlib.figure import Figure

from blinksim.plots.style import COLOURS, MARKERS
from validate.recipes.figures import MIB, SIMULATED, Row, error, full_speed, large_rows, load, size_text
from validate.recipes.time_figures import apart, error as time_error

# The result with the predicted times of programs.
TIMES = "times-predicted"


def draw(results: Path, folder: Path) -> None:
    """Writes a PNG for every result that has a picture."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in load(results).items():
        if large_rows(name, content):
            figure = draw_errors(content["rows"])
        elif name.startswith("full-speed-") and "ours" in content:
            figure = draw_full_speed(content)
        elif name == TIMES:
            figure = draw_times(content)
        else:
            continue
        save(figure, folder / f"{name}.png")


def save(figure: Figure, path: Path) -> None:
    """Writes a PNG that is the same for the same figure."""
    figure.savefig(path, dpi=110, metadata={"Software": ""})


def draw_times(content: Row) -> Figure:
    """Errors of predicted times over the size: our programs, runs that nothing was fitted to, and NCCL."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    titles = ("our programs", "ours, nothing fitted", "NCCL, its choice given")
    kinds = (
        [row for row in content["ours"] if not apart(row)],
        [row for row in content["ours"] if apart(row)],
        content["nccl"],
    )
    for axes, title, rows in zip(panels, titles, kinds, strict=True):
        for number, gpus in enumerate((2, 3, 4, 5, 6, 8)):
            chosen = [row for row in rows if row["gpus"] == gpus]
            if not chosen:
                continue
            # Beside each other, where sizes are the same.
            sizes = [row["size_bytes"] * 1.12 ** (number - 2) for row in chosen]
            errors = [100 * time_error(row, "catalogue") for row in chosen]
            style = {"color": COLOURS[number], "marker": MARKERS[number], "alpha": 0.6}
            axes.scatter(sizes, errors, s=9, label=f"{gpus} GPUs", **style)
        for level in (-10, 0, 10):
            axes.axhline(level, color="grey", linewidth=0.8, linestyle="--" if level else "-")
        ends = [2**power for power in range(10, 31, 5)]
        axes.set_xscale("log", base=2)
        axes.set_xticks(ends, labels=[size_text(size) for size in ends])
        axes.set(xlabel="size", title=f"{title} ({len(rows)})")
    panels[0].set_ylabel("predicted time off by, %")
    known = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    labels = sorted(known)
    figure.legend([known[label] for label in labels], labels, loc="outside right upper", fontsize=8, markerscale=1.5)
    return figure


def draw_errors(cases: list[Row]) -> Figure:
    """Errors of both simulations over the measured time, a colour for every size."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    groups: dict[int, list[Row]] = defaultdict(list)
    for row in cases:
        groups[row["size_bytes"]].append(row)
    for axes, what in zip(panels, SIMULATED, strict=True):
        for size, rows in sorted(groups.items()):
            x, y = [1e3 * row["measured_s"] for row in rows], [100 * error(row, what) for row in rows]
            axes.scatter(x, y, s=12, label=size_text(size))
        for bound in (-15, 0, 15):
            axes.axhline(bound, color="grey", linewidth=0.8, linestyle="-" if bound == 0 else "--")
        axes.set(xscale="log", xlabel="measured, ms", title=f"{what} simulated")
    panels[0].set_ylabel("simulation off by, %")
    figure.legend(*panels[0].get_legend_handles_labels(), title="size", loc="outside right upper", fontsize=8)
    return figure


def draw_full_speed(content: Row) -> Figure:
    """Our bandwidth as a share of NCCL's over the size, a curve for every collective."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    curves: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for point in full_speed(content):
        curves[point["nccl"]["collective"]].append((point["nccl"]["size_bytes"] / MIB, 100 * point["ratio"]))
    for collective, points in curves.items():
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=collective)
    axes.axhline(100, color="grey", linewidth=0.8)
    axes.axhline(90, color="grey", linewidth=0.8, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 4, 16, 64, 256, 1024], labels=["1", "4", "16", "64", "256", "1024"])
    gpus = len(content["provenance"]["gpus"])
    axes.set(
        xlabel="size, MiB", ylabel="busbw of ours to NCCL's, %", title=f"Full speed on {gpus} GPUs", ylim=(0, None)
    )
    axes.legend(fontsize=8)
    return figure
