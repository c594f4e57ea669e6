"""A machine as an NCCL topology file (NCCL_TOPO_FILE), so that NCCL plans for that machine, wherever it runs.

NCCL takes what the file says over what it detects (NCCL 2.28.3 graph/topo.cc), so a job on other GPUs chooses the rings
and trees of the machine described, if the bus ids are those of the GPUs that it runs on. What a machine file leaves out
(bus ids, CPU models, the PCIe tree) is made up; what came from a topology file is written back as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from blinksim.errors import InfeasibleError, InputError
from blinksim.nccl.export.devices import COMPUTES
from blinksim.nccl.files.topo_read import BUS_ID
from blinksim.textio import link_rates
from blinksim.topology.graph import Device, Topology

MOST_ELEMENTS = 256
"""NCCL 2.21 and later give a topology file room for so many."""
DEFAULT_SM = 90
_PCI_KEYS = (
    *("busid", "class", "vendor", "device", "subsystem_vendor", "subsystem_device"),
    *("link_speed", "link_width"),
)
_WIDTHS = (16, 8, 4, 2, 1, 32)
_SAFE = re.compile(r"[^\"'<>&\x00-\x1f]{0,254}")
_HIDDEN_SWITCH = "fffffff:ff:ff.0"
_CPU = {"arch": "x86_64", "vendor": "GenuineIntel", "familyid": "6", "modelid": "79"}


@dataclass
class _Element:
    tag: str
    attributes: dict[str, str]
    children: list[_Element] = field(default_factory=list)

    def lines(self, indent: int = 0) -> Iterator[str]:
        for name, value in self.attributes.items():
            if not _SAFE.fullmatch(value):
                raise InputError(f"{self.tag} {name}={value[:40]!r} cannot stand in a file that NCCL reads")
        words = " ".join((self.tag, *(f'{name}="{value}"' for name, value in self.attributes.items())))
        if not self.children:
            yield f"{' ' * indent}<{words}/>"
            return
        yield f"{' ' * indent}<{words}>"
        for child in self.children:
            yield from child.lines(indent + 2)
        yield f"{' ' * indent}</{self.tag}>"

    def count(self) -> int:
        return 1 + sum(child.count() for child in self.children)


@dataclass(frozen=True, slots=True)
class Written:
    """The text of a topology file, and what of the machine it does not say, or was made up, in sentences."""

    text: str
    notes: tuple[str, ...]


def write(topology: Topology, bus_ids: Sequence[str] | None = None) -> Written:
    """The topology file of one node.

    bus_ids: of the GPUs in order of their number, such as ``0000:1b:00.0``; None for those of the machine, or made-up
    ones. Links between GPUs that are no NVLinks are written as the nearest whole number of them.

    Raises `InputError` for bus ids that are malformed, given twice or too few, and `InfeasibleError` for several nodes
    or more elements than NCCL reads.
    """
    if topology.nodes > 1:
        raise InfeasibleError(
            f"a topology file describes one node, and {topology.name} has {topology.nodes}; export one"
        )
    return _Writer(topology, bus_ids).written()


class _Writer:
    """Elements so far, by device."""

    def __init__(self, topology: Topology, bus_ids: Sequence[str] | None) -> None:
        self.topology = topology
        self.rates = link_rates.load("nccl" if topology.rates == "nccl" else "nominal")
        self.notes: dict[str, None] = {}
        self.gpus = [device for device in topology.devices if device.kind in COMPUTES]
        self.number = {d.name: _given(d, position) for position, d in enumerate(self.gpus)}
        if len(set(self.number.values())) < len(self.number):
            self.number = {d.name: position for position, d in enumerate(self.gpus)}
        self.rank = {name: rank for rank, name in enumerate(topology.members)}
        self.bus: dict[str, str] = {}
        self.made = 0
        self.parent: dict[str, str] = {}
        self.cpus = [device for device in topology.devices if device.kind == "cpu"]
        self._give_bus_ids(bus_ids)

    def _give_bus_ids(self, given: Sequence[str] | None) -> None:
        order = sorted(self.gpus, key=lambda d: self.number[d.name])
        if given is not None:
            lowered = [bus.strip().lower() for bus in given]
            for bus in lowered:
                if not BUS_ID.fullmatch(bus):
                    raise InputError(f"--bus-ids: {bus[:40]!r} is not a bus id such as 0000:1b:00.0")
            if len(lowered) != len(order) or len(set(lowered)) < len(lowered):
                raise InputError(
                    f"--bus-ids: {len(order)} different ones are needed, one for each GPU, not {len(given)}"
                )
            self.bus = dict(zip((d.name for d in order), lowered, strict=True))
        known = {str(d.attributes["busid"]).lower() for d in self.topology.devices if "busid" in d.attributes}
        taken = {*self.bus.values(), *known}
        for device in (*order, *(d for d in self.topology.devices if d.kind in ("pcie", "nic"))):
            if device.name in self.bus:
                continue
            if "busid" in device.attributes:
                self.bus[device.name] = str(device.attributes["busid"])
            else:
                self.bus[device.name] = self.new_bus(taken)
                if device.kind in COMPUTES:
                    self.note("bus ids are made up; give those of the GPUs that the job runs on with --bus-ids")
        self.taken = taken

    def new_bus(self, taken: set[str]) -> str:
        while True:
            self.made += 1
            bus = f"{self.made >> 8:04x}:{self.made & 255:02x}:00.0"
            if bus not in taken:
                taken.add(bus)
                return bus

    def note(self, text: str) -> None:
        self.notes.setdefault(text)

    def written(self) -> Written:
        system = _Element("system", {"version": "1"})
        if not self.cpus:
            self.note("the machine names no CPU; all GPUs hang below one that is made up")
        self._find_parents()
        cpus = self.cpus or [Device("cpu0", "cpu")]
        for position, cpu in enumerate(cpus):
            facts = {key: str(value) for key, value in cpu.attributes.items()}
            if not {"arch", "vendor"} <= facts.keys():
                facts = {"numaid": str(position), **_CPU} | facts
            element = _Element("cpu", facts)
            element.children = self._below(cpu.name)
            system.children.append(element)
        count = system.count()
        if count > MOST_ELEMENTS:
            raise InfeasibleError(
                f"{count} elements, and NCCL reads {MOST_ELEMENTS} of a topology file; leave NICs out"
            )
        return Written("\n".join(system.lines()) + "\n", tuple(self.notes))

    # --- the PCIe tree ------------------------------------------------------------------------------------------------

    def _find_parents(self) -> None:
        """What every GPU, PCIe switch and NIC hangs below: the nearest to a CPU along links that are not of GPUs."""
        tree = ("pcie", "nic", *COMPUTES)
        near: dict[str, list[str]] = {}
        for link in self.topology.links:
            a, b = self.topology.device(link.src), self.topology.device(link.dst)
            crosslink = a.kind == b.kind == "pcie" and link.bandwidth == self.rates.local
            peers = a.kind in COMPUTES and b.kind in COMPUTES
            in_tree = {a.kind, b.kind} <= {*tree, "cpu"} and link.kind not in ("nvlink", "c2c")
            if in_tree and not crosslink and not peers:
                near.setdefault(a.name, []).append(b.name)
        top = [cpu.name for cpu in self.cpus] or ["cpu0"]
        seen, front = set(top), list(top)
        self.below: dict[str, list[str]] = {}
        rest = [d.name for d in self.topology.devices if d.kind in tree]
        while front or rest:
            if not front:
                rest = [name for name in rest if name not in seen]
                if not rest:
                    break
                # Nothing leads to a CPU: it hangs below the first one.
                self._hang(rest[0], top[0], seen, front)
                continue
            place = front.pop(0)
            for name in near.get(place, ()):
                if name not in seen and self.topology.device(name).kind in tree:
                    self._hang(name, place, seen, front)
        order = self.topology.index
        for children in self.below.values():
            children.sort(key=lambda name: order[name])

    def _hang(self, name: str, place: str, seen: set[str], front: list[str]) -> None:
        seen.add(name)
        front.append(name)
        self.parent[name] = place
        self.below.setdefault(place, []).append(name)

    def _below(self, place: str) -> list[_Element]:
        found = []
        for name in self.below.get(place, ()):
            device = self.topology.device(name)
            if device.kind in COMPUTES:
                found.append(self._gpu_branch(device))
            elif device.kind == "pcie":
                element = _Element("pci", self._pci(device, "0x060400"))
                for link in self.topology.links:
                    other = self.topology.device(link.dst)
                    if link.src == name and other.kind == "pcie" and link.bandwidth == self.rates.local:
                        element.children.append(_Element("pcilink", {"target": self.bus[other.name]}))
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

    def _gpu_branch(self, device: Device) -> _Element:
        """A GPU; with NICs drawn at the GPU itself, both below a switch that is made up."""
        pci = _Element("pci", self._pci(device, "0x030200"), [self._gpu(device)])
        nics = [self._nic(self.topology.device(name)) for name in self.below.get(device.name, ())]
        fabric = self.topology.fabric
        if fabric is not None and device.name in fabric.ports:
            nics.append(_Element("pci", self._made_up_pci("0x020000", pci), [_Element("nic", {}, [self._net(device)])]))
        if not nics:
            return pci
        self.note("a GPU and the NIC drawn at it are written below one PCIe switch")
        return _Element("pci", self._made_up_pci("0x060400", pci), [pci, *nics])

    def _made_up_pci(self, kind: str, like: _Element) -> dict[str, str]:
        speed = {key: value for key, value in like.attributes.items() if key.startswith("link_")}
        return {"busid": self.new_bus(self.taken), "class": kind} | speed

    def _nic(self, device: Device) -> _Element:
        ports = [
            self.topology.device(self.topology.links[i].dst)
            for i in self.topology.out_links[self.topology.index[device.name]]
        ]
        nets = [port for port in ports if port.kind == "nic" and self.parent.get(port.name) == device.name]
        nic = _Element("nic", {}, [self._net(net) for net in nets])
        fabric = self.topology.fabric
        if not nets and fabric is not None and device.name in fabric.ports:
            nic.children.append(self._net(device))
        if "busid" in device.attributes or not nets:
            return _Element("pci", self._pci(device, "0x020000"), [nic])
        # A virtual adapter hangs at the CPU without a PCIe device of its own.
        nic.attributes = {key: str(value) for key, value in device.attributes.items()}
        return nic

    def _net(self, device: Device) -> _Element:
        facts: Mapping[str, object] = device.attributes
        fabric = self.topology.fabric
        if "speed" in facts or fabric is None:
            return _Element("net", {key: str(value) for key, value in facts.items()})
        place = fabric.ports.index(device.name)
        megabits = fabric.lane_bandwidth * fabric.lanes * 8 / 10**6
        return _Element(
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

    def _gpu(self, device: Device) -> _Element:
        known = {key: str(value) for key, value in device.attributes.items() if key not in (*_PCI_KEYS, "model")}
        facts = {"dev": str(self.number[device.name]), "sm": str(self._sm(device))}
        facts |= {"rank": str(self.rank[device.name])} if device.name in self.rank and "rank" not in known else {}
        facts |= {} if "busid" in device.attributes else {"gdr": "1"}
        element = _Element("gpu", known | facts)
        for link in self.topology.links:
            other = self.topology.device(link.dst)
            if link.src != device.name:
                continue
            if link.kind == "c2c":
                facts = {"bw": str(int(link.lane_bandwidth / 10**6)), "count": str(link.lanes)}
                element.children.append(_Element("c2c", facts))
            elif other.kind in (*COMPUTES, "switch") or (other.kind == "cpu" and link.kind == "nvlink"):
                target, kind = self.bus.get(other.name, ""), "0x030200"
                if other.kind == "switch":
                    target, kind = _HIDDEN_SWITCH, "0x068000"
                elif other.kind == "cpu":
                    target, kind = "0000:00:00.0", "0x068001"
                count = self._lanes(device, link.bandwidth, link.name, link.kind)
                if count:
                    element.children.append(_Element("nvlink", {"target": target, "count": str(count), "tclass": kind}))
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
            self.note(f"{name.split(' ')[-1].strip('()')} links are written as NVLinks of {float(lane) / 1e9:g} GB/s: "
                      f"{count} for {shown}")  # fmt: skip
        return count


def _given(device: Device, position: int) -> int:
    dev = device.attributes.get("dev")
    if isinstance(dev, int) and not isinstance(dev, bool):
        return dev
    match = re.fullmatch(r"gpu([0-9]{1,4})", device.name)
    return int(match[1]) if match else position
