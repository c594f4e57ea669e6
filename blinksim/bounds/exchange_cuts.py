"""Cuts for alltoall and alltoallv: around all subsets of few ranks, else around groups of devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from blinksim.bounds.certificates import Cut
from blinksim.bounds.groups import Grouping, crossing_sums, cut_around, whole_widths
from blinksim.collective import Collective
from blinksim.graphs.arrays import distinct
from blinksim.graphs.maxflow import Flow
from blinksim.graphs.network import Network
from blinksim.topology.graph import Topology
from blinksim.traffic import Traffic

# Ranks up to which all their subsets are tried as sides of a cut.
_SUBSETS = 8
# Ranks and hosts, those with the least capacity out first, that are tried otherwise.
_TIGHTEST = 16
# With a traffic matrix, groups of each sort whose cuts are worth exact sums, and groups of all sorts worth a flow.
_TIGHTEST_GROUPS, _FLOWS = 2, 4
Inside = NDArray[np.bool_]


def tight_cut(topology: Topology, net: Network, first: Sequence[int]) -> tuple[list[str], list[str]]:
    """The side, and the device capacities, of the tightest cut found: capacity over ranks inside times ranks outside.

    The least of all cuts is hard to find (a sparsest cut). Tried are all sets of ranks where they are few, else the
    ranks and the hosts with the least capacity out, all but these, and a half and a quarter of the hosts. Other devices
    join the side that makes the capacity least.

    first: the vertices of ranks that stand for all; the others are equivalent to one of them.
    """
    ranks = len(net.members)
    sides = ((inside, len(inside) * (ranks - len(inside))) for inside in _sides(net, first))
    return _tightest_side(topology, net, sides)


def _tightest_side(
    topology: Topology, net: Network, sides: Iterable[tuple[Sequence[int], int]]
) -> tuple[list[str], list[str]]:
    """The side, and the device capacities, of the cut with the least capacity over what must cross it.

    sides: ranks inside, and what they have for the others, which must be more than nothing.
    """
    total = int(net.capacity.sum()) + 1
    best: tuple[Fraction, Inside] | None = None
    ranks = len(net.members)
    for inside, crossing in sides:
        within = np.isin(np.arange(ranks), inside)
        source, sink = net.vertices, net.vertices + 1
        flow = Flow(
            net.vertices + 2,
            np.concatenate([net.tail, np.full(len(inside), source), net.members[~within]]),
            np.concatenate([net.head, net.members[within], np.full(ranks - len(inside), sink)]),
            np.concatenate([net.capacity, np.full(ranks, total)]),
            source,
            sink,
        )
        ratio = Fraction(flow.value, crossing)
        if best is None or ratio < best[0]:
            best = (ratio, flow.side()[: net.vertices])
    assert best is not None
    return net.side_names(topology, best[1])


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


@dataclass(frozen=True, eq=False)
class _Group:
    """ratio: bytes/s out over what must leave, in units of the size. devices: (D), those inside."""

    ratio: float
    devices: Inside


def traffic_cuts(topology: Topology, collective: Collective, sorts: Iterable[Grouping]) -> Iterator[Cut]:
    """The tightest cuts around single groups, and around all but one, for a traffic matrix. sorts: of groups."""
    different = {group.devices.tobytes(): group for group in reversed(_tightest(topology, _traffic(collective), sorts))}
    for group in reversed(different.values()):
        yield cut_around(topology, collective, group.devices, limited=True)


def tight_traffic_cut(topology: Topology, collective: Collective, net: Network, sorts: Sequence[Grouping]) -> Cut:
    """The tightest cut found: around subsets where ranks are few, else around groups, with the other devices placed."""
    traffic, ranks = _traffic(collective), topology.ranks
    groups = _tightest(topology, traffic, sorts)
    if ranks <= _SUBSETS:
        inside: Sequence[Inside] = list((np.arange(1, 2**ranks - 1)[:, None] >> np.arange(ranks)) & 1 == 1)
    else:
        inside = [group.devices[topology.member_places] for group in groups[:_FLOWS]]
    ends = [(np.flatnonzero(within).tolist(), np.flatnonzero(~within).tolist()) for within in inside]
    sides = [(here, int(traffic.between(here, there) * traffic.size)) for here, there in ends]
    side, limits = _tightest_side(topology, net, [(ranks_in, amount) for ranks_in, amount in sides if amount])
    cuts = (Cut.of(topology, collective, side, limits), *traffic_cuts(topology, collective, sorts))
    return min(cuts, key=lambda cut: cut.rate)


def _traffic(collective: Collective) -> Traffic:
    assert collective.traffic is not None
    return collective.traffic


def _tightest(topology: Topology, traffic: Traffic, sorts: Iterable[Grouping]) -> list[_Group]:
    """The tightest groups of every sort, and all but one of its groups, the tightest first."""
    widths, unit = whole_widths(topology)
    found = list[_Group]()
    for sort in sorts:
        # A group more for what is in none.
        count, member = len(sort.keys), sort.label[topology.member_places]
        sent, received = (
            np.bincount(member, amounts.astype(float), count + 1) for amounts in (traffic.sent, traffic.received)
        )
        own, order = np.zeros(count + 1), np.argsort(member, kind="stable")
        starts = np.searchsorted(member[order], np.arange(count + 1))
        for group in range(count):
            ranks = order[starts[group] : starts[group + 1]]
            own[group] = traffic.matrix[np.ix_(ranks, ranks)].sum()
        ways = zip(crossing_sums(topology, sort.label, widths), (sent - own, received - own), strict=True)
        for outside, (carried, amount) in enumerate(ways):
            capacity = carried[:count].astype(float) * float(unit)
            ratio = np.divide(capacity, amount[:count], out=np.full(count, np.inf), where=amount[:count] > 0)
            for place in np.argsort(ratio, kind="stable")[:_TIGHTEST_GROUPS].tolist():
                if np.isfinite(ratio[place]):
                    devices = (sort.label == place) != bool(outside)
                    found.append(_Group(float(ratio[place]) * traffic.size, devices))
    return sorted(found, key=lambda group: group.ratio)
