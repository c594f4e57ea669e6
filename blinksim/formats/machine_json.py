"""The machine inside a schedule file: every device and link with exact rates, complete in itself.

Files of version 1 list devices and links one by one. Version 2 has columns, and each sort of device and link once.
Columns are packed: the differences of neighbours, as little-endian 64-bit numbers, compressed (xz), in base64; what
repeats from node to node takes next to nothing.

Bandwidths and capacities are bytes/s as exact text, latencies and overheads seconds. What only helps to make
further machines (symmetries, the fabric that joined the nodes) is left out; the fabric's links are included.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.errors import InputError
from blinksim.textio.strict_json import Entry, compressed, decompressed
from blinksim.topology.graph import ABILITIES, Device, Link, Topology

_MOST = 2**31 - 1
_TEXTS = ("name", "source", "rates")
_LISTS = ("members", "relays", "collective_links", "inter_node_links")
# Of a column, and bytes of a text: more than the sends of any schedule that is written out.
_MOST_LENGTH = 2**23
_DEVICE_NAME = re.compile(r"[A-Za-z0-9_.:/]{1,80}")


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


# --- columns ------------------------------------------------------------------------------------------------------


def packed(array: npt.NDArray[Any]) -> dict[str, Any]:
    """An array of whole numbers as its length and its compressed differences."""
    steps = np.diff(array.astype("<i8"), prepend=0)
    return {"length": len(array), "differences": compressed(steps.tobytes())}


def unpacked(entry: Entry, dtype: str) -> npt.NDArray[Any]:
    """The array of such an entry; raises `FileError` for what is none, or does not fit the type."""
    fields = entry.fields(("length", "differences"))
    length = fields["length"].whole(0, _MOST_LENGTH)
    data = decompressed(fields["differences"], 8 * length)
    if len(data) != 8 * length:
        raise entry.wrong(f"has {len(data)} bytes, but {length} numbers need {8 * length}")
    values = np.cumsum(np.frombuffer(data, dtype="<i8").astype(np.int64))
    limits = np.iinfo(dtype)
    if length and not limits.min <= int(values.min()) <= int(values.max()) <= limits.max:
        raise entry.wrong(f"holds numbers that are no {dtype}")
    return values.astype(dtype)


def columns_of(topology: Topology) -> dict[str, Any]:
    """The JSON object of a topology in columns."""
    devices: dict[str, int] = {}
    links: dict[tuple[object, ...], int] = {}
    device_sorts, link_sorts, device_sort, link_sort = [], [], [], []
    for device in topology.devices:
        example = device_to_json(device.placed("", 0))
        text = json.dumps(example, sort_keys=True)
        if text not in devices:
            devices[text] = len(devices)
            device_sorts.append(example)
        device_sort.append(devices[text])
    for link in topology.links:
        key = (link.kind, id(link.lane_bandwidth), link.lanes, link.latency, link.overhead)
        if key not in links:
            links[key] = len(links)
            link_sorts.append(link_to_json(link.between("", "", None)))
        link_sort.append(links[key])
    index, (src, dst) = topology.index, topology.ends
    buses = {bus: number for number, bus in enumerate(dict.fromkeys(link.bus for link in topology.links if link.bus))}

    def column(values: Any) -> dict[str, Any]:
        return packed(np.array(values, dtype=np.int64))

    return {
        **{key: getattr(topology, key) for key in (*_TEXTS, "nodes")},
        **{key: list(getattr(topology, key)) for key in _LISTS[2:]},
        "device_names": packed_text("\n".join(device.name for device in topology.devices)),
        "device_sorts": device_sorts,
        "device_sort": column(device_sort),
        "device_node": packed(topology.device_nodes),
        "link_sorts": link_sorts,
        "link_sort": column(link_sort),
        "link_src": packed(src),
        "link_dst": packed(dst),
        "bus_names": list(buses),
        "link_bus": column([buses[link.bus] if link.bus else -1 for link in topology.links]),
        **{key: column([index[name] for name in getattr(topology, key)]) for key in _LISTS[:2]},
    }


def packed_text(text: str) -> dict[str, Any]:
    """A text as its length and its compressed bytes."""
    data = text.encode("ascii")
    return {"length": len(data), "text": compressed(data)}


def unpacked_text(entry: Entry) -> bytes:
    """The text of such an entry; raises `FileError`."""
    fields = entry.fields(("length", "text"))
    return decompressed(fields["text"], fields["length"].whole(1, _MOST_LENGTH))


def from_columns(entry: Entry) -> Topology:
    """The topology of columns; raises `FileError` naming the key that is wrong."""
    columns = ("device_sort", "device_node", "link_sort", "link_src", "link_dst", "link_bus", "members", "relays")
    fields = entry.fields(
        (*_TEXTS, "nodes", *_LISTS[2:], *columns, "device_names", "device_sorts", "link_sorts", "bus_names")
    )
    of = {key: unpacked(fields[key], "int64").tolist() for key in columns}
    names = unpacked_text(fields["device_names"]).decode("ascii", errors="replace").split("\n")
    for name in names:
        if not _DEVICE_NAME.fullmatch(name):
            raise fields["device_names"].wrong(f"has {name[:80]!r}, which cannot name a device")
    devices = [read_device(item, "device") for item in fields["device_sorts"].items()]
    links = [read_link(item, "a", "b") for item in fields["link_sorts"].items()]
    buses = [item.text() for item in fields["bus_names"].items()]
    ends = {"device_sort": len(devices), "link_sort": len(links), "link_bus": len(buses)}
    ends |= dict.fromkeys(("link_src", "link_dst", "members", "relays"), len(names))
    for key, end in ends.items():
        low = -1 if key == "link_bus" else 0
        if of[key] and not low <= min(of[key]) <= max(of[key]) < end:
            raise fields[key].wrong(f"holds a number outside {low} to {end - 1}")
    if not len(names) == len(of["device_sort"]) == len(of["device_node"]):
        raise entry.wrong("has device columns of different lengths")
    if len({len(of[key]) for key in columns[2:6]}) > 1:
        raise entry.wrong("has link columns of different lengths")
    if any(a == b for a, b in zip(of["link_src"], of["link_dst"], strict=True)):
        raise fields["link_dst"].wrong("joins a device with itself")
    rows = zip(of["link_sort"], of["link_src"], of["link_dst"], of["link_bus"], strict=True)
    given: dict[str, Any] = {key: fields[key].text(10_000) for key in _TEXTS}
    given |= {key: tuple(item.text() for item in fields[key].items()) for key in _LISTS[2:]}
    given |= {key: tuple(names[place] for place in of[key]) for key in _LISTS[:2]}
    try:
        return Topology(
            devices=tuple(map(Device.placed, map(devices.__getitem__, of["device_sort"]), names, of["device_node"])),
            links=tuple(
                links[sort].between(names[a], names[b], buses[bus] if bus >= 0 else None) for sort, a, b, bus in rows
            ),
            nodes=fields["nodes"].whole(1, _MOST),
            **given,
        )
    except InputError as error:
        raise entry.wrong(str(error)) from None
