"""The machine as NCCL sees it, and paths between its GPUs, network ports, CPUs and NVSwitches.

Every rank of NCCL plans for its own node; of the others it knows that they exist. It merges all NVSwitches
into one vertex, leaves out GPUs that are not members, adds up parallel links, and looks at a vertex's links
widest first, the one towards the CPU last (NCCL 2.28.3, graph/topo.cc). Bandwidths are whole kB/s, so that
the search's sums are exact.

The search tries vertices in the order that the ranks of a node have merged from what each detected: GPUs,
CPUs and branches of the PCIe tree that come first are tried first (seen on 165 random machines of one node
under NCCL 2.28.9, 37 of them with ranks in another order than the GPUs).

Paths have a kind and a bandwidth. A breadth-first walk from every such vertex: fewest hops win, and among
those the larger bandwidth of the narrowest link. GPUs do not forward, except one between two NVLinks. Then
NCCL's policies change some paths: GPUs that may not read each other's memory go through a CPU, a port is
reached through the GPU beside it (PXN), and a port too far for GPUDirect RDMA is reached through the CPU
(NCCL 2.28.3, graph/paths.cc).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import permutations, product
from typing import Any, TypeVar

from blinksim.errors import InfeasibleError, InputError
from blinksim.graphs.connectivity import breadth_first, grouped, path_to
from blinksim.nccl.families import C2C, DEFAULT_SM, DIS, LOC, NET, NVB, NVL, P2C, PHB, PIX, PXB, PXN, SYS
from blinksim.topology.cluster import Host, nodes_of, unlike_hosts
from blinksim.topology.elements import NCCL, RCCL
from blinksim.topology.graph import Device, Link, Topology

GPU_KIND, PCI_KIND, SWITCH_KIND, CPU_KIND, NIC_KIND, PORT_KIND = "gpu", "pcie", "switch", "cpu", "nic", "port"

_Item = TypeVar("_Item")


def merged(devices: list[Device], links: Sequence[Link], members: Sequence[str]) -> tuple[list[Device], list[Link]]:
    """Devices and links of one node in the order in which NCCL has them once the ranks have merged what they detected.

    Every rank finds its own GPU and all network adapters. What rank 1 adds to the PCIe tree of rank 0 comes
    after what is there, and so on: below each CPU and PCIe switch the branches stand in the order of the
    first rank that saw them.
    """
    kinds = {device.name: device.kind for device in devices}
    in_tree = {CPU_KIND, PCI_KIND, GPU_KIND, NIC_KIND}
    pcie = (link for link in links if link.kind.startswith("pci"))
    below = grouped((x.src, x.dst) for x in pcie if {kinds.get(x.src), kinds.get(x.dst)} <= in_tree)
    roots = [device.name for device in devices if device.kind == CPU_KIND]
    # What every device hangs below, CPUs below "".
    above = breadth_first("", lambda name: below.get(name, ()) if name else roots)

    def branch(name: str) -> list[str]:
        """The devices from its CPU down to one; none for what is not in the tree."""
        return path_to(above, name)[-2::-1] if name in above else []

    first: dict[str, int] = {}
    # An interface that no file shows is put on the first CPU.
    seen_by_all = [device.name for device in devices if device.kind == NIC_KIND] or roots[:1]
    for rank, own in enumerate(members):
        for name in (own, *(seen_by_all if rank == 0 else ())):
            for step in branch(name):
                first.setdefault(step, rank)
    written = {device.name: i for i, device in enumerate(devices)}
    place = {
        name: tuple((first.get(step, len(members)), written[step]) for step in branch(name))
        for name in filter(None, above)
    }
    # Of a link of the tree the end that is farther from the CPU.
    lower = [
        link.dst if above.get(link.dst) == link.src else link.src if above.get(link.src) == link.dst else ""
        for link in links
    ]
    ordered = _reordered(devices, [place.get(device.name) for device in devices])
    return ordered, _reordered(links, [place.get(end) for end in lower])


def _reordered(items: Sequence[_Item], places: Sequence[Any]) -> list[_Item]:
    """The items that have a place (not None) sorted by it, among the positions that they have; the others stay."""
    ordered = iter(sorted((i for i, place in enumerate(places) if place is not None), key=places.__getitem__))
    return [item if place is None else items[next(ordered)] for item, place in zip(items, places, strict=True)]


# Bytes/s of the unit in which this package counts bandwidth.
GRAIN = 1000

# GPUs of one node: NCCL_TOPO_MAX_NODES of NCCL 2.30.7, src/include/graph.h.
MOST_GPUS = 640
DEFAULT_CPU = ("x86_64", "GenuineIntel")


@dataclass(frozen=True, slots=True)
class Vertex:
    """A device as NCCL's graph has it.

    kind: one of the six kinds above. number: ``dev`` of a GPU or port. sm: compute capability times ten, of a
    GPU. direct: True if GPUDirect RDMA works with it. card: what distinguishes the physical port of a port.
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

    nodes: how many nodes like this one there are, for a topology of one node with a fabric; a topology of
    several nodes says so itself. Raises `InfeasibleError` where NCCL does not run and for several nodes of
    AMD's GPUs, and `InputError` for unknown members.
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
    number = -1.0
    with suppress(TypeError, ValueError):
        number = float(value)
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
            return Vertex(GPU_KIND, device.name, int(_number(device, "dev", number)), int(sm or DEFAULT_SM), direct)
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
        return PIX if link_class.startswith("pci") or ends & {PCI_KIND, NIC_KIND} else NVL

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
        vertices, assumed, leaving = tuple(self.vertices), tuple(self.assumed), tuple(map(tuple, out))
        back = tuple(number[b, a, kind] for a, b, kind in mutual)
        ranks = tuple(numbers[name] for name in self.members)
        return System(vertices, tuple(wires), leaving, back, self.nnodes, ranks, arch, vendor, assumed)

    def cpu_type(self, cpus: Sequence[int]) -> tuple[str, str]:
        if not cpus:
            self.assume("the machine file draws no CPUs, so no path runs through host memory")
        drawn = [self.vertices[cpu].name for cpu in cpus if self.vertices[cpu].name in self.topology.index]
        facts: dict[str, Any] = dict(self.topology.device(drawn[0]).attributes) if drawn else {}
        if "arch" not in facts and "vendor" not in facts:
            self.assume(f"the CPUs are {DEFAULT_CPU[1]}, {DEFAULT_CPU[0]}")
            return DEFAULT_CPU
        return str(facts.get("arch", DEFAULT_CPU[0])), str(facts.get("vendor", "unknown"))


