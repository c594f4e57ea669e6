"""Alltoall, gather and scatter as flows: every byte goes from one rank to one other, so nothing is copied on the way.

Maximum concurrent flow, aggregated by source (Shahrokhi and Matula 1990): a linear program of sources times links.
Its duals are link lengths, the certificate.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from blinksim.graphs.capacities import SharedCapacity, Solution, capacity_duals, capacity_rows
from blinksim.graphs.linear import Program
from blinksim.graphs.maxflow import Flow
from blinksim.graphs.network import Network
from blinksim.graphs.orbits import NetworkOrbits
from blinksim.topology.graph import Topology

# Variables (sources times arcs) up to which the program is solved; beyond it takes minutes.
LIMIT = 30_000
# Ranks up to which all their subsets are tried as sides of a cut.
_SUBSETS = 8
# Ranks and hosts, those with the least capacity out first, that are tried otherwise.
_TIGHTEST = 16


def concurrent_flow(net: Network, shared: list[SharedCapacity], same: NetworkOrbits) -> Solution | None:
    """The greatest algbw of an alltoall in units of `net`, with link lengths; None if the program is too large.

    same: sources that are alike are represented by one, whose flow the symmetries turn into theirs.
    """
    arcs = len(net.tail)
    if len(same.first) * arcs > LIMIT:
        return None
    program = Program()
    rate = program.variables(1)[0]
    flows = [program.variables(arcs) for _ in same.first]
    scale = float(net.capacity.max())
    groups: list[list[int]] = [[] for _ in range(same.arcs)]
    for arc, orbit in enumerate(same.arc.tolist()):
        groups[orbit].append(arc)

    def load(arc: int) -> list[tuple[int, float]]:
        # All copies of a source's flow together load the arcs of an orbit equally.
        group = groups[int(same.arc[arc])]
        return [
            (flow[other], count / len(group)) for flow, count in zip(flows, same.count, strict=True) for other in group
        ]

    rows = capacity_rows(program, shared, same, load, scale)
    wants = np.zeros(net.vertices, dtype=bool)
    wants[net.members] = True
    tail, head = net.tail.tolist(), net.head.tolist()
    for source, flow in zip(same.first, flows, strict=True):
        terms: list[list[tuple[int, float]]] = [[] for _ in range(net.vertices)]
        for arc, variable in enumerate(flow):
            terms[head[arc]].append((variable, 1.0))
            terms[tail[arc]].append((variable, -1.0))
        for vertex, entry in enumerate(terms):
            if vertex != source:
                program.row([*entry, (rate, -1.0)] if wants[vertex] else entry, at_least=0.0, at_most=0.0)
    value = program.solve([(rate, 1.0)])
    return Solution(value * scale * len(net.members), capacity_duals(program, rows))


def tight_cut(topology: Topology, net: Network) -> tuple[list[str], list[str]]:
    """The side, and the device capacities, of the tightest cut found: capacity over ranks inside times ranks outside.

    The least of all cuts is hard to find (a sparsest cut). Tried are all sets of ranks where they are few, else the
    ranks and the hosts with the least capacity out, all but these, and a half and a quarter of the hosts. Other devices
    join the side that makes the capacity least.
    """
    total = int(net.capacity.sum()) + 1
    best: tuple[Fraction, NDArray[np.bool_]] | None = None
    ranks = len(net.members)
    for inside in _candidates(net):
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
        ratio = Fraction(flow.value, len(inside) * (ranks - len(inside)))
        if best is None or ratio < best[0]:
            best = (ratio, flow.side()[: net.vertices])
    assert best is not None
    return net.side_names(topology, best[1])


def _candidates(net: Network) -> Iterator[list[int]]:
    ranks = len(net.members)
    if ranks <= _SUBSETS:
        for size in range(1, ranks):
            yield from map(list, combinations(range(ranks), size))
        return
    host = net.host[net.members]
    groups = [np.flatnonzero(host == number).tolist() for number in np.unique(host).tolist()]
    # What leaves a rank, or a host, tells where to look first.
    outward = net.host[net.tail] != net.host[net.head]
    leaving = np.bincount(net.tail, net.capacity, net.vertices)[net.members]
    exits = np.bincount(net.host[net.tail[outward]] + 1, net.capacity[outward], int(net.host.max()) + 2)
    singles = [[int(rank)] for rank in np.argsort(leaving, kind="stable")[:_TIGHTEST]]
    hosts = sorted(groups, key=lambda group: float(exits[host[group[0]] + 1]))[:_TIGHTEST]
    runs = [[rank for group in groups[: len(groups) // part] for rank in group] for part in (2, 4)]
    for side in (*singles, *hosts, *runs):
        if 0 < len(side) < ranks:
            yield side
            yield sorted(set(range(ranks)) - set(side))
