"""Recursive multiplying: in every level all ranks of a group exchange what they have summed, and groups grow.

With groups of two it is recursive doubling. Larger ones take fewer steps, for more messages and bytes in each
(Ruefenacht, Bull and Booth, "Generalisation of recursive doubling for AllReduce", Parallel Computing 2017),
and numbers of ranks that are no powers of two take none before and after. Members of a node go first.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

import numpy as np

from blinksim.algorithms.hierarchical import places_of
from blinksim.algorithms.hierarchical_multiplying import inner_radices, radices
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.graphs.arrays import round_robin
from blinksim.schedule.loads import Exchange, Round, Whole
from blinksim.schedule.model import REDUCE
from blinksim.topology.graph import Topology

ENTRY = Algorithm(("allreduce",), "exchanges of all data in groups that grow, first inside nodes", sends=per_pair)


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps do. Raises as `hierarchical.fill` does for nodes with different numbers of ranks."""
    places = levels_of(topology, "recursive_multiplying")
    return tuple(among(places, range(places.ndim)))


def levels_of(topology: Topology, name: str) -> Whole:
    """The ranks by an axis for each level: tiles, cards or GPUs of a node, nodes. Raises as `places_of`."""
    places = places_of(topology, name, least=1)
    levels = *inner_radices(topology, places[:, 0, 0]), *inner_radices(topology, places[0, :, 0])
    return places.reshape((*levels, *radices(places.shape[2])))


def among(places: Whole, axes: Iterable[int]) -> list[Round]:
    """Exchanges of all data among the ranks that differ in their place along one axis alone, axis by axis."""
    found = list[Round]()
    for axis in axes:
        left, right = (np.moveaxis(places, axis, 0)[end].ravel() for end in round_robin(places.shape[axis]))
        found.append(Round(Exchange(left, right), Fraction(1), REDUCE))
    return found
