"""Machine files in YAML, as docs/machine-file.md describes them: a node, and how nodes are joined.

Reading is strict: every key is known, every number has its unit, every link class names the source of its
numbers, and any fault is a `FileError` with line and column. Numbers of link classes may come in several
tables (`nominal`, `seed` ...), of which a topology uses one.

A written file reads back as an equal topology. A class takes the commonest numbers of its links; a link that
differs, as after an edit, states its own. The file holds only the rates that the topology uses, under their
name (`rates:`).
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from blinksim.errors import InputError, blamed_on, one_of
from blinksim.formats.rate_tables import LINK_EXAMPLE, LinkClass, Outline, RateTable, apply, read_link_class
from blinksim.results import keyed
from blinksim.textio import name_ranges, text_files, yaml_nodes
from blinksim.textio.yaml_nodes import Entry, decimal_text, dump, rate_text, time_text
from blinksim.timing.measured_constants import read_section, write_section
from blinksim.topology.elements import ABILITIES, DEVICE_KINDS, SHAPES, Fabric, Level
from blinksim.topology.graph import Device, Link, Topology
from blinksim.topology.rules import rate_to_switches
from blinksim.units import format_rate

_Numbers = tuple[Fraction, float, float]


def write(topology: Topology) -> str:
    """YAML text of `topology`, from which `machine_yaml.read_text` makes an equal one.

    Names in `collective_links` and `inter_node_links` of which no link is left select nothing and are left
    out. Raises `InputError` for attributes that are not numbers, truth values or text.
    """
    counts: dict[str, Counter[_Numbers]] = {}
    for link in topology.links:
        counts.setdefault(link.kind, Counter())[link.lane_bandwidth, link.latency, link.overhead] += 1
    if fabric := topology.fabric:
        counts.setdefault(fabric.kind, Counter([(fabric.lane_bandwidth, fabric.latency, fabric.overhead)]))
    classes = {kind: numbers.most_common(1)[0][0] for kind, numbers in counts.items()}
    usual = {"name": "", "source": "", "rates": "nominal", "nodes": 1}
    stated = {key: getattr(topology, key) for key in usual}
    head = {key: value for key, value in stated.items() if str(value).strip() != str(usual[key])}
    origin = topology.source if topology.source.strip() and len(topology.source) < 2000 else f"as in {topology.name}"
    table = {kind: _texts(numbers) | {"source": origin} for kind, numbers in classes.items()}
    rows, links = [*map(_device, topology.devices)], _links(topology.links, classes)
    parts: list[dict[str, Any]] = [head, {"devices": rows}, {"link_classes": table}, {"links": links}]
    parts.append(_roles(topology, classes))
    if topology.execution is not None or topology.nccl_rates is not None:
        told: dict[str, Any] = {"links": rate_text(rate)} if (rate := rate_to_switches(topology)) else {}
        parts.append({"execution": told | write_section(topology.execution, topology.nccl_rates)})
    return "\n".join(dump(part) for part in parts if part)


def _roles(topology: Topology, classes: Mapping[str, _Numbers]) -> dict[str, Any]:
    """What devices and links are for, as far as it is not what a file says by leaving it out."""
    names = list(topology.index)
    roles: dict[str, Any] = {"members": list(topology.members) if topology.members != topology.holders else []}
    roles["relays"] = list(topology.relays)
    for key in ("collective_links", "inter_node_links"):
        roles[key] = list(filter(classes.__contains__, getattr(topology, key)))
    roles["fabric"] = _fabric(topology.fabric, classes[topology.fabric.kind]) if topology.fabric else None
    moved = ([pair for pair in enumerate(perm) if pair[0] != pair[1]] for perm in topology.symmetries)
    roles["symmetries"] = [{names[old]: names[new] for old, new in pairs} for pairs in moved]
    return {key: value for key, value in roles.items() if value}


def _device(device: Device) -> dict[str, Any]:
    for key, value in device.attributes.items():
        plain = isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))
        if not plain and not isinstance(value, str):
            what = f"attribute {key} of {device.name} is {value!r}"
            raise InputError(f"{what}; a machine file takes numbers and text")
    capacity = None if device.capacity is None else rate_text(device.capacity)
    can = None if device.can == Device(device.name, device.kind).can else sorted(device.can)
    own = {"node": device.node or None, "attributes": dict(device.attributes) or None}
    return keyed(device, "name kind node? capacity? can? attributes?", capacity=capacity, can=can, **own)


def _links(links: tuple[Link, ...], classes: Mapping[str, _Numbers]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    position = 0
    while position < len(links):
        link = links[position]
        both = position + 1 < len(links) and links[position + 1] == replace(link, src=link.dst, dst=link.src)
        ends: dict[str, Any] = {"between": [link.src, link.dst]} if both else {"from": link.src, "to": link.dst}
        row = ends | keyed(link, "class=kind lanes? bus?", lanes=None if link.lanes == 1 else link.lanes)
        rows.append(row | _own((link.lane_bandwidth, link.latency, link.overhead), classes[link.kind]))
        position += 2 if both else 1
    return rows


def _fabric(fabric: Fabric, numbers: _Numbers) -> dict[str, Any]:
    row: dict[str, Any] = {"shape": fabric.shape, "ports": list(fabric.ports), "class": fabric.kind}
    row |= {"lanes": fabric.lanes, "planes": fabric.planes, "leaf_nodes": fabric.leaf_nodes}
    row["oversubscription"] = decimal_text(fabric.oversubscription)
    if fabric.levels:
        over = {one: decimal_text(one.oversubscription) for one in fabric.levels if one.oversubscription != 1}
        row["levels"] = [keyed(level, "@Fabric.levels", oversubscription=over.get(level)) for level in fabric.levels]
    if fabric.group_nodes:
        row |= {"group_nodes": fabric.group_nodes, "group_links": fabric.group_links}
        row |= {"groups": fabric.groups} if fabric.groups else {}
    row |= {"can": sorted(fabric.can)} if fabric.can else {}
    return row | _own((fabric.lane_bandwidth, fabric.latency, fabric.overhead), numbers)


def _own(numbers: _Numbers, usual: _Numbers) -> dict[str, str]:
    """Those of the numbers that differ from what is usual in the class."""
    kept = _texts(usual).items()
    return dict(pair for pair in _texts(numbers).items() if pair not in kept)


def _texts(numbers: _Numbers) -> dict[str, str]:
    """The numbers of a link class by their keys."""
    rate, latency, overhead = numbers
    return {"bandwidth": rate_text(rate), "latency": time_text(latency), "overhead": time_text(overhead)}


# To read, check and write so many takes 3 s; larger clusters are nodes of a file, joined by its fabric.
MAX_DEVICES = 50_000
MAX_LINKS = 200_000
# Machines that are cached as they were read last.
_MOST_CACHED = 64
# Links that are compared when symmetries are checked, over all of them.
_MOST_COMPARED = 2_000_000
KEYS = (
    "name", "title", "maker", "year", "source", "assumed", "rates", "nodes", "devices", "link_classes", "links",
    "members", "relays", "collective_links", "inter_node_links", "fabric", "symmetries", "execution",
)  # fmt: skip
DEVICE_KEYS = ("name", "kind", "node", "capacity", "can", "attributes")
LINK_KEYS = ("between", "from", "to", "class", "lanes", "duplex", "bus", "bandwidth", "latency", "overhead")
FABRIC_KEYS = (
    "shape", "ports", "class", "lanes", "planes", "leaf_nodes", "oversubscription", "levels", "group_nodes",
    "group_links", "groups", "bandwidth", "latency", "overhead", "can",
)  # fmt: skip
_DEVICE = "{name: gpu0, kind: gpu}"
_MACHINE = f"name: box, devices: [{_DEVICE}]; blinksim topo import dgx1-v100 -o box.yaml writes a whole file"
_LINK = "{between: [gpu0, gpu1], class: nvlink}"
_LEVELS = "[{nodes: 32, planes: 8}, {}]"
LEVEL_KEYS = ("nodes", "planes", "oversubscription")
_FABRIC = '{shape: switch, ports: ["nic[0-3]"], class: ib}'


def read(path: str | os.PathLike[str], rates: str | RateTable = "nominal") -> Topology:
    """The machine in the file at `path`; see `read_text`. Raises `FileError` if it cannot be read."""
    return read_text(text_files.read_text(path, what="machine file"), text_files.shown(path), rates)


def read_text(text: str, path: str | os.PathLike[str], rates: str | RateTable = "nominal") -> Topology:
    """The machine that `text` describes, at the rates called `rates` or those of a table.

    A class without the named rates keeps its nominal ones, and the topology's `rates` says so. Raises
    `FileError` for anything wrong in the file (`path` stands in its message) and `InputError` for rates that
    it does not have.
    """
    where = os.fspath(path)
    return _at(text, where, rates) if isinstance(rates, str) else apply(_at(text, where, "nominal"), rates)


def outline(path: str | os.PathLike[str]) -> Outline:
    """Name, title, source and link classes of the machine file at `path`."""
    return _head(text_files.read_text(path, what="machine file"), text_files.shown(path))[1]


# Questions name the same machine again and again, and a topology never changes.
@lru_cache(maxsize=_MOST_CACHED)
def _at(text: str, path: str, rates: str) -> Topology:
    keys, outline = _head(text, path)
    classes, label = outline.at_rates(rates)
    found = _Body(keys, classes).topology(outline, label)
    measured = keys["execution"].named(example="{links: 450GB/s}") if "execution" in keys else {}
    if "links" in measured and measured["links"][1].rate() != (here := rate_to_switches(found)):
        key, there = measured["links"]
        said = f"execution was measured where links carry {there.text()} from a GPU to its switch"
        raise key.error(f"{said}, not {format_rate(here)}; leave execution out, or calibrate again")
    return found


@lru_cache(maxsize=_MOST_CACHED)
def _head(text: str, path: str) -> tuple[dict[str, Entry], Outline]:
    root = yaml_nodes.load(path, text, "machine file")
    keys = root.mapping(KEYS, ("name", "devices", "link_classes", "links"), example=_MACHINE)
    resolved = "rates" in keys
    classes = {
        name: read_link_class(name, key, value, resolved)
        for name, (key, value) in keys["link_classes"].named(example=LINK_EXAMPLE).items()
    }
    name = keys["name"].text(80)
    title, source = (keys[key].text() if key in keys else "" for key in ("title", "source"))
    label = keys["rates"].text(500) if resolved else "nominal"
    maker = keys["maker"].text(80) if "maker" in keys else ""
    year = keys["year"].integer(1990, 2100) if "year" in keys else None
    assumed = keys["assumed"].items(example="[two GPUs share a PCIe switch]") if "assumed" in keys else []
    keys["root"] = root
    structure = tuple(entry.text() for entry in assumed)
    return keys, Outline(name, title or name, source, label, classes, maker, year, structure)


@dataclass(frozen=True)
class _Body:
    """The parts of a machine file below its head, read at the rates of `classes`."""

    keys: dict[str, Entry]
    classes: dict[str, LinkClass]
    device_lines: dict[str, int] = field(default_factory=dict)
    link_lines: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def topology(self, outline: Outline, rates: str) -> Topology:
        devices = tuple(self._devices())
        links = tuple(self._links())
        measured = self.keys.get("execution")
        execution, nccl_rates = read_section(measured) if measured else (None, None)
        # Devices and links are known to be sound by now; what is left are the roles.
        with blamed_on((self.keys.get("members") or self.keys.get("relays") or self.keys["root"]).error):
            roles = ("members", "relays")
            given: dict[str, Any] = {key: self._device_list(self.keys.get(key)) for key in roles}
            for role in ("collective_links", "inter_node_links"):
                kinds = self.keys[role].items(example="[nvlink]") if role in self.keys else []
                given[role] = tuple(kind.choice(self.classes, "link class") for kind in kinds)
            given["nodes"] = self.keys["nodes"].integer(1, MAX_DEVICES) if "nodes" in self.keys else 1
            given["fabric"] = self._fabric(self.keys["fabric"]) if "fabric" in self.keys else None
            given |= {"source": outline.source, "execution": execution, "nccl_rates": nccl_rates}
            topology = Topology(name=outline.name, devices=devices, links=links, rates=rates, **given)
        if "symmetries" not in self.keys:
            return topology
        from blinksim.topology.symmetry import is_automorphism

        symmetries: list[tuple[int, ...]] = []
        for entry in self.keys["symmetries"].items(example="[{gpu0: gpu1, gpu1: gpu0}]"):
            entry.what = "a symmetry"
            if (len(symmetries) + 1) * (len(topology.links) + 100) > _MOST_COMPARED:
                raise entry.error(f"more symmetries than can be checked here; give the first {len(symmetries)}")
            moved = list(range(len(topology.devices)))
            for key, value in entry.named(example="{gpu0: gpu1, gpu1: gpu0}").values():
                before, after = self._known_devices(key), self._known_devices(value)
                if len(before) != len(after):
                    raise entry.error(f"a symmetry maps {len(before)} devices to {len(after)}; give as many")
                for old, new in zip(before, after, strict=True):
                    moved[topology.index[old]] = topology.index[new]
            if not is_automorphism(topology, moved):
                raise entry.error("this does not map the machine onto itself; compare the links of moved devices")
            symmetries.append(tuple(moved))
        return replace(topology, symmetries=tuple(symmetries))

    def _expand(self, entry: Entry) -> list[str]:
        with blamed_on(entry.error):
            return name_ranges.expand(entry.text(200))

    def _devices(self) -> Iterator[Device]:
        for entry in self.keys["devices"].items(example=f"[{_DEVICE}]"):
            entry.what = "a device"
            given = entry.mapping(DEVICE_KEYS, ("name", "kind"), example=_DEVICE)
            kind = given["kind"].choice(DEVICE_KINDS, "device kind")
            node = given["node"].integer(-1, MAX_DEVICES) if "node" in given else 0
            capacity = given["capacity"].rate() if "capacity" in given else None
            can = self._abilities(given)
            named = given["attributes"].named(example="{sm: 70}") if "attributes" in given else {}
            attributes = {key: value.scalar() for key, (_, value) in named.items()}
            for name in self._expand(given["name"]):
                if name in self.device_lines:
                    first = f"first in line {self.device_lines[name]}"
                    raise given["name"].error(f"the device {name} is given twice ({first}); remove one")
                self.device_lines[name] = entry.line
                if len(self.device_lines) > MAX_DEVICES:
                    raise entry.error(f"more than {MAX_DEVICES} devices; no machine file may have more")
                with blamed_on(given["name"].error):
                    device = Device(name, kind, node, capacity, can, attributes)
                yield device

    def _abilities(self, given: dict[str, Entry]) -> frozenset[str]:
        listed = given["can"].items(example="[forward]") if "can" in given else []
        return frozenset(ability.choice(ABILITIES, "ability") for ability in listed)

    def _links(self) -> Iterator[Link]:
        for entry in self.keys["links"].items(example=f"[{_LINK}]"):
            entry.what = "a link"
            given = entry.mapping(LINK_KEYS, ("class",), example=_LINK)
            link_class = self.classes[given["class"].choice(self.classes, "link class")]
            kind = link_class.name
            rate, latency, overhead = self._numbers(link_class, given)
            lanes = given["lanes"].integer(1, 10**6) if "lanes" in given else 1
            both, named = "between" in given, given.keys() & {"between", "from", "to"}
            if named not in ({"between"}, {"from", "to"}):
                forms = "`between: [a, b]` or `from: a` and `to: b`"
                raise entry.error(f"a link needs either {forms}, as in {_LINK}")
            sides = given["between"].items(example="[gpu0, gpu1]") if both else [given["from"], given["to"]]
            if len(sides) != 2:
                raise given["between"].error(f"between names two devices or ranges; found {len(sides)}")
            joined = [*map(self._known_devices, sides)]
            with blamed_on(entry.error):
                pairs = name_ranges.paired(*joined)
            bus = given["bus"].text(200) if "bus" in given else None
            half = "duplex" in given and given["duplex"].choice(("full", "half"), "duplex") == "half"
            if half and (bus or not both):
                raise given["duplex"].error("duplex: half goes with `between`, and without `bus`; drop one of them")
            for a, b in pairs:
                shared = f"{a}-{b} ({kind})" if half else bus
                for src, dst in ((a, b), (b, a)) if both else ((a, b),):
                    with blamed_on(entry.error):
                        link = Link(src, dst, kind, rate, lanes, latency, overhead, shared)
                    if link.key in self.link_lines:
                        first = f"first in line {self.link_lines[link.key]}"
                        cure = "remove one, or write parallel links as lanes"
                        raise entry.error(f"the link {link.name} is given twice ({first}); {cure}")
                    self.link_lines[link.key] = entry.line
                    if len(self.link_lines) > MAX_LINKS:
                        raise entry.error(f"more than {MAX_LINKS} directed links; no machine file may have more")
                    yield link

    def _numbers(self, link_class: LinkClass, given: dict[str, Entry]) -> tuple[Fraction, float, float]:
        """Bandwidth of a lane, latency and overhead: the entry's own where it has them, else the class's."""
        return (
            given["bandwidth"].rate() if "bandwidth" in given else link_class.bandwidth["nominal"],
            given["latency"].time() if "latency" in given else link_class.latency,
            given["overhead"].time() if "overhead" in given else link_class.overhead,
        )

    def _known_devices(self, entry: Entry) -> list[str]:
        with blamed_on(entry.error):
            return [one_of("device", name, self.device_lines) for name in self._expand(entry)]

    def _device_list(self, entry: Entry | None) -> tuple[str, ...]:
        """The devices that a list names, ranges expanded; none if there is no list."""
        names: list[str] = []
        for item in entry.items(example='[gpu0, "gpu[2-5]"]') if entry else []:
            names += self._known_devices(item)
            if len(names) > MAX_DEVICES:
                raise item.error(f"more than {MAX_DEVICES} names in one list")
        return tuple(names)

    def _fabric(self, entry: Entry) -> Fabric:
        entry.what = "the fabric"
        given = entry.mapping(FABRIC_KEYS, ("ports", "class"), example=_FABRIC)
        if "shape" not in given and "levels" not in given:
            raise entry.error(f"the fabric has no 'shape'; add it, as in {_FABRIC}")
        link_class = self.classes[given["class"].choice(self.classes, "link class")]
        ports = self._device_list(given["ports"])
        rate, latency, overhead = self._numbers(link_class, given)
        counted = ("lanes", "planes", "leaf_nodes", "group_nodes", "group_links", "groups")
        counts = {key: given[key].integer(1, 10**6) for key in counted if key in given}
        over = given["oversubscription"].ratio("2 or 3/2") if "oversubscription" in given else Fraction(1)
        levels = list[Level]()
        for level in given["levels"].items(example=_LEVELS) if "levels" in given else []:
            level.what = "a level"
            own = level.mapping(LEVEL_KEYS, example=_LEVELS)
            sizes = {key: own[key].integer(1, 10**6) for key in ("nodes", "planes") if key in own}
            narrow = own["oversubscription"].ratio("2 or 3/2") if "oversubscription" in own else Fraction(1)
            levels.append(Level(**sizes, oversubscription=narrow))
        shape = given["shape"].choice(SHAPES, "fabric shape") if "shape" in given else "levels"
        if len(set(ports)) < len(ports):
            raise entry.error("the fabric names a port twice; each port has one link")
        with blamed_on(entry.error):
            return Fabric(
                shape, ports, link_class.name, rate, latency=latency, overhead=overhead, oversubscription=over,
                levels=tuple(levels), can=self._abilities(given), **counts,
            )  # fmt: skip
