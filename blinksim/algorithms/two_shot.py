"""Two-shot allreduce: direct reduce-scatter, then direct allgather; bandwidth-optimal on switches."""

from __future__ import annotations

from fractions import Fraction

from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.schedule.loads import Exchange, Round
from blinksim.schedule.model import COPY, REDUCE
from blinksim.topology.graph import Topology

ENTRY = Algorithm(("allreduce",), "direct reduce-scatter, then direct allgather", sends=per_pair, every_pair=True)


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What both steps do: shard r is reduced by rank r, and then sent to all ranks."""
    every, share = Exchange(), Fraction(1, topology.ranks)
    return (
        Round(every, share, REDUCE, chunk=lambda src, dst, step: dst),
        Round(every, share, COPY, chunk=lambda src, dst, step: src),
    )
