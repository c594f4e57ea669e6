"""A machine as a picture, and the trees of a schedule over it.

Devices, links as wide as their bandwidth, edited parts, and a bound's cut; or a panel and a colour for each
tree, over
the links that it leaves idle.

Choice of the part of a machine that is drawn, and positions of its devices.

Grids are drawn as grids, trees as layers, linked GPUs and routers on a circle; of a large cluster one node is
drawn in full, with what edits took from it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch

from blinksim.bounds.bound_result import BoundResult
from blinksim.bounds.certificates import Cut, Partition, Phases
from blinksim.errors import InputError
from blinksim.graphs.connectivity import distances, grouped
from blinksim.machines import MachineLike, as_topology
from blinksim.plots import style
from blinksim.schedule.candidate import SymmetricSchedule, as_compact
from blinksim.schedule.model import COPY, Schedule, ScheduleLike
from blinksim.textio.name_ranges import natural
from blinksim.topology.graph import Device, Link, Topology
from blinksim.topology.rules import listed
from blinksim.units import in_GBps

Point = tuple[float, float]
Places = dict[str, Point]
_ROW = 1.35
# Devices of a crowded row stand closer.
_CROWDED = 12
_FABRIC = "fabric"
# Clusters of more devices show one node in full.
MOST_IN_FULL = 64
_MOST_BOXES = 5
_MOST_SHOWN = 400
_EDGE = 0.75
# Width and height of a box; between two of them, and between a node and the first of them or the next node.
_BOX = (1.7, 1.3)
_BOX_GAP, _GAP, _NODE_GAP = 0.4, 1.3, 1.8


@dataclass(frozen=True)
class Line:
    """What joins two shown things, once: the bytes/s of all `count` links, in the direction that has more."""

    a: str
    b: str
    kind: str
    rate: float
    count: int


@dataclass(frozen=True)
class Box:
    """A node: its words and its corners. whole: it is shown as a box, and not as a frame around its devices."""

    words: str
    left: float
    bottom: float
    width: float
    height: float
    whole: bool = False


@dataclass(frozen=True)
class View:
    """places: of devices, and of the middles of boxes. stands_for: the place at which each device is shown."""

    devices: tuple[Device, ...]
    places: Places
    stands_for: dict[str, str]
    boxes: tuple[Box, ...]

    def lines(self, links: Iterable[Link]) -> list[Line]:
        """`links` between what is shown, each pair and class once."""
        rates = defaultdict[tuple[str, str, str], tuple[list[float], list[float]]](lambda: ([], []))
        order = {name: number for number, name in enumerate(self.places)}
        for link in links:
            a, b = self.stands_for.get(link.src), self.stands_for.get(link.dst)
            if a is None or b is None or a == b:
                continue
            back = order[a] > order[b]
            key = (b, a, link.kind) if back else (a, b, link.kind)
            rates[key][back].append(float(link.bandwidth))
        return [Line(*key, max(map(sum, ways)), max(map(len, ways))) for key, ways in rates.items()]

    def corners(self) -> tuple[float, float, float, float]:
        """The least and the largest x, then y, of all that is shown, with room for markers."""
        spots = list(self.places.values())
        for box in self.boxes:
            spots += [(box.left, box.bottom), (box.left + box.width, box.bottom + box.height)]
        (low_x, high_x), (low_y, high_y) = ((min(axis), max(axis)) for axis in zip(*spots, strict=True))
        return low_x - _EDGE, high_x + _EDGE, low_y - _EDGE, high_y + _EDGE


def view(machine: Topology, node: int = 0) -> View:
    """Nodes side by side, the switches that join them above; of a large cluster one node in full, and others as boxes.

    The last box may stand for many nodes. Raises `InputError` for more devices than a picture can show.
    """
    members = grouped((-1 if device.kind == _FABRIC else device.node, device) for device in machine.devices)
    fabric, grid = members.pop(-1, []), _grid_places(machine)
    full = machine.nodes == 1 or len(machine.devices) <= MOST_IN_FULL
    places: Places = {}
    boxes, left, right = [], 0.0, 0.0
    for number in sorted(members) if full else [node]:
        own = members.pop(number)
        inside = grid or node_places(own, machine.links)
        (low_x, high_x), (low, high) = span(inside, 0), span(inside, 1)
        places |= {name: (x - low_x + left, y) for name, (x, y) in inside.items()}
        right = left + high_x - low_x
        if machine.nodes > 1:
            boxes.append(Box(f"n{number}", left - 0.6, low - 0.6, right - left + 1.2, high - low + 1.2))
        left = right + _NODE_GAP
    stands_for = {name: name for name in (*places, *(device.name for device in fabric))}
    heights = span(places, 1)
    for number, box in _other_nodes(members, right + _GAP, heights).items():
        boxes.append(box)
        right = box.left + box.width
        places[f"box {number}"] = ((box.left + right) / 2, box.bottom + box.height / 2)
        # A box for many nodes is joined as one node is, and not by the sum of all their links.
        stands_for |= {device.name: f"box {number}" for device in members[number]}
    where = {name: places[key] for name, key in stands_for.items() if key in places}
    # The switches stand over everything.
    where["right"] = (right, heights[0])
    places |= _fabric_places(fabric, machine.links, where)
    shown = tuple(device for device in machine.devices if stands_for.get(device.name) == device.name)
    if (count := len(shown)) > _MOST_SHOWN:
        raise InputError(f"{count:,} devices are too many to draw (at most {_MOST_SHOWN}); show fewer nodes")
    return View(shown, places, stands_for, tuple(boxes))


def _other_nodes(members: Mapping[int, Sequence[Device]], left: float, heights: Point) -> dict[int, Box]:
    """Boxes for nodes, by number; the last one may stand for many. heights: of the node beside them."""
    others, boxes, (width, height) = sorted(members), {}, _BOX
    for place, number in enumerate(others[: _MOST_BOXES + 1]):
        gpus, more = sum(device.holds for device in members[number]), len(others) - place
        many = place == _MOST_BOXES and more > 1
        words = f"{more:,} more\nnodes\nof {gpus} GPUs" if many else f"n{number}\n{gpus} GPUs"
        boxes[number] = Box(words, left, (sum(heights) - height) / 2, width, height, whole=True)
        left += width + _BOX_GAP
    return boxes


def span(places: Mapping[str, Point], axis: int) -> tuple[float, float]:
    """The smallest and the largest coordinate."""
    values = [place[axis] for place in places.values()]
    return (min(values), max(values)) if values else (0.0, 0.0)


def _grid_places(machine: Topology) -> Places:
    """Rows and columns of a generated mesh, torus or cube, its planes one behind the other; none if it is no grid."""
    form, _, rest = machine.name.partition(":")
    numbers = rest.partition("@")[0].split("x")
    if form not in ("mesh", "torus", "hypercube") or not all(number.isdigit() for number in numbers):
        return {}
    sides = tuple(map(int, numbers))
    sizes = (2,) * sides[0] if form == "hypercube" else tuple(side for side in sides if side > 1)
    if not 2 <= len(sizes) <= 3 or not machine.ranks:
        return {}
    planes = sizes[0] if len(sizes) == 3 else 1
    pitch = 1.35 if planes == 1 else 0.5 * planes + 0.6
    names = [f"gpu{number}" for number in range(math.prod(sizes))]
    places = {}
    for name, position in zip(names, product(*map(range, sizes)), strict=True):
        back, row, column = position if planes > 1 else (0, *position)
        places[name] = (column * pitch + 0.5 * back, -row * pitch + 0.42 * back)
    return {name: place for name, place in places.items() if name in machine.index}


def node_places(devices: Sequence[Device], links: Sequence[Link]) -> Places:
    """One node: GPUs, or switches with GPUs, that are linked to each other on a circle, all others in layers."""
    kind = {device.name: device.kind.replace("tile", "gpu") for device in devices}
    holders, routers = ({name for name in kind if kind[name] == one} for one in ("gpu", "switch"))
    ways = {(kind.get(link.src), kind.get(link.dst)) for link in links}
    # Every switch has GPUs of its own, as the routers of a dragonfly do; those of a tree have levels.
    all_with_gpus = routers == {link.src for link in links if link.src in routers and link.dst in holders}
    if all_with_gpus and ("switch", "switch") in ways:
        return _around(devices, links, routers, max(3.0, 0.22 * len(routers), 0.14 * len(holders)))
    if len(devices) == len(holders) + 1 and routers and len(holders) > _CROWDED:
        # A row would be many times as wide as high.
        return _around(devices, links, holders, max(2.5, 0.16 * len(holders))) | dict.fromkeys(routers, (0.0, 0.0))
    if len(holders) == len(devices) or (("gpu", "gpu") in ways and not routers):
        radius = max(1.0, 3.0 * len(holders) / 8) if len(holders) < 8 else max(3.0, 0.2 * len(holders))
        return _around(devices, links, holders, radius)
    return _layered(devices, links)


def _around(devices: Sequence[Device], links: Sequence[Link], inner: set[str], radius: float) -> Places:
    """The inner ones on a circle, and around it, ring by ring, what is linked to what is placed already.

    A ring has devices of one kind, and is a row (`spread`) from turn 0 to turn 1, which begins at the top.
    """
    turns, ring = dict[str, Point](), [device for device in devices if device.name in inner]
    left = [device for device in devices if device.name not in inner]
    while ring:
        turns |= spread(ring, links, turns, (0.0, 1.0), radius)
        linked = {link.dst for link in links if link.src in turns}
        near = [device for device in left if device.name in linked] or left
        ring = [device for device in near if device.kind == near[0].kind]
        left, radius = [device for device in left if device not in ring], radius + 1.1
    # The first of the circle and the last one are beside the top.
    angles = {name: (2 * math.pi * (0.25 + 1 / len(inner) - turn), far) for name, (turn, far) in turns.items()}
    return {name: (far * math.cos(angle), far * math.sin(angle)) for name, (angle, far) in angles.items()}


def _layered(devices: Sequence[Device], links: Sequence[Link]) -> Places:
    """Rows from the GPUs upwards; where hosts or NICs stand above the GPUs, their switches stand below them."""
    levels = _levels([device for device in devices if device.kind == "switch"], links, {d.name for d in devices})
    rank = {"gpu": 0.0, "tile": 0.0, "pcie": 20.0, "cpu": 21.0, "nic": 22.0, _FABRIC: 23.0}
    sign = -1.0 if {"pcie", "cpu", "nic"} & {device.kind for device in devices} else 1.0
    heights = [sign * (1.0 + levels[one.name]) if one.kind == "switch" else rank[one.kind] for one in devices]
    rows = grouped(zip(heights, devices, strict=True))
    widest = max(map(len, rows.values()))
    width = widest * (0.55 if widest > _CROWDED else 1.1)
    order = sorted(rows)
    ground = order.index(0.0) if 0.0 in rows else 0
    places: Places = {}
    for number in [*range(ground, len(order)), *range(ground - 1, -1, -1)]:
        places |= spread(rows[order[number]], links, places, (0.0, width), (number - ground) * _ROW)
    return places


def _fabric_places(fabric: Sequence[Device], links: Sequence[Link], places: Mapping[str, Point]) -> Places:
    """The switches between nodes, above everything: leaves first, the spine on top."""
    levels = _levels(fabric, links, {device.name for device in fabric} | set(places))
    (left, right), (_, top) = span(places, 0), span(places, 1)
    points: Places = dict(places)
    for level, row in sorted(grouped((levels[device.name], device) for device in fabric).items()):
        # Links from the ends of a wide picture should not lie flat on it.
        height = top + max(1.3 * _ROW, 0.09 * (right - left)) + level * 1.1 * _ROW
        points |= spread(row, links, points, (left - 0.5, right + 0.5), height)
    return {device.name: points[device.name] for device in fabric}


def _levels(switches: Sequence[Device], links: Sequence[Link], inside: set[str]) -> dict[str, int]:
    """How many switches lie between each of `switches` and what is no switch."""
    names = {device.name for device in switches}
    ways = ((link.src if link.src in names else "", link.dst) for link in links if link.src in inside)
    ahead = grouped((src, dst) for src, dst in ways if dst in names)
    # From "", which stands for all that is no switch.
    levels = {name: far - 1 for name, far in distances("", lambda name: ahead.get(name, ())).items() if name}
    # Switches that nothing leads to stand on top.
    return dict.fromkeys(names, max(levels.values(), default=0) + 1) | levels


def spread(
    row: Sequence[Device], links: Iterable[Link], places: Mapping[str, Point], ends: tuple[float, float], height: float
) -> Places:
    """A row from end to end, each device as near as the order allows to what it is linked to."""
    names = {device.name for device in row}
    ways = [link for link in links if link.dst in names and link.src in places]
    near = grouped((link.dst, places[link.src][0]) for link in ways)
    middle = {name: sum(spots) / len(spots) for name, spots in near.items()}
    left, right = ends
    order = sorted(names, key=lambda name: (round(middle.get(name, (left + right) / 2), 6), natural(name)))
    gap = (right - left) / len(order)
    return {name: (left + gap * (place + 0.5), height) for place, name in enumerate(order)}


@dataclass(frozen=True)
class Changes:
    """devices: names that are gone. gone: links between others. weaker: links as they are now, with bytes/s before."""

    devices: tuple[str, ...] = ()
    gone: tuple[Link, ...] = ()
    weaker: tuple[tuple[Link, float], ...] = ()


def changes(before: Topology | None, after: Topology) -> Changes:
    """What `after` lacks of `before`; a whole class that became slower is another rate, not a damage."""
    if before is None:
        return Changes()
    # Another fabric is shown, and what it replaced would hide it.
    fabric = {device.name for device in before.devices if device.kind == _FABRIC}
    hidden = set[str]() if after.index.keys() <= before.index.keys() else fabric
    lost = tuple(name for name in before.index if name not in {*after.index, *hidden})
    now = {link.key: link for link in after.links}
    gone, weaker = list[Link](), list[tuple[Link, float]]()
    for link in before.links:
        here = now.get(link.key)
        if {link.src, link.dst} & {*hidden, *lost}:
            continue
        if here is None:
            gone.append(link)
        elif here.bandwidth < link.bandwidth:
            weaker.append((here, float(link.bandwidth)))
    weak, count = Counter(link.kind for link, _ in weaker), Counter(link.kind for link in after.links)
    slower = {kind for kind in weak if weak[kind] == count[kind] > 2}
    return Changes(lost, tuple(gone), tuple(entry for entry in weaker if entry[0].kind not in slower))


# Light shades for the parts of a cut, in the hues of the palette; the dashed links between them say it
# without colour.
_SHADES = ("#cfe3f2", "#f9dcc9", "#cfeee3", "#f4deea", "#faeccc", "#ddf0fb", "#e3e3e3", "#e8dcc6")
_SHAPES = {"gpu": "o", "tile": "o", "switch": "s", "pcie": "s", "cpu": "D", "nic": "^", "fabric": "h"}
_CUT, _CUT_DASHES = "#D55E00", (0, (2.2, 1.0))
_DAMAGE, _GONE_DASHES = "#C00000", (0, (4, 3))
_WIDEST, _TALLEST = 16.0, 12.0
_MANY_LINKS = 60


def topology(machine: MachineLike, bound: BoundResult | None = None, before: Topology | None = None) -> Figure:
    """The devices and links of a machine: width is bandwidth, colour is the link class.

    Of a large cluster one node is drawn in full, the others as boxes.

    Parameters
    ----------
    machine : str, path or Topology
        A name of the catalogue, a machine file, or a topology. Of a machine that is named, the default
        members and links are drawn.
    bound : BoundResult, optional
        What its certificate cuts apart is shaded, and the links between the parts drawn dashed in orange,
        unless it cuts all ranks apart.

    before : Topology, optional
        The machine without its edits. Links that are gone are drawn dashed in red, links that carry less in
        red with both rates.

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
    links = (*changed.gone, *(link for link, _ in changed.weaker))
    touched = {*changed.devices, *(end for link in links for end in (link.src, link.dst))}
    base = before if before is not None and changed.devices else machine
    node = next((base.device(name).node for name in sorted(touched) if base.device(name).node >= 0), 0)
    shown = view(base, node)
    low_x, high_x, low_y, high_y = shown.corners()
    scale = min(0.95, _WIDEST / (high_x - low_x), _TALLEST / (high_y - low_y))
    width = max(7.0, scale * (high_x - low_x))
    drawn, axes = style.figure(width, max(2.2, scale * (high_y - low_y)) + 1.3)
    bare(axes, shown)
    parts, words = _parts(machine, bound) if bound is not None else ([], "")
    # If all ranks are apart, every link crosses, and marks would tell nothing.
    parts = [] if len(parts) == machine.ranks else parts
    _shade(axes, machine, shown.places, parts)
    cut = {name: number for number, part in enumerate(parts) for name in part}
    _links(axes, shown, machine, cut, changed)
    devices(axes, machine, shown, gone=changed.devices)
    lines = [f"{style.drawn_machine(machine)}: {machine.ranks} ranks, {machine.rates} rates"]
    if bound is not None:
        lines.append(f"{bound.collective} at most {in_GBps(bound.rate):.4g} GB/s algbw ({bound.scope})")
    lines = [style.wrapped(line, width - 0.6) for line in lines]
    lines += style.wrapped("shaded: " * bool(parts) + words, width - 0.6).split("\n")[:3] if words else []
    axes.set_title("\n".join(lines), loc="left", fontsize=9)
    return drawn


