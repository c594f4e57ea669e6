"""Schedule files: one JSON object with machine, collective, arrays, bound and certificate.

docs/schedule-file.md describes every key. In version 1 arrays are plain lists while they are short; longer
ones are base64 of their little-endian bytes, so that a million sends take a minute rather than an hour of
reading digits. Version 2 holds a schedule by symmetry: base chunks, the generators, and a machine in columns.
Version 3 is version 1 with several groups in place of the collective.

The machine is complete in itself, with exact rates: bandwidths and capacities are bytes/s as exact text,
latencies and overheads seconds. What only helps to make further machines (symmetries, the fabric that joined
the nodes) is left out; the fabric's links are included. Version 1 lists devices and links one by one. Version
2 has columns, and each sort of device and link once. Columns are packed: the differences of neighbours, as
little-endian 64-bit numbers, compressed (xz), in base64; what repeats from node to node takes next to
nothing.

Schedules from files, own and foreign, on a given machine: blinksim's JSON, MSCCL's XML, MSCCL++'s plans.

A schedule file names devices and links; it runs where the machine has them. A runtime's file names ranks
only: they are the members of the machine in order, and routes are the machine's.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Hashable, Mapping, Sequence
from math import isqrt, prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim import data_files
from blinksim.collective import ALLTOALLV, COLLECTIVES, OF_EXPERTS, Collective
from blinksim.errors import FileError, InfeasibleError, InputError, blamed_on, unknown
from blinksim.formats.registry import Format, GivenFile, taken
from blinksim.results import keyed
from blinksim.schedule.candidate import Candidate, SymmetricSchedule, as_compact
from blinksim.schedule.model import ARRAYS, FORMS, MOST_DENOMINATOR, Schedule, ScheduleLike, Tenant, as_schedule, rebase
from blinksim.schedule.verify import verify
from blinksim.textio import safe_xml
from blinksim.textio.strict_json import Entry, compressed, decompressed, pack, parse, unpack
from blinksim.textio.text_files import MIB, STDIN, read_bytes, standard_input, write_bytes
from blinksim.topology.elements import ABILITIES, copies
from blinksim.topology.graph import Device, Link, Topology
from blinksim.topology.symmetry import CommutingGroup
from blinksim.traffic import MOST_IDS, Routing, Traffic

_MOST = 2**31 - 1
_TEXTS = ("name", "source", "rates")
_LISTS = ("members", "relays", "collective_links", "inter_node_links")
# Of a column, and bytes of a text: more than the sends of any schedule that is written out.
_MOST_LENGTH = 2**23
_DEVICE_NAME = re.compile(r"[A-Za-z0-9_.:/]{1,80}")


def machine_to_json(topology: Topology) -> dict[str, Any]:
    """The JSON object of a topology; raises `InputError` if a device's attributes are not JSON."""
    devices, links = [*map(device_to_json, topology.devices)], [*map(link_to_json, topology.links)]
    keys = (*_TEXTS, "nodes", "edits", *_LISTS, "devices", "links")
    return keyed(topology, " ".join(keys), devices=devices, links=links)


def collective_to_json(collective: Collective) -> dict[str, Any]:
    """The JSON object of a collective, with its matrix or routing."""
    found: dict[str, Any] = {"name": collective.name}
    if collective.rooted:
        found["root"] = collective.root
    if collective.traffic is not None:
        found["traffic"] = _encode(collective.traffic.matrix.ravel())
    if (routing := collective.routing) is not None:
        shape = dict(zip(_ROUTING, routing.wanted.shape, strict=True))
        found["routing"] = shape | {"token_bytes": routing.token_size, "wanted": _encode(routing.wanted.ravel())}
    return found


def device_to_json(device: Device) -> dict[str, Any]:
    """The JSON object of a device."""
    can = [ability for ability in ABILITIES if ability in device.can]
    capacity = None if device.capacity is None else str(device.capacity)
    keys, attributes = "name kind node can capacity_Bps? attributes?", dict(device.attributes) or None
    return keyed(device, keys, can=can, capacity_Bps=capacity, attributes=attributes)


def link_to_json(link: Link) -> dict[str, Any]:
    """The JSON object of a link."""
    return keyed(link, "@Link", lane_bandwidth_Bps=str(link.lane_bandwidth))


