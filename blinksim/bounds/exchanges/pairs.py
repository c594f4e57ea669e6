"""Alltoall, scatter and gather as flows: every byte goes from one rank to one other, so nothing is copied on the way.

The bound is a maximum concurrent flow (`blinksim.graphs.flow_program`), whose duals are link lengths, the certificate.
For alltoall the tightest of the likely cuts is given as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from blinksim.collective import Collective
from blinksim.graphs.capacities import SharedCapacity, Solution
from blinksim.graphs.flow_program import Commodity, flow_variables, solve_flows
from blinksim.graphs.linear import MOST_FLOWS
from blinksim.graphs.maxflow import Flow
from blinksim.graphs.network import Network
from blinksim.graphs.orbits import NetworkOrbits
from blinksim.structures.arrays import distinct
from blinksim.topology.graph import Topology
from blinksim.traffic import Traffic

# Ranks up to which all their subsets are tried as sides of a cut.
_SUBSETS = 8
# Ranks and hosts, those with the least capacity out first, that are tried otherwise.
_TIGHTEST = 16


def best_flows(
    net: Network,
    collective: Collective,
    shared: Sequence[SharedCapacity],
    orbits: NetworkOrbits,
    shares: Sequence[int] = (),
) -> Solution | None:
    """The greatest algbw of alltoall, scatter or gather in units of `net`, with link lengths; None if too large.

    shares: weights of the ranks' blocks (scatter and gather; default: equal). orbits: equivalent arcs and ranks (for
    alltoall).
    """
    members = net.members.tolist()
    weights = dict(zip(members, shares or [1] * len(members), strict=True))
    if collective.traffic is not None:
        return _traffic_flows(net, collective.traffic, shared)
    if collective.rooted:
        # A gather is a scatter in the reversed network.
        way = net.reversed() if collective.collects else net
        solution = solve_flows(way, shared, [Commodity(members[collective.root], weights)])
    else:
        if flow_variables(net, len(orbits.first)) > MOST_FLOWS:
            return None
        solution = solve_flows(net, shared, [Commodity(source, weights) for source in orbits.first], orbits=orbits)
    return Solution(solution.rate * sum(weights.values()), solution.duals)


def _traffic_flows(net: Network, traffic: Traffic, shared: Sequence[SharedCapacity]) -> Solution | None:
    """As `best_flows` for a traffic matrix, which tells ranks apart that the machine does not."""
    if flow_variables(net, traffic.ranks) > MOST_FLOWS:
        return None
    rows = commodities(net, traffic)
    solution = solve_flows(net, shared, rows)
    return Solution(solution.rate * traffic.size, solution.duals)


def commodities(net: Network, traffic: Traffic) -> list[Commodity]:
    """What every rank sends to the others, in bytes; without the ranks that send nothing."""
    members = net.members.tolist()
    rows = []
    for source, amounts in zip(members, traffic.matrix.tolist(), strict=True):
        weights = {
            vertex: amount for vertex, amount in zip(members, amounts, strict=True) if amount and vertex != source
        }
        if weights:
            rows.append(Commodity(source, weights))
    return rows


def tight_cut(topology: Topology, net: Network, first: Sequence[int]) -> tuple[list[str], list[str]]:
    """The side, and the device capacities, of the tightest cut found: capacity over ranks inside times ranks outside.

    The least of all cuts is hard to find (a sparsest cut). Tried are all sets of ranks where they are few, else the
    ranks and the hosts with the least capacity out, all but these, and a half and a quarter of the hosts. Other devices
    join the side that makes the capacity least.

    first: the vertices of ranks that stand for all; the others are equivalent to one of them.
    """
    ranks = len(net.members)
    return tightest_side(
        topology, net, ((inside, len(inside) * (ranks - len(inside))) for inside in _sides(net, first))
    )


def tightest_side(
    topology: Topology, net: Network, sides: Iterable[tuple[Sequence[int], int]]
) -> tuple[list[str], list[str]]:
    """The side, and the device capacities, of the cut with the least capacity over what must cross it.

    sides: ranks inside, and what they have for the others, which must be more than nothing.
    """
    total = int(net.capacity.sum()) + 1
    best: tuple[Fraction, NDArray[np.bool_]] | None = None
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