def _shade(axes: Axes, machine: Topology, places: Mapping[str, Point], parts: Sequence[Sequence[str]]) -> None:
    """A shade behind the devices of every part, joined along the part's own links."""
    for number, part in enumerate(parts):
        inside, colour = dict.fromkeys(name for name in part if name in places), _SHADES[number % len(_SHADES)]
        for link in machine.links:
            if link.src in inside and link.dst in inside:
                xs, ys = zip(*route(places, link.src, link.dst), strict=True)
                axes.plot(xs, ys, color=colour, linewidth=30, solid_capstyle="round", zorder=0)
        spots = [places[name] for name in inside]
        axes.scatter([x for x, _ in spots], [y for _, y in spots], s=1100, color=colour, linewidth=0, zorder=0)


def bare(axes: Axes, shown: View) -> None:
    """Axes for what is shown, without a frame, a grid or ticks, and both directions to the same scale.

    Nodes are boxes there: frames around what is drawn, words in place of what is not.
    """
    axes.set_axis_off()
    axes.set_aspect("equal")
    axes.axis(shown.corners())
    for box in shown.boxes:
        round_ = f"round,pad=0,rounding_size={0.15 if box.whole else 0.3}"
        face, height = ("#f2f2f2", 3.0) if box.whole else ("none", 0.5)
        patch = FancyBboxPatch((box.left, box.bottom), box.width, box.height, boxstyle=round_, zorder=height)
        patch.set(linewidth=0.9, facecolor=face, edgecolor="#777777")
        axes.add_patch(patch)
        if box.whole:
            place = (box.left + box.width / 2, box.bottom + box.height / 2)
            axes.annotate(box.words, place, ha="center", va="center", fontsize=7, zorder=4)
        else:
            style.beside(axes, box.words, (box.left, box.bottom), (5, 4), color="#555555", zorder=4)


