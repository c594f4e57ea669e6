"""Groups of devices that cuts, partitions and lengths may separate, and the cuts around them for an exchange.

For alltoall and alltoallv, cuts are around all subsets of few ranks, else around groups of devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from operator import itemgetter, mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinksim.bounds.certificates import Cut, crossing_links, tight_limits
from blinksim.collective import Collective
from blinksim.graphs.arrays import Bools, Ints, by_place, distinct, per_topology, scattered
from blinksim.graphs.connectivity import distances, grouped, joined_labels
from blinksim.graphs.network import Flow, Network, whole
from blinksim.topology.graph import Topology
from blinksim.units import format_rate


@dataclass(frozen=True, eq=False)
class Grouping:
    """Devices in groups.

    sort: what the groups are around. label: the number of every device's group, one more than the last for
    those in none. keys: what stands for every group, such as the name of its member.
    """

    sort: str
    label: Ints
    keys: Sequence[object]


def crossing_sums(topology: Topology, label: Ints, values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """What links out of every group have together, and then those into it. values: whole numbers by link."""
    a, b = (label[ends] for ends in topology.ends)
    for side in (a, b):
        yield by_place(np.add, side[a != b], values[a != b], int(label.max()) + 1)


def whole_widths(topology: Topology) -> tuple[NDArray[Any], Fraction]:
    """What every link carries, as a whole number of a common unit, and that unit in bytes/s."""
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
        limits = tight_limits(topology, crossing_links(topology, part, leaving=0))
    return Cut.of(topology, collective, names, limits)


@per_topology
def groupings(topology: Topology) -> tuple[Grouping, ...]:
    """Ways to put devices into groups.

    Single members, alone and with what is private to them, whole nodes, what is inside narrow links of
    nodes, and nodes below one switch of the fabric.
    """
    members, ranks = topology.member_places, topology.ranks
    label = scattered(members, np.arange(ranks), len(topology.devices), ranks)
    found = [Grouping("member", label, topology.members), private(topology)]
    if len(set(topology.device_nodes[members].tolist())) > 1:
        hosts = nodes(topology)
        found += [hosts, *_inside_narrow(topology, hosts), *_below_switches(topology)]
    return tuple(found)


@per_topology
def private(topology: Topology) -> Grouping:
    """Every member with what is private to it.

    That is the forwarders that lead, within their node, to one member only, such as the NICs of a GPU and the PCIe
    switch that they share.
    """
    members, ranks, size = topology.member_places, np.arange(topology.ranks), len(topology.devices)
    node, (src, dst) = topology.device_nodes, topology.ends
    rank = scattered(members, ranks, size)
    member = rank >= 0
    inner = (node[src] == node[dst]) & (node[src] >= 0)
    between = inner & ~member[src] & ~member[dst]
    beside = joined_labels(size, src[between], dst[between])
    out, back = inner & ~member[src] & member[dst], inner & member[src] & ~member[dst]
    near = beside[np.concatenate([src[out], dst[back]])]
    near, end = np.divmod(distinct(near * size + np.concatenate([dst[out], src[back]])), size)
    only = scattered(near, rank[end], size)
    only[np.bincount(near, minlength=size) > 1] = -1
    number = np.where(member, rank, only[beside])
    return Grouping("what is private to a member", np.where(number < 0, len(ranks), number), topology.members)


def nodes(topology: Topology) -> Grouping:
    """The hosts, without the switches between them."""
    node = topology.device_nodes
    inside = np.flatnonzero(node >= 0)
    keys, first, number = np.unique(node[inside], return_index=True, return_inverse=True)
    # In the order of their first devices.
    order = np.argsort(first)
    label = scattered(inside, np.argsort(order)[number], len(node), len(keys))
    return Grouping("node", label, keys[order].tolist())


def _inside_narrow(topology: Topology, hosts: Grouping) -> Iterator[Grouping]:
    """The members of every host with what is on their side of the narrowest links between them and other hosts.

    Such as what is inside a NIC on a narrow PCIe link. None if these links are those between the hosts.
    """
    node, (src, dst), members = topology.device_nodes, topology.ends, topology.member_places
    widths, count = whole_widths(topology)[0], len(node)
    # In whole numbers that do not overflow.
    widths = (widths // max(1, int(widths.max(initial=0)) // 10**6)).astype(np.int64)
    tail = np.concatenate([src, np.full(len(members), count)])
    head = np.concatenate([np.where(node[src] == node[dst], dst, count + 1), members])
    capacity = np.concatenate([widths, np.full(len(members), int(widths.sum()) + 1)])
    beyond = ~Flow(count + 2, tail, head, capacity, count, count + 1).side()[:count] & (node >= 0)
    if beyond.any():
        yield Grouping("node inside narrow links", np.where(beyond, len(hosts.keys), hosts.label), hosts.keys)


def _below_switches(topology: Topology) -> Iterator[Grouping]:
    """The nodes below one switch of the fabric with what is between them, level by level; none of the last level.

    A switch beside nodes is on the lowest level, one beside such a switch on the next.
    """
    node, (src, dst) = topology.device_nodes, topology.ends
    between = (node[src] < 0) & (node[dst] < 0)
    trunks = grouped(zip(src[between].tolist(), dst[between].tolist(), strict=True))
    if not trunks:
        return
    # From -1, which stands for all nodes.
    trunks[-1] = distinct(dst[(node[dst] < 0) & (node[src] >= 0)]).tolist()
    reached = distances(-1, lambda here: trunks.get(here, ()))
    levels = {switch: far - 1 for switch, far in reached.items() if far}
    level = scattered(list(levels), list(levels.values()), len(node))
    low, high = np.minimum(level[src], level[dst]), np.maximum(level[src], level[dst])
    # Links within a level, as between the groups of a dragonfly, belong to the level above it.
    below = np.where(low < high, high, np.where(high < 0, 0, len(node)))
    for top in range(max(levels.values()) + 1):
        joined = joined_labels(len(node), src[below <= top], dst[below <= top])
        found, number = np.unique(joined, return_inverse=True)
        if len(found) > 1:
            yield Grouping("nodes below a switch", number, range(len(found)))


# Ranks up to which all their subsets are tried as sides of a cut.
_SUBSETS = 8
# Ranks and hosts, those with the least capacity out first, that are tried otherwise.
_TIGHTEST = 16
# With a traffic matrix, groups of each sort whose cuts are worth exact sums, and groups of all sorts worth a
# flow.
_TIGHTEST_GROUPS, _FLOWS = 2, 4


def tight_cut(topology: Topology, net: Network, first: Sequence[int]) -> tuple[list[str], list[str]]:
    """The side, and the device capacities, of the tightest cut found: capacity over ranks inside times ranks outside.

    The least of all cuts is hard to find (a sparsest cut). Tried are all sets of ranks where they are few,
    else the ranks and the hosts with the least capacity out, all but these, and a half and a quarter of the
    hosts. Other devices join the side that makes the capacity least.

    first: the vertices of ranks that stand for all; the others are equivalent to one of them.
    """
    ranks = len(net.members)
    sides = ((inside, len(inside) * (ranks - len(inside))) for inside in _sides(net, first))
    return _tightest_side(topology, net, sides)


def _tightest_side(
    topology: Topology, net: Network, sides: Iterable[tuple[Sequence[int], Fraction | int]]
) -> tuple[list[str], list[str]]:
    """The side, and the device capacities, of the cut with the least capacity over what must cross it.

    sides: ranks inside, and what they have for the others, which must be more than nothing.
    """
    total = int(net.capacity.sum()) + 1
    ranks = len(net.members)

    def cut(inside: Sequence[int], crossing: Fraction | int) -> tuple[Fraction, Bools]:
        within = np.isin(np.arange(ranks), inside)
        source, sink = net.vertices, net.vertices + 1
        tail = np.concatenate([net.tail, np.full(len(inside), source), net.members[~within]])
        head = np.concatenate([net.head, net.members[within], np.full(ranks - len(inside), sink)])
        capacity = np.concatenate([net.capacity, np.full(ranks, total)])
        flow = Flow(net.vertices + 2, tail, head, capacity, source, sink)
        return Fraction(flow.value, crossing), flow.side()[: net.vertices]

    _, side = min((cut(*each) for each in sides), key=itemgetter(0))
    return net.side_names(topology, side)


def _sides(net: Network, first: Sequence[int]) -> Iterator[list[int]]:
    ranks = len(net.members)
    if ranks <= _SUBSETS:
        for size in range(1, ranks):
            yield from map(list, combinations(range(ranks), size))
        return
    host = net.host[net.members]
    groups = [np.flatnonzero(host == number).tolist() for number in distinct(host).tolist()]
    # The bandwidth out of a rank, or a host, decides the order.
    outward = net.host[net.tail] != net.host[net.head]
    leaving = np.bincount(net.tail, net.capacity, net.vertices)[net.members]
    exits = np.bincount(net.host[net.tail[outward]] + 1, net.capacity[outward], int(net.host.max()) + 2)
    alone = np.isin(net.members, first)
    order = np.argsort(leaving, kind="stable")
    singles = [[int(rank)] for rank in order[alone[order]][:_TIGHTEST]]
    various = [group for group in groups if alone[group].any()]
    hosts = sorted(various, key=lambda group: float(exits[host[group[0]] + 1]))[:_TIGHTEST]
    runs = [[rank for group in groups[: len(groups) // part] for rank in group] for part in (2, 4)]
    for side in (*singles, *hosts, *runs):
        if 0 < len(side) < ranks:
            yield side
            yield sorted(set(range(ranks)) - set(side))


def traffic_cuts(topology: Topology, collective: Collective, sorts: Iterable[Grouping]) -> Iterator[Cut]:
    """The tightest cuts around single groups, and around all but one, if ranks differ. sorts: of groups."""
    different = {devices.tobytes(): devices for _, devices in reversed(_tightest(topology, collective, sorts))}
    for devices in reversed(different.values()):
        yield cut_around(topology, collective, devices, limited=True)


def tight_traffic_cut(topology: Topology, collective: Collective, net: Network, sorts: Sequence[Grouping]) -> Cut:
    """The tightest cut found: around subsets where ranks are few, else around groups, with the other devices placed."""
    ranks, groups = topology.ranks, _tightest(topology, collective, sorts)
    if ranks <= _SUBSETS:
        inside: Sequence[Bools] = list((np.arange(1, 2**ranks - 1)[:, None] >> np.arange(ranks)) & 1 == 1)
    else:
        inside = [devices[topology.member_places] for _, devices in groups[:_FLOWS]]
    ends = [(np.flatnonzero(within).tolist(), np.flatnonzero(~within).tolist()) for within in inside]
    sides = [(here, collective.between(here, there, ranks)) for here, there in ends]
    side, limits = _tightest_side(topology, net, [(ranks_in, amount) for ranks_in, amount in sides if amount])
    cuts = (Cut.of(topology, collective, side, limits), *traffic_cuts(topology, collective, sorts))
    return min(cuts, key=lambda cut: cut.rate)


def _tightest(topology: Topology, collective: Collective, sorts: Iterable[Grouping]) -> list[tuple[float, Bools]]:
    """The tightest groups of every sort, and all but one of its groups, the tightest first.

    Each with its ratio: bytes/s out over what must leave, in units of the size.
    """
    (widths, unit), data = whole_widths(topology), collective.data
    assert data is not None
    found = list[tuple[float, Bools]]()
    for sort in sorts:
        count = len(sort.keys)
        out, into = data.crossing(sort.label[topology.member_places], count)
        amounts = (into, out) if collective.collects else (out, into)
        ways = zip(crossing_sums(topology, sort.label, widths), amounts, strict=True)
        for outside, (carried, amount) in enumerate(ways):
            capacity = carried[:count].astype(float) * float(unit)
            ratio = np.divide(capacity, amount[:count], out=np.full(count, np.inf), where=amount[:count] > 0)
            tightest = [place for place in np.argsort(ratio, kind="stable")[:_TIGHTEST_GROUPS] if ratio[place] < np.inf]
            found += [(float(ratio[i]) * data.size, (sort.label == i) != bool(outside)) for i in tightest]
    return sorted(found, key=itemgetter(0))


def even_use(topology: Topology, lengths: Mapping[str, Fraction], distance: Fraction) -> str | None:
    """What lengths that are all alike say, in words: how often every byte crosses the links that have one.

    None where they differ, or where buses share.
    """
    chosen = np.array([link.name in lengths for link in topology.links])
    if len({*lengths.values()}) > 1 or chosen.sum() < len(lengths):
        return None
    return chosen_use(topology, chosen, distance / next(iter(lengths.values())))


def chosen_use(topology: Topology, chosen: Bools, times: Fraction) -> str | None:
    """What a length of 1 on the chosen links says, in words: how often every byte crosses them; None where buses share.

    times: how often it does.
    """
    columns, held = topology.link_columns, np.isin(np.arange(len(topology.devices)), topology.member_places)
    src, dst, count = columns.src[chosen], columns.dst[chosen], int(chosen.sum())
    if (columns.bus[chosen] >= 0).any():
        return None
    if not np.array_equal(held[columns.src] | held[columns.dst], chosen):
        between = (topology.device_nodes[src] != topology.device_nodes[dst]).all()
        several = f"the {count} links between nodes" if between else f"{count} links"
        links = several if count > 1 else topology.links[int(np.argmax(chosen))].name
    else:
        # What every member sends and receives, from how many links of each sort it has.
        own, n, links = set[Fraction](), topology.ranks, f"the {count} links of GPUs"
        for ends in (src, dst):
            links_of = np.zeros((len(held), len(columns.figures)), dtype=np.int64)
            np.add.at(links_of, (ends, columns.figure[chosen]), 1)
            for sorts in set(map(tuple, links_of[topology.member_places].tolist())):
                own.add(sum(map(mul, columns.bandwidths, sorts), Fraction(0)))
        # A link between two GPUs is the way out of one and the way into the other, but has one length.
        inner = int((held[src] & held[dst]).sum())
        if len(own) == 1 and inner in (0, count):
            each = times / ((1 if inner else 2) * n)
            say: dict[Fraction | int, str] = {n: "once", n - 1: "(n-1)/n times", 2 * n - 2: "2(n-1)/n times"}
            port, often = "links" if inner else "port", say.get(each * n, f"{each} times")
            rate = format_rate(own.pop())
            return f"each GPU's {port} must carry every byte {often} each way, on average: {rate} allow"
    total = format_rate(columns.capacity(chosen))
    data = "the data" if times == 1 else f"{times} times the data"
    return f"{data} must cross {links}, which {f'carry {total} together' if count > 1 else f'carries {total}'}:"