def machine_from_json(entry: Entry) -> Topology:
    """The topology of a JSON object; raises `FileError` naming the key that is wrong."""
    fields = entry.fields((*_TEXTS, "nodes", *_LISTS, "devices", "links"), {"edits": []})
    given: dict[str, Any] = {key: fields[key].text(10_000) for key in _TEXTS}
    given |= {key: tuple(item.text(10_000) for item in fields[key].items()) for key in (*_LISTS, "edits")}
    if not given["members"]:
        raise fields["members"].wrong("names no device; at least one must hold a rank")
    devices = tuple(read_device(item) for item in fields["devices"].items())
    links = tuple(read_link(item) for item in fields["links"].items())
    nodes = fields["nodes"].whole(1, _MOST)
    with blamed_on(entry.wrong):
        return Topology(devices=devices, links=links, nodes=nodes, **given)


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
    with blamed_on(entry.wrong):
        return Device(name, kind, node, capacity, can, attributes)


def read_link(entry: Entry, *ends: str) -> Link:
    """The link of a JSON object. ends: the names of both, if not those there."""
    keys = ("src", "dst", "kind", "lane_bandwidth_Bps", "lanes", "latency_s", "overhead_s")
    fields = entry.fields(keys, {"bus": None})
    bus = None if fields["bus"].value is None else fields["bus"].text()
    src, dst, kind = (fields[key].text(80) for key in keys[:3])
    src, dst = ends or (src, dst)
    rate, lanes = fields["lane_bandwidth_Bps"].fraction(), fields["lanes"].whole(1, _MOST)
    latency, overhead = (fields[key].number(0, 3600) for key in keys[5:])
    with blamed_on(entry.wrong):
        return Link(src, dst, kind, rate, lanes, latency, overhead, bus)


# --- columns ------------------------------------------------------------------------------------------------------


def packed(array: npt.ArrayLike) -> dict[str, Any]:
    """Whole numbers as their count and their compressed differences."""
    numbers = np.asarray(array, dtype="<i8")
    return {"length": len(numbers), "differences": compressed(np.diff(numbers, prepend=0).tobytes())}


def unpacked(entry: Entry, dtype: str) -> npt.NDArray[Any]:
    """The array of such an entry; raises `FileError` for what is none, or does not fit the type."""
    fields = entry.fields(("length", "differences"))
    length = fields["length"].whole(0, _MOST_LENGTH)
    if len(data := decompressed(fields["differences"], 8 * length)) != 8 * length:
        raise entry.wrong(f"has {len(data)} bytes, but {length} numbers need {8 * length}")
    values = np.cumsum(np.frombuffer(data, dtype="<i8").astype(np.int64))
    limits = np.iinfo(dtype)
    if length and not limits.min <= int(values.min()) <= int(values.max()) <= limits.max:
        raise entry.wrong(f"holds numbers that are no {dtype}")
    return values.astype(dtype)


def columns_of(topology: Topology) -> dict[str, Any]:
    """The JSON object of a topology in columns."""
    links, index, (src, dst) = topology.links, topology.index, topology.ends
    examples = [*map(device_to_json, copies(topology.devices, name=[""] * len(index), node=[0] * len(index)))]
    devices, device_sort = _first_of_each([json.dumps(example, sort_keys=True) for example in examples])
    figures = [(link.kind, id(link.lane_bandwidth), link.lanes, link.latency, link.overhead) for link in links]
    link_sorts, link_sort = _first_of_each(figures)
    buses = {bus: number for number, bus in enumerate(dict.fromkeys(link.bus for link in links if link.bus))}

    found = keyed(topology, " ".join((*_TEXTS, "nodes", "edits", *_LISTS[2:])))
    found["device_names"] = packed_text("\n".join(device.name for device in topology.devices))
    found |= {"device_sorts": [examples[place] for place in devices], "device_sort": packed(device_sort)}
    found["device_node"] = packed(topology.device_nodes)
    found["link_sorts"] = [link_to_json(links[place].between("", "", None)) for place in link_sorts]
    found |= {"link_sort": packed(link_sort), "link_src": packed(src), "link_dst": packed(dst)}
    bus = packed([buses[link.bus] if link.bus else -1 for link in links])
    members = {key: packed([index[name] for name in getattr(topology, key)]) for key in _LISTS[:2]}
    return found | {"bus_names": list(buses), "link_bus": bus, **members}


