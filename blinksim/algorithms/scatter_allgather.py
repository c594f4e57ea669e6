"""Scatter and allgather: a broadcast for middle sizes, in few messages that carry the data about twice.

Every rank gets a shard from the root, as an allgather would bring it there, and all gather them (Barnett et al.,
"Interprocessor collective communication library", 1994; Thakur et al., IJHPCA 2005, section 4.2): what an allreduce
takes. A reduce goes backwards: a reduce-scatter and a gather (Rabenseifner, ICCS 2004).
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from blinksim.algorithms import hierarchical, hierarchical_multiplying, hierarchical_trees
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.schedule.loads import Round
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    ("broadcast", "reduce"), "shards to all ranks, from node to node and in nodes, and gathered", sends=per_pair
)


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps have in common. Raises `InfeasibleError` for very many messages."""
    return hierarchical.scatter_allgather(_allgather(topology), topology.ranks, collective)


def _allgather(topology: Topology) -> tuple[Round, ...]:
    """As in an allreduce where there are alike nodes or cards, and by doubling elsewhere."""
    allgather = Collective("allgather")
    # On one node cards exchange in fewer bytes than along trees.
    for of in (hierarchical_trees.rounds, hierarchical_multiplying.rounds)[:: 1 if topology.nodes > 1 else -1]:
        with suppress(InfeasibleError):
            return of(topology, allgather)
    levels = hierarchical_multiplying.radices(topology.ranks, most=2)[::-1]
    ranks = np.arange(topology.ranks).reshape(1, -1, 1)
    return hierarchical.there_and_back(hierarchical.exchanges(ranks, (1, *levels), ranks.reshape(-1, 1, 1)), allgather)
