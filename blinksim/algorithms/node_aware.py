"""Node-aware exchanges: each rank of a node exchanges with another node; the node sums what its ranks got.

Where all ranks of a node exchange with the same nodes, as in `recursive_multiplying`, each result enters the
node as often as it has ranks. Here a node of g ranks hears of g - 1 others in one message of each rank, so
sums reach n nodes in log n / log g messages of a rank between nodes (Bienz, Olson and Gropp, "Node-aware
improvements to allreduce", ExaMPI 2019). A broadcast takes of these messages the first that reaches each rank,
and a reduce goes back along them.
"""

from __future__ import annotations

from fractions import Fraction
from math import gcd

import numpy as np

from blinksim.algorithms import hierarchical
from blinksim.algorithms.hierarchical_multiplying import inner_radices, radices
from blinksim.algorithms.recursive_multiplying import among
from blinksim.algorithms.registry import REDUCE_AND_SPREAD, Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.schedule.loads import Exchange, Round, Whole
from blinksim.schedule.model import COPY
from blinksim.topology.graph import Topology

ENTRY = Algorithm(REDUCE_AND_SPREAD, "each rank of a node with another node, and sums inside nodes", sends=per_pair)


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps do. Raises as `hierarchical.fill` does for nodes with different numbers of ranks."""
    lanes = hierarchical.lanes_of(topology, "node_aware")
    (each, nodes), done = lanes.shape, 1
    place, node = np.indices(lanes.shape)
    found = _summed(topology, lanes, each)
    # Of two groups each rank hears as soon without the other ranks of its node.
    while (groups := gcd(nodes // done, each)) > 2:
        digit, shift = node // done % groups, place % groups
        to = lanes[place, node + ((digit + shift) % groups - digit) * done]
        found.append(Round(Exchange(lanes[shift > 0], to[shift > 0]), Fraction(1), COPY))
        found += _summed(topology, lanes, groups)
        done *= groups
    rest = radices(nodes // done)
    found += among(lanes.reshape(each, *rest, done), range(1, len(rest) + 1))
    if not collective.rooted:
        return tuple(found)
    heard, spread = np.arange(lanes.size) == collective.root, hierarchical.Rounds()
    for one in found:
        src, dst = one.exchange.ends(lanes.size)
        first = np.flatnonzero(heard[src] & ~heard[dst])
        first = first[np.unique(dst[first], return_index=True)[1]]
        heard[dst[first]] = True
        if first.size:
            spread.append(hierarchical.sent(np.zeros((1, 1), np.int64), src[first], dst[first], 0 * first))
    return hierarchical.there_and_back(spread[::-1], collective)


def _summed(topology: Topology, lanes: Whole, ranks: int) -> list[Round]:
    """Exchanges of so many ranks of a node at a time."""
    levels = inner_radices(topology, lanes[:ranks, 0])[::-1]
    return among(lanes.reshape(-1, *levels, lanes.shape[1]), range(1, len(levels) + 1))
