"""Positions of devices in a picture: grids as grids, trees as layers, linked GPUs and routers on a circle."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from blinksim.plots.style import natural

if TYPE_CHECKING:
    from blinksim.topology.graph import Device, Link, Topology

Point = tuple[float, float]
_ROW = 1.35
# Devices of a crowded row stand closer.
_CROWDED = 12
_FABRIC = "fabric"


def layout(machine: Topology) -> dict[str, Point]:
    """The place of each device: nodes side by side, the switches that join them above, in the order of their level."""
    grid = _grid_places(machine)
    if grid:
        return grid
    within: dict[int, list[Device]] = {}
    for device in machine.devices:
        within.setdefault(-1 if device.kind == _FABRIC else device.node, []).append(device)
    above = within.pop(-1, [])
    places: dict[str, Point] = {}
    left = 0.0
    for node in sorted(within):
        inside = node_places(within[node], machine.links)
        low, high = span(inside, 0)
        places |= {name: (x - low + left, y) for name, (x, y) in inside.items()}
        left += high - low + 1.8
    return places | fabric_places(above, machine.links, places)


def span(places: Mapping[str, Point], axis: int) -> tuple[float, float]:
    """The smallest and the largest coordinate."""
    values = [place[axis] for place in places.values()]
    return (min(values), max(values)) if values else (0.0, 0.0)


def _grid_places(machine: Topology) -> dict[str, Point]:
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


def node_places(devices: Sequence[Device], links: Sequence[Link]) -> dict[str, Point]:
    """One node: GPUs, or switches with GPUs, that are linked to each other on a circle, all others in layers."""
    holders = {device.name for device in devices if device.kind in ("gpu", "tile")}
    direct = any(link.src in holders and link.dst in holders for link in links)
    routers = {device.name for device in devices if device.kind == "switch"}
    # Every switch has GPUs of its own, as the routers of a dragonfly do; those of a tree have levels.
    all_with_gpus = routers == {link.src for link in links if link.src in routers and link.dst in holders}
    if all_with_gpus and any(link.src in routers and link.dst in routers for link in links):
        around = max(3.0, 0.22 * len(routers), 0.14 * len(holders))
        return _around(devices, links, _circle(sorted(routers, key=natural), around), around)
    if len(devices) == len(holders) + 1 and routers and len(holders) > _CROWDED:
        # A row would be many times as wide as high.
        places = _circle(sorted(holders, key=natural), max(2.5, 0.16 * len(holders)))
        return places | dict.fromkeys(routers, (0.0, 0.0))
    if len(holders) == len(devices) or (direct and not routers):
        radius = max(1.0, 3.0 * len(holders) / 8) if len(holders) < 8 else max(3.0, 0.2 * len(holders))
        return _around(devices, links, _circle(sorted(holders, key=natural), radius), radius)
    return _layered(devices, links)


def _circle(names: Sequence[str], radius: float) -> dict[str, Point]:
    turn = 2 * math.pi / max(1, len(names))
    angles = [math.pi / 2 + turn / 2 - i * turn for i in range(len(names))]
    return {name: (radius * math.cos(a), radius * math.sin(a)) for name, a in zip(names, angles, strict=True)}


def _around(
    devices: Sequence[Device], links: Sequence[Link], places: dict[str, Point], radius: float
) -> dict[str, Point]:
    """`places` of the GPUs on a circle, and outside of it, ring by ring, what is linked to what is placed already."""
    inside = {device.name for device in devices}
    while len(places) < len(devices):
        radius += 1.1
        near: dict[str, list[Point]] = {}
        for link in links:
            if link.dst in inside and link.dst not in places and link.src in places:
                near.setdefault(link.dst, []).append(places[link.src])
        if not near:
            near = {device.name: [(0.0, 1.0)] for device in devices if device.name not in places}
        taken: list[float] = []
        # Half of the circle stays free, so that every device finds a place.
        step = min(0.8 / radius, math.pi / max(1, len(near)) / 1.1)
        wanted = {name: round(_towards(spots), 6) for name, spots in near.items()}
        crowd = Counter(wanted.values())
        for name, middle in wanted.items():
            # Those that want the same place fan out to both sides of it.
            angle = middle + (crowd[middle] - 1) / 2 * step
            while any(math.dist((math.cos(angle), math.sin(angle)), (math.cos(t), math.sin(t))) < step for t in taken):
                angle -= 1.04 * step
            taken.append(angle)
            places[name] = (radius * math.cos(angle), radius * math.sin(angle))
    return places


def _towards(spots: Sequence[Point]) -> float:
    """The angle at which something linked to `spots` stands; what is linked to all sides stands on top."""
    across, up = sum(x for x, _ in spots), sum(y for _, y in spots)
    return math.atan2(up, across) if math.hypot(across, up) > 1e-6 else math.pi / 2


def _layered(devices: Sequence[Device], links: Sequence[Link]) -> dict[str, Point]:
    """Rows from the GPUs upwards; where hosts or NICs stand above the GPUs, their switches stand below them."""
    kinds = {device.kind for device in devices}
    levels = _levels([device for device in devices if device.kind == "switch"], links, {d.name for d in devices})
    below = bool(kinds & {"pcie", "cpu", "nic"})
    rank = {"gpu": 0.0, "tile": 0.0, "pcie": 20.0, "cpu": 21.0, "nic": 22.0, _FABRIC: 23.0}
    rows: dict[float, list[Device]] = {}
    for device in devices:
        level = 1.0 + levels[device.name] if device.kind == "switch" else rank[device.kind]
        rows.setdefault(-level if device.kind == "switch" and below else level, []).append(device)
    widest = max(map(len, rows.values()))
    width = widest * (0.55 if widest > _CROWDED else 1.1)
    order = sorted(rows)
    ground = order.index(0.0) if 0.0 in rows else 0
    places: dict[str, Point] = {}
    for number in [*range(ground, len(order)), *range(ground - 1, -1, -1)]:
        places |= spread(rows[order[number]], links, places, (0.0, width), (number - ground) * _ROW)
    return places


def fabric_places(fabric: Sequence[Device], links: Sequence[Link], places: Mapping[str, Point]) -> dict[str, Point]:
    """The switches between nodes, above everything: leaves first, the spine on top."""
    if not fabric:
        return {}
    levels = _levels(fabric, links, {device.name for device in fabric} | set(places))
    (left, right), (_, top) = span(places, 0), span(places, 1)
    found: dict[str, Point] = dict(places)
    for level in sorted(set(levels.values())):
        row = [device for device in fabric if levels[device.name] == level]
        # Links from the ends of a wide picture should not lie flat on it.
        height = top + max(1.3 * _ROW, 0.09 * (right - left)) + level * 1.1 * _ROW
        if len(row) == 1:
            found[row[0].name] = ((left + right) / 2, height)
        else:
            found |= spread(row, links, found, (left - 0.5, right + 0.5), height)
    return {device.name: found[device.name] for device in fabric}


def _levels(switches: Sequence[Device], links: Sequence[Link], inside: set[str]) -> dict[str, int]:
    """How many switches lie between each of `switches` and what is no switch."""
    names = {device.name for device in switches}
    ends = {(link.src, link.dst) for link in links if link.src in inside and link.dst in inside}
    levels = {dst: 0 for src, dst in ends if dst in names and src not in names}
    level = 0
    while len(levels) < len(names):
        more = {dst for src, dst in ends if dst in names and dst not in levels and levels.get(src) == level}
        level += 1
        # Switches that nothing leads to stand on top.
        levels |= dict.fromkeys(more or names - set(levels), level)
    return levels


def spread(
    row: Sequence[Device], links: Iterable[Link], places: Mapping[str, Point], ends: tuple[float, float], height: float
) -> dict[str, Point]:
    """A row from end to end, each device as near as the order allows to what it is linked to."""
    names = {device.name for device in row}
    near: dict[str, list[float]] = {}
    for link in links:
        if link.dst in names and link.src in places:
            near.setdefault(link.dst, []).append(places[link.src][0])
    middle = {name: sum(spots) / len(spots) for name, spots in near.items()}
    left, right = ends
    centre = (left + right) / 2
    order = sorted(names, key=lambda name: (round(middle.get(name, centre), 6), natural(name)))
    gap = (right - left) / len(order)
    if len(order) == 1:
        return {order[0]: (middle.get(order[0], centre), height)}
    return {name: (left + gap * (place + 0.5), height) for place, name in enumerate(order)}
