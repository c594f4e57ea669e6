"""An alltoall of thousands of ranks, from what one node sends: turns of the nodes make the rest of it."""

from __future__ import annotations

import numpy as np

from blinksim.algorithms.rail_aligned import first_node
from blinksim.bounds.exchanges.rails import read_rails
from blinksim.collective import Collective
from blinksim.schedule.turned.symmetric import SymmetricSchedule
from blinksim.topology.graph import Topology
from blinksim.topology.symmetries.commuting import node_turns


def symmetric_exchange(topology: Topology, collective: Collective) -> SymmetricSchedule | None:
    """`rail_aligned` by symmetry; None for unequal blocks or adapters, and where no turns take a node to all others."""
    if collective.name != "alltoall" or topology.nodes < 2:
        return None
    turns, rails = node_turns(topology), read_rails(topology)
    if turns is None or rails is None or turns.size != rails.nodes:
        return None
    node = np.array([device.node for device in topology.devices])
    first = topology.index[topology.members[0]]
    elements = np.indices(turns.orders).reshape(len(turns.orders), -1).T
    if len(set(node[turns.along(elements, np.full(turns.size, first))].tolist())) != rails.nodes:
        return None
    base = first_node(rails)
    return None if base is None else SymmetricSchedule(base, turns)
