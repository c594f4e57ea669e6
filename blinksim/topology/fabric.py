"""Fabrics that join nodes into a cluster: the shapes, and the switches and links that each adds.

`switch`: one switch, or `planes` of them: port p of every node goes to plane p mod planes; as many planes as
ports are rails. `tree`: per plane, a leaf switch for every `leaf_nodes` nodes under one spine. `levels`: any
number of levels of switches, each with planes of its own, such as rails under one spine. `dragonfly`: groups
of nodes around a switch each, and links between every two groups. `direct`: ports wired back to back, as NTB
adapters are.

A switch of a fabric stands for all switches that share its work: the spine of a leaf-spine network is one
switch here, a dragonfly group too (J. Kim, W. J. Dally, S. Scott, D. Abts, Technology-Driven, Highly-Scalable
Dragonfly Topology, ISCA 2008), so that routes between them are never worse than the sum of their links.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, combinations, pairwise
from math import prod
from operator import mod
from typing import Any

from blinksim.errors import InputError, unknown
from blinksim.topology.elements import Device, Link, copies
from blinksim.units import whole

SHAPES = ("switch", "tree", "levels", "dragonfly", "direct")
MOST_LEVELS = 8
# The kind of the devices that join nodes.
FABRIC = "fabric"


@dataclass(frozen=True, slots=True)
class Level:
    """A level of switches.

    nodes: how many nodes are below each of its switches, None for all; planes: how many separate switches
    every group of nodes has here; oversubscription: how much more its switches take in from below than they
    pass on.
    """

    nodes: int | None = None
    planes: int = 1
    oversubscription: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True)
class Fabric:
    """How copies of a node are joined.

    ports: devices of one node that the fabric's links leave from, such as its NICs. kind, lane_bandwidth
    (bytes/s), lanes, latency, overhead (s): of every port's link. oversubscription: how much more the leaves
    of a `tree` take in than they pass on. levels: of the shape `levels`, from the nodes up. group_nodes,
    group_links: of a dragonfly, how many nodes a group has, and links of one lane between every two groups.
    can: what its switches do, as for a `Device`; empty if they only forward.
    """

    shape: str
    ports: tuple[str, ...]
    kind: str
    lane_bandwidth: Fraction
    lanes: int = 1
    latency: float = 0.0
    overhead: float = 0.0
    planes: int = 1
    leaf_nodes: int = 16
    oversubscription: Fraction = Fraction(1)
    levels: tuple[Level, ...] = ()
    group_nodes: int = 0
    group_links: int = 0
    can: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise unknown("fabric shape", self.shape, SHAPES)
        if not self.ports:
            raise InputError("a fabric needs at least one port on every node")
        for planes in (self.planes, *(level.planes for level in self.levels)):
            if not 1 <= planes <= len(self.ports):
                raise InputError(f"{planes} planes for {len(self.ports)} ports; every plane needs a port")
        if self.leaf_nodes < 1 or self.oversubscription < 1:
            raise InputError("leaf_nodes and oversubscription must be at least 1")
        if (self.shape == "levels") != bool(self.levels):
            raise InputError("levels go with the shape levels, which needs at least one of them")
        if (self.shape == "dragonfly") != (self.group_nodes > 0 and self.group_links > 0):
            raise InputError("group_nodes and group_links, at least 1, go with the shape dragonfly, which needs both")
        levels = self.levels
        if len(levels) > MOST_LEVELS:
            raise InputError(f"{len(levels)} levels of switches; at most {MOST_LEVELS} are drawn")
        if any(level.oversubscription < 1 or (level.nodes is not None and level.nodes < 1) for level in levels):
            raise InputError("nodes and oversubscription of a level must be at least 1")
        if levels and (levels[-1].nodes is not None or levels[-1].oversubscription != 1):
            raise InputError("the last level is above all nodes: give it neither nodes nor oversubscription")
        for lower, upper in pairwise(levels):
            if lower.nodes is None or (upper.nodes is not None and upper.nodes % lower.nodes):
                what = "every level but the last says how many nodes it has"
                raise InputError(f"{what}, a multiple of those one level below")
            if upper.planes > lower.planes:
                raise InputError(f"{upper.planes} planes above {lower.planes}; planes can join on the way up, not part")
        self.switch(FABRIC)  # refuses what no switch can do

    def switch(self, name: str) -> Device:
        """One of its switches."""
        return Device(name, FABRIC, node=-1, can=self.can)

    def tiers(self) -> tuple[Level, ...]:
        """The levels of switches from the nodes up, whatever the shape; the groups of a dragonfly are its only one."""
        match self.shape:
            case "switch":
                return (Level(None, self.planes),)
            case "tree":
                return (Level(self.leaf_nodes, self.planes, self.oversubscription), Level(None, self.planes))
            case "dragonfly":
                return (Level(self.group_nodes),)
            case _:
                return self.levels

    def planes_of(self, port: int) -> list[int]:
        """The plane of the port with this number on every level."""
        return [*accumulate((level.planes for level in self.tiers()), mod, initial=port)][1:]

    def with_ports(self, ports: Sequence[str]) -> Fabric:
        """The fabric of nodes that have only these ports left."""
        levels = tuple(replace(level, planes=min(level.planes, len(ports))) for level in self.levels)
        return replace(self, ports=tuple(ports), planes=min(self.planes, len(ports)), levels=levels)

    def pairs(self, ends: Iterable[tuple[str, str]], times: Fraction = Fraction(1)) -> list[Link]:
        """The two links between each two devices, with `times` a port's bandwidth."""
        # Files tell links apart by the object that their rate is.
        rate = self.lane_bandwidth if times == 1 else self.lane_bandwidth * times
        one = Link("port", "switch", self.kind, rate, self.lanes, self.latency, self.overhead)
        ways = [way for a, b in ends for way in ((a, b), (b, a))]
        return copies([one] * len(ways), src=[a for a, _ in ways], dst=[b for _, b in ways])

    def uplink(self, level: int, plane: int) -> Fraction:
        """Bandwidth from a switch of a level to the next one up, as a multiple of a port's."""
        below = self.tiers()[: level + 1]
        ports = sum(self.planes_of(port)[level] == plane for port in range(len(self.ports)))
        return Fraction(ports * (below[-1].nodes or 0)) / prod(one.oversubscription for one in below)


