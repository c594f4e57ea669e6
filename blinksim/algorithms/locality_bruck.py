"""Locality-aware Bruck: the members of a node take turns to send to other nodes what all of them have.

After an exchange in the node, each of its g members sends to every g-th node of a group, and hands on what it gets: a
rank sends n / g messages in place of n, and all still enters a node once. A broadcast goes back along these paths and
then on them, a reduce the other way (Bienz, Gautam and Kharel, "A locality-aware
Bruck allgather", EuroMPI 2022; with several ports: Bruck et al., IEEE TPDS 1997).
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul

import numpy as np

from blinksim.algorithms import hierarchical
from blinksim.algorithms.hierarchical_multiplying import inner_radices, radices
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import ON_TREES, Collective
from blinksim.graphs.arrays import Ints
from blinksim.schedule.loads import Round, Whole
from blinksim.schedule.model import COPY
from blinksim.topology.graph import Topology

ENTRY = Algorithm(ON_TREES, "by members of a node in turn to the nodes of a group, and on inside nodes", sends=per_pair)
fill = hierarchical.fill

# Messages of a member to other nodes of a group. An allgather of 256 KiB takes on 64 HGX H100 30.1 us with 1, 2 and 4,
# 24.8 with 8; on 256 nodes of Leonardo 54.9, 49.8, 51.4, 51.4; on 32 p4d 61.0, 61.0, 33.1, 33.1; on 64 p5 54.0, 54.0,
# 54.0, 55.7.
_MOST_SENDS = 8


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps have in common. Raises `InfeasibleError` for one node, and as `hierarchical.fill`."""
    grid = hierarchical.lanes_of(topology, "locality_bruck")
    (each, nodes), inside, done = grid.shape, inner_radices(topology, grid[:, 0]), 1
    place, node = (ends.ravel() for ends in np.indices(grid.shape))
    number = np.arange(grid.size)
    gathers = _shared(grid, inside, place, node, number[:, None], number)
    for groups in radices(nodes, each * _MOST_SENDS + 1):
        # A row has what a node has of the nodes that differ from it in the digits before.
        blocks = number.reshape(each, -1, done).swapaxes(0, 1).reshape(-1, each * done)
        shift, node = (ends.ravel() for ends in np.indices((groups - 1, nodes)))
        digit, place = node // done % groups, shift % each
        source = node + ((digit + 1 + shift) % groups - digit) * done
        gathers.append(hierarchical.sent(blocks, grid[place, source], grid[place, node], source // done))
        gathers += _shared(grid, inside, place, node, blocks, source // done)
        done *= groups
    if collective.rooted:
        return hierarchical.scatter_allgather([of(COPY) for of in gathers], grid.size, collective)
    return hierarchical.there_and_back(gathers[::-1], collective)


def _shared(
    grid: Whole, inside: tuple[int, ...], place: Ints, node: Ints, blocks: Ints, row: Ints
) -> hierarchical.Rounds:
    """What members of nodes at these places (M) hand on of `blocks` to all others there, in levels."""
    found, held = hierarchical.Rounds(), place[None]
    for stride, ways in zip(accumulate(inside, mul, initial=1), inside, strict=False):
        digit = held // stride % ways
        to = held + ((digit + np.arange(1, ways)[:, None, None]) % ways - digit) * stride
        hierarchical.check_messages(to.size)
        ends = np.broadcast_arrays(grid[held, node], grid[to, node], row)
        found.append(hierarchical.sent(blocks, *(one.ravel() for one in ends)))
        held = np.concatenate((held[None], to)).reshape(-1, len(place))
    return found
