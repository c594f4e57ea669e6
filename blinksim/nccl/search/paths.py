"""Paths between GPUs, network ports, CPUs and NVSwitches, with their kind and bandwidth.

A breadth-first walk from every such vertex: fewest hops win, and among those the larger bandwidth of the
narrowest link. GPUs do not forward, except one between two NVLinks. Then NCCL's policies change some paths:
GPUs that may not read each other's memory go through a CPU, a port is reached through the GPU beside it
(PXN), and a port too far for GPUDirect RDMA is reached through the CPU (NCCL 2.28.3, graph/paths.cc).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from blinksim.nccl.families import C2C, DIS, LOC, NET, NVB, NVL, P2C, PHB, PIX, PXB, PXN, SYS
from blinksim.nccl.search.system import CPU_KIND, GPU_KIND, GRAIN, PCI_KIND, PORT_KIND, SWITCH_KIND, System

Demand = tuple[tuple[int, int], ...]
"""(link, amount in `GRAIN`) of everything that a channel takes on a path."""
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
        self._table: dict[tuple[int, int], Path] = {}
        self._nearest: dict[int, dict[tuple[int, ...], list[int]]] = defaultdict(dict)
        for end in (*self.cpus, *self.gpus, *self.ports, *self.switches):
            for start, path in _walk(system, end).items():
                self._table[start, end] = path
        # GPUs that are not peers talk through host memory, beside the CPU of the one that reads.
        amd_pair = system.arch == "x86_64" and system.vendor == "AuthenticAMD" and len(self.gpus) <= 2
        farthest = SYS if amd_pair else PXB
        for reader in self.gpus:
            for writer in self.gpus:
                cpu = self.local_cpu(reader)
                if reader != writer and self[writer, reader].kind > farthest and cpu is not None:
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

    def to_ports(self) -> list[Path]:
        return [self[gpu, port] for gpu in self.gpus for port in self.ports]

    def widest(self) -> int:
        """The largest bandwidth of a path that a channel needs: between GPUs, or to a port if there are ports."""
        paths = self.to_ports() if self.ports else self.between_gpus()
        return max((path.bandwidth for path in paths), default=LOCAL_BANDWIDTH)

    def room(self, vertices: Sequence[int], bandwidth: int) -> int:
        """How many channels of `bandwidth` the links out of some vertices hold."""
        return sum(self.system.wires[i].bandwidth // bandwidth for a in vertices for i in self.system.out[a])

    def total(self) -> int:
        """The most that one GPU can send: over all its NVLinks, or over PCIe."""
        if not self.ports and len(self.gpus) == 1:
            return LOCAL_BANDWIDTH
        system, most = self.system, 0
        for gpu in self.gpus:
            wires = [system.wires[i] for i in system.out[gpu]]
            nvlink = sum(wire.bandwidth for wire in wires if wire.kind == NVL)
            pcie = max((wire.bandwidth for wire in wires if wire.kind == PIX), default=0)
            most = max(most, nvlink, pcie)
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

        It looks at each GPU once, in order, and puts it on the island of the last earlier one that NVLink joins it to;
        so it also sees two islands where the link between them comes late (found by comparing 124 subsets of a DGX-1).
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
        local = self.nearest(gpu, self.ports)
        if not local:
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
        ports: dict[int, None] = {}
        for member in gpus:
            taken = (self.port_of(member, channel) for channel in range(len(self.ports)))
            ports |= dict.fromkeys(index[port] for port in taken if port in index)
        for kind in range(worst + 1):
            for member in gpus:
                ports |= dict.fromkeys(index[port] for port in self.ports if self[member, port].kind == kind)
        return list(ports)

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
    if {a, b} == {C2C, PHB}:
        return P2C
    return max(a, b)


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
    if wire.kind == NVL and kinds[0] == GPU_KIND and path.kind == NVL:
        return NVB
    return wire.kind
