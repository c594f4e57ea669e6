"""Rail-joined alltoall: as `rail_aligned`, with all blocks for a node in one message.

The members of a node share out which of them sends to which other node, hand it all that the others have for
that node, and the member of equal place there hands the blocks on. So a rank sends few messages, where a
message for every block takes longer to begin than to send. What members hand on in one round overlaps with
what crosses in another (the hierarchical alltoall of Tutel, Hwang et al., MLSys 2023).
"""

from __future__ import annotations

from functools import partial

from blinksim.algorithms.building import rail_alltoall
from blinksim.algorithms.registry import Algorithm, per_pair

ENTRY = Algorithm(
    ("alltoall",), "as rail_aligned, what goes to a node in one message", sends=per_pair, routes=True, traffic=True
)

build = partial(rail_alltoall.build_joined, "rail_joined", rail_alltoall.once)
symmetric = partial(rail_alltoall.joined_candidate, "rail_joined", rail_alltoall.once)
