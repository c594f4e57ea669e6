"""NCCL's topology files (NCCL_TOPO_DUMP_FILE, NCCL_TOPO_FILE), read as link graphs, and written.

The file is the PCIe tree of a host below its CPUs, with the NVLinks of each GPU listed at that GPU and the
network interfaces at their adapters. The reading follows NCCL 2.28.3, graph/topo.cc, so that under the rates
``nccl`` every link has the bandwidth that NCCL gives it: all NVSwitches are one, the NVLinks of two GPUs are
listed at both ends, a link of width 0 has 16 lanes, functions of one adapter are one adapter, all CPUs of a
host are joined pairwise.

Files that omit parts are completed from the machine that they describe. Cloud providers ship templates, in
which NCCL finds the rest when it runs: some name PCIe devices only, by their class, and no GPUs; others list
GPUs without their NVLinks, or adapters without their ports.

Machines are written as such files, too. NCCL takes the file's word over what it detects, so a job on other
GPUs chooses the rings and trees of the machine described, if the bus ids are those of the GPUs that it runs
on. What a machine file leaves out (bus ids, CPU models, the PCIe tree) is invented; what came from a topology
file is written back unchanged.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from blinksim.errors import FileError, InfeasibleError, InputError
from blinksim.nccl.families import BUS_ID, DEFAULT_SM, lines
from blinksim.results import count, names
from blinksim.textio import link_rates, safe_xml
from blinksim.textio.safe_xml import Element, fault, integer, word
from blinksim.textio.text_files import read_words
from blinksim.topology.elements import GPU_KINDS, IN_NETWORK_FACTS, UNLIMITED, Fabric, machine_name, nvswitch
from blinksim.topology.graph import Device, Link, Topology
from blinksim.units import format_rate

# What to do about a file that leaves things out.
CURE = (
    "Templates of clouds leave GPUs and NVLinks to NCCL, which finds them when it runs: name the machine (like=MACHINE "
    "when importing it), or take what NCCL_TOPO_DUMP_FILE writes on it"
)
# Classes of PCI: display controllers (NVIDIA's GPUs), network controllers, NVSwitches, and CPUs with NVLinks.
_OTHER = "name the machine that the file is of"
_GPU, _NIC, _SWITCH, _CPU = "0x03", "0x02", "0x068000", "0x068001"
# AMD's GPUs are processing accelerators.
_GPU_CLASSES = (_GPU, "0x12")
_GPU_LINKS = ("nvlink", "xgmi", "c2c")


class Gaps:
    """What a topology file leaves out. root: its element <system>.

    gpus, adapters: its PCIe devices of a GPU's or a network controller's class with nothing inside. listed:
    the elements <pci> that hold a GPU. linked: some GPU lists a link to others.
    """

    def __init__(self, root: Element) -> None:
        devices = [device for device in root.walk() if device.tag == "pci"]
        bare = [(device, device.attributes.get("class", "").lower()) for device in devices if not device.children]
        self.gpus = [device for device, kind in bare if kind.startswith(_GPU_CLASSES)]
        self.adapters = [device for device, kind in bare if kind.startswith(_NIC)]
        self.listed = [device for device in devices if any(device.named("gpu"))]
        inside = (child for device in self.listed for gpu in device.named("gpu") for child in gpu.children)
        self.linked = any(child.tag in _GPU_LINKS for child in inside)

    @property
    def words(self) -> list[str]:
        """A phrase for each gap."""
        said = {
            f"{len(self.gpus)} PCIe devices of a GPU's class without a <gpu>": self.gpus,
            "no NVLinks": self.listed and not self.linked,
            f"{len(self.adapters)} network adapters without a <net>": self.adapters,
        }
        return [words for words, there in said.items() if there]


def complete(root: Element, like: Topology, path: object) -> tuple[Element, str]:
    """A topology file with what it leaves out, as one node of `like` has it, and what that is, in words.

    The GPUs of the file are those of `like` in order of their bus ids, the order in which CUDA counts them.

    Raises `FileError` if `like` has other GPUs than the file, and `InputError` if they are not NVIDIA's.
    """
    missing = Gaps(root)
    places = sorted((*missing.listed, *missing.gpus), key=lambda device: _bus_id(path, device, "busid"))
    if len(places) != like.ranks or like.nodes > 1:
        said = f"describes {count(len(places), 'GPU')}, and {like.name} has {like.ranks}"
        raise FileError(path, f"{said}; {_OTHER}")
    inside: dict[int, tuple[Element, ...]] = {}
    added: list[str] = []
    if missing.gpus or not missing.linked:
        filled, links = _gpus(places, like, missing.linked, path)
        inside |= filled
        added += [count(len(missing.gpus), "GPU")] if missing.gpus else []
        added += [count(links, "NVLink")] if links else []
    fabric, adapters = like.fabric, missing.adapters
    if fabric is not None and adapters and not len(fabric.ports) % len(adapters):
        # As many ports inside each adapter.
        added.append(f"{count(len(fabric.ports), 'port')} of the fabric")
        speed = str(int(fabric.lane_bandwidth * fabric.lanes * 8 / 10**6))
        facts = {"speed": speed, "latency": f"{fabric.latency * 2e6:g}"}
        each = len(fabric.ports) // len(adapters)
        for place, adapter in enumerate(adapters):
            numbers = range(place * each, (place + 1) * each)
            nets = tuple(_element("net", {"dev": str(dev), **facts}, adapter) for dev in numbers)
            inside[id(adapter)] = (_element("nic", {}, adapter, nets),)
    elif adapters:
        added.append(f"no ports: {like.name} does not have as many for each of {len(adapters)} adapters")
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
            said = f"a GPU of sm={gpu.attributes['sm']}, and those of {like.name} have {sm}"
            raise FileError(path, f"{said}; {_OTHER}", gpu.line)
        links = []
        for link, other in () if linked else leaving(like, name):
            if link.kind == "c2c" or (link.kind == "nvlink" and other.kind in (*GPU_KINDS, "switch")):
                links.append(_element(*_listed(link, other, link.lanes, bus), gpu))
        added += sum(int(child.attributes["count"]) for child in links if child.tag == "nvlink")
        rest = tuple(child for child in place.children if child.tag != "gpu")
        filled[id(place)] = (replace(gpu, children=(*gpu.children, *links)), *rest)
    return filled, added


def leaving(topology: Topology, name: str) -> list[tuple[Link, Device]]:
    """The links out of a device, each with the device that it leads to."""
    links = [topology.links[place] for place in topology.out_links[topology.index[name]]]
    return [(link, topology.device(link.dst)) for link in links]


def _listed(link: Link, other: Device, lanes: int, bus: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """A link of a GPU as NCCL lists it, at both ends: tag and attributes. other: where it leads."""
    if link.kind == "c2c":
        return "c2c", {"bw": str(int(link.lane_bandwidth / 10**6)), "count": str(lanes)}
    tag, own = ("xgmi", _AMD_CLASS) if other.gfx else ("nvlink", "0x030200")
    target, kind = _NVLINK_ENDS.get(other.kind) or (bus[other.name], own)
    return tag, {"target": target, "count": str(lanes), "tclass": kind}


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
    fabric, other = machine.fabric, like.fabric
    if fabric is not None and other is not None and len(fabric.ports) == len(other.ports):
        fabric = replace(other, ports=fabric.ports, kind=fabric.kind, lane_bandwidth=fabric.lane_bandwidth,
                         lanes=fabric.lanes, latency=fabric.latency, overhead=fabric.overhead)  # fmt: skip
    return replace(machine, devices=devices, fabric=fabric)


def _with(element: Element, inside: Mapping[int, tuple[Element, ...]]) -> Element:
    children = inside.get(id(element))
    return replace(element, children=children or tuple(_with(child, inside) for child in element.children))


def _element(tag: str, facts: Mapping[str, str], at: Element, children: tuple[Element, ...] = ()) -> Element:
    return Element(tag, MappingProxyType(dict(facts)), children, at.line, at.column)


BusId = tuple[int, int, int, int]


def _bus_id(path: object, element: Element, name: str) -> BusId:
    """The attribute of an element that is a bus id; raises `FileError` if it is none."""
    text = word(path, element, name).lower()
    if (match := BUS_ID.fullmatch(text)) is None:
        raise fault(path, element, f"{name}={text[:40]!r} is not a bus id such as 0000:06:00.0")
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    return domain, bus, device, function


_MAX_ELEMENTS = 20_000
_MAX_CPUS = 256
# What a virtual machine shows for an NVSwitch that stays with the hypervisor.
_HIDDEN_SWITCH = re.compile(r"f{4,8}:f{2,4}:f{2,4}\.[0f]")
# What follows the unit ("PCIe", "PCIe/s") is not looked at: NCCL compares as far as its own words reach.
_PCIE_SPEED = re.compile(r"([0-9]{1,3})(?:\.([0-9]))?GT/s.*")
_PARENTS = {element: tuple(parents.split()) for element, parents in read_words("element").items()}
_KNOWN = ("system", "xgmi", *_PARENTS)
# Compute capabilities of GPUs that are mostly sold with NVLinks: V100, A100, H100, B200, B300.
_HAVE_NVLINK = (70, 80, 90, 100, 103)


def read(path: str | Path, rates: str = "nominal", like: Topology | None = None) -> Topology:
    """The machine in the file at `path`; see `read_text`. Raises `FileError` if it cannot be read."""
    return read_text(safe_xml.file_text(path), path, rates, like)


def read_text(text: str, path: str | Path, rates: str = "nominal", like: Topology | None = None) -> Topology:
    """The machine that an NCCL topology file describes.

    rates: ``nominal`` (data sheets) or ``nccl`` (what NCCL computes with), both from
    ``models/link_rates.yaml``. `path` names the machine and stands in messages. like: has what the file
    leaves out (see `complete`).

    Devices: ``gpu<dev>``, ``cpu<numaid>``, ``pcie<n>``, ``nic<n>``, ``net<dev>`` and ``nvswitch``, with bus
    ids and the like as attributes. Link classes: nvlink, xgmi, pcie, local (no limit of its own: a virtual
    adapter), cpu, c2c, nic (adapter to its network port); the ports' links out of the node (class net) are
    the topology's fabric, one switch. Members are the GPUs with a `rank`, in rank order; one without was not
    in the job that wrote the file and stays a device. If no GPU has a rank, all are members in order of
    `dev`. Several hosts in one file (multi-node NVLink) become ``n0.gpu0`` …. `source` says what was assumed
    or passed over.

    Raises `FileError` with the line for anything malformed, and `InputError` for other rates.
    """
    root = safe_xml.parse(text, path, root="system", max_elements=_MAX_ELEMENTS)
    builder = _Builder(path, link_rates.load(rates))
    if like is not None:
        root, added = complete(root, like, path)
        builder.remark(added)
    return builder.build(root) if like is None else as_in(like, builder.build(root))


@dataclass(frozen=True, slots=True)
class _Gpu:
    name: str
    host: int
    cpu: str
    element: Element
    sm: int
    dev: int
    rank: int | None


def _written(element: Element) -> dict[str, object]:
    return {key: " ".join(value.split()) for key, value in element.attributes.items()}


class _Builder:
    """Devices and links so far, and what is needed to place the next; bus ids are unique to a host."""

    def __init__(self, path: str | Path, rates: link_rates.LinkRates) -> None:
        self.path, self.rates = path, rates
        self.devices: list[Device] = []
        self.links: dict[tuple[str, str, str], Link] = {}
        self.hosts = 1
        self.cpus: dict[int, list[tuple[str, Element]]] = {}
        self.gpus: dict[tuple[int, BusId], _Gpu] = {}
        self.bridges: dict[tuple[int, BusId], tuple[str, Element]] = {}
        self.seen: dict[tuple[int, BusId], int] = {}
        self.adapters: dict[tuple[int, BusId], str] = {}
        self.taken: dict[str, int] = {}
        self.ranks: dict[int, int] = {}
        self.numbers: defaultdict[tuple[int, str], Iterator[int]] = defaultdict(itertools.count)
        self.nets: list[tuple[str, Fraction, float]] = []
        self.lost_lanes = 0
        self.remarks: dict[str, None] = {}
        # Names of the devices whose rate the file does not say, by what is taken instead.
        self.guessed = defaultdict[str, list[str]](list)

    def remark(self, text: str) -> None:
        """Notes what was taken for granted or passed over, once."""
        self.remarks[text] = None

    def check(self, root: Element) -> None:
        # NCCL writes 1; RCCL, whose GPUs have a gfx number and xGMI links, 2.
        elements = list(root.walk())
        rccl = any(element.tag == "xgmi" or "gcn" in element.attributes for element in elements)
        integer(self.path, root, "version", low=1, high=2 if rccl else 1)
        safe_xml.check_places(self.path, root, _PARENTS)
        for tag in sorted({element.tag for element in elements} - set(_KNOWN)):
            self.remark(f"elements <{tag[:40]}> passed over: NCCL does not know them")

    def build(self, root: Element) -> Topology:
        self.check(root)
        if len(cpus := list(root.named("cpu"))) > _MAX_CPUS:
            raise fault(self.path, cpus[_MAX_CPUS], f"more than {_MAX_CPUS} CPUs; no real file has that many")
        hashes = [word(self.path, cpu, "host_hash", "0").lower() for cpu in cpus]
        known = list(dict.fromkeys(hashes))
        self.hosts = max(1, len(known))
        for cpu, own in zip(cpus, hashes, strict=True):
            self.add_cpu(cpu, known.index(own))
        if not self.gpus:
            lacks = "".join(f"; {gap}" for gap in Gaps(root).words)
            message = f"names no GPU: a <gpu> inside a <pci> inside a <cpu>{lacks}. {CURE}"
            raise FileError(self.path, message, root.line)
        for gpu in self.gpus.values():
            for tag, add in (("nvlink", self.add_nvlink), ("xgmi", self.add_xgmi)):
                for entry in gpu.element.named(tag):
                    add(gpu, entry)
            for entry in gpu.element.named("c2c"):
                megabytes = integer(self.path, entry, "bw", low=1, high=10**8)
                lanes = integer(self.path, entry, "count", low=1, high=1024)
                self.add_pair(gpu.name, gpu.cpu, "c2c", Fraction(megabytes * 10**6), lanes)
        for (host, _), (name, element) in self.bridges.items():
            for entry in element.named("pcilink"):
                peer = self.bridges.get((host, _bus_id(self.path, entry, "target")))
                if peer and peer[0] != name:
                    self.add_link(name, peer[0], UNLIMITED, self.rates.local)
        for peers in self.cpus.values():
            self.join_cpus(peers)
        return self.topology()

    def topology(self) -> Topology:
        links = tuple(self.links.values())
        members = [gpu for gpu in self.gpus.values() if gpu.rank is not None] or list(self.gpus.values())
        members.sort(key=lambda gpu: (gpu.rank if gpu.rank is not None else 0, gpu.host, gpu.dev))
        present = {link.kind for link in links}
        lost = f", without {self.lost_lanes} NVLinks to GPUs that are not in it" if self.lost_lanes else ""
        if not present & {"nvlink", "xgmi"} and len(members) > 1 and min(gpu.sm for gpu in members) in _HAVE_NVLINK:
            self.remark(f"no NVLinks are listed: if the GPUs have some, this is a template. {CURE}")
        for what, of in self.guessed.items():
            self.remark(f"assumed: {what} of {count(len(of), 'device')} without a speed in the file ({names(of)})")
        lost += "".join(f"; {remark}" for remark in [*self.remarks][:8])
        machine = Topology(
            name=machine_name(Path(self.path).stem),
            devices=tuple(self.devices),
            links=links,
            members=tuple(gpu.name for gpu in members),
            nodes=self.hosts,
            rates=self.rates.name,
            source=f"NCCL topology file {Path(self.path).name}{lost}",
        )
        inside = tuple(kind for kind in ("nvlink", "xgmi", "pcie", UNLIMITED, "cpu", "c2c") if kind in present)
        own = next((kind for kind in ("nvlink", "xgmi") if kind in present), "nvlink")
        direct = machine.with_links(link for link in links if link.kind == own)
        enough = own in present and len(direct.components()) == 1
        reach = tuple(kind for kind in ("pcie", UNLIMITED, "cpu", "c2c", "nic") if kind in present)
        fabric = None
        if self.nets and self.hosts == 1:
            # One switch that joins the ports of all nodes; a slower port is held back by its link to the
            # adapter. The latency is from node to node; on its way a message takes two of the fabric's links.
            floor, overhead = self.rates.timing["net"]
            ports, rates, latencies = zip(*self.nets, strict=True)
            latency = max(floor, *latencies) / 2
            fabric = Fabric("switch", ports, "net", max(rates), latency=latency, overhead=overhead)
        within, between = (own,) if enough else inside, (*reach, "net") if self.nets else ()
        return replace(machine, collective_links=within, inter_node_links=between, fabric=fabric)

    # --- devices and the PCIe tree --------------------------------------------------------------------------------

    def add_device(
        self, element: Element, host: int, name: str, kind: str, facts: Mapping[str, object] = MappingProxyType({})
    ) -> str:
        """A device with the attributes of its element, `facts` above them; returns its name."""
        if self.hosts > 1:
            name = f"n{host}.{name}"
        if name in self.taken:
            raise fault(self.path, element, f"line {self.taken[name]} already describes {name}")
        self.taken[name] = element.line
        self.devices.append(Device(name, kind, node=host, attributes={**_written(element), **facts}))
        return name

    def add_link(self, src: str, dst: str, kind: str, lane: Fraction, lanes: int = 1, timing: str = "") -> None:
        """Adds a link; further entries for the same pair are further lanes of it."""
        before = self.links.get((src, dst, kind))
        if before is not None and before.lane_bandwidth == lane:
            lanes += before.lanes
        elif before is not None:
            # Entries of different rates: only the sum can be kept.
            lane, lanes = before.bandwidth + lane * lanes, 1
        latency, overhead = self.rates.timing[timing or kind]
        self.links[(src, dst, kind)] = Link(src, dst, kind, lane, lanes, latency, overhead)

    def add_pair(self, a: str, b: str, kind: str, lane: Fraction, lanes: int = 1) -> None:
        self.add_link(a, b, kind, lane, lanes)
        self.add_link(b, a, kind, lane, lanes)

    def add_cpu(self, element: Element, host: int) -> None:
        numa = integer(self.path, element, "numaid", low=-1, high=65535)
        name = self.add_device(element, host, f"cpu{max(numa, 0)}", "cpu", {"numaid": numa})
        self.cpus.setdefault(host, []).append((name, element))
        for child in element.children:
            if child.tag == "pci":
                self.add_pci(child, host, name, name)
            elif child.tag == "nic":
                # A virtual adapter without a PCIe link of its own.
                nic = self.add_device(child, host, self.numbered("nic", host), "nic")
                self.add_pair(name, nic, UNLIMITED, self.rates.local)
                self.add_nets(child, host, nic)

    def add_pci(self, element: Element, host: int, parent: str, cpu: str) -> None:
        bus = _bus_id(self.path, element, "busid")
        kind = word(self.path, element, "class", "").lower()
        gpus, nics = list(element.named("gpu")), list(element.named("nic"))
        if (host, bus) in self.seen:
            text = word(self.path, element, "busid")
            if gpus:
                raise fault(self.path, element, f"busid={text!r} is also that of line {self.seen[host, bus]}")
            self.remark(f"devices with one bus id, {text}, taken for several, as NCCL does")
        self.seen[(host, bus)] = element.line
        if len(gpus) > 1:
            raise fault(self.path, gpus[1], "a second GPU with the same bus id; give each a <pci> of its own")
        # Children count more than the class: an NTB adapter has an NVSwitch's class.
        if gpus:
            name = self.add_gpu(gpus[0], element, host, cpu, bus)
        elif nics:
            # The functions of an adapter are one device behind one PCIe link.
            port = (host, (*bus[:3], 0))
            known = self.adapters.get(port)
            name = known or self.add_device(element, host, self.numbered("nic", host), "nic")
            self.adapters[port] = name
            for nic in nics:
                self.add_nets(nic, host, name)
            if known:
                return
        elif kind.startswith((_GPU, _NIC, _SWITCH, _CPU)) and not list(element.named("pci")):
            return
        else:
            name = self.add_device(element, host, self.numbered("pcie", host), "pcie")
            self.bridges[(host, bus)] = (name, element)
        self.add_pair(parent, name, "pcie", *self.pcie(element, name))
        for child in element.named("pci"):
            self.add_pci(child, host, name, cpu)

    def numbered(self, kind: str, host: int) -> str:
        """The next name such as ``pcie3``, counted for each host."""
        return f"{kind}{next(self.numbers[host, kind])}"

    def pcie(self, element: Element, name: str) -> tuple[Fraction, int]:
        """Rate of a lane and number of lanes of the link above the PCIe device `name`."""
        text = word(self.path, element, "link_speed", "")
        width = integer(self.path, element, "link_width", low=0, high=32, default=0)
        match = _PCIE_SPEED.fullmatch(text)
        speed = f"{float(f'{match[1]}.{match[2] or 0}'):g}" if match else self.rates.pcie_unknown_rate
        unknown = not text or text.lower().startswith("unknown")
        if speed not in self.rates.pcie or (match is None and not unknown):
            known = ", ".join(self.rates.pcie)
            raise fault(self.path, element, f"link_speed={text[:40]!r} is not PCIe's; known: {known} GT/s")
        if unknown:
            self.guessed[f"PCIe at {speed} GT/s a lane"].append(name)
        return self.rates.pcie[speed], width or self.rates.pcie_unknown_lanes

    def add_gpu(self, element: Element, pci: Element, host: int, cpu: str, bus: BusId) -> str:
        dev = integer(self.path, element, "dev", low=0, high=65535)
        sm = integer(self.path, element, "sm", low=10, high=999)
        if "gcn" in element.attributes:
            self.remark("a file of RCCL: sm counts compute units, and is no compute capability")
        rank = None
        if "rank" in element.attributes:
            if (rank := integer(self.path, element, "rank", low=0, high=10**6)) in self.ranks:
                raise fault(self.path, element, f"rank={rank} is also that of line {self.ranks[rank]}")
            self.ranks[rank] = element.line
        facts = {**_written(pci), "dev": dev, "sm": sm, **({} if rank is None else {"rank": rank})}
        name = self.add_device(element, host, f"gpu{dev}", "gpu", facts)
        self.gpus[(host, bus)] = _Gpu(name, host, cpu, element, sm, dev, rank)
        return name

    def add_nets(self, nic: Element, host: int, adapter: str) -> None:
        for net in nic.named("net"):
            # NCCL leaves out an interface without a number.
            if "dev" not in net.attributes:
                continue
            dev = integer(self.path, net, "dev", low=0, high=65535)
            megabits = integer(self.path, net, "speed", low=-(2**31), high=2**31 - 1, default=0)
            rate = Fraction(megabits * 10**6, 8) if megabits > 0 else self.rates.net_unknown
            latency = safe_xml.number(self.path, net, "latency", low=0, high=10**6, default=0) * 1e-6
            name = self.add_device(net, host, f"net{dev}", "nic", {"dev": dev})
            if megabits <= 0:
                self.guessed[f"{format_rate(rate)} a port"].append(name)
            self.add_pair(adapter, name, "nic", rate)
            self.nets.append((name, rate, latency))

    # --- links across the tree ------------------------------------------------------------------------------------

    def add_nvlink(self, gpu: _Gpu, entry: Element) -> None:
        if (lane := self.rates.nvlink_lane(gpu.sm)) is None:
            raise fault(self.path, entry, f"NVLink at a GPU of sm={gpu.sm}; NVLink begins with sm=60")
        lanes = integer(self.path, entry, "count", low=1, high=1024)
        hidden = _HIDDEN_SWITCH.fullmatch(word(self.path, entry, "target").lower()) is not None
        bus = None if hidden else _bus_id(self.path, entry, "target")
        peer = self.gpus.get((gpu.host, bus)) if bus else None
        kind = word(self.path, entry, "tclass", _SWITCH if hidden else _GPU).lower()
        if kind.startswith(_GPU):
            if peer is None:
                # The dump of a job on some of a machine's GPUs also lists the links to the others; they lead
                # nowhere.
                self.lost_lanes += lanes
                return
            if peer is gpu:
                # NCCL adds a link of the GPU to itself, which no path takes.
                self.remark(f"NVLinks of {gpu.name} to itself passed over, as they carry nothing")
                return
            self.add_link(gpu.name, peer.name, "nvlink", lane, lanes)
        elif kind == _CPU:
            self.add_pair(gpu.name, gpu.cpu, "nvlink", lane, lanes)
        elif kind == _SWITCH:
            if "nvswitch" not in self.taken:
                self.taken["nvswitch"] = entry.line
                least = min(gpu.sm for gpu in self.gpus.values())
                self.devices.append(nvswitch(least, 0 if self.hosts == 1 else -1))
            self.add_link(gpu.name, "nvswitch", "nvlink", lane, lanes, "nvlink_to_switch")
            self.add_link("nvswitch", gpu.name, "nvlink", lane, lanes, "nvlink_from_switch")
        else:
            known = f"{_GPU}…. for a GPU, {_SWITCH} for an NVSwitch, {_CPU} for a CPU"
            raise fault(self.path, entry, f"tclass={kind[:40]!r} is not the class of an NVLink's end: {known}")

    def add_xgmi(self, gpu: _Gpu, entry: Element) -> None:
        """A link of AMD's between two GPUs, at RCCL's rate for the generation."""
        lanes = integer(self.path, entry, "count", low=1, high=1024)
        peer = self.gpus.get((gpu.host, _bus_id(self.path, entry, "target")))
        if peer is None or peer is gpu:
            self.remark("xGMI links to GPUs that are not in the file passed over")
            return
        name, lane = self.rates.xgmi_link(word(self.path, gpu.element, "gcn", ""))
        self.remark(f"xGMI links at {float(lane) / 1e9:g} GB/s each way ({name})")
        self.add_link(gpu.name, peer.name, "xgmi", lane, lanes)

    def join_cpus(self, peers: list[tuple[str, Element]]) -> None:
        """All CPUs of a host pairwise, each direction at the rate of the CPU that sends."""
        if len(peers) < 2:
            return
        for name, element in peers:
            arch = word(self.path, element, "arch")
            vendor = word(self.path, element, "vendor", "unknown")
            needed = None if vendor == "GenuineIntel" else -1
            family, model = (
                integer(self.path, element, key, low=-1, high=2**31, default=needed) for key in ("familyid", "modelid")
            )
            rate = self.rates.cpu_link(arch, vendor, family, model)
            for other, _ in peers:
                if other != name:
                    self.add_link(name, other, "cpu", rate)


# --- machines as such files ----------------------------------------------------------------------------

# The elements of a topology file that NCCL 2.21 and later have room for.
MOST_ELEMENTS = 256
_PCI_KEYS = ("busid", "class", "vendor", "device", "subsystem_vendor", "subsystem_device", "link_speed", "link_width")
_WIDTHS = (16, 8, 4, 2, 1, 32)
# Of GPUs that compute and draw nothing, as AMD's since MI300.
_AMD_CLASS = "0x120000"
_NVLINK_ENDS = {"switch": ("fffffff:ff:ff.0", "0x068000"), "cpu": ("0000:00:00.0", "0x068001")}
_USUAL_CPU = {"arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6", "modelid": "79"}


_IN_TREE = ("pcie", "nic", *GPU_KINDS)


def write(topology: Topology, bus_ids: Sequence[str] | None = None) -> tuple[str, tuple[str, ...]]:
    """The text of the topology file of one node, and sentences on what it leaves out of the machine or makes up.

    bus_ids: of the GPUs in order of their number, such as ``0000:1b:00.0``; None for those of the machine, or
    made-up ones. Links between GPUs that are not NVLinks are written as the nearest whole number of NVLinks,
    of GPUs with RCCL's ``gcn`` of xGMI links.

    Raises `InputError` for bus ids that are malformed, repeated or too few, and `InfeasibleError` for several
    nodes or more elements than NCCL reads.
    """
    if topology.nodes > 1:
        has = f"{topology.name} has {topology.nodes}"
        raise InfeasibleError(f"a topology file describes one node, and {has}; export one")
    writer = _Writer(topology, bus_ids)
    cpus = list[Element]()
    for position, cpu in enumerate(writer.cpus):
        facts = {key: str(value) for key, value in cpu.attributes.items()}
        if not {"arch", "vendor"} <= facts.keys():
            facts = {"numaid": str(position), **writer.cpu} | facts
        cpus.append(Element("cpu", facts, writer.children(cpu.name)))
    version = "2" if any(device.gfx for device in topology.devices) else "1"
    system = Element("system", {"version": version}, tuple(cpus))
    if (most := len([*system.walk()])) > MOST_ELEMENTS:
        raise InfeasibleError(f"{most} elements, and NCCL reads {MOST_ELEMENTS} of a topology file; leave NICs out")
    return "\n".join(lines(system)) + "\n", tuple(writer.notes)


def pcie_tree(topology: Topology, cpus: Sequence[str], local: Fraction) -> Mapping[str, list[str]]:
    """The children of every device below the CPUs, in the machine's order, along links that do not belong to GPUs.

    local: the bandwidth of a link between PCIe switches that is no branch of the tree.
    """
    near: defaultdict[str, list[str]] = defaultdict(list)
    for link in topology.links:
        kinds = [topology.device(end).kind for end in (link.src, link.dst)]
        crosslink = kinds == ["pcie", "pcie"] and link.bandwidth == local
        peers = all(kind in GPU_KINDS for kind in kinds)
        if {*kinds} <= {*_IN_TREE, "cpu"} and link.kind not in ("nvlink", "c2c") and not crosslink and not peers:
            near[link.src].append(link.dst)
    below: defaultdict[str, list[str]] = defaultdict(list)
    seen, front = set(cpus), deque(cpus)

    def attach(name: str, parent: str) -> None:
        if name not in seen:
            seen.add(name)
            front.append(name)
            below[parent].append(name)

    # What no path leads to from a CPU goes below the one that a link of another class joins to it, else the
    # first one, with everything that it leads to. Switches come first, because GPUs hang below them.
    own = {link.src: link.dst for link in topology.links if link.dst in seen}
    inside = [device for device in topology.devices if device.kind in _IN_TREE]
    unreached = deque(sorted(inside, key=lambda device: device.kind != "pcie"))
    while front or unreached:
        if not front:
            orphan = unreached.popleft().name
            attach(orphan, own.get(orphan, cpus[0]))
            continue
        place = front.popleft()
        for name in near[place]:
            attach(name, place)
    for children in below.values():
        children.sort(key=topology.index.__getitem__)
    return below


def _bus_ids(
    topology: Topology, gpus: Sequence[Device], given: Sequence[str] | None
) -> tuple[dict[str, str], Iterator[str]]:
    """Bus ids by name of the device, and those that are left; `gpus` in the order in which `given` lists theirs."""
    bus_ids: dict[str, str] = {}
    if given is not None:
        lowered = [bus.strip().lower() for bus in given]
        for bus in lowered:
            if not BUS_ID.fullmatch(bus):
                raise InputError(f"{bus[:40]!r} is not a bus id such as 0000:1b:00.0")
        if len(lowered) != len(gpus) or len(set(lowered)) < len(lowered):
            raise InputError(f"{len(gpus)} different bus ids are needed, one for each GPU, not {len(given)}")
        bus_ids = dict(zip((gpu.name for gpu in gpus), lowered, strict=True))
    known = {str(d.attributes["busid"]).lower() for d in topology.devices if "busid" in d.attributes}
    taken = {*bus_ids.values(), *known}
    made_up = (f"{number >> 8:04x}:{number & 255:02x}:00.0" for number in itertools.count(1))
    left = (bus for bus in made_up if bus not in taken)
    for device in (*gpus, *(d for d in topology.devices if d.kind in ("pcie", "nic"))):
        if device.name not in bus_ids:
            bus_ids[device.name] = str(device.attributes["busid"]) if "busid" in device.attributes else next(left)
    return bus_ids, left


# Names of devices that say their number.
NUMBERED = re.compile(r"(?:n[0-9]+\.)?(?:gpu|net|nic)([0-9]{1,4})")


def number(device: Device) -> int:
    """The number of a GPU or network device; raises `InfeasibleError` if neither name nor attributes give it."""
    given = device.attributes.get("dev")
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    if (match := NUMBERED.fullmatch(device.name)) is None:
        cure = f"give the {device.kind} the attribute dev in the machine file"
        raise InfeasibleError(f"{device.name} has no number that NCCL knows; {cure}")
    return int(match[1])


class _Writer:
    """Builds the elements of a node; the notes gather what the file does not say and what is made up."""

    def __init__(self, topology: Topology, bus_ids: Sequence[str] | None) -> None:
        self.topology = topology
        self.rates = link_rates.load("nccl" if topology.rates == "nccl" else "nominal")
        self.notes: dict[str, None] = {}
        gpus = [device for device in topology.devices if device.kind in GPU_KINDS]
        # The number of each GPU: what it says, or what its name says; the position of each where that tells
        # none apart.
        self.number = {gpu.name: position for position, gpu in enumerate(gpus)}
        with suppress(InfeasibleError):
            said = {gpu.name: number(gpu) for gpu in gpus}
            self.number = said if len(set(said.values())) == len(gpus) else self.number
        gpus.sort(key=lambda gpu: self.number[gpu.name])
        self.rank = {name: rank for rank, name in enumerate(topology.members)}
        self.bus, self.new_bus = _bus_ids(topology, gpus, bus_ids)
        if bus_ids is None and any("busid" not in gpu.attributes for gpu in gpus):
            self.note("bus ids are made up; give those of the GPUs that the job runs on")
        self.cpus = [device for device in topology.devices if device.kind == "cpu"]
        if not self.cpus:
            self.note("the machine names no CPU; all GPUs hang below one that is made up")
            self.cpus = [Device("cpu0", "cpu")]
        self.below = pcie_tree(topology, [cpu.name for cpu in self.cpus], self.rates.local)

    def note(self, text: str) -> None:
        self.notes.setdefault(text)

    @cached_property
    def cpu(self) -> dict[str, str]:
        """A CPU that NCCL takes to be joined to its like as fast as those of the machine are, or next to it."""
        names = {cpu.name for cpu in self.cpus}
        joined = min((x.bandwidth for x in self.topology.links if {x.src, x.dst} <= names), default=Fraction(0))
        known = ((rate, of) for rate, of in self.rates.cpus if of.get("vendor") == _USUAL_CPU["vendor"])
        rate, of = min(known, key=lambda row: (row[0] < joined, abs(row[0] - joined)))
        if joined and rate != joined:
            joins = f"they are joined at {format_rate(joined)}, and the CPUs of the file at {format_rate(rate)}"
            self.note(f"which CPUs these are, the machine does not say: {joins}")
        return _USUAL_CPU | {"modelid": str(of.get("models_from", _USUAL_CPU["modelid"]))}

    # --- the PCIe tree ------------------------------------------------------------------------------------------------

    def children(self, place: str) -> tuple[Element, ...]:
        # By what they hang below: a PCIe switch that is made up, with its attributes, or nothing but the place itself.
        groups, switches = defaultdict[object, list[Element]](list), dict[object, dict[str, str]]()
        for name in self.below.get(place, ()):
            device = self.topology.device(name)
            if device.kind in GPU_KINDS:
                group = device.attributes.get("pcie_switch", name)
                kind = _AMD_CLASS if device.gfx else "0x030200"
                pci = Element("pci", self._pci(device, kind), (self._gpu(device),))
                speed = {key: value for key, value in pci.attributes.items() if key.startswith("link_")}
                nics = [self._nic(self.topology.device(nic)) for nic in self.below.get(name, ())]
                if (fabric := self.topology.fabric) is not None and name in fabric.ports:
                    facts = {"busid": next(self.new_bus), "class": "0x020000", **speed}
                    nics.append(Element("pci", facts, (Element("nic", {}, (self._net(device),)),)))
                if nics:
                    # With NICs drawn at the GPU itself, both are below a switch that is made up.
                    self.note("a GPU and the NIC drawn at it are written below one PCIe switch")
                    switches[group] = {"class": "0x060400", **speed}
                groups[group if nics else name] += [pci, *nics]
            elif device.kind == "pcie":
                facts, ways = self._pci(device, "0x060400"), leaving(self.topology, name)
                near = [end for way, end in ways if way.bandwidth == self.rates.local and end.kind == "pcie"]
                peers = [Element("pcilink", {"target": self.bus[end.name]}) for end in near]
                groups[name].append(Element("pci", facts, (*peers, *self.children(name))))
            else:
                groups[name].append(self._nic(device))
        return tuple(
            Element("pci", {"busid": next(self.new_bus)} | switches[group], (*inside,))
            if group in switches
            else inside[0]
            for group, inside in groups.items()
        )

    def _pci(self, device: Device, kind: str) -> dict[str, str]:
        """The attributes of the PCIe element of a device, as they were, or from the bandwidth of the link above it."""
        known = {key: str(device.attributes[key]) for key in _PCI_KEYS if key in device.attributes}
        if "busid" in known:
            return known | {"busid": self.bus[device.name]}
        made_up = {"busid": self.bus[device.name], "class": kind}
        into = (x for x in self.topology.links if x.dst == device.name and x.kind not in ("nvlink", "c2c"))
        near = {"pcie", "cpu", "nic"}
        link = next((x for x in into if near & {self.topology.device(x.src).kind, device.kind}), None)
        if link is None:
            self.note("where no PCIe link is given, generation 4 with 16 lanes is written")
            return made_up | {"link_speed": "16.0 GT/s PCIe", "link_width": "16"} | known
        ways, wanted = itertools.product(self.rates.pcie.items(), _WIDTHS), link.bandwidth
        fits = [(width != link.lanes, abs(lane * width - wanted), speed, width) for (speed, lane), width in ways]
        if exact := [fit for fit in fits if fit[1] == 0]:
            best = min(exact, key=lambda fit: (fit[0] and link.lanes > 1, fit[3] != 16))
        else:
            best = min((fit for fit in fits if fit[3] == 16), key=lambda fit: fit[1])
            self.note(f"{link.name} is written as PCIe {best[2]} GT/s x {best[3]}, the nearest that there is")
        return made_up | {"link_speed": f"{float(best[2]):.1f} GT/s PCIe", "link_width": str(best[3])} | known

    def _nic(self, device: Device) -> Element:
        topology, inside = self.topology, self.below.get(device.name, ())
        ports = [other for _, other in leaving(topology, device.name)]
        nets = [port for port in ports if port.kind == "nic" and port.name in inside]
        alone = not nets and topology.fabric is not None and device.name in topology.fabric.ports
        held = tuple(map(self._net, [device] if alone else nets))
        if "busid" in device.attributes or not nets:
            return Element("pci", self._pci(device, "0x020000"), (Element("nic", {}, held),))
        # A virtual adapter hangs at the CPU without a PCIe device of its own.
        return Element("nic", {key: str(value) for key, value in device.attributes.items()}, held)

    def _net(self, device: Device) -> Element:
        facts: Mapping[str, object] = device.attributes
        fabric = self.topology.fabric
        if "speed" not in facts and fabric is not None:
            place = fabric.ports.index(device.name)
            megabits = int(fabric.lane_bandwidth * fabric.lanes * 8 / 10**6)
            facts = {"name": device.name, "dev": place, "latency": f"{fabric.latency * 2e6:g}", "speed": megabits}
            facts |= {"port": 1, "guid": f"0x{place + 1:x}", "maxconn": 262144, "gdr": 1}
        return Element("net", {key: str(value) for key, value in facts.items()})

    # --- GPUs and their links -----------------------------------------------------------------------------------------

    def _gpu(self, device: Device) -> Element:
        sm = device.attributes.get("sm")
        if not isinstance(sm, int):
            self.note(f"the GPUs have no compute capability (sm); {DEFAULT_SM} is written")
            sm = DEFAULT_SM
        # Where a GPU hangs, the tree says.
        left_out = (*_PCI_KEYS, "model", "pcie_switch")
        known = {key: str(value) for key, value in device.attributes.items() if key not in left_out}
        facts = {"dev": str(self.number[device.name]), "sm": str(sm)}
        facts |= {"rank": str(self.rank[device.name])} if device.name in self.rank and "rank" not in known else {}
        facts |= {} if "busid" in device.attributes else {"gdr": "1"}
        links = list[Element]()
        lane = self.rates.xgmi_link(device.gfx)[1] if device.gfx else self.rates.nvlink_lane(sm)
        for link, other in leaving(self.topology, device.name):
            if link.kind == "c2c":
                links.append(Element(*_listed(link, other, link.lanes, self.bus)))
            elif other.kind in (*GPU_KINDS, "switch") or (other.kind == "cpu" and link.kind == "nvlink"):
                if lane is None:
                    self.note(f"{link.name} is left out: GPUs of this compute capability have no NVLink")
                    continue
                exact = link.bandwidth / lane
                count = max(1, round(exact))
                tag, facts_of_link = _listed(link, other, count, self.bus)
                if count != exact or link.kind != tag:
                    ends, rate = link.name.split(" ")[-1].strip("()"), float(lane) / 1e9
                    self.note(f"{ends} links are written as {tag} of {rate:g} GB/s: {count} for {float(exact):.3g}")
                links.append(Element(tag, facts_of_link))
        return Element("gpu", known | facts, tuple(links))