# A switch of a fabric: its level from the nodes up, its plane, and which group of nodes it serves.
Switch = tuple[int, int, int]


def switches(fabric: Fabric, nodes: int) -> list[Switch]:
    """The switches for so many nodes, in the order of their devices: plane by plane if the planes stay apart."""
    tiers = fabric.tiers()
    found = [
        (level, plane, group)
        for level, tier in reversed(list(enumerate(tiers)))
        for plane in range(tier.planes)
        for group in range(1 if tier.nodes is None else -(-nodes // tier.nodes))
    ]
    apart = len({tier.planes for tier in tiers}) == 1
    return sorted(found, key=lambda switch: switch[1]) if apart else found


def join(fabric: Fabric, nodes: int) -> tuple[list[Device], list[Link]]:
    """The switches between `nodes` nodes called n0, n1 …, and all links to and between them."""
    if fabric.shape == "direct":
        return [], _back_to_back(fabric, nodes)
    found = switches(fabric, nodes)
    devices = [fabric.switch(_name(fabric, switch)) for switch in found]
    tiers, links = fabric.tiers(), list[Link]()
    width = tiers[0].nodes or nodes
    for plane in range(tiers[0].planes):
        for level, _, group in (switch for switch in found if switch[1] == plane and switch[0] + 1 < len(tiers)):
            # The links to the switch above.
            upper, below = tiers[level + 1], tiers[level].nodes
            above = (level + 1, plane % upper.planes, group * below // upper.nodes if below and upper.nodes else 0)
            ends = _name(fabric, (level, plane, group)), _name(fabric, above)
            links += fabric.pairs([ends], fabric.uplink(level, plane))
        ports = [port for number, port in enumerate(fabric.ports) if fabric.planes_of(number)[0] == plane]
        leaves = [_name(fabric, (0, plane, group)) for group in range(-(-nodes // width))]
        links += fabric.pairs((f"n{i}.{port}", leaves[i // width]) for i in range(nodes) for port in ports)
    if fabric.shape == "dragonfly":
        between = replace(fabric, lanes=fabric.group_links)
        links += between.pairs((a.name, b.name) for a, b in combinations(devices, 2))
    return devices, links


def _name(fabric: Fabric, switch: Switch) -> str:
    level, plane, group = switch
    tiers = fabric.tiers()
    name = "fabric" if tiers[level].planes == 1 else f"fabric{plane}"
    if fabric.shape == "dragonfly":
        return f"{name}.group{group}"
    if level == len(tiers) - 1:
        return name
    return f"{name}.{'leaf' if level == 0 else f'level{level + 1}.'}{group}"


def _back_to_back(fabric: Fabric, nodes: int) -> list[Link]:
    if nodes - 1 > len(fabric.ports):
        need = f"{nodes} nodes wired directly need {nodes - 1} ports each"
        raise InputError(f"{need}; this machine has {len(fabric.ports)}")
    ports, count = fabric.ports, len(fabric.ports)
    # Spread the ports over the peers; with one peer all ports join the same two nodes.
    shifts = range(count if nodes == 2 else 1)
    return fabric.pairs(
        (f"n{i}.{ports[(j - 1 + shift) % count]}", f"n{j}.{ports[(i + shift) % count]}")
        for i, j in combinations(range(nodes), 2)
        for shift in shifts
    )


EXAMPLE = "fabric shape=tree leaf_nodes=4 oversubscription=2"
COUNTS = ("planes", "leaf_nodes", "group_nodes", "group_links", "spine_planes")
PROPERTIES = ("shape", "oversubscription", *COUNTS)
_SHAPES = ("switch", "tree", "dragonfly", "direct")


def rewired(fabric: Fabric, changes: Mapping[str, str]) -> Fabric:
    """`fabric` with the same ports and rates in another shape.

    changes: as in a machine file's ``fabric`` section; what is not given is one plane, and as there by
    default. spine_planes: of a tree, how many separate spines its planes share: 1 joins rails that have
    leaves of their own. Raises `InputError` for other keys and values, and what no fabric can be.
    """
    for key in changes:
        if key not in PROPERTIES:
            raise unknown("property of a fabric", key, PROPERTIES, hint=f"(as in: {EXAMPLE})")
    shape = changes.get("shape", fabric.shape)
    if shape not in _SHAPES:
        raise unknown("shape of a fabric", shape, _SHAPES, hint="(other levels are written in a machine file)")
    given: dict[str, Any] = {key: whole(changes[key], key) for key in COUNTS if key in changes}
    if "oversubscription" in changes:
        text = changes["oversubscription"]
        match = re.fullmatch(r"([1-9][0-9]{0,3})(?:[:/]([1-9][0-9]{0,3}))?", text)
        ratio = Fraction(int(match[1]), int(match[2] or 1)) if match else Fraction(0)
        if ratio < 1:
            raise InputError(f"oversubscription={text:.40} is not a ratio of at least 1, such as 2 or 3:2")
        given["oversubscription"] = ratio
    spines = given.pop("spine_planes", None)
    for key in ("leaf_nodes", "oversubscription", "spine_planes"):
        if key in changes and shape != "tree":
            raise InputError(f"{key} goes with shape=tree, and this is {shape}; write it as in: {EXAMPLE}")
    times = fabric.latency, fabric.overhead
    plain = Fabric("switch", fabric.ports, fabric.kind, fabric.lane_bandwidth, fabric.lanes, *times)
    found = replace(plain, can=fabric.can, shape=shape, **given)
    if spines is None:
        return found
    leaves = Level(found.leaf_nodes, found.planes, found.oversubscription)
    return replace(plain, can=fabric.can, shape="levels", levels=(leaves, Level(None, spines)))