def _first_of_each(keys: Sequence[Hashable]) -> tuple[list[int], list[int]]:
    """Where each key comes first, and the number of the key at every place."""
    first = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))
    number = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    return [first[key] for key in number], [number[key] for key in keys]


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
    sorts = ("device_names", "device_sorts", "link_sorts", "bus_names")
    fields = entry.fields((*_TEXTS, "nodes", *_LISTS[2:], *columns, *sorts), {"edits": []})
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
    src, dst = ([names[place] for place in of[key]] for key in ("link_src", "link_dst"))
    bus = [buses[number] if number >= 0 else None for number in of["link_bus"]]
    given: dict[str, Any] = {key: fields[key].text(10_000) for key in _TEXTS}
    given |= {key: tuple(item.text(10_000) for item in fields[key].items()) for key in (*_LISTS[2:], "edits")}
    given |= {key: tuple(names[place] for place in of[key]) for key in _LISTS[:2]}
    with blamed_on(entry.wrong):
        return Topology(
            devices=tuple(copies([devices[sort] for sort in of["device_sort"]], name=names, node=of["device_node"])),
            links=tuple(copies([links[sort] for sort in of["link_sort"]], src=src, dst=dst, bus=bus)),
            nodes=fields["nodes"].whole(1, _MOST),
            **given,
        )


FORMAT, VERSION, SYMMETRIC_VERSION, GROUPS_VERSION = "blinksim-schedule", 1, 2, 3
MOST_BYTES = 256 * MIB
LONGEST_LIST = 4096
# Sends up to which a schedule by symmetry is written out, for readers of version 1: a file of about 1 MB.
MOST_WRITTEN_OUT = 24_000
_KEYS = ("format", "version", "algorithm", "form", "machine", "share_den", *ARRAYS, "bound")
_CERTIFICATE = "certificate"
_OPTIONAL = dict[int, dict[str, Any]]()
_OPTIONAL |= {SYMMETRIC_VERSION: {_CERTIFICATE: None}, GROUPS_VERSION: {"size_bytes": 0}}
_ROUTING = "ranks", "tokens", "top_k"


def write_schedule(schedule: ScheduleLike, path: str | os.PathLike[str], force: bool = False) -> None:
    """Write a schedule file, compressed if the path ends in ``.gz``.

    Parameters
    ----------
    schedule : Schedule
        What to write. One by symmetry is written out where that is small; else the file says its chunks once.
    path : str or path
        Where.
    force : bool
        Replace a file that exists.

    Raises
    ------
    InputError
        If the file exists and `force` is not given, or if the bound or a device's attributes hold a value
        that JSON cannot represent.
    FileError
        If the file cannot be written.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.write_schedule(bs.synthesize("dgx1-v100", "allgather", "ring").schedule, "ring.json.gz")
    """
    text = to_text(as_compact(schedule))
    write_bytes(path, pack(text) if os.fspath(path).endswith(".gz") else text.encode("utf-8"), force)


def read_schedule(path: str | os.PathLike[str]) -> Schedule:
    """Reads a schedule file, compressed or not.

    What the schedule does is not checked here: `blinksim.verify` does that.

    Parameters
    ----------
    path : str or path
        A file that `write_schedule` wrote, or the name of a schedule that comes with blinksim, such as
        ``dgx1-v100-8-allreduce``. A file of that name goes first.

    Returns
    -------
    Schedule
        With the machine, the bound and the certificate that the file holds.

    Raises
    ------
    FileError
        If anything is not as `write_schedule` writes it; the message names the key.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.write(bs.synthesize("dgx1-v100", "allgather", "ring").schedule, "ring.json")
    >>> bs.read_schedule("ring.json").algorithm
    'ring'
    """
    path = located(path)
    data = unpack(path, read_bytes(path, MOST_BYTES, "schedule"), MOST_BYTES, "schedule")
    return as_schedule(compact_from_document(path, parse(path, data, "schedule")))


