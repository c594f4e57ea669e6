"""Ways to put the devices of a machine into groups that cuts, partitions and lengths may go around."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from blinksim.structures.union_find import UnionFind, joined_labels
from blinksim.topology.graph import Topology

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def groups(topology: Topology) -> Iterator[Mapping[str, object]]:
    """Ways to put devices into groups, as the group of each device that is in one.

    Single members, alone and with what is private to them, whole nodes, and nodes below one switch of the fabric.
    """
    node = {device.name: device.node for device in topology.devices}
    own: dict[str, object] = {name: name for name in topology.members}
    yield own
    yield own | _private(topology)
    if len({node[name] for name in topology.members}) > 1:
        yield {name: number for name, number in node.items() if number >= 0}
        yield from _below_switches(topology, node)


def labels(topology: Topology, key: Mapping[str, object]) -> tuple[NDArray[np.int64], list[object]]:
    """The number of every device's group, one more than the last for those in none; and the groups."""
    import numpy as np

    number = {group: place for place, group in enumerate(dict.fromkeys(key.values()))}
    label = np.full(len(topology.devices), len(number))
    label[list(map(topology.index.__getitem__, key))] = list(map(number.__getitem__, key.values()))
    return label, list(number)


def _below_switches(topology: Topology, node: Mapping[str, int]) -> Iterator[dict[str, object]]:
    """The nodes below one switch of the fabric with what is between them, level by level; none of the last level.

    A switch beside nodes is on the lowest level, one beside such a switch on the next.
    """
    trunks = defaultdict[str, set[str]](set)
    for link in topology.links:
        if node[link.src] < 0 and node[link.dst] < 0:
            trunks[link.src].add(link.dst)
    if not trunks:
        return
    beside = {link.dst for link in topology.links if node[link.dst] < 0 <= node[link.src]}
    level = dict.fromkeys(beside, 0)
    while new := {there for here in beside for there in trunks[here] if there not in level}:
        level |= dict.fromkeys(new, max(level.values()) + 1)
        beside = new
    joined = UnionFind(node)
    for low in range(max(level.values()) + 1):
        for link in topology.links:
            ends = sorted(level.get(end, -1) for end in (link.src, link.dst))
            # Links within a level, as between the groups of a dragonfly, belong to the level above it.
            if (ends[1] == low and ends[0] < low) or (low == 0 and ends[1] < 0):
                joined.join(link.src, link.dst)
        found = joined.sets()
        if len(found) > 1:
            yield {name: number for number, names in enumerate(found) for name in names}


def _private(topology: Topology) -> dict[str, object]:
    """The forwarders that lead, within their node, to one member only; with the member.

    Such as the NICs of a GPU, and the PCIe switch that they share.
    """
    import numpy as np

    node = topology.device_nodes
    member = np.zeros(len(node), dtype=np.bool_)
    member[topology.member_places] = True
    src, dst = topology.ends
    inner = (node[src] == node[dst]) & (node[src] >= 0)
    between = inner & ~member[src] & ~member[dst]
    beside = joined_labels(len(node), src[between], dst[between])
    out, back = inner & ~member[src] & member[dst], inner & member[src] & ~member[dst]
    near = beside[np.concatenate([src[out], dst[back]])]
    end = np.concatenate([dst[out], src[back]])
    pairs = np.unique(near * len(node) + end)
    near, end = pairs // len(node), pairs % len(node)
    only = np.full(len(node), -1)
    only[near] = end
    only[np.bincount(near, minlength=len(node)) > 1] = -1
    names = [device.name for device in topology.devices]
    leads_to = np.where(member, -1, only[beside])
    found = np.flatnonzero(leads_to >= 0)
    return {names[place]: names[end] for place, end in zip(found.tolist(), leads_to[found].tolist(), strict=True)}
