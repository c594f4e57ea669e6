"""Writing a topology as a machine file that reads back as an equal one.

A class takes the commonest numbers of its links; a link that differs, as after an edit, states its own. The file holds
the one set of rates that the topology has, under its name (`rates:`), not the tables that it was chosen from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from blinksim.cost import execution_section
from blinksim.errors import InputError
from blinksim.textio.yaml_text import decimal_text, dump, rate_text, time_text
from blinksim.topology.fabric import Fabric, Level
from blinksim.topology.graph import Device, Link, Topology

_Numbers = tuple[Fraction, float, float]


def write(topology: Topology) -> str:
    """YAML text of `topology`, from which `machine_yaml.read_text` makes an equal one.

    Names in `collective_links` and `inter_node_links` of which no link is left select nothing and are left out. Raises
    `InputError` for attributes that are not numbers, truth values or text.
    """
    classes = _classes(topology)
    head: dict[str, Any] = {"name": topology.name}
    if topology.source.strip():
        head["source"] = topology.source
    if topology.rates != "nominal":
        head["rates"] = topology.rates
    if topology.nodes != 1:
        head["nodes"] = topology.nodes
    origin = topology.source if topology.source.strip() and len(topology.source) < 2000 else f"as in {topology.name}"
    table = {
        kind: {
            "bandwidth": rate_text(rate),
            "latency": time_text(latency),
            "overhead": time_text(overhead),
            "source": origin,
        }
        for kind, (rate, latency, overhead) in classes.items()
    }
    tail: dict[str, Any] = {}
    if topology.members != tuple(device.name for device in topology.devices if device.holds):
        tail["members"] = list(topology.members)
    if topology.relays:
        tail["relays"] = list(topology.relays)
    for key in ("collective_links", "inter_node_links"):
        kinds = [kind for kind in getattr(topology, key) if kind in classes]
        if kinds:
            tail[key] = kinds
    if topology.fabric:
        tail["fabric"] = _fabric(topology.fabric, classes[topology.fabric.kind])
    if topology.symmetries:
        names = [device.name for device in topology.devices]
        tail["symmetries"] = [
            {names[old]: names[new] for old, new in enumerate(perm) if old != new} for perm in topology.symmetries
        ]
    parts: list[dict[str, Any]] = [
        head,
        {"devices": [_device(device) for device in topology.devices]},
        {"link_classes": table},
        {"links": _links(topology.links, classes)},
        tail,
    ]
    if topology.execution is not None or topology.nccl_rates is not None:
        parts.append({"execution": execution_section.write(topology.execution, topology.nccl_rates)})
    return "\n".join(dump(part) for part in parts if part)


def _classes(topology: Topology) -> dict[str, _Numbers]:
    found: dict[str, Counter[_Numbers]] = {}
    for link in topology.links:
        found.setdefault(link.kind, Counter())[link.lane_bandwidth, link.latency, link.overhead] += 1
    fabric = topology.fabric
    if fabric:
        found.setdefault(fabric.kind, Counter([(fabric.lane_bandwidth, fabric.latency, fabric.overhead)]))
    return {kind: numbers.most_common(1)[0][0] for kind, numbers in found.items()}


def _device(device: Device) -> dict[str, Any]:
    row: dict[str, Any] = {"name": device.name, "kind": device.kind}
    if device.node:
        row["node"] = device.node
    if device.capacity is not None:
        row["capacity"] = rate_text(device.capacity)
    if device.can != Device(device.name, device.kind).can:
        row["can"] = sorted(device.can)
    if device.attributes:
        row["attributes"] = _attributes(device.name, device.attributes)
    return row


def _attributes(name: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in attributes.items():
        plain = isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))
        if not plain and not isinstance(value, str):
            raise InputError(f"attribute {key} of {name} is {value!r}; a machine file takes numbers and text")
    return dict(attributes)


def _links(links: tuple[Link, ...], classes: Mapping[str, _Numbers]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    position = 0
    while position < len(links):
        link = links[position]
        back = Link(
            link.dst, link.src, link.kind, link.lane_bandwidth, link.lanes, link.latency, link.overhead, link.bus
        )
        both = position + 1 < len(links) and links[position + 1] == back
        row: dict[str, Any] = {"between": [link.src, link.dst]} if both else {"from": link.src, "to": link.dst}
        row["class"] = link.kind
        if link.lanes != 1:
            row["lanes"] = link.lanes
        if link.bus is not None:
            row["bus"] = link.bus
        row |= _own((link.lane_bandwidth, link.latency, link.overhead), classes[link.kind])
        rows.append(row)
        position += 2 if both else 1
    return rows


def _fabric(fabric: Fabric, numbers: _Numbers) -> dict[str, Any]:
    row: dict[str, Any] = {"shape": fabric.shape, "ports": list(fabric.ports), "class": fabric.kind}
    row |= {"lanes": fabric.lanes, "planes": fabric.planes, "leaf_nodes": fabric.leaf_nodes}
    row["oversubscription"] = decimal_text(fabric.oversubscription)
    if fabric.levels:
        row["levels"] = [_level(level) for level in fabric.levels]
    if fabric.group_nodes:
        row |= {"group_nodes": fabric.group_nodes, "group_links": fabric.group_links}
    row |= {"can": sorted(fabric.can)} if fabric.can else {}
    return row | _own((fabric.lane_bandwidth, fabric.latency, fabric.overhead), numbers)


def _level(level: Level) -> dict[str, Any]:
    row: dict[str, Any] = {} if level.nodes is None else {"nodes": level.nodes}
    if level.oversubscription != 1:
        row["oversubscription"] = decimal_text(level.oversubscription)
    return row | {"planes": level.planes}


def _own(numbers: _Numbers, usual: _Numbers) -> dict[str, str]:
    """Those of the numbers that differ from what is usual in the class."""
    texts = (rate_text(numbers[0]), time_text(numbers[1]), time_text(numbers[2]))
    keys = ("bandwidth", "latency", "overhead")
    return {key: text for key, text, a, b in zip(keys, texts, numbers, usual, strict=True) if a != b}
