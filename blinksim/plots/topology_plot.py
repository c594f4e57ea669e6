"""A machine as a picture: devices, links as wide as their bandwidth, edited parts, and a bound's cut."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from blinksim.bounds.certificates import Cut, Partition, Phases
from blinksim.errors import InputError
from blinksim.machines import MachineLike, as_topology
from blinksim.plots.layout import Point, span
from blinksim.plots.machine_view import Changes, View, changes, corners, view
from blinksim.plots.style import COLOURS, PAPER, beside, drawn_machine, figure, legend, natural, plain, wrapped
from blinksim.topology.graph import Topology
from blinksim.units import in_GBps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from blinksim.bounds.bound_result import BoundResult
    from blinksim.topology.graph import Device, Link

MOST_DEVICES = 400
# Light shades for the parts of a cut, in the hues of the palette; the dashed links between them say it without colour.
_SHADES = ("#cfe3f2", "#f9dcc9", "#cfeee3", "#f4deea", "#faeccc", "#ddf0fb", "#e3e3e3", "#e8dcc6")
_SHAPES = {"gpu": "o", "tile": "o", "switch": "s", "pcie": "s", "cpu": "D", "nic": "^", "fabric": "h"}
_CUT, _CUT_DASHES = "#D55E00", (0, (2.2, 1.0))
_DAMAGE, _GONE_DASHES = "#C00000", (0, (4, 3))
_WIDEST, _TALLEST = 16.0, 12.0
_MOST_CHANGES = 6
_MANY_LINKS = 60


def topology(machine: MachineLike, bound: BoundResult | None = None, before: Topology | None = None) -> Figure:
    """The devices and links of a machine: width is bandwidth, colour is the link class.

    Of a large cluster one node is drawn in full, the others as boxes.

    Parameters
    ----------
    machine : str, path or Topology
        A name of the catalogue, a machine file, or a topology. Of a machine that is named, the default members and
        links are drawn.
    bound : BoundResult, optional
        What its certificate cuts apart is shaded, and the links between the parts drawn dashed in orange.

    before : Topology, optional
        The machine without its edits. Links that are gone are drawn dashed in red, links that carry less in red with
        both rates.

    Returns
    -------
    Figure
        A matplotlib figure; `save` writes it.

    Raises
    ------
    InputError
        For more than 400 devices that would have to be drawn.

    Examples
    --------
    >>> import blinksim as bs
    >>> picture = bs.plot.topology("dgx1-v100", bs.bound("dgx1-v100", "allreduce"))
    """
    if not isinstance(machine, Topology):
        machine = as_topology(machine).select(connected=False)
    changed = changes(before, machine)
    if before is not None and any(device.name not in before.index for device in machine.devices):
        # Another fabric: what it replaced would hide it.
        changed = changed.without("fabric", before)
    base = before if before is not None and changed.devices else machine
    node = next((base.device(name).node for name in sorted(changed.places) if base.device(name).node >= 0), 0)
    shown = view(base, node)
    check_devices(shown)
    drawn, axes = _canvas(shown)
    parts, words = _parts(machine, bound) if bound is not None else ([], "")
    shade(axes, machine, shown.places, parts)
    frame(axes, shown)
    cut = {name: number for number, part in enumerate(parts) for name in part}
    classes = _links(axes, shown, machine, cut, changed)
    _removed_links(axes, shown, changed)
    devices(axes, machine, shown.places, shown.devices, gone=changed.devices)
    _legend(axes, machine, classes, bool(cut), changed)
    width = drawn.get_figwidth()
    axes.set_title(_title(machine, bound, words, width - 0.6), loc="left", fontsize=9)
    return drawn


def _canvas(shown: View) -> tuple[Figure, Axes]:
    """Axes that hold all places with their markers, to one scale in both directions."""
    low_x, high_x, low_y, high_y = corners(shown)
    scale = min(0.95, _WIDEST / (high_x - low_x), _TALLEST / (high_y - low_y))
    drawn, axes = figure(max(7.0, scale * (high_x - low_x)), max(2.2, scale * (high_y - low_y)) + 1.3)
    bare(axes)
    axes.set_xlim(low_x, high_x)
    axes.set_ylim(low_y, high_y)
    return drawn, axes


def check_devices(shown: View) -> None:
    """Raises `InputError` for more devices than a picture can show."""
    count = len(shown.devices)
    if count > MOST_DEVICES:
        raise InputError(f"{count:,} devices are too many to draw (at most {MOST_DEVICES}); show fewer nodes")


def bare(axes: Axes) -> None:
    """Axes without a frame, a grid or ticks, both directions to the same scale."""
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.margins(0.08)


def frame(axes: Axes, shown: View) -> None:
    """Nodes as boxes: frames around what is drawn, words in place of what is not."""
    from matplotlib.patches import FancyBboxPatch

    for box in (*shown.frames, *shown.boxes):
        whole = box in shown.boxes
        style = f"round,pad=0,rounding_size={0.15 if whole else 0.3}"
        face, height = ("#f2f2f2", 3.0) if whole else ("none", 0.5)
        patch = FancyBboxPatch((box.left, box.bottom), box.width, box.height, boxstyle=style, zorder=height)
        patch.set(linewidth=0.9, facecolor=face, edgecolor="#777777")
        axes.add_patch(patch)
        if whole:
            place = (box.left + box.width / 2, box.bottom + box.height / 2)
            axes.annotate(box.words, place, ha="center", va="center", fontsize=7, zorder=4)
        else:
            beside(axes, box.words, (box.left, box.bottom), (5, 4), color="#555555", zorder=4)


def _links(
    axes: Axes, shown: View, machine: Topology, cut: Mapping[str, int], changed: Changes
) -> dict[str, tuple[float, float]]:
    """Draws the links; the classes that are drawn."""
    lines = shown.lines(machine.links)
    most = max((line.rate for line in lines), default=1.0)
    widest = 5.4 if len(lines) <= _MANY_LINKS else 2.4
    weaker = {frozenset((link.src, link.dst)): (link, rate) for link, rate in changed.weaker}
    labelled: dict[str, tuple[float, float]] = {}
    for line in lines:
        between = bool(cut) and cut.get(line.a) != cut.get(line.b)
        damaged = weaker.get(frozenset((line.a, line.b)))
        colour = _DAMAGE if damaged else _CUT if between else class_colour(machine, line.kind)
        xs, ys = zip(*way(shown.places, line.a, line.b), strict=True)
        width, dashes, height = (
            0.6 + widest * line.rate / most,
            _CUT_DASHES if between else "-",
            2 if between or damaged else 1,
        )
        axes.plot(
            xs, ys, color=colour, linewidth=width, linestyle=dashes, solid_capstyle="round", alpha=0.9, zorder=height
        )
        if damaged and damaged[0].kind == line.kind:
            link, rate = damaged
            _note(axes, _middle(xs, ys), f"{in_GBps(link.bandwidth):.4g} of {in_GBps(rate):.4g} GB/s", _DAMAGE)
        low, high = labelled.get(line.kind, (line.rate, line.rate))
        labelled[line.kind] = (min(low, line.rate), max(high, line.rate))
    # The first box says how many links its line stands for.
    boxes = [line for line in lines if line.count > 1 and "box " in line.a + line.b]
    if boxes:
        (ax, ay), (bx, by) = shown.places[boxes[0].a], shown.places[boxes[0].b]
        _note(axes, ((ax + bx) / 2, (ay + by) / 2), f"{boxes[0].count} links", "#555555")
    return labelled


def _removed_links(axes: Axes, shown: View, changed: Changes) -> None:
    """Draws the links that edits took away."""
    for line in shown.lines(link for link in changed.gone if not {link.src, link.dst} & set(changed.devices)):
        xs, ys = zip(*way(shown.places, line.a, line.b), strict=True)
        axes.plot(xs, ys, color=_DAMAGE, linewidth=1.6, linestyle=_GONE_DASHES, zorder=2.5)
        _note(axes, _middle(xs, ys), "removed", _DAMAGE)


def _note(axes: Axes, place: Point, text: str, colour: str) -> None:
    axes.annotate(text, place, ha="center", va="center", fontsize=7, color=colour, zorder=6, bbox=PAPER)


def _middle(xs: Sequence[float], ys: Sequence[float]) -> Point:
    """Where words about a line stand: in its middle, or before it where long lines cross each other."""
    if len(xs) > 2:
        return xs[len(xs) // 2], ys[len(ys) // 2]
    part = 0.5 if math.dist((xs[0], ys[0]), (xs[-1], ys[-1])) < 2 else 0.3
    return xs[0] + part * (xs[-1] - xs[0]), ys[0] + part * (ys[-1] - ys[0])


def way(places: Mapping[str, Point], a: str, b: str) -> list[Point]:
    """The line from `a` to `b`: straight, or around the devices that stand between them."""
    (ax, ay), (bx, by) = places[a], places[b]
    length = math.hypot(bx - ax, by - ay)
    if length == 0:
        return [(ax, ay), (bx, by)]
    right = ((bx - ax) / length, (by - ay) / length)
    hidden = False
    for x, y in places.values():
        along = (x - ax) * right[0] + (y - ay) * right[1]
        aside = abs((y - ay) * right[0] - (x - ax) * right[1])
        hidden = hidden or (0.3 < along < length - 0.3 and aside < 0.12)
    if not hidden:
        return [(ax, ay), (bx, by)]
    # A flat parabola, whose summit stays between this row of devices and the next.
    bulge = min(0.45, 0.16 * length)
    steps = [number / 16 for number in range(17)]
    heights = [4 * bulge * step * (1 - step) for step in steps]
    return [(ax + step * (bx - ax) - up * right[1], ay + step * (by - ay) + up * right[0])
            for step, up in zip(steps, heights, strict=True)]  # fmt: skip


def class_colour(machine: Topology, kind: str) -> str:
    """Grey for the first class, palette colours for the others: orange stays free for what is cut."""
    grey = ("#555555", COLOURS[0], COLOURS[2], COLOURS[3], COLOURS[5], COLOURS[7])
    return grey[machine.link_classes.index(kind) % len(grey)]


def devices(
    axes: Axes,
    machine: Topology,
    places: Mapping[str, Point],
    shown: Sequence[Device] = (),
    *,
    size: float = 330.0,
    gone: Iterable[str] = (),
) -> None:
    """Markers by kind with their names: members white, relays grey, forwarders small, what is gone dashed in red.

    shown: those to draw, by default all.
    """
    listed = shown or machine.devices
    crowded = len(listed) > 60
    lost = set(gone)
    middle = sum(span(places, 0)) / 2, sum(span(places, 1)) / 2
    for device in listed:
        holds = device.holds or device.name in machine.relays
        x, y = places[device.name]
        relay, removed = device.name in machine.relays, device.name in lost
        axes.scatter(
            [x], [y],
            s=(size if holds else size * 0.55) * (0.3 if crowded else 1.0),
            marker=_SHAPES[device.kind],
            facecolor="#bbbbbb" if relay else "white" if holds else "#f2f2f2",
            edgecolor=_DAMAGE if removed else "black",
            linestyle="--" if removed else "-",
            linewidth=1.0, zorder=3, clip_on=False,
        )  # fmt: skip
        if not crowded or not holds:
            _name(axes, machine, device, places, middle)
    for name in lost & {device.name for device in listed}:
        _note(axes, (places[name][0], places[name][1] - 0.32), "removed", _DAMAGE)


def _name(axes: Axes, machine: Topology, device: Device, places: Mapping[str, Point], middle: Point) -> None:
    """The name inside a GPU's circle, or beside the device on the side away from the others."""
    x, y = places[device.name]
    text = plain(_short(machine, device.name))
    if device.holds and len(text) <= 4:
        axes.annotate(text, (x, y), ha="center", va="center", fontsize=7, zorder=5)
        return
    row = [abs(other - x) for name, (other, height) in places.items() if height == y and name != device.name]
    upright = min(row, default=9.0) < 0.14 * len(text)
    up = y >= middle[1]
    away = 12 if device.holds else 8
    rotation, side = 90 if upright else 0, "bottom" if up else "top"
    offset = (0, away if up else -away)
    beside(axes, text, (x, y), offset, ha="center", va=side, rotation=rotation, fontsize=6, zorder=5, bbox=PAPER)