def _links(axes: Axes, shown: View, machine: Topology, cut: Mapping[str, int], changed: Changes) -> None:
    """Draws the links, those that edits took away included, and a legend of them."""

    lines = shown.lines(machine.links)
    most = max((line.rate for line in lines), default=1.0)
    widest = 5.4 if len(lines) <= _MANY_LINKS else 2.4
    weaker = {frozenset((link.src, link.dst)): (link, rate) for link, rate in changed.weaker}
    for line in lines:
        between = cut.get(line.a) != cut.get(line.b)
        damaged = weaker.get(frozenset((line.a, line.b)))
        note = ""
        if damaged and damaged[0].kind == line.kind:
            note = f"{in_GBps(damaged[0].bandwidth):.4g} of {in_GBps(damaged[1]):.4g} GB/s"
        colour = _DAMAGE if damaged else _CUT if between else _class_colour(machine, line.kind)
        look = {"linestyle": _CUT_DASHES if between else "-", "solid_capstyle": "round", "alpha": 0.9}
        look |= {"linewidth": 0.6 + widest * line.rate / most, "zorder": 2 if between or damaged else 1}
        _stroke(axes, shown, line, colour, note, **look)
    # The first box says how many links its line stands for.
    for line in [line for line in lines if line.count > 1 and "box " in line.a + line.b][:1]:
        (ax, ay), (bx, by) = shown.places[line.a], shown.places[line.b]
        _note(axes, ((ax + bx) / 2, (ay + by) / 2), f"{line.count} links", "#555555")
    for line in shown.lines(changed.gone):
        _stroke(axes, shown, line, _DAMAGE, "removed", linewidth=1.6, linestyle=_GONE_DASHES, zorder=2.5)
    _legend(axes, machine, {line.kind for line in lines}, bool(cut), changed)


