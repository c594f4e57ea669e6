"""The machine as NCCL sees it: one node's GPUs, PCIe tree, CPUs, NVSwitch, network ports, and their links.

Every rank of NCCL plans for its own node; of the others it knows that they exist. It merges all NVSwitches
into one vertex, leaves out GPUs that are not members, adds up parallel links, and looks at a vertex's links
widest first, the one towards the CPU last (NCCL 2.28.3, graph/topo.cc). Bandwidths are whole kB/s, so that
the search's sums are exact.

The search tries vertices in the order that the ranks of a node have merged from what each detected: GPUs,
CPUs and branches of the PCIe tree that come first are tried first (seen on 165 random machines of one node
under NCCL 2.28.9, 37 of them with ranks in another order than the GPUs).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeVar

from blinksim.errors import InfeasibleError, InputError
from blinksim.nccl.families import C2C, DEFAULT_SM, NET, NVL, PIX, SYS
from blinksim.topology.cluster import Host, nodes_of, unlike_hosts
from blinksim.topology.elements import NCCL, RCCL
from blinksim.topology.graph import Device, Link, Topology

GPU_KIND, PCI_KIND, SWITCH_KIND, CPU_KIND, NIC_KIND, PORT_KIND = "gpu", "pcie", "switch", "cpu", "nic", "port"

_Item = TypeVar("_Item")


def merged(devices: list[Device], links: Sequence[Link], members: Sequence[str]) -> tuple[list[Device], list[Link]]:
    """Devices and links of one node in the order in which NCCL has them once the ranks have merged what they detected.

    Every rank finds its own GPU and all network adapters. What rank 1 adds to the PCIe tree of rank 0 comes after what
    is there, and so on: below each CPU and PCIe switch the branches stand in the order of the first rank that saw them.
    """
    kinds = {device.name: device.kind for device in devices}
    below: dict[str, list[str]] = {}
    for link in links:
        ends = {kinds.get(link.src), kinds.get(link.dst)}
        if ends <= {CPU_KIND, PCI_KIND, GPU_KIND, NIC_KIND} and link.kind.startswith("pci"):
            below.setdefault(link.src, []).append(link.dst)
    above: dict[str, str] = {}
    waiting = [device.name for device in devices if device.kind == CPU_KIND]
    roots = list(waiting)
    for name in waiting:
        for child in below.get(name, ()):
            if child not in roots and child not in above:
                above[child] = name
                waiting.append(child)

    def branch(name: str) -> list[str]:
        return [name, *branch(above[name])] if name in above else [name]

    first: dict[str, int] = {}
    # An interface that no file shows is put on the first CPU.
    seen_by_all = [device.name for device in devices if device.kind == NIC_KIND] or roots[:1]
    for rank, own in enumerate(members):
        for name in (own, *(seen_by_all if rank == 0 else ())):
            for step in branch(name):
                first.setdefault(step, rank)
    written = {device.name: i for i, device in enumerate(devices)}
    place = {
        name: tuple((first.get(step, len(members)), written[step]) for step in reversed(branch(name)))
        for name in (*above, *roots)
    }
    # Of a link of the tree the end that is farther from the CPU.
    lower = [
        link.dst if above.get(link.dst) == link.src else link.src if above.get(link.src) == link.dst else ""
        for link in links
    ]
    return (
        _reordered(devices, [place.get(device.name) for device in devices]),
        _reordered(links, [place.get(end) for end in lower]),
    )


def _reordered(items: Sequence[_Item], places: Sequence[Any]) -> list[_Item]:
    """The items that have a place (not None) sorted by it, among the positions that they have; the others stay."""
    ordered = iter(sorted((i for i, place in enumerate(places) if place is not None), key=places.__getitem__))
    return [item if place is None else items[next(ordered)] for item, place in zip(items, places, strict=True)]


GRAIN = 1000
"""Bytes/s of the unit in which this package counts bandwidth."""

# GPUs of one node: NCCL_TOPO_MAX_NODES of NCCL 2.30.7, src/include/graph.h.
MOST_GPUS = 640
DEFAULT_CPU = ("x86_64", "GenuineIntel")


@dataclass(frozen=True, slots=True)
class Vertex:
    """A device as NCCL's graph has it.

    kind: one of the six kinds above. number: ``dev`` of a GPU or port. sm: compute capability times ten, of a GPU.
    direct: True if GPUDirect RDMA works with it. card: what distinguishes the physical port of a port.
    latency: seconds, of a port. Vertices of two nodes are equal if nothing but their names differs.
    """

    kind: str
    name: str = field(compare=False)
    number: int = 0
    sm: int = 0
    direct: bool = True
    card: tuple[object, ...] = ()
    latency: float = 0.0


@dataclass(frozen=True, slots=True)
class Wire:
    """A directed link of NCCL's graph; kind is a path type of `blinksim.nccl.families`, bandwidth counts in `GRAIN`."""

    src: int
    dst: int
    kind: int
    bandwidth: int


