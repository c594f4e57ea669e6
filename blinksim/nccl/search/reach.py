"""One attempt of NCCL's search: its target, the best channels so far, and the paths that it tries, in order.

Neighbours are tried by bandwidth, then by nearness; behind NVSwitches only the GPUs next to each other in
index order are. A channel takes its bandwidth from every link of a path; through an Intel root complex
peer-to-peer traffic takes 6/5 of it, and what a GPU older than sm80 receives costs it an eighth in the other
direction (NCCL 2.28.3, graph/search.cc).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blinksim.nccl import families
from blinksim.nccl.search.paths import Path, Paths
from blinksim.nccl.search.system import CPU_KIND, GPU_KIND, GRAIN


@dataclass(frozen=True, slots=True)
class Target:
    """The demands of one attempt; the search relaxes them one after another.

    type_intra, type_inter: the worst kinds of paths allowed, between GPUs and to a port.
    bw_intra, bw_inter: of a channel, in `system.GRAIN`. same: True if all channels must be copies of the first.
    cross: 2 if two channels may exchange their ports, else 0. least, most: number of channels.
    hops: where the count of links crossed starts; NCCL's second pass goes on from that of the first.
    """

    pattern: int
    type_intra: int
    type_inter: int
    bw_intra: int
    bw_inter: int
    same: bool
    cross: int
    least: int
    most: int
    hops: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """The channels that meet a target; at first none.

    channels: GPUs by index, for each channel. nets: ports by index, by which each channel enters and leaves.
    hops: links crossed. latency: of the last port, seconds.
    """

    target: Target
    channels: tuple[tuple[int, ...], ...] = ()
    nets: tuple[tuple[int, int], ...] = ()
    hops: int = 0
    latency: float = 0.0

    @property
    def nchannels(self) -> int:
        return len(self.channels)

    def beaten_by(self, target: Target, nchannels: int, hops: int, gpus: int) -> bool:
        """True if `nchannels` channels that meet `target`, over `hops` links, are worth more than these."""
        if nchannels < target.least:
            return False
        mine = self.target
        if target.pattern == families.PATTERN_NVLS:
            more = self.nchannels < nchannels <= gpus
            return more or nchannels * target.bw_inter > self.nchannels * mine.bw_inter
        gain = nchannels * target.bw_intra - self.nchannels * mine.bw_intra
        if gain:
            return gain > 0
        return target.pattern == mine.pattern and target.cross == mine.cross and hops < self.hops


GB = 10**9 // GRAIN
Demand = tuple[tuple[int, int], ...]
"""(link, amount in `GRAIN`) of everything that a channel takes on a path."""


class Reach:
    """The paths of a system that a target allows; GPUs and ports are counted by index."""

    def __init__(self, paths: Paths, target: Target) -> None:
        self.paths, self.target = paths, target
        self.gpus, self.ports = paths.gpus, paths.ports
        self.count = len(self.gpus)
        self.go = [
            [self._demand(a, b, target.bw_intra, target.type_intra) if a != b else None for b in self.gpus]
            for a in self.gpus
        ]
        vertices = paths.system.vertices
        nearest = [paths.local_gpu[vertex] for vertex in self.ports]
        self.local = {p: None if gpu is None else self.gpus.index(gpu) for p, gpu in enumerate(nearest)}
        self.latency = [vertices[port].latency for port in self.ports]
        cards = [vertices[port].card for port in self.ports]
        self.same_card = [[b for b, card in enumerate(cards) if card == mine] for mine in cards]
        self._starts: dict[int, list[int]] = {}
        self._orders: dict[tuple[int, int], tuple[int, ...]] = {}
        self._following: dict[tuple[int, int, int, int], Sequence[int]] = {}
        self._preferred: dict[int | None, list[int]] = {}
        self._port_demands: dict[tuple[int, int, bool, int], Demand | None] = {}

    # --- links ----------------------------------------------------------------------------------------------------

    def _demand(self, a: int, b: int, bandwidth: int, worst: int) -> Demand | None:
        """What a channel takes on the path between vertices a and b; None if its kind is not allowed."""
        path = self.paths[a, b]
        both_ways = self.target.pattern in families.FAMILY_PATTERNS[families.TREE]
        if path.kind > worst or (both_ways and self.paths[b, a].kind > worst):
            return None
        return self.amounts(a, path, bandwidth)

    def amounts(self, start: int, path: Path, bandwidth: int) -> Demand:
        """What `bandwidth` over a path from the vertex `start` takes from every link."""
        system = self.paths.system
        vertices = system.vertices
        wires = [system.wires[i] for i in path.wires]
        from_gpu = vertices[start].kind == GPU_KIND
        on_pcie = bandwidth
        through_root = (
            path.kind == families.PHB and from_gpu and any(vertices[wire.dst].kind == CPU_KIND for wire in wires)
        )
        if through_root and system.arch == "x86_64" and system.vendor == "GenuineIntel":
            on_pcie = bandwidth * 6 // 5
        amounts: list[tuple[int, int]] = []
        for i, wire in zip(path.wires, wires, strict=True):
            amount = on_pcie if wire.kind == families.PIX else bandwidth
            amounts.append((i, amount))
            target = vertices[wire.dst]
            if target.kind == GPU_KIND and target.sm < 80 and not from_gpu:
                amounts.append((system.back[i], amount // 8))
            if target.kind == CPU_KIND and system.arch == "ppc64" and wire.kind == families.NVL:
                amounts.append((system.back[i], amount))
        return tuple(amounts)

    def between(self, gpu: int, port: int, entering: bool, bandwidth: int) -> Demand | None:
        """What a channel takes between a GPU and a port; None if the port is too far."""
        key = (gpu, port, entering, bandwidth)
        if key not in self._port_demands:
            a, b = self.gpus[gpu], self.ports[port]
            ends = (b, a) if entering else (a, b)
            self._port_demands[key] = self._demand(*ends, bandwidth, self.target.type_inter)
        return self._port_demands[key]

    def port_hops(self, gpu: int, port: int, entering: bool) -> int:
        a, b = self.gpus[gpu], self.ports[port]
        return self.paths[(b, a) if entering else (a, b)].hops

    def port_bandwidth(self) -> list[int]:
        system = self.paths.system
        return [sum(system.wires[i].bandwidth for i in system.out[port]) for port in self.ports]

    # --- GPUs -----------------------------------------------------------------------------------------------------

    def following(self, gpu: int, used: int, towards: int, entry: int) -> Sequence[int]:
        """The GPUs to try after `gpu`, best first, without those in the bit set `used`.

        towards: 1 if the next GPU leads to a port, -1 if a later one does, 0 on a single node. entry: the port by
        which the channel entered, -1 for none.
        """
        key = (gpu, used, towards, entry)
        if key not in self._following:
            if (gpu, entry) not in self._orders:
                # All other GPUs: by bandwidth to the port `entry`, then by bandwidth, nearness and index from `gpu`.
                scores = []
                for distance in range(1, self.count):
                    there = (gpu + distance) % self.count
                    path = self.paths[self.gpus[gpu], self.gpus[there]]
                    if not path.wires:
                        continue
                    outside = (0, 0, 0)
                    if entry >= 0:
                        port = self.paths[self.ports[entry], self.gpus[there]]
                        outside = (-(port.bandwidth // GB), -(self._pcie(there) // GB), port.hops)
                    scores.append(((*outside, -(path.bandwidth // GB), path.hops, distance), there))
                self._orders[gpu, entry] = tuple(there for _, there in sorted(scores))
            left = [there for there in self._orders[gpu, entry] if not used >> there & 1]
            paths = [self.paths[self.gpus[gpu], self.gpus[there]] for there in left] if towards == -1 else []
            if towards == -1 and len({(path.bandwidth // GB, path.hops) for path in paths}) <= 1:
                left.reverse()
            self._following[key] = self._neighbours(gpu, left) if self.paths.switches else left
        return self._following[key]

    def _pcie(self, gpu: int) -> int:
        system = self.paths.system
        for i in system.out[self.gpus[gpu]]:
            if system.wires[i].kind == families.PIX:
                return min(system.wires[i].bandwidth, system.wires[system.back[i]].bandwidth)
        return -GB

    def _neighbours(self, gpu: int, left: Sequence[int]) -> Sequence[int]:
        after, before = (gpu + 1) % self.count, (gpu - 1) % self.count
        if self.target.pattern == families.PATTERN_RING:
            wanted = [before, after]
        elif self.target.pattern in (families.PATTERN_SPLIT_TREE, families.PATTERN_BALANCED_TREE):
            wanted = [after, before]
        else:
            wanted = [after]
        return [there for there in dict.fromkeys(wanted) if there in left]

    # --- network ports --------------------------------------------------------------------------------------------

    def ports_for(self, gpu: int | None) -> list[int]:
        """Ports for a GPU (None: for any), those that GPUs prefer first, then all others near enough."""
        if gpu in self._preferred:
            return self._preferred[gpu]
        gpus = range(self.count) if gpu is None else (gpu,)
        index = {port: number for number, port in enumerate(self.ports)}
        ports: dict[int, None] = {}
        for member in gpus:
            own = [self.paths.port_of(self.gpus[member], channel) for channel in range(len(self.ports))]
            # The ports that a GPU takes in turn repeat from the first on.
            rotation = own[: own.index(own[0], 1)] if own[0] in own[1:] else own
            ports |= dict.fromkeys(index[port] for port in rotation if port in index)
        for kind in range(self.target.type_inter + 1):
            for member in gpus:
                near = (
                    port for port, vertex in enumerate(self.ports) if self.paths[self.gpus[member], vertex].kind == kind
                )
                ports |= dict.fromkeys(near)
        self._preferred[gpu] = list(ports)
        return self._preferred[gpu]

    def starts(self, port: int) -> list[int]:
        """The GPUs that a channel may begin with behind a port: the one that it serves, then the others near it."""
        if port not in self._starts:
            own = self.local[port]
            near = [self.gpus.index(gpu) for gpu in self.paths.nearest(self.ports[port], self.gpus)]
            self._starts[port] = list(dict.fromkeys([*([] if own is None else [own]), *near]))
        return self._starts[port]
