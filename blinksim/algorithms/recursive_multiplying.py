"""Recursive multiplying: in every level all ranks of a group exchange what they have summed, and groups grow.

With groups of two it is recursive doubling. Larger ones take fewer steps, for more messages and bytes in each
(Ruefenacht, Bull and Booth, "Generalisation of recursive doubling for AllReduce", Parallel Computing 2017),
and numbers of ranks that are no powers of two take none before and after. Members of a node go first.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from blinksim.algorithms.building.plan import lanes_between
from blinksim.algorithms.hierarchical import places_of
from blinksim.algorithms.hierarchical_multiplying import radices
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.graphs.arrays import round_robin
from blinksim.schedule.loads import Exchange, Round
from blinksim.schedule.model import REDUCE
from blinksim.topology.graph import Topology

ENTRY = Algorithm(("allreduce",), "exchanges of all data in groups that grow, first inside nodes", sends=per_pair)

# Groups that exchange at a time inside nodes whose links do not join each GPU with every other. With 2, 4 and
# 8 an allreduce of 4 KiB takes 12.4, 13.1 and 16.4 us on 3 HGX H100, and 15.2, 19.3 and 19.2 us on 3 DGX-1;
# on 8 MI300X, whose links do, 17.7, 15.7 and 13.4. Between nodes 4 and 8 take 19.0 and 17.2 us on 8 HGX H100,
# 39 and 28 us on 8 p4d.
_MOST_GROUPS = 2


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps do. Raises as `hierarchical.fill` does for nodes with different numbers of ranks."""
    places = places_of(topology, "recursive_multiplying", least=1)
    levels, found = list[int](), list[Round]()
    # Cards, their tiles, or the GPUs of a node.
    for line in (places[:, 0, 0], places[0, :, 0]):
        each = len(line)
        meshed = len(lanes_between(topology, line.tolist())) == each * (each - 1)
        levels += radices(each) if meshed else radices(each, _MOST_GROUPS)
    places = places.reshape((*levels, *radices(places.shape[2])))
    for axis, groups in enumerate(places.shape):
        left, right = (np.moveaxis(places, axis, 0)[end].ravel() for end in round_robin(groups))
        found.append(Round(Exchange(left, right), Fraction(1), REDUCE))
    return tuple(found)
