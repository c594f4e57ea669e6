"""Hosts that lack a device or a link, with what they lack put back at no bandwidth, so that all hosts are alike.

A dead adapter is then an adapter whose links carry nothing, which is how a slow one is treated: what is packed into
such a host leaves these links out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from blinksim.graphs.network import Array
from blinksim.structures.arrays import distinct
from blinksim.topology.graph import Topology

# Hosts that may lack something; of more, they are looked at as they are.
_MOST_LACKING = 256
# A link in the terms of any host: its ends there, "" for the fabric, its class, and which of several it is.
_Key = tuple[str, str, int, int]


@dataclass(frozen=True, eq=False)
class Parts:
    """Devices and links of a cluster in arrays; those that are missing come last.

    node, ranked, slot (device): its host, whether it holds a rank, and what orders the devices of one host. src, dst,
    kind, figure (link): ends, class and row of `bandwidths`. devices, links: how many there really are.
    """

    node: Array
    ranked: NDArray[np.bool_]
    slot: Array
    src: Array
    dst: Array
    kind: Array
    figure: Array
    bandwidths: tuple[Fraction, ...]
    devices: int
    links: int


def parts_of(topology: Topology) -> Parts:
    """The cluster with what some of its hosts lack, where that holds no rank; otherwise as it is."""
    columns, count = topology.link_columns, len(topology.devices)
    names = sorted(columns.classes)
    kind = np.array([names.index(name) for name in columns.classes], dtype=np.int64)[columns.kind]
    ranked = np.zeros(count, dtype=np.bool_)
    ranked[topology.member_places] = True
    node, src, dst = (np.asarray(one, dtype=np.int64) for one in (topology.device_nodes, columns.src, columns.dst))
    figure, rates = np.asarray(columns.figure, dtype=np.int64), (*columns.bandwidths, Fraction(0))
    plain = Parts(node, ranked, np.arange(count), src, dst, kind, figure, rates, count, len(src))
    owner = np.maximum(node[src], node[dst])
    used = distinct(node[ranked & (node >= 0)])
    if not len(used):
        return plain
    most = int(node.max()) + 1
    devices, links = np.bincount(node[node >= 0], minlength=most), np.bincount(owner[owner >= 0], minlength=most)
    full = int(used[np.argmax(devices[used] * (len(src) + 1) + links[used])])
    lacking = used[(devices[used] < devices[full]) | (links[used] < links[full])]
    if not len(lacking) or len(lacking) > _MOST_LACKING:
        return plain
    return _Completion(topology, plain, owner, full).of(lacking.tolist()) or plain


class _Completion:
    """What hosts lack, beside the fullest one."""

    def __init__(self, topology: Topology, plain: Parts, owner: Array, full: int) -> None:
        self.topology, self.plain, self.owner = topology, plain, owner
        self.devices = self._devices(full)
        self.links = self._links(full)

    def of(self, hosts: list[int]) -> Parts | None:
        """With these hosts completed; None if one has what the fullest has not, or lacks a rank."""
        plain = self.plain
        more_devices = list[int]()
        more_links = list[tuple[int, int, int]]()
        slot = plain.slot.tolist()
        for host in hosts:
            own, wires = self._devices(host), self._links(host)
            lost = [name for name in self.devices if name not in own]
            surplus = own.keys() - self.devices.keys() or wires.keys() - self.links.keys()
            if surplus or any(plain.ranked[self.devices[name]] for name in lost):
                return None
            for name in lost:
                own[name] = len(slot)
                slot.append(0)
                more_devices.append(host)
            for place, name in enumerate(self.devices):
                slot[own[name]] = place
            switch = {self._switch(self.links[key]): self._switch(link) for key, link in wires.items()}
            for key, link in self.links.items():
                if key not in wires:
                    beyond = self._switch(link)
                    src, dst = (own[name] if name else switch.get(beyond, beyond) for name in key[:2])
                    more_links.append((src, dst, key[2]))
        more = np.array(more_links, dtype=np.int64).reshape(-1, 3)
        return replace(
            plain,
            node=np.concatenate([plain.node, np.array(more_devices, dtype=np.int64)]),
            ranked=np.concatenate([plain.ranked, np.zeros(len(more_devices), dtype=np.bool_)]),
            slot=np.array(slot, dtype=np.int64),
            src=np.concatenate([plain.src, more[:, 0]]),
            dst=np.concatenate([plain.dst, more[:, 1]]),
            kind=np.concatenate([plain.kind, more[:, 2]]),
            figure=np.concatenate([plain.figure, np.full(len(more), len(plain.bandwidths) - 1)]),
        )

    def _local(self, device: int) -> str:
        host = int(self.plain.node[device])
        return self.topology.devices[device].name.removeprefix(f"n{host}.") if host >= 0 else ""

    def _devices(self, host: int) -> dict[str, int]:
        return {self._local(number): number for number in np.flatnonzero(self.plain.node == host).tolist()}

    def _links(self, host: int) -> dict[_Key, int]:
        found, times = dict[_Key, int](), Counter[tuple[str, str, int]]()
        for link in np.flatnonzero(self.owner == host).tolist():
            ends = self._local(int(self.plain.src[link])), self._local(int(self.plain.dst[link]))
            plain = *ends, int(self.plain.kind[link])
            found[*plain, times[plain]] = link
            times[plain] += 1
        return found

    def _switch(self, link: int) -> int:
        """The device outside hosts that a link joins; -1 for one inside."""
        src, dst = int(self.plain.src[link]), int(self.plain.dst[link])
        return src if self.plain.node[src] < 0 else dst if self.plain.node[dst] < 0 else -1
