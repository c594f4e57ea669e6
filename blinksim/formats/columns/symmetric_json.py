"""Files of symmetric schedules, version 2: base chunks, the generators, and a machine in columns.

docs/schedule-file.md describes every key. Columns are packed: the differences of neighbours, as little-endian
64-bit numbers, compressed (xz), in base64; what repeats from node to node takes next to nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.formats.machine_json import device_to_json, link_to_json, read_device, read_link
from blinksim.schedule.model import ARRAYS, FORMS, MOST_DENOMINATOR, Schedule
from blinksim.schedule.symmetric import SymmetricSchedule
from blinksim.textio.strict_json import Entry, compressed, decompressed, parse
from blinksim.topology.graph import Topology
from blinksim.topology.group import CommutingGroup

VERSION = 2
_MOST_LENGTH = 2**26
_MOST_TEXT = 2**26
_HEAD = ("format", "version", "algorithm", "form", "collective", "machine", "share_den")
_CERTIFICATE = "certificate"
_NAMES = ("name", "source", "rates", "nodes", "collective_links", "inter_node_links")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9_.:/]{1,80}")


def to_text(whole: SymmetricSchedule, name: str) -> str:
    """The JSON text of a schedule by symmetry. name: of the format."""
    base = whole.base
    collective: dict[str, Any] = {"name": base.collective.name}
    if base.collective.rooted:
        collective["root"] = base.collective.root
    document = {
        "format": name,
        "version": VERSION,
        "algorithm": base.algorithm,
        "form": base.form,
        "collective": collective,
        "machine": _machine(base.topology),
        "share_den": base.share_den,
        **{key: packed(getattr(base, key)) for key in ARRAYS},
        "generators": [packed(turn) for turn in whole.turns.generators],
    }
    try:
        bound = {key: value for key, value in base.bound.items() if key != _CERTIFICATE}
        document["bound"] = bound
        if _CERTIFICATE in base.bound:
            document[_CERTIFICATE] = _packed_text(json.dumps(base.bound[_CERTIFICATE], allow_nan=False))
        lines = [f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in document.items()]
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{base.algorithm}: this schedule cannot be written as JSON: {error}") from None
    return "{\n" + ",\n".join(lines) + "\n}\n"


def from_document(whole: Entry, collective: Collective) -> SymmetricSchedule:
    """The schedule of a parsed document of version 2; raises `FileError` naming the key that is wrong."""
    fields = whole.fields((*_HEAD, *ARRAYS, "generators", "bound"), {_CERTIFICATE: None})
    form = fields["form"].text()
    if form not in FORMS:
        raise fields["form"].wrong(f"must be {' or '.join(FORMS)}, not {form[:40]!r}")
    topology = _read_machine(fields["machine"])
    arrays = {key: unpacked(fields[key], dtype) for key, dtype in ARRAYS.items()}
    if bool((arrays["route_start"][1:] == arrays["route_start"][:-1]).any()):
        raise fields["route_start"].wrong("has a route without links; leave it out")
    algorithm, share_den = fields["algorithm"].text(200), fields["share_den"].whole(1, MOST_DENOMINATOR)
    bound = dict(fields["bound"].a(dict, "an object {…}"))
    if fields[_CERTIFICATE].value is not None:
        bound[_CERTIFICATE] = parse(whole.path, _unpacked_text(fields[_CERTIFICATE]), "certificate")
    generators = [unpacked(item, "int64") for item in fields["generators"].items()]
    try:
        turns = CommutingGroup.of(topology, generators)
        return SymmetricSchedule(
            Schedule(topology, collective, algorithm, form, share_den=share_den, bound=bound, **arrays), turns
        )
    except InputError as error:
        raise whole.wrong(str(error)) from None


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


# --- the machine --------------------------------------------------------------------------------------------------


def _machine(topology: Topology) -> dict[str, Any]:
    sorts: dict[str, int] = {}
    devices: list[dict[str, Any]] = []
    links: dict[tuple[object, ...], int] = {}
    device_sort, link_sort, examples = [], [], []
    for device in topology.devices:
        example = device_to_json(device.placed("", 0))
        text = json.dumps(example, sort_keys=True)
        if text not in sorts:
            sorts[text] = len(sorts)
            devices.append(example)
        device_sort.append(sorts[text])
    for link in topology.links:
        key = (link.kind, id(link.lane_bandwidth), link.lanes, link.latency, link.overhead)
        if key not in links:
            links[key] = len(links)
            examples.append(link_to_json(link.between("", "", None)))
        link_sort.append(links[key])
    index, (src, dst) = topology.index, topology.ends
    buses = {bus: number for number, bus in enumerate(dict.fromkeys(link.bus for link in topology.links if link.bus))}
    names = "\n".join(device.name for device in topology.devices)
    return {
        **{key: getattr(topology, key) for key in _NAMES[:4]},
        **{key: list(getattr(topology, key)) for key in _NAMES[4:]},
        "device_names": _packed_text(names),
        "device_sorts": devices,
        "device_sort": packed(np.array(device_sort, dtype=np.int64)),
        "device_node": packed(topology.device_nodes),
        "link_sorts": examples,
        "link_sort": packed(np.array(link_sort, dtype=np.int64)),
        "link_src": packed(src),
        "link_dst": packed(dst),
        "bus_names": list(buses),
        "link_bus": packed(np.array([buses[link.bus] if link.bus else -1 for link in topology.links], dtype=np.int64)),
        "members": packed(np.array([index[name] for name in topology.members], dtype=np.int64)),
        "relays": packed(np.array([index[name] for name in topology.relays], dtype=np.int64)),
    }


def _packed_text(text: str) -> dict[str, Any]:
    data = text.encode("ascii")
    return {"length": len(data), "text": compressed(data)}


def _unpacked_text(entry: Entry) -> bytes:
    """The text of such an entry; raises `FileError`."""
    fields = entry.fields(("length", "text"))
    return decompressed(fields["text"], fields["length"].whole(1, _MOST_TEXT))


def _read_machine(entry: Entry) -> Topology:
    columns = ("device_sort", "device_node", "link_sort", "link_src", "link_dst", "link_bus", "members", "relays")
    fields = entry.fields((*_NAMES, *columns, "device_names", "device_sorts", "link_sorts", "bus_names"))
    of = {key: unpacked(fields[key], "int64").tolist() for key in columns}
    names = _unpacked_text(fields["device_names"]).decode("ascii", errors="replace").split("\n")
    for one in names:
        if not _DEVICE_NAME.fullmatch(one):
            raise fields["device_names"].wrong(f"has {one[:80]!r}, which cannot name a device")
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
    name, source, rates = (fields[key].text(10_000) for key in ("name", "source", "rates"))
    collective_links, inter_node_links = (tuple(item.text() for item in fields[key].items()) for key in _NAMES[4:])
    try:
        return Topology(
            devices=tuple(
                devices[sort].placed(one, node)
                for one, sort, node in zip(names, of["device_sort"], of["device_node"], strict=True)
            ),
            links=tuple(
                links[sort].between(names[a], names[b], buses[bus] if bus >= 0 else None) for sort, a, b, bus in rows
            ),
            members=tuple(names[place] for place in of["members"]),
            relays=tuple(names[place] for place in of["relays"]),
            nodes=fields["nodes"].whole(1, 2**31 - 1),
            name=name,
            source=source,
            rates=rates,
            collective_links=collective_links,
            inter_node_links=inter_node_links,
        )
    except InputError as error:
        raise entry.wrong(str(error)) from None