def to_text(schedule: Schedule | SymmetricSchedule) -> str:
    """The JSON text of a schedule."""
    whole = None
    if isinstance(schedule, SymmetricSchedule):
        whole = schedule if schedule.sends > MOST_WRITTEN_OUT else None
        schedule = schedule.schedule if whole is None else schedule.base
    if schedule.share_den > MOST_DENOMINATOR:
        raise InputError(f"{schedule.does}: no file holds shares with a denominator above 2^40")
    version, machine, array = VERSION, machine_to_json, _encode
    if whole is not None:
        version, machine, array = SYMMETRIC_VERSION, columns_of, packed
    what, of = "collective", collective_to_json
    parts: dict[str, Any] = {"collective": of(schedule.collective), "machine": machine(schedule.topology)}
    if schedule.groups:
        version, what, keys = GROUPS_VERSION, "groups", "members relays relays_reduce collective share"
        both = [(one, {"collective": of(one.collective), "share": str(one.share)}) for one in schedule.groups]
        parts["groups"] = [keyed(one, keys, **own) for one, own in both]
    document: dict[str, Any] = {"format": FORMAT, "version": version}
    document |= keyed(schedule, f"algorithm form {what} size_bytes?=size machine share_den", **parts)
    document |= {name: array(getattr(schedule, name)) for name in ARRAYS}
    bound, refused = dict(schedule.bound), (TypeError, ValueError, RecursionError)
    with blamed_on(f"{schedule.algorithm}: this schedule cannot be written as JSON", refused):
        if whole is None:
            # One key a line, for readability.
            lines = [f"{json.dumps(key)}: {_dump(value)}" for key, value in (document | {"bound": bound}).items()]
        else:
            document["generators"] = [packed(turn) for turn in whole.group.generators]
            document["bound"] = {key: value for key, value in bound.items() if key != _CERTIFICATE}
            if _CERTIFICATE in bound:
                document[_CERTIFICATE] = packed_text(json.dumps(bound[_CERTIFICATE], allow_nan=False))
            lines = [f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in document.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _dump(value: Any) -> str:
    if not isinstance(value, dict) or "base64" in value:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    rows = []
    for key, inner in value.items():
        if isinstance(inner, list) and inner and isinstance(inner[0], dict):
            text = "[\n    " + ",\n    ".join(json.dumps(item, allow_nan=False) for item in inner) + "\n  ]"
        else:
            text = json.dumps(inner, allow_nan=False)
        rows.append(f"{json.dumps(key)}: {text}")
    return "{\n  " + ",\n  ".join(rows) + "\n}" if rows else "{}"


def _encode(array: npt.NDArray[Any]) -> Any:
    if len(array) <= LONGEST_LIST:
        return array.tolist()
    data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
    return {"dtype": array.dtype.name, "length": len(array), "base64": base64.b64encode(data).decode("ascii")}


def compact_from_document(path: str | os.PathLike[str], document: Any) -> Schedule | SymmetricSchedule:
    """The schedule of a parsed JSON document in the form that it has; `path` is for messages only."""
    whole = Entry(path, "", document)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise whole.wrong(f'is no schedule: it must be an object with "format": "{FORMAT}"')
    version = document.get("version")
    if type(version) is not int or version not in (VERSION, SYMMETRIC_VERSION, GROUPS_VERSION):
        reads = f"this blinksim reads versions {VERSION} to {GROUPS_VERSION}"
        raise whole.wrong(f"has version {str(version)[:20]}; {reads}")
    symmetric, what = version == SYMMETRIC_VERSION, {GROUPS_VERSION: "groups"}.get(version, "collective")
    fields = whole.fields((*_KEYS, what, *["generators"] * symmetric), _OPTIONAL.get(version))
    if (form := fields["form"].text()) not in FORMS:
        raise fields["form"].wrong(f"must be {' or '.join(FORMS)}, not {form[:40]!r}")
    array, machine = (unpacked, from_columns) if symmetric else (_decode, machine_from_json)
    arrays = {name: array(fields[name], dtype) for name, dtype in ARRAYS.items()}
    topology, groups, size = machine(fields["machine"]), tuple[Tenant, ...](), None
    if what == "groups":
        if not (groups := tuple(map(_tenant, fields[what].items()))):
            raise fields[what].wrong("names no group")
        size = fields["size_bytes"].whole(0, 2**63 - 1) or None
    collective = groups[0].collective if groups else _collective(fields[what])
    algorithm, share_den = fields["algorithm"].text(200), fields["share_den"].whole(1, MOST_DENOMINATOR)
    bound = dict(fields["bound"].a(dict, "an object {…}"))
    if bool((arrays["route_start"][1:] == arrays["route_start"][:-1]).any()):
        raise fields["route_start"].wrong("has a route without links; leave it out")
    generators = []
    if symmetric:
        generators = [unpacked(item, "int64") for item in fields["generators"].items()]
        if fields[_CERTIFICATE].value is not None:
            bound[_CERTIFICATE] = parse(whole.path, unpacked_text(fields[_CERTIFICATE]), "certificate")
    with blamed_on(whole.wrong):
        given: dict[str, Any] = {**arrays, "share_den": share_den, "bound": bound, "groups": groups, "size": size}
        schedule = Schedule(topology, collective, algorithm, form, **given)
        return SymmetricSchedule(schedule, CommutingGroup.of(topology, generators)) if symmetric else schedule


def _collective(entry: Entry) -> Collective:
    fields = entry.fields(("name",), {"root": None, "traffic": None, "routing": None})
    name = fields["name"].text()
    if name in OF_EXPERTS:
        routed = fields["routing"]
        if routed.value is None:
            raise routed.wrong("is missing: the ranks that every token goes to")
        given = routed.fields((*_ROUTING, "token_bytes", "wanted"))
        shape = [given[key].whole(1, MOST_IDS) for key in _ROUTING]
        size, wanted = given["token_bytes"].whole(1, _MOST), _decode(given["wanted"], "int16")
        if len(wanted) != prod(shape):
            each = f"not one for each of {shape[2]} experts of a token"
            raise given["wanted"].wrong(f"has {len(wanted)} entries, {each}")
        with blamed_on(routed.wrong):
            # Every rank holds one expert, its own: replicas were chosen when the routing was made.
            routing = Routing(wanted.reshape(shape), shape[0], token_size=size)
        return Collective(name, routing=routing)
    if fields["routing"].value is not None:
        raise fields["routing"].wrong(f"goes with {' and '.join(OF_EXPERTS)}")
    if name == ALLTOALLV or fields["traffic"].value is not None:
        # The alltoallv of a file: its matrix row by row.
        if name != ALLTOALLV or fields["root"].value is not None:
            raise fields["traffic"].wrong(f"goes with {ALLTOALLV}, without a root")
        if fields["traffic"].value is None:
            raise fields["traffic"].wrong("is missing: the bytes from every rank to every other, row by row")
        flat = _decode(fields["traffic"], "int64")
        ranks = isqrt(len(flat))
        if ranks * ranks != len(flat):
            raise fields["traffic"].wrong(f"has {len(flat)} entries, which are no square matrix")
        with blamed_on(fields["traffic"].wrong):
            return Collective(name, traffic=Traffic(flat.reshape(ranks, ranks)))
    if name not in COLLECTIVES:
        raise fields["name"].wrong(str(unknown("collective", name[:80], COLLECTIVES)))
    if Collective(name).rooted:
        return Collective(name, fields["root"].whole(0, 2**31 - 1))
    if fields["root"].value is not None:
        raise fields["root"].wrong(f"{name} has no root; leave it out")
    return Collective(name)


def _tenant(entry: Entry) -> Tenant:
    fields = entry.fields(("members", "relays", "relays_reduce", "collective", "share"))
    members, relays = (tuple(x.text() for x in fields[key].items()) for key in ("members", "relays"))
    if not members:
        raise fields["members"].wrong("names no device")
    reduces, share = fields["relays_reduce"].a(bool, "true or false"), fields["share"].fraction()
    return Tenant(members, relays, reduces, _collective(fields["collective"]), share)


def _decode(entry: Entry, dtype: str) -> npt.NDArray[Any]:
    if isinstance(entry.value, list):
        limits = np.iinfo(dtype)
        for number, value in enumerate(entry.value):
            if type(value) is not int or not limits.min <= value <= limits.max:
                Entry(entry.path, f"{entry.place}[{number}]", value).whole(int(limits.min), int(limits.max))
        return np.array(entry.value, dtype=dtype)
    if not isinstance(entry.value, dict):
        raise entry.wrong("must be a list of whole numbers, or an object with dtype, length and base64")
    fields = entry.fields(("dtype", "length", "base64"))
    if fields["dtype"].text() != dtype:
        raise fields["dtype"].wrong(f"must be {dtype!r}")
    length = fields["length"].whole(0, 2**31 - 1)
    with blamed_on(lambda _: fields["base64"].wrong("is not base64"), ValueError):
        data = base64.b64decode(fields["base64"].text(MOST_BYTES), validate=True)
    kind = np.dtype(dtype)
    if len(data) != length * kind.itemsize:
        raise entry.wrong(f"has {len(data)} bytes, but {length} {dtype} need {length * kind.itemsize}")
    return np.frombuffer(data, dtype=kind.newbyteorder("<")).astype(kind)


_ENDINGS = (".json", ".json.gz", ".xml")


def ready_names() -> list[str]:
    """The names of the schedules that come with blinksim, sorted."""
    return sorted(data_files.files("schedules", "*.json"))


def located(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """`path`, or the file of the schedule of that name that comes with blinksim.

    A file that is there goes first, and a path with a folder in it means that folder. Raises `InputError`
    with the nearest names for a bare name without an ending that is neither.
    """
    text = os.fspath(path)
    if os.path.exists(text) or text != os.path.basename(text):
        return path
    file = data_files.folder("schedules") / f"{text.removesuffix('.json')}.json"
    if os.path.isfile(file):
        return file
    if Path(text).suffix or not text or text == "-":
        return path
    raise unknown("schedule", text, ready_names(), hint="(blinksim schedules lists them; a file ends in .json)")


def names_a_file(name: str) -> bool:
    """True if `name` is a file of a schedule by its ending, or a schedule that comes with blinksim."""
    return name.lower().endswith(_ENDINGS) or name in ready_names()


def is_xml(file: str) -> bool:
    """True if a file is XML by its ending; by its first byte if it ends otherwise, or comes through standard input."""
    if file == STDIN:
        return standard_input(1) == b"<"
    if file.lower().endswith((".xml", ".json", ".gz")):
        return file.lower().endswith(".xml")
    return os.path.isfile(file) and read_bytes(file, MOST_BYTES, "schedule")[:1] == b"<"


def with_format(path: str | os.PathLike[str]) -> tuple[GivenFile, Format | None]:
    """A file, and the format of a runtime that it has; those name no devices and links."""
    file = os.fspath(located(path))
    if is_xml(file):
        given = GivenFile(file, text=safe_xml.file_text(file))
        if (form := taken(given)) is None:
            what = f"its outermost element is <{safe_xml.outermost(given.text)}>, not <algo>"
            raise FileError(file, f"is no algorithm of MSCCL: {what}")
        return given, form
    data = unpack(file, read_bytes(file, MOST_BYTES, "schedule"), MOST_BYTES, "schedule")
    given = GivenFile(file, parse(file, data, "schedule"))
    own = isinstance(given.document, Mapping) and given.document.get("format") == FORMAT
    return given, None if own else taken(given)


def read(path: str | os.PathLike[str], part: Topology | None = None, root: int = 0) -> Candidate:
    """The schedule of a file or a name; on `part`, if it is given.

    part: what `Topology.select` returns; a runtime's file needs it. root: for a rooted collective in a
    runtime's file, which does not name it.

    Raises `FileError` for a file that is none of these or wrong, `InputError` if a machine is needed, and
    `InfeasibleError` if the schedule does not run on the machine.
    """
    given, form = with_format(path)
    if form is not None and form.read is not None:
        if part is None:
            raise InputError(f"{given.path} names ranks, but no devices and links; name its machine with machine=")
        return form.read(given, part, root)
    found = compact_from_document(given.path, given.document)
    return Candidate(found if part is None else carried(as_schedule(found), part, os.fspath(path)))


def carried(schedule: Schedule, part: Topology, label: str) -> Schedule:
    """`schedule` on `part`, whose members and relays must be its own. label: what messages call it."""
    old = schedule.topology
    if old.members != part.members:
        here, there = (", ".join(machine.members) for machine in (part, old))
        raise InfeasibleError(f"{label} runs on {there} of {old.name}; here {part.name} has {here}")
    for name in old.relays:
        if name not in part.relays:
            raise InfeasibleError(f"{label} uses the relay {name}; name its relays with relays={','.join(old.relays)}")
        if not old.device(name).can <= part.device(name).can:
            raise InfeasibleError(f"{label} reduces on the relay {name}; relays_reduce=True lets it")
    moved = rebase(schedule, part)
    if isinstance(moved, tuple):
        raise InfeasibleError(f"{label} does not run on {part.name}: {moved[0]}")
    return moved


def candidate(source: Schedule | str | os.PathLike[str], part: Topology, collective: Collective) -> Candidate:
    """A schedule, or that of a file, to be timed beside algorithms for `collective` on `part`.

    Raises as `read` does, `InputError` for another collective, and for a schedule that is wrong.
    """
    if isinstance(source, Schedule):
        label = source.algorithm
        found = Candidate(carried(source, part, label))
    else:
        label = os.fspath(source)
        found = read(source, part, collective.root)
    if found.compact.groups or found.compact.collective != collective:
        raise InputError(f"{label} is of {found.compact.does}, not of {collective}")
    verdict = verify(found.compact)
    if not verdict.ok:
        raise InputError(f"{label} is wrong: {verdict.reasons[0]}")
    return found
