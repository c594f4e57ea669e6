"""Completion of topology files that omit parts, from the machine they describe.

Cloud providers ship templates, in which NCCL finds the rest when it runs: some name PCIe devices only, by
their class, and no GPUs; others list GPUs without their NVLinks, or adapters without their ports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from blinksim.errors import FileError, InputError
from blinksim.nccl.families import BUS_ID, GPU_KINDS
from blinksim.textio.safe_xml import Element
from blinksim.textio.text_table import count
from blinksim.topology.elements import IN_NETWORK_FACTS
from blinksim.topology.graph import Topology

CURE = (
    "Templates of clouds leave GPUs and NVLinks to NCCL, which finds them when it runs: name the machine (like=MACHINE "
    "when importing it), or take what NCCL_TOPO_DUMP_FILE writes on it"
)
"""What to do about a file that leaves things out."""
# Classes of PCI: a display controller (GPUs of NVIDIA) or a processing accelerator (of AMD), a network controller.
_GPU_CLASSES, _NIC_CLASS = ("0x03", "0x12"), "0x02"
_HIDDEN_SWITCH = "fffffff:ff:ff.0"
_GPU_LINKS = ("nvlink", "xgmi", "c2c")


@dataclass(frozen=True, slots=True)
class Gaps:
    """What a topology file leaves out.

    gpus, adapters: its PCIe devices of a GPU's or a network controller's class with nothing inside. listed: the
    elements <pci> that hold a GPU. linked: some GPU lists a link to others.
    """

    gpus: tuple[Element, ...]
    adapters: tuple[Element, ...]
    listed: tuple[Element, ...]
    linked: bool

    @property
    def words(self) -> list[str]:
        """A phrase for each gap."""
        missing = []
        if self.gpus:
            missing.append(f"{len(self.gpus)} PCIe devices of a GPU's class without a <gpu>")
        if self.listed and not self.linked:
            missing.append("no NVLinks")
        if self.adapters:
            missing.append(f"{len(self.adapters)} network adapters without a <net>")
        return missing


def gaps(root: Element) -> Gaps:
    """What a topology file leaves out. root: its element <system>."""
    devices = [device for device in root.walk() if device.tag == "pci"]
    bare = [(device, device.attributes.get("class", "").lower()) for device in devices if not device.children]
    gpus = [gpu for device in devices for gpu in device.named("gpu")]
    return Gaps(
        tuple(device for device, kind in bare if kind.startswith(_GPU_CLASSES)),
        tuple(device for device, kind in bare if kind.startswith(_NIC_CLASS)),
        tuple(device for device in devices if any(device.named("gpu"))),
        any(child.tag in _GPU_LINKS for gpu in gpus for child in gpu.children),
    )


def complete(root: Element, like: Topology, path: object) -> tuple[Element, str]:
    """A topology file with what it leaves out, as one node of `like` has it, and what that is, in words.

    The GPUs of the file are those of `like` in order of their bus ids, the order in which CUDA counts them.

    Raises `FileError` if `like` has other GPUs than the file, and `InputError` if they are not NVIDIA's.
    """
    missing = gaps(root)
    places = sorted((*missing.listed, *missing.gpus), key=lambda device: _bus(device, path))
    if len(places) != like.ranks or like.nodes > 1:
        raise FileError(
            path,
            f"describes {count(len(places), 'GPU')}, and {like.name} has {like.ranks}; name the machine that the "
            "file is of",
        )
    inside: dict[int, tuple[Element, ...]] = {}
    added: list[str] = []
    if missing.gpus or not missing.linked:
        filled, links = _gpus(places, like, missing.linked, path)
        inside |= filled
        added += [count(len(missing.gpus), "GPU")] if missing.gpus else []
        added += [count(links, "NVLink")] if links else []
    ports = _ports(missing.adapters, like)
    inside |= ports
    added += [count(len(like.fabric.ports), "port") + " of the fabric"] if ports and like.fabric else []
    if missing.adapters and not ports:
        added.append(f"no ports: {like.name} does not have as many for each of {len(missing.adapters)} adapters")
    return _with(root, inside), f"completed as {like.name}: {', '.join(added) or 'nothing was left out'}"


def _gpus(
    places: Sequence[Element], like: Topology, linked: bool, path: object
) -> tuple[dict[int, tuple[Element, ...]], int]:
    """What is inside every <pci> of a GPU, and how many NVLinks were added."""
    bus = {name: place.attributes["busid"] for name, place in zip(like.members, places, strict=True)}
    filled, added = {}, 0
    ranked = any("rank" in gpu.attributes for place in places for gpu in place.named("gpu"))
    for dev, (name, place) in enumerate(zip(like.members, places, strict=True)):
        sm = like.device(name).attributes.get("sm")
        if not isinstance(sm, int):
            raise InputError(f"{like.name} has no GPUs of NVIDIA, which alone leave their links to such files")
        facts = {"dev": str(dev), "sm": str(sm), **({"rank": str(dev)} if ranked else {})}
        gpu = next(place.named("gpu"), None) or _element("gpu", facts, place)
        if gpu.attributes.get("sm", str(sm)) != str(sm):
            raise FileError(
                path,
                f"a GPU of sm={gpu.attributes['sm']}, and those of {like.name} have {sm}; name the machine that the "
                "file is of",
                gpu.line,
            )
        links = [] if linked else _links(gpu, name, like, bus)
        added += sum(int(child.attributes["count"]) for child in links if child.tag == "nvlink")
        rest = tuple(child for child in place.children if child.tag != "gpu")
        filled[id(place)] = (replace(gpu, children=(*gpu.children, *links)), *rest)
    return filled, added


def _links(gpu: Element, name: str, like: Topology, bus: Mapping[str, str]) -> list[Element]:
    """The links of a GPU as NCCL lists them: at both ends."""
    links = []
    for link in (link for link in like.links if link.src == name):
        other = like.device(link.dst)
        if link.kind == "c2c":
            facts = {"bw": str(int(link.lane_bandwidth / 10**6)), "count": str(link.lanes)}
            links.append(_element("c2c", facts, gpu))
        elif link.kind == "nvlink" and other.kind in (*GPU_KINDS, "switch"):
            target, kind = (_HIDDEN_SWITCH, "0x068000") if other.kind == "switch" else (bus[other.name], "0x030200")
            facts = {"target": target, "count": str(link.lanes), "tclass": kind}
            links.append(_element("nvlink", facts, gpu))
    return links


def _ports(adapters: Sequence[Element], like: Topology) -> dict[int, tuple[Element, ...]]:
    """What is inside every <pci> of an adapter: as many ports each; nothing if they do not come out even."""
    fabric = like.fabric
    if fabric is None or not adapters or len(fabric.ports) % len(adapters):
        return {}
    each = len(fabric.ports) // len(adapters)
    facts = {
        "speed": str(int(fabric.lane_bandwidth * fabric.lanes * 8 / 10**6)),
        "latency": f"{fabric.latency * 2e6:g}",
    }
    filled: dict[int, tuple[Element, ...]] = {}
    for place, adapter in enumerate(adapters):
        numbers = range(place * each, (place + 1) * each)
        nets = tuple(_element("net", {"dev": str(dev), **facts}, adapter) for dev in numbers)
        filled[id(adapter)] = (_element("nic", {}, adapter, nets),)
    return filled


def as_in(like: Topology, machine: Topology) -> Topology:
    """A machine whose file was completed: its switches can do what those of `like` can, and join nodes as they do."""
    switches = [device for device in like.devices if device.kind == "switch"]
    devices = machine.devices
    if switches:
        can, facts = switches[0].can, switches[0].attributes if len(switches) == 1 else {}
        stated = {key: value for key, value in facts.items() if key.startswith(tuple(IN_NETWORK_FACTS))}
        devices = tuple(
            replace(device, can=can, attributes={**device.attributes, **stated}) if device.kind == "switch" else device
            for device in devices
        )
    own, other = machine.fabric, like.fabric
    fabric = own
    if own is not None and other is not None and len(own.ports) == len(other.ports):
        fabric = replace(other, ports=own.ports, kind=own.kind, lane_bandwidth=own.lane_bandwidth, lanes=own.lanes,
                         latency=own.latency, overhead=own.overhead)  # fmt: skip
    return replace(machine, devices=devices, fabric=fabric)


def _with(element: Element, inside: Mapping[int, tuple[Element, ...]]) -> Element:
    children = inside.get(id(element))
    return replace(element, children=children or tuple(_with(child, inside) for child in element.children))


def _element(tag: str, facts: Mapping[str, str], at: Element, children: tuple[Element, ...] = ()) -> Element:
    return Element(tag, MappingProxyType(dict(facts)), children, at.line, at.column)


def _bus(element: Element, path: object) -> tuple[int, ...]:
    match = BUS_ID.fullmatch(element.attributes.get("busid", "").lower())
    if match is None:
        raise FileError(path, "<pci> has no busid such as 0000:06:00.0", element.line, element.column)
    return tuple(int(part or "0", 16) for part in match.groups())