def _short(machine: Topology, name: str) -> str:
    """``gpu3`` as ``3``, and ``n1.nic0`` as ``nic0``: the node is the place."""
    tail = name.split(".", 1)[1] if machine.nodes > 1 and "." in name and name[0] == "n" else name
    return tail.removeprefix("gpu") if tail.removeprefix("gpu").isdigit() else tail


def shade(axes: Axes, machine: Topology, places: Mapping[str, Point], parts: Sequence[Sequence[str]]) -> None:
    """A shade behind the devices of every part, joined along the part's own links."""
    for number, part in enumerate(parts):
        inside, colour = {name for name in part if name in places}, _SHADES[number % len(_SHADES)]
        for link in machine.links:
            if link.src in inside and link.dst in inside:
                xs, ys = zip(*way(places, link.src, link.dst), strict=True)
                axes.plot(xs, ys, color=colour, linewidth=30, solid_capstyle="round", zorder=0)
        spots = [places[name] for name in inside]
        axes.scatter([x for x, _ in spots], [y for _, y in spots], s=1100, color=colour, linewidth=0, zorder=0)


def _parts(machine: Topology, bound: BoundResult) -> tuple[list[Sequence[str]], str]:
    """The devices that the first certificate with parts tells apart, and its words; of two phases, the allgather's."""
    for entry in bound.bounds:
        certificate = entry.certificate
        if isinstance(certificate, Phases):
            certificate = certificate.phases[-1][1]
        if isinstance(certificate, Partition):
            return list(certificate.parts), certificate.words(machine)
        if isinstance(certificate, Cut):
            inside = set(certificate.side)
            rest = [d.name for d in machine.devices if d.name not in inside]
            return [certificate.side, rest], f"{entry.scope}: {certificate.words(machine)}"
    return [], ""


