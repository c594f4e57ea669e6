"""Machines as NCCL topology files (NCCL_TOPO_FILE), with PCIe tree and bus ids.

NCCL takes the file's word over what it detects (NCCL 2.28.3 graph/topo.cc), so a job on other GPUs chooses
the rings and trees of the machine described, if the bus ids are those of the GPUs that it runs on. What a
machine file leaves out (bus ids, CPU models, the PCIe tree) is invented; what came from a topology file is
written back unchanged.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from blinksim.errors import InfeasibleError, InputError
from blinksim.nccl.families import BUS_ID, GPU_KINDS, Element
from blinksim.textio import link_rates
from blinksim.topology.graph import Device, Topology


class BusIds:
    """Bus ids by name of the device; `gpus` in the order in which `given` lists theirs.

    Raises `InputError` for bus ids that are malformed, repeated or too few.
    """

    def __init__(self, topology: Topology, gpus: Sequence[Device], given: Sequence[str] | None) -> None:
        self._of: dict[str, str] = {}
        if given is not None:
            lowered = [bus.strip().lower() for bus in given]
            for bus in lowered:
                if not BUS_ID.fullmatch(bus):
                    raise InputError(f"{bus[:40]!r} is not a bus id such as 0000:1b:00.0")
            if len(lowered) != len(gpus) or len(set(lowered)) < len(lowered):
                raise InputError(f"{len(gpus)} different bus ids are needed, one for each GPU, not {len(given)}")
            self._of = dict(zip((gpu.name for gpu in gpus), lowered, strict=True))
        known = {str(d.attributes["busid"]).lower() for d in topology.devices if "busid" in d.attributes}
        self._taken = {*self._of.values(), *known}
        self._made = 0
        self.invents_gpus = False
        """True if the bus id of a GPU is made up."""
        for device in (*gpus, *(d for d in topology.devices if d.kind in ("pcie", "nic"))):
            if device.name in self._of:
                continue
            if "busid" in device.attributes:
                self._of[device.name] = str(device.attributes["busid"])
            else:
                self._of[device.name] = self.new()
                self.invents_gpus |= device.kind in GPU_KINDS

    def __getitem__(self, name: str) -> str:
        return self._of[name]

    def get(self, name: str) -> str:
        """The bus id of a device, empty if it has none."""
        return self._of.get(name, "")

    def new(self) -> str:
        """A bus id that no device has."""
        while True:
            self._made += 1
            bus = f"{self._made >> 8:04x}:{self._made & 255:02x}:00.0"
            if bus not in self._taken:
                self._taken.add(bus)
                return bus


_IN_TREE = ("pcie", "nic", *GPU_KINDS)


class PcieTree:
    """Every device below the nearest to a CPU along links that do not belong to GPUs.

    parent: by device. below: the children of a device, in the machine's order.
    """

    def __init__(self, topology: Topology, cpus: Sequence[str], local: Fraction) -> None:
        """cpus: the roots. local: the bandwidth of a link between PCIe switches that is no branch of the tree."""
        self.parent: dict[str, str] = {}
        self.below: dict[str, list[str]] = {}
        near: dict[str, list[str]] = {}
        for link in topology.links:
            kinds = [topology.device(end).kind for end in (link.src, link.dst)]
            crosslink = kinds == ["pcie", "pcie"] and link.bandwidth == local
            peers = all(kind in GPU_KINDS for kind in kinds)
            if {*kinds} <= {*_IN_TREE, "cpu"} and link.kind not in ("nvlink", "c2c") and not crosslink and not peers:
                near.setdefault(link.src, []).append(link.dst)
        self._seen, self._front = set(cpus), deque(cpus)
        self._walk(topology, near)
        # Nothing leads from these to a CPU: they go below the first one, with everything that they lead to. Switches
        # come first, because GPUs hang below them.
        for device in sorted(topology.devices, key=lambda device: device.kind != "pcie"):
            if device.kind in _IN_TREE and device.name not in self._seen:
                self._attach(device.name, cpus[0])
                self._walk(topology, near)
        for children in self.below.values():
            children.sort(key=topology.index.__getitem__)

    def _walk(self, topology: Topology, near: dict[str, list[str]]) -> None:
        """Breadth first from the devices that were attached last."""
        while self._front:
            place = self._front.popleft()
            for name in near.get(place, ()):
                if name not in self._seen and topology.device(name).kind in _IN_TREE:
                    self._attach(name, place)

    def _attach(self, name: str, place: str) -> None:
        self._seen.add(name)
        self._front.append(name)
        self.parent[name] = place
        self.below.setdefault(place, []).append(name)


MOST_ELEMENTS = 256
"""The elements of a topology file that NCCL 2.21 and later have room for."""
DEFAULT_SM = 90
_PCI_KEYS = (
    *("busid", "class", "vendor", "device", "subsystem_vendor", "subsystem_device"),
    *("link_speed", "link_width"),
)
_WIDTHS = (16, 8, 4, 2, 1, 32)
_HIDDEN_SWITCH = "fffffff:ff:ff.0"
_CPU = {"arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6", "modelid": "79"}


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
        raise InfeasibleError(
            f"a topology file describes one node, and {topology.name} has {topology.nodes}; export one"
        )
    return _Writer(topology, bus_ids).written()


class _Writer:
    """Builds the elements of a node; the notes gather what the file does not say and what is made up."""

    def __init__(self, topology: Topology, bus_ids: Sequence[str] | None) -> None:
        self.topology = topology
        self.rates = link_rates.load("nccl" if topology.rates == "nccl" else "nominal")
        self.notes: dict[str, None] = {}
        gpus = [device for device in topology.devices if device.kind in GPU_KINDS]
        # The number of each GPU: what it says, or what its name says; the position of each if two say the same.
        self.number = {gpu.name: _said(gpu, position) for position, gpu in enumerate(gpus)}
        if len(set(self.number.values())) < len(gpus):
            self.number = {gpu.name: position for position, gpu in enumerate(gpus)}
        self.rank = {name: rank for rank, name in enumerate(topology.members)}
        self.bus = BusIds(topology, sorted(gpus, key=lambda gpu: self.number[gpu.name]), bus_ids)
        if self.bus.invents_gpus:
            self.note("bus ids are made up; give those of the GPUs that the job runs on")
        self.cpus = [device for device in topology.devices if device.kind == "cpu"]
        if not self.cpus:
            self.note("the machine names no CPU; all GPUs hang below one that is made up")
            self.cpus = [Device("cpu0", "cpu")]
        self.tree = PcieTree(topology, [cpu.name for cpu in self.cpus], self.rates.local)

    def note(self, text: str) -> None:
        self.notes.setdefault(text)

    def written(self) -> Written:
        system = Element("system", {"version": "1"})
        for position, cpu in enumerate(self.cpus):
            facts = {key: str(value) for key, value in cpu.attributes.items()}
            if not {"arch", "vendor"} <= facts.keys():
                facts = {"numaid": str(position), **_CPU} | facts
            element = Element("cpu", facts)
            element.children = self._below(cpu.name)
            system.children.append(element)
        count = system.count()
        if count > MOST_ELEMENTS:
            raise InfeasibleError(
                f"{count} elements, and NCCL reads {MOST_ELEMENTS} of a topology file; leave NICs out"
            )
        return Written("\n".join(system.lines()) + "\n", tuple(self.notes))

    # --- the PCIe tree ------------------------------------------------------------------------------------------------

    def _below(self, place: str) -> list[Element]:
        found = []
        for name in self.tree.below.get(place, ()):
            device = self.topology.device(name)
            if device.kind in GPU_KINDS:
                found.append(self._gpu_branch(device))
            elif device.kind == "pcie":
                element = Element("pci", self._pci(device, "0x060400"))
                for link in self.topology.links:
                    other = self.topology.device(link.dst)
                    if link.src == name and other.kind == "pcie" and link.bandwidth == self.rates.local:
                        element.children.append(Element("pcilink", {"target": self.bus[other.name]}))
                element.children += self._below(name)
                found.append(element)
            else:
                found.append(self._nic(device))
        return found

    def _pci(self, device: Device, kind: str) -> dict[str, str]:
        """The attributes of the PCIe element of a device, as they were, or from the link above it."""
        known = {key: str(device.attributes[key]) for key in _PCI_KEYS if key in device.attributes}
        if "busid" in known:
            return known | {"busid": self.bus[device.name]}
        speed, width = self._port(device)
        return {"busid": self.bus[device.name], "class": kind, "link_speed": speed, "link_width": width} | known

    def _port(self, device: Device) -> tuple[str, str]:
        """Transfer rate and width of the link above a device, from its bandwidth."""
        links = [
            link
            for link in self.topology.links
            if link.dst == device.name
            and link.kind not in ("nvlink", "c2c")
            and {self.topology.device(link.src).kind, device.kind} & {"pcie", "cpu", "nic"}
        ]
        if not links:
            self.note("where no PCIe link is given, generation 4 with 16 lanes is written")
            return "16.0 GT/s PCIe", "16"
        link = links[0]
        fits = [
            (width != link.lanes, abs(lane * width - link.bandwidth), speed, width)
            for speed, lane in self.rates.pcie.items()
            for width in _WIDTHS
        ]
        exact = [fit for fit in fits if fit[1] == 0]
        if exact:
            best = min(exact, key=lambda fit: (fit[0] and link.lanes > 1, fit[3] != 16))
        else:
            best = min((fit for fit in fits if fit[3] == 16), key=lambda fit: fit[1])
            self.note(f"{link.name} is written as PCIe {best[2]} GT/s x {best[3]}, the nearest that there is")
        return f"{float(best[2]):.1f} GT/s PCIe", str(best[3])

    def _gpu_branch(self, device: Device) -> Element:
        """A GPU; with NICs drawn at the GPU itself, both below a switch that is made up."""
        pci = Element("pci", self._pci(device, "0x030200"), [self._gpu(device)])
        nics = [self._nic(self.topology.device(name)) for name in self.tree.below.get(device.name, ())]
        fabric = self.topology.fabric
        if fabric is not None and device.name in fabric.ports:
            nics.append(Element("pci", self._made_up_pci("0x020000", pci), [Element("nic", {}, [self._net(device)])]))
        if not nics:
            return pci
        self.note("a GPU and the NIC drawn at it are written below one PCIe switch")
        return Element("pci", self._made_up_pci("0x060400", pci), [pci, *nics])

    def _made_up_pci(self, kind: str, like: Element) -> dict[str, str]:
        speed = {key: value for key, value in like.attributes.items() if key.startswith("link_")}
        return {"busid": self.bus.new(), "class": kind} | speed

    def _nic(self, device: Device) -> Element:
        ports = [
            self.topology.device(self.topology.links[i].dst)
            for i in self.topology.out_links[self.topology.index[device.name]]
        ]
        nets = [port for port in ports if port.kind == "nic" and self.tree.parent.get(port.name) == device.name]
        nic = Element("nic", {}, [self._net(net) for net in nets])
        fabric = self.topology.fabric
        if not nets and fabric is not None and device.name in fabric.ports:
            nic.children.append(self._net(device))
        if "busid" in device.attributes or not nets:
            return Element("pci", self._pci(device, "0x020000"), [nic])
        # A virtual adapter hangs at the CPU without a PCIe device of its own.
        nic.attributes = {key: str(value) for key, value in device.attributes.items()}
        return nic

    def _net(self, device: Device) -> Element:
        facts: Mapping[str, object] = device.attributes
        fabric = self.topology.fabric
        if "speed" in facts or fabric is None:
            return Element("net", {key: str(value) for key, value in facts.items()})
        place = fabric.ports.index(device.name)
        megabits = fabric.lane_bandwidth * fabric.lanes * 8 / 10**6
        return Element(
            "net",
            {
                "name": device.name,
                "dev": str(place),
                "latency": f"{fabric.latency * 2e6:g}",
                "speed": str(int(megabits)),
                "port": "1",
                "guid": f"0x{place + 1:x}",
                "maxconn": "262144",
                "gdr": "1",
            },
        )

    # --- GPUs and their links -----------------------------------------------------------------------------------------

    def _sm(self, device: Device) -> int:
        sm = device.attributes.get("sm")
        if isinstance(sm, int):
            return sm
        self.note(f"the GPUs have no compute capability (sm); {DEFAULT_SM} is written")
        return DEFAULT_SM

    def _gpu(self, device: Device) -> Element:
        known = {key: str(value) for key, value in device.attributes.items() if key not in (*_PCI_KEYS, "model")}
        facts = {"dev": str(self.number[device.name]), "sm": str(self._sm(device))}
        facts |= {"rank": str(self.rank[device.name])} if device.name in self.rank and "rank" not in known else {}
        facts |= {} if "busid" in device.attributes else {"gdr": "1"}
        element = Element("gpu", known | facts)
        for link in self.topology.links:
            other = self.topology.device(link.dst)
            if link.src != device.name:
                continue
            if link.kind == "c2c":
                facts = {"bw": str(int(link.lane_bandwidth / 10**6)), "count": str(link.lanes)}
                element.children.append(Element("c2c", facts))
            elif other.kind in (*GPU_KINDS, "switch") or (other.kind == "cpu" and link.kind == "nvlink"):
                target, kind = self.bus.get(other.name), "0x030200"
                if other.kind == "switch":
                    target, kind = _HIDDEN_SWITCH, "0x068000"
                elif other.kind == "cpu":
                    target, kind = "0000:00:00.0", "0x068001"
                count = self._lanes(device, link.bandwidth, link.name, link.kind)
                if count:
                    element.children.append(Element("nvlink", {"target": target, "count": str(count), "tclass": kind}))
        return element

    def _lanes(self, device: Device, bandwidth: Fraction, name: str, kind: str) -> int:
        lane = self.rates.nvlink_lane(self._sm(device))
        if lane is None:
            self.note(f"{name} is left out: GPUs of this compute capability have no NVLink")
            return 0
        exact = bandwidth / lane
        count = max(1, round(exact))
        if count != exact or kind != "nvlink":
            shown = f"{float(exact):.3g}"
            links = name.split(" ")[-1].strip("()")
            self.note(f"{links} links are written as NVLinks of {float(lane) / 1e9:g} GB/s: {count} for {shown}")
        return count


def _said(device: Device, position: int) -> int:
    dev = device.attributes.get("dev")
    if isinstance(dev, int) and not isinstance(dev, bool):
        return dev
    match = re.fullmatch(r"gpu([0-9]{1,4})", device.name)
    return int(match[1]) if match else position
