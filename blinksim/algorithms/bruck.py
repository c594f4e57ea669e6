"""Bruck's alltoall for small blocks over rails: few messages, hence little overhead.

Where there are many nodes, blocks go to a node between first: with the nodes numbered in two digits, to one
that agrees with the receiver's in the first. So a rank sends messages for each digit in turn, instead of one
to every node, and every byte crosses twice (Bruck et al., IEEE TPDS 1997, in a mixed radix). All blocks that
go the same way are one message, of all members of the node together.
"""

from __future__ import annotations

from blinksim.algorithms.building import rail_alltoall
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import Schedule
from blinksim.topology.graph import Topology

ENTRY = Algorithm(("alltoall",), "from node to node digit by digit, in few messages", sends=per_pair, routes=True)


def build(topology: Topology, collective: Collective) -> Schedule:
    """The schedule in steps form.

    Raises `InfeasibleError` for a single node, and for nodes that differ in members or adapters or without
    switches between them.
    """
    return rail_alltoall.build_joined(topology, collective, "bruck", rail_alltoall.twice)


def symmetric(topology: Topology, collective: Collective) -> Candidate | None:
    """The schedule by symmetry, for thousands of ranks; None where no group takes a node to all others."""
    return rail_alltoall.joined_candidate(topology, collective, "bruck", rail_alltoall.twice)
