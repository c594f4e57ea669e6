"""Hierarchical collectives by recursive multiplying: about eight groups exchange in each level, two or four at ports.

Few steps and few messages, for small and middle sizes and for nodes of many GPUs: recursive doubling has more
steps, a direct exchange more messages (Ruefenacht, Bull and Booth, "Generalisation of recursive doubling for
AllReduce", Parallel Computing 2017).

A broadcast goes along trees in the root's node, and a part of it from each of its ranks along trees of nodes, which
gather the parts in that exchange: scatter and allgather (Barnett et al., "Interprocessor collective communication
library", 1994) with one message for all that a rank has for another. A reduce goes the other way.

Of nodes with slow ports, few GPUs may hold up the others: `hierarchical_direct` shares out what goes between nodes for
more steps and messages, which large sizes repay. On 8 p5 without an EFA each, allgathers of 1 MiB and 1 GiB take 32 us
and 3.2 ms here, and 46 us and 2.6 ms shared out.
"""

from __future__ import annotations

from functools import partial
from math import ceil, log

import numpy as np

from blinksim.algorithms import hierarchical
from blinksim.algorithms.building.plan import lanes_between
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import ON_TREES, Collective
from blinksim.graphs.arrays import Ints
from blinksim.graphs.rooted_trees import hops_over_ports
from blinksim.schedule.loads import Round, Whole
from blinksim.topology.graph import Topology

ENTRY = Algorithm(ON_TREES, "among few groups in every level, inside nodes and between them", sends=per_pair)
fill = hierarchical.fill

# An allgather of 256 KiB on 64 HGX H100 takes 32.7 us with groups of 8 between nodes, 32.9 of 4, 44 of 2; of
# 4 KiB on 512 p3dn, whose messages take long to arrive, 35 % more with 4 than with 8.
_MOST_GROUPS = 8
# Inside nodes, where starts of messages add up at a port of a switch, with 2, 4 and 8 an allreduce of 4 KiB
# by `recursive_multiplying` takes 12.4, 13.1 and 16.4 us on 3 HGX H100. By shards, simulated, one of 1, 4,
# 16, 64 MiB takes 30.7, 50.8, 108.9, 311 us on 2 HGX H100 of 8 GPUs with 4 and 29.3, 48.9, 108.8, 308 with
# 2, on 2 DGX-2 of 16 55.4, 111.6, 288, 950 and 53.2, 115.4, 289, 942. A broadcast of 4, 64 MiB and 1 GiB on
# these takes 111.9, 758 us and 10.9 ms with 4, 106.3, 748 us and 10.9 ms with 2, of 1 GiB on 64 GB200 NVL72
# by sums of steps 1.755 and 1.724 ms. Where links join some GPUs, and others pass each other, one of 256 KiB
# takes 43.8, 35.3 and 58.9 us with 2, 4 and 8 on 4 DGX-1, 79.2, 71.9 and 92.3 on 8 p3dn, 74.1, 66.0 and 66.0
# on 4 Trn2, one of 1 GiB 41, 84 and 84 ms on 8 MI250. Where they join all, 4 KiB on 8 MI300X takes 17.3, 15.4
# and 13.4 us.
_AT_A_PORT, _IN_PAIRS, _PAST_OTHERS = 4, 8, 4
# Trees of a broadcast in the root's node. On 64 GB300 NVL72 16 MiB and 1 GiB take 142 us and 1.73 ms with 3,
# 140 and 1.70 with 4, 146 and 1.69 with 6.
_MOST_INSIDE = 4


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps have in common. Raises as `fill` does."""
    # A broadcast gains by groups of two in a simulation, too.
    inside = partial(inner_radices, topology, pairs=collective.rooted)
    if collective.rooted:
        places = hierarchical.places_of(topology, "hierarchical_multiplying", lacking=True)
        return hierarchical.rooted(places, collective, partial(_by_exchanges, inside=inside))
    return hierarchical.rounds(topology, collective, "hierarchical_multiplying", radices, inside, evenly=False)


def inner_radices(topology: Topology, ranks: Whole, *, pairs: bool = True) -> tuple[int, ...]:
    """The `radices` of these ranks of a node: many, if links join each with every other.

    pairs: at a port of a switch in groups of two, however many ranks there are; else if they are few.
    """
    joined, each = len(lanes_between(topology, ranks.tolist())), len(ranks)
    at_a_port = 2 if pairs or each <= _IN_PAIRS else _AT_A_PORT
    meshed = joined == each * (each - 1)
    return radices(each, _MOST_GROUPS if meshed else _PAST_OTHERS if joined else at_a_port)


def _by_exchanges(
    places: Whole, root: int, chunks: Ints, inside: hierarchical.Inner
) -> tuple[hierarchical.Rounds, hierarchical.Rounds]:
    """Trees in the root's node, and exchanges in the others in levels as in `hierarchical.rounds`."""
    hops = hops_over_ports(_MOST_INSIDE, len(chunks), chunks.size)
    first = np.roll(places[:, :, :1].reshape(-1, 1), -root, axis=0)
    before = hierarchical.along(chunks.reshape(1 + int(hops[:, 2].max(initial=0)), -1), (hops, first, 0))
    own = len(places), *inside(places[0, :, 0])[::-1]
    after = hierarchical.exchanges(places[:, :, 1:], own, chunks)[::-1] if places.shape[2] > 1 else []
    return before, after


def radices(nodes: int, most: int = _MOST_GROUPS) -> tuple[int, ...]:
    """Factors of about equal size, as few as do not exceed `most` if there are such.

    >>> radices(16), radices(512), radices(72, most=4)
    ((4, 4), (8, 8, 8), (3, 3, 4, 2))
    """
    levels = list[int]()
    while nodes > 1:
        root = nodes ** (1 / ceil(log(nodes, most) - 1e-9))
        factors = (factor for factor in range(2, nodes + 1) if nodes % factor == 0)
        levels.append(min(factors, key=lambda factor: abs(log(factor / root))))
        nodes //= levels[-1]
    return tuple(levels)
