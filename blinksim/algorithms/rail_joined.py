"""Rail-joined alltoall: as `rail_aligned`, with all blocks for a node in one message.

The members of a node share out which of them sends to which other node, hand it all that the others have for
that node, and the member of equal place there hands the blocks on. So a rank sends few messages, where a
message for every block takes longer to begin than to send. What members hand on in one round overlaps with
what crosses in another (the hierarchical alltoall of Tutel, Hwang et al., MLSys 2023).
"""

from __future__ import annotations

from blinksim.algorithms.building import rail_alltoall
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import Schedule
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    ("alltoall",), "as rail_aligned, what goes to a node in one message", sends=per_pair, routes=True, traffic=True
)


def build(topology: Topology, collective: Collective) -> Schedule:
    """The schedule in steps form.

    Raises `InfeasibleError` for a single node, and for nodes that differ in members or adapters or without
    switches between them.
    """
    return rail_alltoall.build_joined(topology, collective, "rail_joined", rail_alltoall.once)


def symmetric(topology: Topology, collective: Collective) -> Candidate | None:
    """The schedule by symmetry, for thousands of ranks, or of a traffic matrix by what its steps add up to.

    None where no group takes a node to all others, or there are no rails.
    """
    return rail_alltoall.joined_candidate(topology, collective, "rail_joined", rail_alltoall.once)
