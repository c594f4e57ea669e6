"""Machines as NCCL topology files (NCCL_TOPO_FILE), with PCIe tree and bus ids.

NCCL takes the file's word over what it detects (NCCL 2.28.3 graph/topo.cc), so a job on other GPUs chooses
the rings and trees of the machine described, if the bus ids are those of the GPUs that it runs on. What a
machine file leaves out (bus ids, CPU models, the PCIe tree) is invented; what came from a topology file is
written back unchanged.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from blinksim.errors import InfeasibleError, InputError
from blinksim.nccl.families import BUS_ID, DEFAULT_SM, Element
from blinksim.textio import link_rates
from blinksim.topology.elements import GPU_KINDS
from blinksim.topology.graph import Device, Topology
from blinksim.units import format_rate

# The elements of a topology file that NCCL 2.21 and later have room for.
MOST_ELEMENTS = 256
_PCI_KEYS = ("busid", "class", "vendor", "device", "subsystem_vendor", "subsystem_device", "link_speed", "link_width")
_WIDTHS = (16, 8, 4, 2, 1, 32)
_NVLINK_ENDS = {"switch": ("fffffff:ff:ff.0", "0x068000"), "cpu": ("0000:00:00.0", "0x068001")}
_CPU = {"arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6", "modelid": "79"}


_IN_TREE = ("pcie", "nic", *GPU_KINDS)


@dataclass(frozen=True, slots=True)
class Written:
    """The text of a topology file, and sentences on what it leaves out of the machine or makes up."""

    text: str
    notes: tuple[str, ...]


def write(topology: Topology, bus_ids: Sequence[str] | None = None) -> Written:
    """The topology file of one node.

    bus_ids: of the GPUs in order of their number, such as ``0000:1b:00.0``; None for those of the machine, or made-up
    ones. Links between GPUs that are not NVLinks are written as the nearest whole number of NVLinks.

    Raises `InputError` for bus ids that are malformed, repeated or too few, and `InfeasibleError` for several nodes
    or more elements than NCCL reads.
    """
    if topology.nodes > 1:
        has = f"{topology.name} has {topology.nodes}"
        raise InfeasibleError(f"a topology file describes one node, and {has}; export one")
    writer = _Writer(topology, bus_ids)
    system = Element("system", {"version": "1"})
    for position, cpu in enumerate(writer.cpus):
        facts = {key: str(value) for key, value in cpu.attributes.items()}
        if not {"arch", "vendor"} <= facts.keys():
            facts = {"numaid": str(position), **writer.cpu} | facts
        system.children.append(Element("cpu", facts, writer.children(cpu.name)))
    count = system.count()
    if count > MOST_ELEMENTS:
        raise InfeasibleError(f"{count} elements, and NCCL reads {MOST_ELEMENTS} of a topology file; leave NICs out")
    return Written("\n".join(system.lines()) + "\n", tuple(writer.notes))


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

    # What no path leads to from a CPU goes below the one that a link of another class joins to it, else the first one,
    # with everything that it leads to. Switches come first, because GPUs hang below them.
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
    match = NUMBERED.fullmatch(device.name)
    if match is None:
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
        # The number of each GPU: what it says, or what its name says; the position of each where that tells none apart.
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
        known = ((rate, of) for rate, of in self.rates.cpus if of.get("vendor") == _CPU["vendor"])
        rate, of = min(known, key=lambda row: (row[0] < joined, abs(row[0] - joined)))
        if joined and rate != joined:
            joins = f"they are joined at {format_rate(joined)}, and the CPUs of the file at {format_rate(rate)}"
            self.note(f"which CPUs these are, the machine does not say: {joins}")
        return _CPU | {"modelid": str(of.get("models_from", _CPU["modelid"]))}

    # --- the PCIe tree ------------------------------------------------------------------------------------------------

    def children(self, place: str) -> list[Element]:
        children = []
        for name in self.below.get(place, ()):
            device = self.topology.device(name)
            if device.kind in GPU_KINDS:
                pci = Element("pci", self._pci(device, "0x030200"), [self._gpu(device)])
                speed = {key: value for key, value in pci.attributes.items() if key.startswith("link_")}
                nics = [self._nic(self.topology.device(nic)) for nic in self.below.get(name, ())]
                fabric = self.topology.fabric
                if fabric is not None and name in fabric.ports:
                    facts = {"busid": next(self.new_bus), "class": "0x020000", **speed}
                    nics.append(Element("pci", facts, [Element("nic", {}, [self._net(device)])]))
                if nics:
                    # With NICs drawn at the GPU itself, both are below a switch that is made up.
                    self.note("a GPU and the NIC drawn at it are written below one PCIe switch")
                    facts = {"busid": next(self.new_bus), "class": "0x060400", **speed}
                    pci = Element("pci", facts, [pci, *nics])
                children.append(pci)
            elif device.kind == "pcie":
                element = Element("pci", self._pci(device, "0x060400"))
                for link in self.topology.links:
                    other = self.topology.device(link.dst)
                    if link.src == name and other.kind == "pcie" and link.bandwidth == self.rates.local:
                        element.children.append(Element("pcilink", {"target": self.bus[other.name]}))
                element.children += self.children(name)
                children.append(element)
            else:
                children.append(self._nic(device))
        return children

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
        exact = [fit for fit in fits if fit[1] == 0]
        if exact:
            best = min(exact, key=lambda fit: (fit[0] and link.lanes > 1, fit[3] != 16))
        else:
            best = min((fit for fit in fits if fit[3] == 16), key=lambda fit: fit[1])
            self.note(f"{link.name} is written as PCIe {best[2]} GT/s x {best[3]}, the nearest that there is")
        return made_up | {"link_speed": f"{float(best[2]):.1f} GT/s PCIe", "link_width": str(best[3])} | known

    def _nic(self, device: Device) -> Element:
        topology, inside = self.topology, self.below.get(device.name, ())
        ports = [topology.device(topology.links[i].dst) for i in topology.out_links[topology.index[device.name]]]
        nets = [port for port in ports if port.kind == "nic" and port.name in inside]
        nic = Element("nic", {}, [self._net(net) for net in nets])
        if not nets and topology.fabric is not None and device.name in topology.fabric.ports:
            nic.children.append(self._net(device))
        if "busid" in device.attributes or not nets:
            return Element("pci", self._pci(device, "0x020000"), [nic])
        # A virtual adapter hangs at the CPU without a PCIe device of its own.
        nic.attributes = {key: str(value) for key, value in device.attributes.items()}
        return nic

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
        known = {key: str(value) for key, value in device.attributes.items() if key not in (*_PCI_KEYS, "model")}
        facts = {"dev": str(self.number[device.name]), "sm": str(sm)}
        facts |= {"rank": str(self.rank[device.name])} if device.name in self.rank and "rank" not in known else {}
        facts |= {} if "busid" in device.attributes else {"gdr": "1"}
        element = Element("gpu", known | facts)
        lane = self.rates.nvlink_lane(sm)
        for link in self.topology.links:
            other = self.topology.device(link.dst)
            if link.src != device.name:
                continue
            if link.kind == "c2c":
                facts = {"bw": str(int(link.lane_bandwidth / 10**6)), "count": str(link.lanes)}
                element.children.append(Element("c2c", facts))
            elif other.kind in (*GPU_KINDS, "switch") or (other.kind == "cpu" and link.kind == "nvlink"):
                if lane is None:
                    self.note(f"{link.name} is left out: GPUs of this compute capability have no NVLink")
                    continue
                exact = link.bandwidth / lane
                count = max(1, round(exact))
                if count != exact or link.kind != "nvlink":
                    ends, rate = link.name.split(" ")[-1].strip("()"), float(lane) / 1e9
                    self.note(f"{ends} links are written as NVLinks of {rate:g} GB/s: {count} for {float(exact):.3g}")
                target, kind = _NVLINK_ENDS.get(other.kind) or (self.bus[other.name], "0x030200")
                element.children.append(Element("nvlink", {"target": target, "count": str(count), "tclass": kind}))
        return element
