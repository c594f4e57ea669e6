"""Draws the pictures of docs/what-is-an-allreduce.md: ``python docs/pictures/allreduce.py``, from the checkout."""

from __future__ import annotations

from collections.abc import Iterable
from math import cos, pi, sin
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import blinksim as bs

Place = tuple[float, float]
HERE = Path(__file__).parent
SUM, COPY = bs.plot.COLOURS[0], bs.plot.COLOURS[1]
# How dark a quarter is that holds the sum of 1 to 4 GPUs.
SHADES = {1: "#ffffff", 2: "#cfe3f1", 3: "#8fbfdf", 4: "#0072b2"}


def empty(axes: Axes, title: str) -> None:
    axes.set_axis_off()
    axes.set_title(title, loc="left")


def arrow(axes: Axes, src: Place, dst: Place, colour: str, gap: float) -> None:
    """From a GPU to another; gap: points between arrow and centre of a GPU."""
    style = {"arrowstyle": "-|>", "color": colour, "lw": 2, "shrinkA": gap, "shrinkB": gap}
    axes.annotate("", dst, src, arrowprops=style)


def gpus(axes: Axes, places: Iterable[Place]) -> None:
    for rank, (x, y) in enumerate(places):
        axes.plot(x, y, "o", ms=27, color="#f2f2f2", mec="#444444", zorder=3)
        axes.text(x, y, f"GPU {rank}", ha="center", va="center", fontsize=7, zorder=4)


def ring(n: int = 4) -> Figure:
    """The ring, and how many GPUs' numbers each quarter of each GPU holds before the first and after every step."""
    drawn, (left, right) = bs.plot.panels(2, 10, 3.6)
    empty(left, "Each GPU sends to the next one only")
    places = [(sin(2 * pi * rank / n), cos(2 * pi * rank / n)) for rank in range(n)]
    for rank in range(n):
        arrow(left, places[rank], places[(rank + 1) % n], SUM, 17)
    gpus(left, places)
    left.set(xlim=(-1.6, 1.6), ylim=(-1.4, 1.4), aspect="equal")

    empty(right, "What each GPU's four quarters hold: 1 = its own, 4 = the sum of all")
    held = [[1] * n for _ in range(n)]  # GPU, quarter
    for step in range(2 * n - 1):
        if step:
            sent = [(rank - step + 1) % n for rank in range(n)]
            before = [row.copy() for row in held]
            for rank in range(n):
                quarter = sent[rank]
                to = (rank + 1) % n
                held[to][quarter] = before[rank][quarter] if step >= n else before[rank][quarter] + 1
        for rank in range(n):
            for quarter in range(n):
                x, y = 5.2 * step + quarter, -1.6 * rank
                count = held[rank][quarter]
                right.add_patch(Rectangle((x, y), 1, 1, fc=SHADES[count], ec="#444444", lw=0.6))
                right.text(x + 0.5, y + 0.5, str(count), ha="center", va="center", fontsize=7,
                           color="white" if count == n else "black")  # fmt: skip
        right.text(5.2 * step + n / 2, 1.5, f"step {step}" if step else "start", ha="center", fontsize=8)
    for rank in range(n):
        right.text(-0.6, 0.5 - 1.6 * rank, f"GPU {rank}", ha="right", va="center", fontsize=8)
    for first, last, words, colour in ((1, n - 1, "add", SUM), (n, 2 * n - 2, "copy", COPY)):
        right.plot([5.2 * first, 5.2 * last + n], [-5.7, -5.7], color=colour, lw=2)
        right.text((5.2 * (first + last) + n) / 2, -6.6, words, ha="center", color=colour, fontsize=9)
    right.set(xlim=(-5, 5.2 * (2 * n - 1)), ylim=(-7, 2.6))
    return drawn


def tree(n: int = 8) -> Figure:
    """A binary tree, upwards with sums and downwards with copies."""
    drawn, both = bs.plot.panels(2, 10, 3.6)
    levels = [(rank + 1).bit_length() - 1 for rank in range(n)]
    places = [((rank + 1.5) / 2**level - 1.5, -float(level)) for rank, level in enumerate(levels)]
    for axes, title, colour in zip(
        both, ("Up: three steps that add", "Down: three steps that copy"), (SUM, COPY), strict=True
    ):
        empty(axes, title)
        for rank in range(1, n):
            ends = places[rank], places[(rank - 1) // 2]
            arrow(axes, *(ends if colour == SUM else ends[::-1]), colour, 16)
        gpus(axes, places)
        axes.set(xlim=(-0.6, 0.6), ylim=(-3.4, 0.4))
    return drawn


if __name__ == "__main__":
    for name, picture in (("ring", ring()), ("tree", tree())):
        bs.plot.save(picture, HERE / f"allreduce-{name}.svg", force=True)
