"""The devices and links that a fabric adds to copies of a node."""

from __future__ import annotations

from itertools import combinations

from blinksim.errors import InputError
from blinksim.topology.elements import Device, Link
from blinksim.topology.fabrics.fabric import Fabric

Switch = tuple[int, int, int]
"""A switch of a fabric: its level from the nodes up, its plane, and which group of nodes it serves."""


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
    plane_of = {port: fabric.planes_of(number)[0] for number, port in enumerate(fabric.ports)}
    width = fabric.tiers()[0].nodes or nodes
    links: list[Link] = []
    for plane in range(fabric.tiers()[0].planes):
        links += [link for switch in found if switch[1] == plane for link in _upwards(fabric, switch)]
        ports = [port for port in fabric.ports if plane_of[port] == plane]
        for i in range(nodes):
            leaf = _name(fabric, (0, plane, i // width))
            links += [link for port in ports for link in fabric.pair(f"n{i}.{port}", leaf)]
    if fabric.shape == "dragonfly":
        links += [link for a, b in combinations(devices, 2) for link in _between_groups(fabric, a.name, b.name)]
    return devices, links


def _upwards(fabric: Fabric, switch: Switch) -> list[Link]:
    """The links between a switch and the one above it, if there is one."""
    level, plane, group = switch
    tiers = fabric.tiers()
    if level + 1 == len(tiers):
        return []
    upper, width = tiers[level + 1], tiers[level].nodes
    above = (level + 1, plane % upper.planes, group * width // upper.nodes if width and upper.nodes else 0)
    return fabric.pair(_name(fabric, switch), _name(fabric, above), fabric.uplink(level, plane))


def _name(fabric: Fabric, switch: Switch) -> str:
    level, plane, group = switch
    tiers = fabric.tiers()
    name = "fabric" if tiers[level].planes == 1 else f"fabric{plane}"
    if fabric.shape == "dragonfly":
        return f"{name}.group{group}"
    if level == len(tiers) - 1:
        return name
    return f"{name}.{'leaf' if level == 0 else f'level{level + 1}.'}{group}"


def _between_groups(fabric: Fabric, a: str, b: str) -> list[Link]:
    ends = ((a, b), (b, a))
    rate, lanes = fabric.lane_bandwidth, fabric.group_links
    return [Link(src, dst, fabric.kind, rate, lanes, fabric.latency, fabric.overhead) for src, dst in ends]


def _back_to_back(fabric: Fabric, nodes: int) -> list[Link]:
    if nodes - 1 > len(fabric.ports):
        raise InputError(
            f"{nodes} nodes wired directly need {nodes - 1} ports each; this machine has {len(fabric.ports)}"
        )
    links = []
    for i in range(nodes):
        for j in range(i + 1, nodes):
            # Spread the ports over the peers; with one peer all ports join the same two nodes.
            for port in range(len(fabric.ports)):
                if nodes == 2 or port == 0:
                    a = fabric.ports[(j - 1 + port) % len(fabric.ports)]
                    b = fabric.ports[(i + port) % len(fabric.ports)]
                    links += fabric.pair(f"n{i}.{a}", f"n{j}.{b}")
    return links
