"""The order of devices and links once the ranks of a node have merged what each of them detected.

NCCL searches over this order: GPUs, CPUs and branches of the PCIe tree that come first are tried first (seen on 165
random machines of one node under NCCL 2.28.9, 37 of them with ranks in another order than the GPUs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from blinksim.topology.graph import Device, Link

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
        if {kinds.get(link.src), kinds.get(link.dst)} <= {CPU_KIND, PCI_KIND, GPU_KIND, NIC_KIND} and _on_pcie(link):
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

    def place(name: str) -> tuple[tuple[int, int], ...]:
        return tuple((first.get(step, len(members)), written[step]) for step in reversed(branch(name)))

    in_tree = [device for device in devices if device.name in above or device.name in roots]
    on_tree = [link for link in links if above.get(link.dst) == link.src or above.get(link.src) == link.dst]
    return (
        _reordered(devices, in_tree, lambda device: place(device.name)),
        _reordered(links, on_tree, lambda link: place(link.dst if above.get(link.dst) == link.src else link.src)),
    )


def _on_pcie(link: Link) -> bool:
    return link.kind.startswith("pci")


def _reordered(whole: Sequence[_Item], some: Sequence[_Item], key: Callable[[_Item], Any]) -> list[_Item]:
    """`whole` with the items of `some` sorted among the places that they have."""
    ordered = iter(sorted(some, key=key))
    ids = set(map(id, some))
    return [next(ordered) if id(item) in ids else item for item in whole]
