"""Ways to put the devices of a machine into groups that cuts, partitions and lengths may go around."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import ref

from blinksim.structures.union_find import joined_labels
from blinksim.topology.graph import Topology

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Grouping:
    """Devices in groups.

    sort: what the groups are around. devices, number (M): positions of the devices that are in a group, and the number
    of each one's. keys: what stands for every group, such as the name of its member. size: of all devices.
    """

    sort: str
    devices: Ints
    number: Ints
    keys: Sequence[object]
    size: int

    @cached_property
    def label(self) -> Ints:
        """The number of every device's group, one more than the last for those in none."""
        import numpy as np

        found = np.full(self.size, len(self.keys))
        found[self.devices] = self.number
        return found

    def by_name(self, topology: Topology) -> dict[str, object]:
        """The key of the group of each device that is in one."""
        names = (topology.devices[place].name for place in self.devices.tolist())
        return dict(zip(names, map(self.keys.__getitem__, self.number.tolist()), strict=True))


# Those of the last topology: bounds of several collectives look at the same.
_last: list[tuple[ref[Topology], tuple[Grouping, ...]]] = []


def groups(topology: Topology) -> Iterator[Mapping[str, object]]:
    """The groupings, each as the key of the group of each device that is in one."""
    for found in groupings(topology):
        yield found.by_name(topology)


def groupings(topology: Topology) -> tuple[Grouping, ...]:
    """Ways to put devices into groups.

    Single members, alone and with what is private to them, whole nodes, nodes without adapters on narrow links, and
    nodes below one switch of the fabric.
    """
    if not _last or _last[0][0]() is not topology:
        _last[:] = [(ref(topology), tuple(_groupings(topology)))]
    return _last[0][1]


def _groupings(topology: Topology) -> Iterator[Grouping]:
    import numpy as np

    members, ranks = topology.member_places, np.arange(topology.ranks)
    yield Grouping("member", members, ranks, topology.members, len(topology.devices))
    own, end = _private(topology)
    rank = np.full(len(topology.devices), -1)
    rank[members] = ranks
    with_own = np.concatenate([members, own]), np.concatenate([ranks, rank[end]])
    yield Grouping("what is private to a member", *with_own, topology.members, len(topology.devices))
    if len(set(topology.device_nodes[members].tolist())) > 1:
        hosts = nodes(topology)
        yield hosts
        yield from _inside_adapters(topology, hosts)
        yield from _below_switches(topology)


def nodes(topology: Topology) -> Grouping:
    """The hosts, without the switches between them."""
    import numpy as np

    node = topology.device_nodes
    inside = np.flatnonzero(node >= 0)
    keys, first, number = np.unique(node[inside], return_index=True, return_inverse=True)
    # In the order of their first devices.
    order = np.argsort(first)
    place = np.argsort(order)
    return Grouping("node", inside, place[number], keys[order].tolist(), len(node))


def _inside_adapters(topology: Topology, hosts: Grouping) -> Iterator[Grouping]:
    """The hosts, without those of their devices at the edge whose links inside are narrower than those outside.

    Such as a NIC on a narrow PCIe link. None if all have enough inside.
    """
    import numpy as np

    node, columns = topology.device_nodes, topology.link_columns
    src, dst = columns.src, columns.dst
    rates = np.array([float(rate) for rate in columns.bandwidths])[columns.figure]
    inner = node[src] == node[dst]
    inside, outside = np.zeros(len(node)), np.zeros(len(node))
    for ends in (src, dst):
        np.add.at(inside, ends[inner], rates[inner])
        np.add.at(outside, ends[~inner], rates[~inner])
    inside[topology.member_places] = np.inf
    kept = ~((inside < outside) & (node >= 0))[hosts.devices]
    if not kept.all():
        yield Grouping("node inside its adapters", hosts.devices[kept], hosts.number[kept], hosts.keys, hosts.size)


def _below_switches(topology: Topology) -> Iterator[Grouping]:
    """The nodes below one switch of the fabric with what is between them, level by level; none of the last level.

    A switch beside nodes is on the lowest level, one beside such a switch on the next.
    """
    import numpy as np

    node, (src, dst) = topology.device_nodes, topology.ends
    trunks = defaultdict[int, set[int]](set)
    for link in np.flatnonzero((node[src] < 0) & (node[dst] < 0)).tolist():
        trunks[int(src[link])].add(int(dst[link]))
    if not trunks:
        return
    beside = set(dst[(node[dst] < 0) & (node[src] >= 0)].tolist())
    levels = dict.fromkeys(beside, 0)
    while new := {there for here in beside for there in trunks[here] if there not in levels}:
        levels |= dict.fromkeys(new, max(levels.values()) + 1)
        beside = new
    level = np.full(len(node), -1)
    level[list(levels)] = list(levels.values())
    low, high = np.minimum(level[src], level[dst]), np.maximum(level[src], level[dst])
    # Links within a level, as between the groups of a dragonfly, belong to the level above it.
    below = np.where(low < high, high, np.where(high < 0, 0, len(node)))
    for top in range(max(levels.values()) + 1):
        joined = joined_labels(len(node), src[below <= top], dst[below <= top])
        found, number = np.unique(joined, return_inverse=True)
        if len(found) > 1:
            yield Grouping("nodes below a switch", np.arange(len(node)), number, range(len(found)), len(node))


def _private(topology: Topology) -> tuple[Ints, Ints]:
    """The forwarders that lead, within their node, to one member only; and that member.

    Such as the NICs of a GPU, and the PCIe switch that they share.
    """
    import numpy as np

    from blinksim.structures.arrays import distinct

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
    pairs = distinct(near * len(node) + end)
    near, end = pairs // len(node), pairs % len(node)
    only = np.full(len(node), -1)
    only[near] = end
    only[np.bincount(near, minlength=len(node)) > 1] = -1
    leads_to = np.where(member, -1, only[beside])
    found = np.flatnonzero(leads_to >= 0)
    return found, leads_to[found]