# (link, amount in `GRAIN`) of everything that a channel takes on a path.
Demand = tuple[tuple[int, int], ...]
LOCAL_BANDWIDTH = 5_000_000_000_000 // GRAIN


@dataclass(frozen=True, slots=True)
class Path:
    """kind: a path type of `blinksim.nccl.families`. bandwidth: of the narrowest link, in `GRAIN`. wires: in order."""

    kind: int
    bandwidth: int
    wires: tuple[int, ...] = ()

    @property
    def hops(self) -> int:
        return len(self.wires)


NOWHERE = Path(DIS, 0)


class Paths:
    """All paths of a system that the search may ask for; `paths[a, b]` for positions of vertices a and b."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.gpus, self.ports, self.switches = system.gpus, system.ports, system.of_kind(SWITCH_KIND)
        self.cpus = system.of_kind(CPU_KIND)
        self._nearest: dict[int, dict[tuple[int, ...], list[int]]] = defaultdict(dict)
        ends = (*self.cpus, *self.gpus, *self.ports, *self.switches)
        self._table = {(start, end): path for end in ends for start, path in _walk(system, end).items()}
        # GPUs that are not peers talk through host memory, beside the CPU of the one that reads.
        amd_pair = system.arch == "x86_64" and system.vendor == "AuthenticAMD" and len(self.gpus) <= 2
        farthest = SYS if amd_pair else PXB
        for reader, writer in permutations(self.gpus, 2):
            cpu = self.local_cpu(reader)
            if self[writer, reader].kind > farthest and cpu is not None:
                self._via(writer, cpu, reader)
        for port in self.ports:
            self._bend_towards(port)
        self.local_gpu = {port: self._beside(port) for port in self.ports}
        # Attempts ask for the same again and again.
        self.ports_for, self.demand = cache(self._ports_for), cache(self._demand)
        # Between all GPUs, as `_demand` of each pair.
        self.demands = cache(
            lambda *asked: [[self._demand(a, b, *asked) if a != b else None for b in self.gpus] for a in self.gpus]
        )

    def __getitem__(self, ends: tuple[int, int]) -> Path:
        return self._table.get(ends, NOWHERE)

    # --- what the search starts from ------------------------------------------------------------------------------

    def between_gpus(self) -> list[Path]:
        return [self[a, b] for a in self.gpus for b in self.gpus if a != b]

    def widest(self) -> int:
        """The largest bandwidth of a path that a channel needs: between GPUs, or to a port if there are ports."""
        paths = [self[gpu, port] for gpu in self.gpus for port in self.ports] or self.between_gpus()
        return max((path.bandwidth for path in paths), default=LOCAL_BANDWIDTH)

    def room(self, vertices: Sequence[int], bandwidth: int, kind: int = DIS) -> int:
        """How many channels of `bandwidth` the links out of some vertices hold: those that paths of a kind may take."""
        wires = (self.system.wires[i] for a in vertices for i in self.system.out[a])
        return sum(wire.bandwidth // bandwidth for wire in wires if wire.kind <= kind)

    def total(self) -> int:
        """The most that one GPU can send: over all its NVLinks, or over PCIe."""
        if not self.ports and len(self.gpus) == 1:
            return LOCAL_BANDWIDTH
        system, most = self.system, 0
        for gpu in self.gpus:
            wires = [system.wires[i] for i in system.out[gpu]]
            nvlink = sum(wire.bandwidth for wire in wires if wire.kind == NVL)
            most = max(most, nvlink, *(wire.bandwidth for wire in wires if wire.kind == PIX))
        return most

    def nearest(self, start: int, ends: tuple[int, ...]) -> list[int]:
        """Those of `ends` that `start` reaches with the largest bandwidth, and among these by the best kind of path."""
        known = self._nearest[start]
        if ends not in known:
            scores = [(-self[start, end].bandwidth, self[start, end].kind, end) for end in ends]
            best = min(((width, kind) for width, kind, _ in scores if kind < DIS), default=None)
            known[ends] = [end for width, kind, end in scores if (width, kind) == best]
        return known[ends]

    def local_cpu(self, gpu: int) -> int | None:
        reached = [cpu for cpu in self.cpus if self[gpu, cpu].kind < DIS]
        return min(reached, key=lambda cpu: self[gpu, cpu].hops, default=None)

    def split_by_nvlink(self) -> bool:
        """True if NCCL takes the GPUs for exactly two islands of NVLink, of more than one GPU each.

        It looks at each GPU once, in order, and puts it on the island of the last earlier one that NVLink
        joins it to; so it also sees two islands where the link between them comes late (found by comparing
        124 subsets of a DGX-1).
        """
        island = list(range(len(self.gpus)))
        for late, gpu in enumerate(self.gpus):
            for early in range(late):
                if self[gpu, self.gpus[early]].kind == NVL:
                    island[late] = island[early]
        return sum(island.count(root) > 1 for root in set(island)) == 2

    # --- policies -------------------------------------------------------------------------------------------------

    def _via(self, start: int, middle: int, end: int) -> None:
        """Sends the path from `start` to `end` through `middle`, unless that cannot be reached."""
        first, second = self[start, middle], self[middle, end]
        if DIS in (first.kind, second.kind):
            return
        kind = PXN if self.system.vertices[middle].kind == GPU_KIND else _merge(first.kind, second.kind)
        width = min(first.bandwidth, second.bandwidth)
        self._table[start, end] = Path(kind, width, (*first.wires, *second.wires))
        self._nearest[start].clear()

    def _bend_towards(self, port: int) -> None:
        for gpu in self.gpus:
            relay = self._beside(port)
            direct = self[gpu, port]
            if relay is not None and relay != gpu:
                its = self[relay, port]
                better = its.bandwidth > direct.bandwidth or direct.kind > PXN
                if its.kind <= P2C and self[relay, gpu].kind <= NVL and better:
                    self._via(gpu, relay, port)
            if self[gpu, port].kind < DIS and not self._reads_memory(gpu, port):
                cpu = self.local_cpu(gpu)
                if cpu is not None:
                    self._via(port, cpu, gpu)
                    self._via(gpu, cpu, port)

    def _reads_memory(self, gpu: int, port: int) -> bool:
        """True if GPUDirect RDMA works and the port is near enough for it."""
        vertices = self.system.vertices
        if not (vertices[port].direct and vertices[gpu].direct):
            return False
        path = self[gpu, port]
        if path.kind == PXN:
            ends = (self.system.wires[i].dst for i in path.wires)
            gpu = next(end for end in ends if vertices[end].kind == GPU_KIND)
            path = self[gpu, port]
        cpu = self.local_cpu(gpu)
        return path.kind <= P2C or (path.kind == PHB and cpu is not None and self[gpu, cpu].kind == C2C)

    def _beside(self, port: int) -> int | None:
        """The GPU that the port is local to: of its nearest GPUs the one that prefers it on the earliest channel."""
        near = self.nearest(port, self.gpus)
        wanted = ((gpu, channel) for channel in range(len(self.ports)) for gpu in near)
        return next((gpu for gpu, channel in wanted if self.port_of(gpu, channel) == port), None)

    def port_of(self, gpu: int, channel: int) -> int:
        """The port that a GPU prefers for a channel: GPUs that share ports spread over them."""
        if not (local := self.nearest(gpu, self.ports)):
            return -1
        sharing = len(self.nearest(local[0], self.gpus))
        number = self.system.vertices[gpu].number
        if len(local) & (len(local) - 1) == 0:
            # `number` with the low bits that `power` (a power of two) spans in reverse order.
            power = len(local)
            bits = power.bit_length() - 1
            number = int(f"{number % power:0{bits}b}"[::-1], 2) if bits else 0
        number += channel % -(-len(local) // max(1, sharing))
        return local[number % len(local)]

    def _ports_for(self, gpu: int | None, worst: int) -> list[int]:
        """Ports by index for a GPU (None: for any): those that GPUs prefer, then all others near enough."""
        gpus = self.gpus if gpu is None else (gpu,)
        index = {port: number for number, port in enumerate(self.ports)}
        preferred = (self.port_of(member, channel) for member in gpus for channel in range(len(self.ports)))
        ways = product(range(worst + 1), gpus, self.ports)
        near = (port for kind, member, port in ways if self[member, port].kind == kind)
        return [index[port] for port in dict.fromkeys((*preferred, *near)) if port in index]

    # --- what channels take ---------------------------------------------------------------------------------------

    def _demand(self, a: int, b: int, bandwidth: int, worst: int, both_ways: bool) -> Demand | None:
        """What a channel takes on the path between vertices a and b; None if its kind is not allowed."""
        path = self[a, b]
        if path.kind > worst or (both_ways and self[b, a].kind > worst):
            return None
        return self.amounts(a, path, bandwidth)

    def amounts(self, start: int, path: Path, bandwidth: int) -> Demand:
        """What `bandwidth` over a path from the vertex `start` takes from every link."""
        system, vertices, on_pcie = self.system, self.system.vertices, bandwidth
        wires = [system.wires[i] for i in path.wires]
        from_gpu = vertices[start].kind == GPU_KIND
        through_root = path.kind == PHB and from_gpu and any(vertices[wire.dst].kind == CPU_KIND for wire in wires)
        if through_root and system.arch == "x86_64" and system.vendor == "GenuineIntel":
            on_pcie = bandwidth * 6 // 5
        amounts: list[tuple[int, int]] = []
        for i, wire in zip(path.wires, wires, strict=True):
            amount = on_pcie if wire.kind == PIX else bandwidth
            amounts.append((i, amount))
            target = vertices[wire.dst]
            if target.kind == GPU_KIND and target.sm < 80 and not from_gpu:
                amounts.append((system.back[i], amount // 8))
            if target.kind == CPU_KIND and system.arch == "ppc64" and wire.kind == NVL:
                amounts.append((system.back[i], amount))
        return tuple(amounts)


def _merge(a: int, b: int) -> int:
    """The kind of a path of two parts: the worse one, but chip link and PCIe through its CPU are nearer than PHB."""
    return P2C if {a, b} == {C2C, PHB} else max(a, b)


def _walk(system: System, end: int) -> dict[int, Path]:
    """The path to `end` from every vertex that reaches it."""
    vertices, gpus = system.vertices, set(system.gpus)
    paths = {end: Path(LOC, LOCAL_BANDWIDTH)}
    layer = [end]
    while layer:
        following: list[int] = []
        # A GPU only leads to others, and changes nothing where those are reached in no more hops.
        useless = paths.keys() >= gpus
        for here in layer:
            path = paths[here]
            bridge = here != end and vertices[here].kind == GPU_KIND
            if bridge and (useless or path.hops > 1):
                continue
            for i in system.out[here]:
                wire = system.wires[i]
                there = wire.dst
                if bridge and (wire.kind != NVL or vertices[there].kind != GPU_KIND):
                    continue
                known = paths.get(there)
                width = min(path.bandwidth, wire.bandwidth)
                if known is not None and (known.hops <= path.hops or known.bandwidth >= width):
                    continue
                kind = _merge(path.kind, _step(system, here, i, path))
                paths[there] = Path(kind, width, (system.back[i], *path.wires))
                if there not in following:
                    following.append(there)
        layer = following
    return paths


def _step(system: System, here: int, i: int, path: Path) -> int:
    """The kind that one more link gives to a path."""
    wire, vertices = system.wires[i], system.vertices
    kinds = (vertices[here].kind, vertices[wire.dst].kind)
    if wire.kind == NET or PORT_KIND in kinds:
        return LOC
    if wire.kind == PIX and kinds == (PCI_KIND, PCI_KIND):
        return PXB
    if wire.kind == PIX and CPU_KIND in kinds:
        return PHB
    return NVB if wire.kind == NVL and kinds[0] == GPU_KIND and path.kind == NVL else wire.kind
