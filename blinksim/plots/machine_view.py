"""The part of a machine in a picture: of a large cluster one node, with what edits took from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blinksim.plots.layout import Point, fabric_places, layout, node_places, span

if TYPE_CHECKING:
    from blinksim.topology.graph import Device, Link, Topology

# Clusters of more devices show one node in full.
MOST_IN_FULL = 64
_MOST_BOXES = 5
_EDGE = 0.75
_BOX = (1.7, 1.3)


@dataclass(frozen=True)
class Line:
    """What joins two shown things, once: the bytes/s of all `count` links there and back."""

    a: str
    b: str
    kind: str
    there: float
    back: float
    count: int

    @property
    def rate(self) -> float:
        return max(self.there, self.back)


@dataclass(frozen=True)
class Box:
    """A node as a box: its words, and its corners."""

    words: str
    left: float
    bottom: float
    width: float
    height: float


@dataclass(frozen=True)
class View:
    """places: of devices, and of the middles of boxes. stands_for: the place at which each device is shown."""

    machine: Topology
    devices: tuple[Device, ...]
    places: dict[str, Point]
    stands_for: dict[str, str]
    boxes: tuple[Box, ...]
    frames: tuple[Box, ...]

    def lines(self, links: Iterable[Link]) -> list[Line]:
        """`links` between what is shown, each pair and class once."""
        found: dict[tuple[str, str, str], list[float]] = {}
        order = {name: number for number, name in enumerate(self.places)}
        for link in links:
            a, b = self.stands_for.get(link.src), self.stands_for.get(link.dst)
            if a is None or b is None or a == b:
                continue
            forward = order[a] < order[b]
            sums = found.setdefault((a, b, link.kind) if forward else (b, a, link.kind), [0.0, 0.0, 0.0, 0.0])
            sums[0 if forward else 1] += float(link.bandwidth)
            sums[2 if forward else 3] += 1
        return [Line(*key, there, back, int(max(go, come))) for key, (there, back, go, come) in found.items()]


def view(machine: Topology, node: int = 0) -> View:
    """Everything, or of a large cluster node `node` in full, some others as boxes and one box for the rest."""
    if machine.nodes == 1 or len(machine.devices) <= MOST_IN_FULL:
        places = layout(machine)
        return View(machine, machine.devices, places, {name: name for name in places}, (), _frames(machine, places))
    inside = [device for device in machine.devices if device.node == node and device.kind != "fabric"]
    fabric = [device for device in machine.devices if device.kind == "fabric"]
    places = node_places(inside, machine.links)
    (_, right), (low, high) = span(places, 0), span(places, 1)
    frames = (_around(places.values(), f"n{node}"),)
    stands_for = {device.name: device.name for device in (*inside, *fabric)}
    # The switches stand over everything.
    reach, boxes = dict(places), []
    width, height = _BOX
    left, bottom = right + 1.3, (low + high - height) / 2
    for words, devices in _other_nodes(machine, node):
        boxes.append(Box(words, left, bottom, width, height))
        key = f"box {devices[0].node}"
        places[key] = (left + width / 2, bottom + height / 2)
        stands_for |= {device.name: key for device in devices}
        left += width + 0.4
    reach["right"] = (left - 0.4, low)
    links = [link for link in machine.links if link.src in stands_for and link.dst in stands_for]
    where = {name: places[key] for name, key in stands_for.items() if key in places}
    places |= fabric_places(fabric, links, where | reach)
    return View(machine, (*inside, *fabric), places, stands_for, tuple(boxes), frames)


def _other_nodes(machine: Topology, node: int) -> list[tuple[str, list[Device]]]:
    """What a box says, and the devices of its node; the last one may stand for many nodes.

    One box for many nodes would be joined by the sum of all their links; it is joined as one node is.
    """
    members: dict[int, list[Device]] = {}
    for device in machine.devices:
        if device.node not in (node, -1) and device.kind != "fabric":
            members.setdefault(device.node, []).append(device)
    listed = sorted(members)
    shown = listed if len(listed) <= _MOST_BOXES + 1 else listed[:_MOST_BOXES]
    gpus = {number: sum(device.holds for device in members[number]) for number in listed}
    boxes = [(f"n{number}\n{gpus[number]} GPUs", members[number]) for number in shown]
    for first in listed[len(shown) :][:1]:
        more = len(listed) - len(shown)
        boxes.append((f"{more:,} more\nnodes\nof {gpus[first]} GPUs", members[first]))
    return boxes


def corners(shown: View) -> tuple[float, float, float, float]:
    """The least and the largest x, then y, of all that is shown, with room for markers."""
    spots = list(shown.places.values())
    for box in (*shown.boxes, *shown.frames):
        spots += [(box.left, box.bottom), (box.left + box.width, box.bottom + box.height)]
    (low_x, high_x), (low_y, high_y) = ((min(axis), max(axis)) for axis in zip(*spots, strict=True))
    return low_x - _EDGE, high_x + _EDGE, low_y - _EDGE, high_y + _EDGE


def _frames(machine: Topology, places: dict[str, Point]) -> tuple[Box, ...]:
    """A frame around each node of a cluster."""
    if machine.nodes == 1:
        return ()
    nodes: dict[int, list[Point]] = {}
    for device in machine.devices:
        if device.node >= 0 and device.kind != "fabric":
            nodes.setdefault(device.node, []).append(places[device.name])
    return tuple(_around(spots, f"n{node}") for node, spots in nodes.items())


def _around(spots: Iterable[Point], words: str) -> Box:
    listed = list(spots)
    low_x, low_y = (min(spot[axis] for spot in listed) - 0.6 for axis in (0, 1))
    high_x, high_y = (max(spot[axis] for spot in listed) + 0.6 for axis in (0, 1))
    return Box(words, low_x, low_y, high_x - low_x, high_y - low_y)


@dataclass(frozen=True)
class Changes:
    """devices: names that are gone. gone: links. weaker: links as they are now, with bytes/s before."""

    devices: tuple[str, ...] = ()
    gone: tuple[Link, ...] = ()
    weaker: tuple[tuple[Link, float], ...] = ()

    @property
    def places(self) -> set[str]:
        """The devices at which something changed."""
        links = (*self.gone, *(link for link, _ in self.weaker))
        return {*self.devices, *(end for link in links for end in (link.src, link.dst))}

    def without(self, kind: str, before: Topology) -> Changes:
        """The same without what happened to devices of a kind, and to their links."""
        lost = {device.name for device in before.devices if device.kind == kind}
        return Changes(
            tuple(name for name in self.devices if name not in lost),
            tuple(link for link in self.gone if not {link.src, link.dst} & lost),
            tuple(entry for entry in self.weaker if not {entry[0].src, entry[0].dst} & lost),
        )


def changes(before: Topology | None, after: Topology) -> Changes:
    """What `after` lacks of `before`; a whole class that became slower is another rate, not a damage."""
    if before is None:
        return Changes()
    now = {link.key: link for link in after.links}
    lost = tuple(device.name for device in before.devices if device.name not in after.index)
    gone = tuple(link for link in before.links if link.key not in now)
    weaker = [
        (now[link.key], float(link.bandwidth))
        for link in before.links
        if link.key in now and now[link.key].bandwidth < link.bandwidth
    ]
    count = {kind: sum(link.kind == kind for link in now.values()) for kind in after.link_classes}
    slower = {kind for kind in count if sum(link.kind == kind for link, _ in weaker) == count[kind] > 2}
    return Changes(lost, gone, tuple(entry for entry in weaker if entry[0].kind not in slower))
