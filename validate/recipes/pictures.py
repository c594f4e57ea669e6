"""The pictures of validate/report.md: how far predictions are off, and our schedules beside NCCL."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from matplotlib.figure import Figure

from validate.recipes.figures import MIB, SIMULATED, Row, error, full_speed, large_rows, load, size_text


def draw(results: Path, folder: Path) -> None:
    """Writes a PNG for every result that has a picture."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in load(results).items():
        if large_rows(name, content):
            figure = draw_errors(content["rows"])
        elif name.startswith("full-speed-") and "ours" in content:
            figure = draw_full_speed(content)
        else:
            continue
        figure.savefig(folder / f"{name}.png", dpi=110, metadata={"Software": ""})


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
