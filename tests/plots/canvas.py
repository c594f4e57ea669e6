"""What of a figure would be cut off if it were shown as it is, and which texts it holds."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.text import Text


def outside(drawn: Figure) -> list[str]:
    """The texts that are drawn beyond the figure's edges, and the markers and lines beyond those of their axes.

    Lines that the scale cuts on purpose are those without a marker.
    """
    drawn.draw_without_rendering()
    edges = drawn.bbox.padded(1.0)
    found = []
    for text in drawn.findobj(Text):
        assert isinstance(text, Text)
        if text.get_text() and text.get_visible() and text.get_window_extent().width:
            box = text.get_window_extent()
            # Tick labels beyond the limits of an axis are never drawn.
            if not (edges.contains(box.x0, box.y0) and edges.contains(box.x1, box.y1)) and _drawn(drawn, text):
                found.append(text.get_text())
    for axes in drawn.axes:
        inner = axes.get_window_extent()
        for line in axes.lines:
            half = line.get_markersize() * drawn.dpi / 144 if line.get_marker() not in ("None", None, "") else None
            if half is None or axes.name != "rectilinear":
                continue
            for x, y in line.get_transform().transform(line.get_xydata()):
                whole = inner.x0 <= x - half and x + half <= inner.x1 and inner.y0 <= y - half and y + half <= inner.y1
                if x == x and y == y and not whole:
                    found.append(f"{line.get_label()} at {x:.0f}, {y:.0f}")
    return found


def _drawn(drawn: Figure, text: Text) -> bool:
    """False for labels of ticks that lie beyond their axis, or whose axis is off."""
    for axes in drawn.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            for tick in ticks:
                if text in (tick.label1, tick.label2):
                    return axes.axison and low <= tick.get_loc() <= high
    return True


def texts(drawn: Figure) -> str:
    """Everything that is written in a figure, a line each."""
    return "\n".join(text.get_text() for text in drawn.findobj(Text) if isinstance(text, Text))