@dataclass(frozen=True)
class System:
    """One node, and how many there are.

    gpus, ports: positions in `vertices`. ranks: the number (``dev``) of the GPU of each local rank.
    out: for each vertex its links in the order in which NCCL looks at them.
    back: for each link the one that runs the other way. arch, vendor: of the CPUs.
    assumed: what the machine leaves out and NCCL would have detected.
    """

    vertices: tuple[Vertex, ...]
    wires: tuple[Wire, ...]
    out: tuple[tuple[int, ...], ...]
    back: tuple[int, ...]
    nnodes: int
    ranks: tuple[int, ...]
    arch: str
    vendor: str
    assumed: tuple[str, ...] = ()

    def of_kind(self, kind: str) -> tuple[int, ...]:
        return tuple(i for i, vertex in enumerate(self.vertices) if vertex.kind == kind)

    @property
    def gpus(self) -> tuple[int, ...]:
        return self.of_kind(GPU_KIND)

    @property
    def ports(self) -> tuple[int, ...]:
        """The network ports; none if all ranks are on one node, because NCCL then leaves them out."""
        return self.of_kind(PORT_KIND) if self.nnodes > 1 else ()


def systems_of(topology: Topology, members: Sequence[str] | None = None, nodes: int | None = None) -> list[System]:
    """NCCL's view of the nodes on which `members` (default: the topology's) run: one for all that are alike.

    nodes: how many nodes like this one there are, for a topology of one node with a fabric; a topology of several nodes
    says so itself. Raises `InfeasibleError` where NCCL does not run and for several nodes of AMD's GPUs, and
    `InputError` for unknown members.
    """
    chosen = tuple(topology.members if members is None else members)
    if not chosen:
        raise InputError("no members: name at least one GPU")
    for name in chosen:
        if topology.device(name).kind != "gpu":
            raise InfeasibleError(f"{name} is a {topology.device(name).kind}; NCCL runs on NVIDIA GPUs")
        if topology.device(name).library not in (NCCL, RCCL):
            raise InfeasibleError(f"collectives of {name} are run by {topology.device(name).library}, not by NCCL")
    groups = nodes_of(topology, chosen)
    count = len(groups)
    if nodes is not None and nodes != count:
        if topology.nodes != 1:
            raise InputError(f"{topology.name} has {count} nodes with members; leave nodes={nodes} out")
        count = nodes
    if count > 1 and topology.device(chosen[0]).library == RCCL:
        raise InfeasibleError("between nodes RCCL has channels of its own, and no model says which")
    if len(chosen) * (count // len(groups)) < 2:
        raise InfeasibleError("a collective needs at least two ranks; name at least two members")
    if len(groups[0]) > MOST_GPUS:
        here = len(groups[0])
        raise InfeasibleError(f"NCCL plans for at most {MOST_GPUS} GPUs of one node, and these are {here}")
    return [_Builder(topology, count, host).build() for host in unlike_hosts(topology, chosen)]


def _number(device: Device, name: str, default: float) -> float:
    """An attribute that counts something; raises `InputError` if it does not."""
    value = device.attributes.get(name, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < 10**9:
        raise InputError(f"{device.name}: its attribute {name} is {value!r}; NCCL needs a number there")
    return number


def _put_last_towards_cpus(out: list[list[int]], wires: Sequence[Wire], cpus: Sequence[int]) -> None:
    """Moves the link by which a walk down the PCIe tree enters a vertex to the end of that vertex's list."""
    seen = set(cpus)
    waiting = [(cpu, -1) for cpu in cpus]
    while waiting:
        vertex, above = waiting.pop()
        out[vertex].sort(key=lambda i: wires[i].kind == PIX and wires[i].dst == above)
        for i in out[vertex]:
            below = wires[i].dst
            if wires[i].kind == PIX and below not in seen:
                seen.add(below)
                waiting.append((below, vertex))


class _Builder:
    """The vertices of a node and the bandwidth between them, by position and kind of the link.

    host: one node, with the links that leave it.
    """

    def __init__(self, topology: Topology, nnodes: int, host: Host) -> None:
        self.topology, self.nnodes = topology, nnodes
        self.members, self.devices, self.links = host
        self.node = self.devices[0].node
        self.vertices: list[Vertex] = []
        self.at: dict[str, int] = {}
        self.widths: defaultdict[tuple[int, int, int], Fraction] = defaultdict(Fraction)
        self.assumed: dict[str, None] = {}

    def build(self) -> System:
        inside = [device for device in self.devices if device.kind != "fabric"]
        numbers = {device.name: i for i, device in enumerate(d for d in inside if d.kind == GPU_KIND)}
        ports = self.ports()
        inside, links = merged(inside, self.links, self.members)
        self.add_vertices(inside, ports, numbers)
        for link in links:
            a, b = self.at.get(link.src), self.at.get(link.dst)
            if a is not None and b is not None and a != b:
                self.widths[a, b, self.kind(a, b, link.kind)] += link.bandwidth
        for name, bandwidth in ports.items():
            card = self.at.get(name)
            if card is not None and self.vertices[card].kind != PORT_KIND:
                number, here = sum(vertex.kind == PORT_KIND for vertex in self.vertices), len(self.vertices)
                self.vertices.append(self.port(self.topology.device(name), f"{name} port", number))
                self.join(card, here, NET, bandwidth)
        self.complete_pcie()
        if self.nnodes > 1 and not ports:
            where = self.topology.name if self.topology.nodes == 1 else f"n{self.node}"
            raise InfeasibleError(f"{where} names no network port; NCCL needs one to leave a node")
        return self.system()

    # --- vertices -------------------------------------------------------------------------------------------------

    def add_vertices(self, devices: Sequence[Device], ports: Collection[str], numbers: Mapping[str, int]) -> None:
        """One for each device, but one for all NVSwitches, and none for tiles and GPUs that are not members."""
        switch = None
        for device in devices:
            if device.kind == "tile" or (device.kind == GPU_KIND and device.name not in self.members):
                continue
            here = self.at[device.name] = len(self.vertices)
            if device.kind == SWITCH_KIND and switch is not None:
                self.at[device.name] = switch
                continue
            switch = here if device.kind == SWITCH_KIND else switch
            self.vertices.append(self.vertex(device, numbers.get(device.name, 0), device.name in ports))

    def ports(self) -> dict[str, Fraction]:
        """The devices from which links leave the node, and the bandwidth of each."""
        if self.topology.fabric is not None:
            width = self.topology.fabric.lane_bandwidth * self.topology.fabric.lanes
            return dict.fromkeys(self.topology.fabric.ports, width)
        rates: defaultdict[str, Fraction] = defaultdict(Fraction)
        for link in self.links:
            if self.topology.device(link.dst).node != self.node:
                if self.topology.device(link.src).kind != NIC_KIND:
                    only = "only nodes joined by those are predicted"
                    raise InfeasibleError(f"{link.name} joins nodes without a network interface; {only}")
                rates[link.src] += link.bandwidth
        return rates

    def vertex(self, device: Device, number: int, leaves: bool) -> Vertex:
        """number: of a GPU that does not say its own. leaves: True if links leave the node from it."""
        if device.kind == GPU_KIND:
            sm, direct = device.attributes.get("sm"), str(device.attributes.get("gdr", 1)) != "0"
            if sm is None:
                self.assume(f"GPUs without sm have compute capability {DEFAULT_SM / 10:g}")
            elif not re.fullmatch(r"[1-9][0-9]{1,2}", str(sm)):
                runs = "NCCL runs on NVIDIA GPUs, sm=90 is compute capability 9.0"
                raise InfeasibleError(f"{device.name} has sm={sm!r}; {runs}")
            number = int(_number(device, "dev", number))
            return Vertex(GPU_KIND, device.name, number, int(sm or DEFAULT_SM), direct)
        # An imported port behind an adapter says its number; other NICs are the adapters themselves.
        if leaves and device.kind == NIC_KIND and "dev" in device.attributes:
            return self.port(device, device.name, int(_number(device, "dev", 0)))
        return Vertex(device.kind, device.name)

    def port(self, device: Device, name: str, number: int) -> Vertex:
        facts = device.attributes
        card = (facts.get("guid", f"#{number}"), facts.get("port", 0))
        if self.nnodes > 1 and "gdr" not in facts:
            self.assume("GPUDirect RDMA works wherever gdr is not said")
        latency = _number(device, "latency", 0.0) * 1e-6
        return Vertex(PORT_KIND, name, number, direct=str(facts.get("gdr", 1)) != "0", card=card, latency=latency)

    def assume(self, text: str) -> None:
        self.assumed[text] = None

    # --- links ----------------------------------------------------------------------------------------------------

    def kind(self, a: int, b: int, link_class: str) -> int:
        ends = {self.vertices[a].kind, self.vertices[b].kind}
        if PORT_KIND in ends:
            return NET
        if ends == {CPU_KIND}:
            return SYS
        if link_class == "c2c":
            return C2C
        if link_class.startswith("pci") or ends & {PCI_KIND, NIC_KIND}:
            return PIX
        return NVL

    def join(self, a: int, b: int, kind: int, width: Fraction) -> None:
        self.widths[a, b, kind] += width
        self.widths[b, a, kind] += width

    def complete_pcie(self) -> None:
        """Puts a PCIe switch where a GPU and an adapter are drawn as directly linked, and a CPU above all switches.

        GPUs with the same attribute ``pcie_switch`` share a switch; otherwise each has its own.
        """
        direct = [
            (a, b, width)
            for (a, b, kind), width in self.widths.items()
            if kind == PIX and (self.vertices[a].kind, self.vertices[b].kind) == (GPU_KIND, NIC_KIND)
        ]
        if not direct or any(vertex.kind in (CPU_KIND, PCI_KIND) for vertex in self.vertices):
            return
        self.assume("GPUs and adapters drawn as directly linked share a PCIe switch, and all switches hang on one CPU")
        cpu = len(self.vertices)
        self.vertices.append(Vertex(CPU_KIND, "cpu"))
        switches: dict[object, int] = {}
        for gpu, adapter, width in direct:
            name = self.vertices[gpu].name
            group = self.topology.device(name).attributes.get("pcie_switch", name)
            if group not in switches:
                switches[group] = len(self.vertices)
                self.vertices.append(Vertex(PCI_KIND, f"pcie {group}"))
                self.join(switches[group], cpu, PIX, width)
            for end in (gpu, adapter):
                if (end, switches[group], PIX) not in self.widths:
                    self.join(end, switches[group], PIX, width)
            for a, b in ((gpu, adapter), (adapter, gpu)):
                self.widths.pop((a, b, PIX), None)

    def system(self) -> System:
        # A link without one back cannot be used: NCCL takes every path in both directions.
        mutual = {key: width for key, width in self.widths.items() if (key[1], key[0], key[2]) in self.widths}
        wires = [Wire(a, b, kind, round(width / GRAIN)) for (a, b, kind), width in mutual.items()]
        number = {key: i for i, key in enumerate(mutual)}
        out: list[list[int]] = [[] for _ in self.vertices]
        for i in sorted(range(len(wires)), key=lambda i: -wires[i].bandwidth):
            out[wires[i].src].append(i)
        cpus = [i for i, vertex in enumerate(self.vertices) if vertex.kind == CPU_KIND]
        _put_last_towards_cpus(out, wires, cpus)
        arch, vendor = self.cpu_type(cpus)
        numbers = {vertex.name: vertex.number for vertex in self.vertices if vertex.kind == GPU_KIND}
        if len(set(numbers.values())) < len(numbers):
            same = "two members have the same number `dev`; NCCL tells GPUs apart by it"
            raise InputError(f"{self.topology.name}: {same}")
        return System(
            vertices=tuple(self.vertices),
            wires=tuple(wires),
            out=tuple(map(tuple, out)),
            back=tuple(number[b, a, kind] for a, b, kind in mutual),
            nnodes=self.nnodes,
            ranks=tuple(numbers[name] for name in self.members),
            arch=arch,
            vendor=vendor,
            assumed=tuple(self.assumed),
        )

    def cpu_type(self, cpus: Sequence[int]) -> tuple[str, str]:
        if not cpus:
            self.assume("the machine file draws no CPUs, so no path runs through host memory")
        drawn = [self.vertices[cpu].name for cpu in cpus if self.vertices[cpu].name in self.topology.index]
        facts: dict[str, Any] = dict(self.topology.device(drawn[0]).attributes) if drawn else {}
        if "arch" not in facts and "vendor" not in facts:
            self.assume(f"the CPUs are {DEFAULT_CPU[1]}, {DEFAULT_CPU[0]}")
            return DEFAULT_CPU
        return str(facts.get("arch", DEFAULT_CPU[0])), str(facts.get("vendor", "unknown"))
