"""Groups of devices that cuts, partitions and lengths may separate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from blinksim.bounds.certificate_sums import crossing_links, tight_limits
from blinksim.bounds.certificates import Cut
from blinksim.collective import Collective
from blinksim.graphs.arrays import distinct, per_topology
from blinksim.graphs.connectivity import joined_labels
from blinksim.graphs.network import whole
from blinksim.topology.graph import Topology

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Grouping:
    """Devices in groups.

    sort: what the groups are around. label: the number of every device's group, one more than the last for those in
    none. keys: what stands for every group, such as the name of its member.
    """

    sort: str
    label: Ints
    keys: Sequence[object]

    @classmethod
    def of(cls, sort: str, devices: Ints, number: Ints, keys: Sequence[object], size: int) -> Grouping:
        """From positions of devices, and the numbers of their groups. size: of all devices."""
        import numpy as np

        label = np.full(size, len(keys))
        label[devices] = number
        return cls(sort, label, keys)


def crossing_sums(topology: Topology, label: Ints, values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """What links out of every group have together, and then those into it. values: whole numbers by link."""
    import numpy as np

    a, b = (label[ends] for ends in topology.ends)
    for side in (a, b):
        total = np.zeros(int(label.max()) + 1, dtype=values.dtype)
        np.add.at(total, side[a != b], values[a != b])
        yield total


def whole_widths(topology: Topology) -> tuple[NDArray[Any], Fraction]:
    """What every link carries, as a whole number of a common unit, and that unit in bytes/s."""
    import numpy as np

    columns = topology.link_columns
    rates, unit = whole([(rate, 1) for rate in columns.bandwidths])
    exact = np.int64 if max(rates, default=0) * len(columns.src) < 2**62 else object
    return np.array(rates, dtype=exact)[columns.figure], unit


def cut_around(topology: Topology, collective: Collective, inside: Bools, *, limited: bool = False) -> Cut:
    """The cut around devices. limited: capacities of devices count where they bind."""
    names = [topology.devices[place].name for place in inside.nonzero()[0].tolist()]
    limits: tuple[str, ...] = ()
    if limited and any(device.capacity is not None for device in topology.devices):
        part = dict.fromkeys((device.name for device in topology.devices), 1) | dict.fromkeys(names, 0)
        limits = tight_limits(topology, crossing_links(topology, part, leaving=0), part)
    return Cut.of(topology, collective, names, limits)


@per_topology
def groupings(topology: Topology) -> tuple[Grouping, ...]:
    """Ways to put devices into groups.

    Single members, alone and with what is private to them, whole nodes, nodes without adapters on narrow links, and
    nodes below one switch of the fabric.
    """
    import numpy as np

    members, ranks, size = topology.member_places, np.arange(topology.ranks), len(topology.devices)
    own, end = _private(topology)
    rank = np.full(size, -1)
    rank[members] = ranks
    devices, number = np.concatenate([members, own]), np.concatenate([ranks, rank[end]])
    found = [
        Grouping.of("member", members, ranks, topology.members, size),
        Grouping.of("what is private to a member", devices, number, topology.members, size),
    ]
    if len(set(topology.device_nodes[members].tolist())) > 1:
        hosts = nodes(topology)
        found += [hosts, *_inside_adapters(topology, hosts), *_below_switches(topology)]
    return tuple(found)


def nodes(topology: Topology) -> Grouping:
    """The hosts, without the switches between them."""
    import numpy as np

    node = topology.device_nodes
    inside = np.flatnonzero(node >= 0)
    keys, first, number = np.unique(node[inside], return_index=True, return_inverse=True)
    # In the order of their first devices.
    order = np.argsort(first)
    return Grouping.of("node", inside, np.argsort(order)[number], keys[order].tolist(), len(node))


def _inside_adapters(topology: Topology, hosts: Grouping) -> Iterator[Grouping]:
    """The hosts, without those of their devices at the edge whose links inside are narrower than those outside.

    Such as a NIC on a narrow PCIe link. None if all have enough inside.
    """
    import numpy as np

    node, columns = topology.device_nodes, topology.link_columns
    rates = np.array([float(rate) for rate in columns.bandwidths])[columns.figure]
    inner = node[columns.src] == node[columns.dst]
    inside, outside = np.zeros(len(node)), np.zeros(len(node))
    for ends in (columns.src, columns.dst):
        np.add.at(inside, ends[inner], rates[inner])
        np.add.at(outside, ends[~inner], rates[~inner])
    inside[topology.member_places] = np.inf
    edge = (inside < outside) & (node >= 0)
    if edge.any():
        yield Grouping("node inside its adapters", np.where(edge, len(hosts.keys), hosts.label), hosts.keys)


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
            yield Grouping("nodes below a switch", number, range(len(found)))


def _private(topology: Topology) -> tuple[Ints, Ints]:
    """The forwarders that lead, within their node, to one member only; and that member.

    Such as the NICs of a GPU, and the PCIe switch that they share.
    """
    import numpy as np

    node, (src, dst) = topology.device_nodes, topology.ends
    member = np.zeros(len(node), dtype=np.bool_)
    member[topology.member_places] = True
    inner = (node[src] == node[dst]) & (node[src] >= 0)
    between = inner & ~member[src] & ~member[dst]
    beside = joined_labels(len(node), src[between], dst[between])
    out, back = inner & ~member[src] & member[dst], inner & member[src] & ~member[dst]
    near = beside[np.concatenate([src[out], dst[back]])]
    pairs = distinct(near * len(node) + np.concatenate([dst[out], src[back]]))
    near, end = np.divmod(pairs, len(node))
    only = np.full(len(node), -1)
    only[near] = end
    only[np.bincount(near, minlength=len(node)) > 1] = -1
    leads_to = np.where(member, -1, only[beside])
    found = np.flatnonzero(leads_to >= 0)
    return found, leads_to[found]
