"""Two shots: every rank gets a shard of each of the others, or of the root, and sends it to all; two direct steps.

An allreduce is a direct reduce-scatter and allgather, bandwidth-optimal on switches (two-shot, as in NVIDIA's and
MSCCL++'s kernels). A broadcast is a scatter and allgather, a reduce a reduce-scatter and gather (Thakur et al.,
IJHPCA 2005, section 4.2), without what the root has already.
"""

from __future__ import annotations

from fractions import Fraction

from blinksim.algorithms.hierarchical import scatter_allgather
from blinksim.algorithms.registry import REDUCE_AND_SPREAD, Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.schedule.loads import Exchange, Round
from blinksim.schedule.model import COPY, REDUCE
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    REDUCE_AND_SPREAD,
    "direct reduce-scatter or scatter, then direct allgather or gather",
    sends=per_pair,
    every_pair=True,
)


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What both steps do: shard r comes together at rank r, or goes to it, and from there to all ranks.

    Raises `InfeasibleError` for very many messages to or from a root.
    """
    every, share = Exchange(), Fraction(1, topology.ranks)
    allgather = Round(every, share, COPY, chunk=lambda src, dst, step: src)
    if collective.rooted:
        return scatter_allgather([allgather], topology.ranks, collective)
    return Round(every, share, REDUCE, chunk=lambda src, dst, step: dst), allgather
