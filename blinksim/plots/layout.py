"""Choice of the part of a machine that is drawn, and positions of its devices.

Grids are drawn as grids, trees as layers, linked GPUs and routers on a circle; of a large cluster one node is
drawn in full, with what edits took from it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from blinksim.errors import InputError
from blinksim.graphs.connectivity import distances, grouped
from blinksim.textio.name_ranges import natural
from blinksim.topology.graph import Device, Link, Topology

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
        return _circle(holders, max(2.5, 0.16 * len(holders))) | dict.fromkeys(routers, (0.0, 0.0))
    if len(holders) == len(devices) or (("gpu", "gpu") in ways and not routers):
        radius = max(1.0, 3.0 * len(holders) / 8) if len(holders) < 8 else max(3.0, 0.2 * len(holders))
        return _around(devices, links, holders, radius)
    return _layered(devices, links)


def _circle(names: set[str], radius: float) -> Places:
    angle = 2 * math.pi / max(1, len(names))
    angles = [math.pi / 2 + angle / 2 - i * angle for i in range(len(names))]
    ordered = zip(sorted(names, key=natural), angles, strict=True)
    return {name: (radius * math.cos(a), radius * math.sin(a)) for name, a in ordered}


def _around(devices: Sequence[Device], links: Sequence[Link], inner: set[str], radius: float) -> Places:
    """The inner ones on a circle, and around it, ring by ring, what is linked to what is placed already."""
    places, inside = _circle(inner, radius), {device.name for device in devices}
    while len(places) < len(devices):
        radius += 1.1
        left = inside - places.keys()
        near = grouped((one.dst, places[one.src]) for one in links if one.dst in left and one.src in places)
        if not near:
            near = {device.name: [(0.0, 1.0)] for device in devices if device.name not in places}
        taken: list[float] = []
        # Half of the circle stays free, so that every device finds a place.
        step = min(0.8 / radius, math.pi / max(1, len(near)) / 1.1)
        wanted = {}
        for name, spots in near.items():
            across, up = sum(x for x, _ in spots), sum(y for _, y in spots)
            # What is linked to all sides stands on top.
            wanted[name] = round(math.atan2(up, across) if math.hypot(across, up) > 1e-6 else math.pi / 2, 6)
        crowd = Counter(wanted.values())
        for name, middle in wanted.items():
            # Those that want the same place fan out to both sides of it.
            angle = middle + (crowd[middle] - 1) / 2 * step
            while any(math.dist((math.cos(angle), math.sin(angle)), (math.cos(t), math.sin(t))) < step for t in taken):
                angle -= 1.04 * step
            taken.append(angle)
            places[name] = (radius * math.cos(angle), radius * math.sin(angle))
    return places


def _layered(devices: Sequence[Device], links: Sequence[Link]) -> Places:
    """Rows from the GPUs upwards; where hosts or NICs stand above the GPUs, their switches stand below them."""
    kinds = {device.kind for device in devices}
    levels = _levels([device for device in devices if device.kind == "switch"], links, {d.name for d in devices})
    below = bool(kinds & {"pcie", "cpu", "nic"})
    rank = {"gpu": 0.0, "tile": 0.0, "pcie": 20.0, "cpu": 21.0, "nic": 22.0, _FABRIC: 23.0}
    sign = -1.0 if below else 1.0
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
    if not fabric:
        return {}
    levels = _levels(fabric, links, {device.name for device in fabric} | set(places))
    (left, right), (_, top) = span(places, 0), span(places, 1)
    points: Places = dict(places)
    for level in sorted(set(levels.values())):
        row = [device for device in fabric if levels[device.name] == level]
        # Links from the ends of a wide picture should not lie flat on it.
        height = top + max(1.3 * _ROW, 0.09 * (right - left)) + level * 1.1 * _ROW
        if len(row) == 1:
            points[row[0].name] = ((left + right) / 2, height)
        else:
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
    centre = (left + right) / 2
    order = sorted(names, key=lambda name: (round(middle.get(name, centre), 6), natural(name)))
    gap = (right - left) / len(order)
    if len(order) == 1:
        return {order[0]: (middle.get(order[0], centre), height)}
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
    gone: list[Link] = []
    weaker: list[tuple[Link, float]] = []
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
