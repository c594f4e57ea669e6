"""The machine inside a schedule file: every device and link with exact rates, complete in itself.

Bandwidths and capacities are bytes/s as exact text, latencies and overheads seconds. What only helps to make
further machines (symmetries, the fabric that joined the nodes) is left out; the fabric's links are included.
"""

from __future__ import annotations

from typing import Any

from blinksim.errors import InputError
from blinksim.textio.strict_json import Entry
from blinksim.topology.graph import ABILITIES, Device, Link, Topology

_MOST = 2**31 - 1
_TEXTS = ("name", "source", "rates")
_LISTS = ("members", "relays", "collective_links", "inter_node_links")


def machine_to_json(topology: Topology) -> dict[str, Any]:
    """The JSON object of a topology; raises `InputError` if a device's attributes are not JSON."""
    return {
        **{key: getattr(topology, key) for key in _TEXTS},
        "nodes": topology.nodes,
        **{key: list(getattr(topology, key)) for key in _LISTS},
        "devices": [device_to_json(device) for device in topology.devices],
        "links": [link_to_json(link) for link in topology.links],
    }


def device_to_json(device: Device) -> dict[str, Any]:
    """The JSON object of a device."""
    result: dict[str, Any] = {"name": device.name, "kind": device.kind, "node": device.node}
    result["can"] = [ability for ability in ABILITIES if ability in device.can]
    if device.capacity is not None:
        result["capacity_Bps"] = str(device.capacity)
    if device.attributes:
        result["attributes"] = dict(device.attributes)
    return result


def link_to_json(link: Link) -> dict[str, Any]:
    """The JSON object of a link."""
    result: dict[str, Any] = {"src": link.src, "dst": link.dst, "kind": link.kind}
    result |= {"lane_bandwidth_Bps": str(link.lane_bandwidth), "lanes": link.lanes}
    result |= {"latency_s": link.latency, "overhead_s": link.overhead}
    if link.bus is not None:
        result["bus"] = link.bus
    return result


def machine_from_json(entry: Entry) -> Topology:
    """The topology of a JSON object; raises `FileError` naming the key that is wrong."""
    fields = entry.fields((*_TEXTS, "nodes", *_LISTS, "devices", "links"))
    given: dict[str, Any] = {key: fields[key].text(10_000) for key in _TEXTS}
    given |= {key: tuple(item.text() for item in fields[key].items()) for key in _LISTS}
    if not given["members"]:
        raise fields["members"].wrong("names no device; at least one must hold a rank")
    devices = tuple(read_device(item) for item in fields["devices"].items())
    links = tuple(read_link(item) for item in fields["links"].items())
    nodes = fields["nodes"].whole(1, _MOST)
    try:
        return Topology(devices=devices, links=links, nodes=nodes, **given)
    except InputError as error:
        raise entry.wrong(str(error)) from None


def read_device(entry: Entry, called: str | None = None) -> Device:
    """The device of a JSON object. called: its name, if not the one there."""
    fields = entry.fields(("name", "kind", "node", "can"), {"capacity_Bps": None, "attributes": {}})
    name = fields["name"].text() if called is None else called
    kind, node = fields["kind"].text(), fields["node"].whole(-1, _MOST)
    capacity = None if fields["capacity_Bps"].value is None else fields["capacity_Bps"].fraction()
    can = frozenset(item.text() for item in fields["can"].items())
    attributes = fields["attributes"].a(dict, "an object {…}")
    if not can:
        raise fields["can"].wrong(f"is empty; a device can do some of {', '.join(ABILITIES)}")
    try:
        return Device(name, kind, node, capacity, can, attributes)
    except InputError as error:
        raise entry.wrong(str(error)) from None


def read_link(entry: Entry, *ends: str) -> Link:
    """The link of a JSON object. ends: the names of both, if not those there."""
    keys = ("src", "dst", "kind", "lane_bandwidth_Bps", "lanes", "latency_s", "overhead_s")
    fields = entry.fields(keys, {"bus": None})
    bus = None if fields["bus"].value is None else fields["bus"].text()
    src, dst, kind = (fields[key].text(80) for key in keys[:3])
    src, dst = ends or (src, dst)
    rate, lanes = fields["lane_bandwidth_Bps"].fraction(), fields["lanes"].whole(1, _MOST)
    latency, overhead = (fields[key].number(0, 3600) for key in keys[5:])
    try:
        return Link(src, dst, kind, rate, lanes, latency, overhead, bus)
    except InputError as error:
        raise entry.wrong(str(error)) from None
