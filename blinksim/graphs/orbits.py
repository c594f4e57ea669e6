"""Orbits of the arcs and ranks of a network: one variable, one row or one sink stands for a whole orbit.

A linear program that a group maps onto itself has an optimum that the group leaves unchanged, the average of any
optimum over the group (Gatermann and Parrilo 2004), so only orbits need variables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blinksim.graphs.network import Array, Network
from blinksim.topology.graph import Topology


@dataclass(frozen=True, eq=False)
class NetworkOrbits:
    """What the symmetries of a network map onto each other.

    arc: orbit number of every arc. first, count: of each orbit of ranks the vertex of its first, and its size. member:
    for each rank the number of its orbit.
    """

    arc: Array
    first: tuple[int, ...]
    count: tuple[int, ...]
    member: tuple[int, ...]

    @property
    def arcs(self) -> int:
        """Number of orbits of arcs."""
        return int(self.arc.max()) + 1


def single_orbits(net: Network) -> NetworkOrbits:
    """Every arc and every rank is an orbit of its own."""
    ranks = len(net.members)
    return NetworkOrbits(np.arange(len(net.tail)), tuple(net.members.tolist()), (1,) * ranks, tuple(range(ranks)))


def network_orbits(topology: Topology, net: Network) -> NetworkOrbits:
    """The orbits of arcs and ranks under the checked symmetries of `topology`."""
    if not topology.symmetries and topology.nodes < 2:
        return single_orbits(net)
    from blinksim.topology.symmetry import link_orbits, orbits

    devices = orbits(topology)
    place = np.zeros(len(topology.devices), dtype=np.int64)
    for number, group in enumerate(devices):
        place[list(group)] = number
    keys: list[tuple[object, ...]] = [()] * len(net.tail)
    for number, group in enumerate(link_orbits(topology)):
        for link in group:
            keys[link] = (number,)
    for number, limit in enumerate(net.limits):
        name, _, way = limit.rpartition(" ")
        keys[net.links + number] = (way, int(place[topology.index[name]]))
    seen: dict[tuple[object, ...], int] = {}
    arc = np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.int64)
    member: list[int] = []
    numbers: dict[int, int] = {}
    for vertex in net.members.tolist():
        member.append(numbers.setdefault(int(place[vertex]), len(numbers)))
    first = [0] * len(numbers)
    for vertex, number in reversed(list(zip(net.members.tolist(), member, strict=True))):
        first[number] = vertex
    return NetworkOrbits(arc, tuple(first), tuple(np.bincount(member).tolist()), tuple(member))
