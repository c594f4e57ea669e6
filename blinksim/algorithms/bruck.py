"""Bruck's alltoall for small blocks over rails: few messages, hence little overhead.

Where there are many nodes, blocks go to a node between first: with the nodes numbered in two digits, to one
that agrees with the receiver's in the first. So a rank sends messages for each digit in turn, instead of one
to every node, and every byte crosses twice (Bruck et al., IEEE TPDS 1997, in a mixed radix). All blocks that
go the same way are one message, of all members of the node together.
"""

from __future__ import annotations

from functools import partial

from blinksim.algorithms.building import rail_alltoall
from blinksim.algorithms.registry import Algorithm, per_pair

ENTRY = Algorithm(("alltoall",), "from node to node digit by digit, in few messages", sends=per_pair, routes=True)

build = partial(rail_alltoall.build_joined, "bruck", rail_alltoall.twice)
symmetric = partial(rail_alltoall.joined_candidate, "bruck", rail_alltoall.twice)
