"""Direct (one-shot): every rank sends straight to every rank that needs its data; one step, no forwarding by ranks.

The latency-optimal choice on switches and for small vectors; a broadcast or gather is then a star. The allreduce sends
the whole vector to everybody (one-shot, as in NVIDIA's and MSCCL++'s small-message allreduce).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.collective import Collective
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.graph import Topology

COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "gather", "scatter", "alltoall")


def build(topology: Topology, collective: Collective) -> Schedule:
    """The schedule, a single step."""
    plan = Plan(topology, collective, "direct", "steps")
    n, root = plan.n, collective.root
    ranks = np.arange(n)
    others = ranks[ranks != root]
    src, dst = (grid.ravel() for grid in np.meshgrid(ranks, ranks, indexing="ij"))
    src, dst = src[src != dst], dst[src != dst]
    op = REDUCE if collective.reduces else COPY
    match collective.name:
        case "allreduce":
            plan.send(src, dst, chunk=plan.add_chunk(Fraction(1)), op=op, step=0)
        case "broadcast":
            plan.send(root, others, chunk=plan.add_chunk(Fraction(1)), op=op, step=0)
        case "reduce":
            plan.send(others, root, chunk=plan.add_chunk(Fraction(1)), op=op, step=0)
        case "alltoall":
            for origin in range(n):
                for target in range(n):
                    plan.add_chunk(Fraction(1, n), origin, target)
            plan.send(src, dst, chunk=src * n + dst, op=op, step=0)
        case _:
            # One shard per rank: its own, or the one that ends with it.
            own = collective.name in ("allgather", "gather")
            for rank in range(n):
                plan.add_chunk(Fraction(1, n), *((rank, -1) if own else (-1, rank)))
            if collective.name == "gather":
                plan.send(others, root, chunk=others, op=op, step=0)
            elif collective.name == "scatter":
                plan.send(root, others, chunk=others, op=op, step=0)
            else:
                plan.send(src, dst, chunk=src if own else dst, op=op, step=0)
    return plan.finish()