def _legend(
    axes: Axes, machine: Topology, classes: Mapping[str, tuple[float, float]], cut: bool, changed: Changes
) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for kind in machine.link_classes:
        if kind in classes:
            rates = sorted({in_GBps(link.bandwidth) for link in machine.links if link.kind == kind})
            values = f"{rates[0]:.4g}" if len(rates) == 1 else f"{rates[0]:.4g} to {rates[-1]:.4g}"
            label = plain(f"{kind}, {values} GB/s each way")
            handles.append(Line2D([], [], color=class_colour(machine, kind), linewidth=3, label=label))
    if cut:
        crossing = Line2D([], [], color=_CUT, linewidth=3, linestyle=_CUT_DASHES, label="crosses the bottleneck")
        handles.append(crossing)
    kept = (link for link in changed.gone if not {link.src, link.dst} & set(changed.devices))
    if removed := [*changed.devices, *_ends(kept)]:
        label = f"removed: {_some(removed)}"
        handles.append(Line2D([], [], color=_DAMAGE, linewidth=1.6, linestyle=_GONE_DASHES, label=label))
    if changed.weaker:
        label = f"degraded: {_some(_ends(link for link, _ in changed.weaker))}"
        handles.append(Line2D([], [], color=_DAMAGE, linewidth=3, label=label))
    columns = 2 if len(handles) > 3 else 1
    legend(axes, handles=handles, bbox_to_anchor=(0, 0.0), ncols=columns)


def _ends(links: Iterable[Link]) -> list[str]:
    """``gpu0-gpu3`` for every pair once, by number."""
    pairs_ = {tuple(sorted((link.src, link.dst), key=natural)) for link in links}
    return ["-".join(pair) for pair in sorted(pairs_, key=lambda pair: (natural(pair[0]), natural(pair[1])))]


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_CHANGES
    return ", ".join(names[:_MOST_CHANGES]) + (f" and {more} more" if more > 0 else "")


def _title(machine: Topology, bound: BoundResult | None, shaded: str, width: float) -> str:
    lines = [f"{drawn_machine(machine)}: {machine.ranks} ranks, {machine.rates} rates"]
    if bound is not None:
        lines.append(f"{bound.collective} at most {in_GBps(bound.rate):.4g} GB/s algbw ({bound.scope})")
    lines = [wrapped(line, width) for line in lines]
    if shaded:
        lines += wrapped(f"shaded: {shaded}", width).split("\n")[:3]
    return "\n".join(lines)