def _stroke(axes: Axes, shown: View, line: Line, colour: str, note: str, **look: Any) -> None:
    """Draws a line, with words in its middle, or before it where long lines cross each other."""
    xs, ys = zip(*route(shown.places, line.a, line.b), strict=True)
    axes.plot(xs, ys, color=colour, **look)
    part = 0.5 if math.dist((xs[0], ys[0]), (xs[-1], ys[-1])) < 2 else 0.3
    place = xs[0] + part * (xs[-1] - xs[0]), ys[0] + part * (ys[-1] - ys[0])
    if note:
        _note(axes, place if len(xs) == 2 else (xs[len(xs) // 2], ys[len(ys) // 2]), note, _DAMAGE)


def _legend(axes: Axes, machine: Topology, kinds: Container[str], cut: bool, changed: Changes) -> None:
    """A legend of link classes, of a cut, and of what edits took."""
    entry, handles = partial(Line2D, [], []), []
    for kind in filter(kinds.__contains__, machine.link_classes):
        links = [link for link in machine.links if link.kind == kind]
        rates = sorted({in_GBps(link.bandwidth) for link in links})
        ways = " or ".join(sorted({"on a shared bus" if link.bus else "each way" for link in links}))
        values = f"{rates[0]:.4g}" if len(rates) == 1 else f"{rates[0]:.4g} to {rates[-1]:.4g}"
        label = style.plain(f"{kind}, {values} GB/s {ways}")
        handles.append(entry(color=_class_colour(machine, kind), linewidth=3, label=label))
    if cut:
        handles.append(entry(color=_CUT, linewidth=3, linestyle=_CUT_DASHES, label="crosses the bottleneck"))
    if changed.devices or changed.gone:
        label = f"removed: {_some(changed.devices, changed.gone)}"
        handles.append(entry(color=_DAMAGE, linewidth=1.6, linestyle=_GONE_DASHES, label=label))
    if changed.weaker:
        label = f"degraded: {_some((), [link for link, _ in changed.weaker])}"
        handles.append(entry(color=_DAMAGE, linewidth=3, label=label))
    style.legend(axes, handles=handles, bbox_to_anchor=(0, 0.0), ncols=2 if len(handles) > 3 else 1)


def _note(axes: Axes, place: Point, text: str, colour: str) -> None:
    axes.annotate(text, place, ha="center", va="center", fontsize=7, color=colour, zorder=6, bbox=style.PAPER)


def route(places: Mapping[str, Point], a: str, b: str) -> list[Point]:
    """The line from `a` to `b`: straight, or around the devices that stand between them."""
    (ax, ay), (bx, by) = places[a], places[b]
    length = math.hypot(bx - ax, by - ay) or 1.0
    right = ((bx - ax) / length, (by - ay) / length)
    offsets = [(x - ax, y - ay) for x, y in places.values()]
    seen = ((x * right[0] + y * right[1], abs(y * right[0] - x * right[1])) for x, y in offsets)
    if not any(0.3 < along < length - 0.3 and aside < 0.12 for along, aside in seen):
        return [(ax, ay), (bx, by)]
    # A flat parabola, whose summit stays between this row of devices and the next.
    bulge = min(0.45, 0.16 * length)
    steps = [number / 16 for number in range(17)]
    heights = [4 * bulge * step * (1 - step) for step in steps]
    return [(ax + step * (bx - ax) - up * right[1], ay + step * (by - ay) + up * right[0])
            for step, up in zip(steps, heights, strict=True)]  # fmt: skip


def _class_colour(machine: Topology, kind: str) -> str:
    """Grey for the first class, palette colours for the others: orange stays free for what is cut."""
    grey = ("#555555", style.COLOURS[0], style.COLOURS[2], style.COLOURS[3], style.COLOURS[5], style.COLOURS[7])
    return grey[machine.link_classes.index(kind) % len(grey)]


def devices(axes: Axes, machine: Topology, shown: View, size: float = 330.0, gone: Sequence[str] = ()) -> None:
    """Markers by kind with their names: members white, relays grey, forwarders small, what is gone dashed in red."""
    crowded, places = len(shown.devices) > 60, shown.places
    for device in shown.devices:
        holds = device.holds or device.name in machine.relays
        x, y = places[device.name]
        relay, removed = device.name in machine.relays, device.name in gone
        edge, dashes = (_DAMAGE, "--") if removed else ("black", "-")
        look: dict[str, Any] = {"edgecolor": edge, "linestyle": dashes}
        look |= {"facecolor": "#bbbbbb" if relay else "white" if holds else "#f2f2f2", "linewidth": 1.0}
        area = (size if holds else size * 0.55) * (0.3 if crowded else 1.0)
        axes.scatter([x], [y], s=area, marker=_SHAPES[device.kind], zorder=3, clip_on=False, **look)
        if not crowded or not holds:
            _name(axes, machine, device, places)
        if removed:
            _note(axes, (x, y - 0.32), "removed", _DAMAGE)


def _name(axes: Axes, machine: Topology, device: Device, places: Mapping[str, Point]) -> None:
    """The name inside a GPU's circle, or beside the device on the side away from the others."""
    x, y = places[device.name]
    # ``gpu3`` as ``3``, and ``n1.nic0`` as ``nic0``: the node is the place.
    tail = device.name
    if machine.nodes > 1 and "." in tail and tail[0] == "n":
        tail = tail.split(".", 1)[1]
    text = style.plain(tail.removeprefix("gpu") if tail.removeprefix("gpu").isdigit() else tail)
    if device.holds and len(text) <= 4:
        axes.annotate(text, (x, y), ha="center", va="center", fontsize=7, zorder=5)
        return
    row = [abs(other - x) for name, (other, height) in places.items() if height == y and name != device.name]
    upright = min(row, default=9.0) < 0.14 * len(text)
    up = y >= sum(span(places, 1)) / 2
    away = 12 if device.holds else 8
    side = "bottom" if up else "top"
    small = {"va": side, "rotation": 90 if upright else 0, "fontsize": 6, "zorder": 5, "bbox": style.PAPER}
    style.beside(axes, text, (x, y), (0, away if up else -away), ha="center", **small)


def _parts(machine: Topology, bound: BoundResult) -> tuple[list[Sequence[str]], str]:
    """The devices that the first certificate with parts tells apart, and its words; of two phases, the allgather's."""
    for entry in bound.bounds:
        found = entry.certificate
        certificate = found.phases[-1][1] if isinstance(found, Phases) else found
        if isinstance(certificate, Partition):
            return list(certificate.parts), certificate.words(machine)
        if isinstance(certificate, Cut):
            inside = set(certificate.side)
            rest = [d.name for d in machine.devices if d.name not in inside]
            return [certificate.side, rest], f"{entry.scope}: {certificate.words(machine)}"
    return [], ""


def _some(devices: Sequence[str], links: Sequence[Link]) -> str:
    """The first few devices and links by name: ``gpu0-gpu3`` for every pair once, by number."""
    pairs = {tuple(sorted((link.src, link.dst), key=natural)) for link in links}
    names = [*devices, *("-".join(pair) for pair in sorted(pairs, key=lambda pair: [*map(natural, pair)]))]
    return listed(names)


# Denominators of fractions that say more than per cent do.
_READABLE = 100
# Inches of a picture across, and of a panel upwards.
_WIDTH, _TALLEST_PANEL, _LOWEST = 10.4, 2.75, 1.6
# Panels side by side by how many times as wide as high the machine is, and rows that fit on a page.
_COLUMNS = ((1.6, 4), (3.2, 2), (math.inf, 1))
_ROWS = {4: 3, 2: 4, 1: 4}


def trees(schedule: ScheduleLike, most: int | None = None) -> Figure:
    """Trees or paths of a schedule's chunks, largest first: arrows for copies, plain lines if also reduced.

    Of more chunks than panels, one of each shape is drawn: the same share, the same number of sends from each
    rank and the same lengths. Of a large cluster one node is drawn in full, the others as boxes.

    Parameters
    ----------
    schedule : Schedule or Synthesis
        Whose chunks to draw; one by symmetry is not written out for it.
    most : int, optional
        Panels. Default: as many as fit on a page, at most 12.

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
    >>> picture = bs.plot.trees(bs.synthesize("dgx1-v100", "broadcast").schedule, most=2)
    """
    # Of a schedule by symmetry the base is drawn; times: how many images every chunk has.
    given = as_compact(schedule)
    whole = given.base if isinstance(given, SymmetricSchedule) else given
    times = given.times.tolist() if isinstance(given, SymmetricSchedule) else [1] * whole.chunks
    shown = view(whole.topology)
    low_x, high_x, low_y, high_y = shown.corners()
    wide = (high_x - low_x) / (high_y - low_y)
    columns = next(number for ratio, number in _COLUMNS if wide <= ratio)
    most = most or columns * _ROWS[columns]
    # The chunks to draw, those with the largest shares first, and how many each stands for.
    lengths = np.array([len(whole.links_of(route)) for route in range(int(whole.route.max(initial=-1)) + 1)])
    alike, shapes = dict[int, int](), dict[tuple[object, ...], int]()
    for chunk in sorted(range(whole.chunks), key=lambda chunk: (-whole.share(chunk), chunk)):
        mine = whole.chunk == chunk
        degrees = np.sort(np.bincount(whole.src[mine])).tobytes()
        shape = (whole.share(chunk), degrees.lstrip(b"\0"), np.sort(lengths[whole.route[mine]]).tobytes())
        first = chunk if whole.chunks <= most else shapes.setdefault(shape, chunk)
        alike[first] = alike.get(first, 0) + times[chunk]
    alike = dict([*alike.items()][:most])
    columns = min(columns, len(alike))
    rows = math.ceil(len(alike) / columns)
    across = _WIDTH / max(columns, 4 if wide <= _COLUMNS[0][0] else 1)
    height = max(_LOWEST, min(_TALLEST_PANEL, across / wide + 0.35))
    drawn = style.canvas(across * columns, height * rows + 0.4)
    idle = sorted({(line.a, line.b) for line in shown.lines(whole.topology.links)})
    for number, chunk in enumerate(alike):
        axes = drawn.add_subplot(rows, columns, number + 1)
        bare(axes, shown)
        for a, b in idle:
            axes.plot(*zip(*route(shown.places, a, b), strict=True), color="#dddddd", linewidth=1.0, zorder=0)
        _arrows(axes, shown, whole, chunk, style.COLOURS[number % len(style.COLOURS)])
        devices(axes, whole.topology, shown, size=130)
        share = whole.share(chunk)
        # People read some fractions as one, others better in per cent.
        part = f"{share}" if share.denominator <= _READABLE else f"{100 * float(share):.3g} %"
        again = f", {alike[chunk]:,} alike" if alike[chunk] > 1 else ""
        axes.set_title(f"{part} of the data{again}", fontsize=8)
    style.title(drawn, _trees_title(given, whole, alike, sum(times)), drawn.get_figwidth(), 9)
    return drawn


def _arrows(axes: Axes, shown: View, schedule: Schedule, chunk: int, colour: str) -> None:
    """The sends of a chunk, every link once, as far as both of its ends are drawn."""
    mine = schedule.chunk == chunk
    copies = mine & (schedule.op == COPY)
    routes = np.unique(schedule.route[copies if copies.any() else mine]).tolist()
    used = (schedule.topology.links[link] for route in routes for link in schedule.links_of(route))
    order = {name: place for place, name in enumerate(shown.places)}
    for a, b in dict.fromkeys((shown.stands_for.get(link.src), shown.stands_for.get(link.dst)) for link in used):
        if a is None or b is None or a == b:
            continue
        arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 2.0, "shrinkA": 7, "shrinkB": 7}
        if len(route(shown.places, a, b)) > 2:
            arrow["connectionstyle"] = f"arc3,rad={-0.2 if order[a] < order[b] else 0.2}"
        axes.annotate("", xy=shown.places[b], xytext=shown.places[a], arrowprops=arrow, zorder=2)


def _trees_title(given: Schedule | SymmetricSchedule, schedule: Schedule, alike: dict[int, int], chunks: int) -> str:
    stood_for, shapes = sum(alike.values()), len(alike)
    if stood_for < chunks:
        left = f"{stood_for:,} of {chunks:,}"
        hidden = f", the {left} largest" if stood_for == shapes else f", one of each of {shapes} shapes ({left})"
    else:
        kinds = ", all of one shape" if shapes == 1 else f", one of each of {shapes} shapes"
        hidden = kinds if stood_for > shapes else ""
    both = schedule.collective.name == "allreduce" and schedule.form == "forest"
    reduced = "; data is reduced up the same trees first" if both else ""
    on = f"{style.drawn_machine(schedule.topology)}, {schedule.topology.rates} rates"
    return f"{schedule.algorithm} {schedule.collective} on {on}: {given.parts()}{hidden}{reduced}"
