"""The PCIe tree of a node: the parent of every GPU, PCIe switch and NIC."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from fractions import Fraction

from blinksim.nccl.files.topo_elements import GPU_KINDS
from blinksim.topology.graph import Link, Topology

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
            if _is_branch(topology, link, local):
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


def _is_branch(topology: Topology, link: Link, local: Fraction) -> bool:
    kinds = [topology.device(end).kind for end in (link.src, link.dst)]
    crosslink = kinds == ["pcie", "pcie"] and link.bandwidth == local
    peers = all(kind in GPU_KINDS for kind in kinds)
    return {*kinds} <= {*_IN_TREE, "cpu"} and link.kind not in ("nvlink", "c2c") and not crosslink and not peers
