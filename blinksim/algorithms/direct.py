"""Direct (one-shot): every rank sends directly to every rank that needs its data; one step, no forwarding by ranks.

The latency-optimal choice on switches and for small vectors; a broadcast or gather is then a star. The allreduce sends
the whole vector to every rank (one-shot, as in NVIDIA's and MSCCL++'s small-message allreduce).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from blinksim.algorithms.building.plan import Plan
from blinksim.collective import OWN, ROOT, Collective
from blinksim.errors import InfeasibleError
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.schedule.outlines.outline import Exchange, Round
from blinksim.topology.graph import Topology


def build(topology: Topology, collective: Collective) -> Schedule:
    """The schedule, a single step."""
    plan = Plan(topology, collective, "direct", "steps")
    n, root = plan.n, collective.root
    senders = [root] if collective.starts == ROOT else range(n)
    receivers = [root] if collective.ends == ROOT else range(n)
    src, dst = (grid.ravel() for grid in np.meshgrid(senders, receivers, indexing="ij"))
    src, dst = src[src != dst], dst[src != dst]
    chunk: npt.NDArray[np.int64] | int
    match collective.starts == OWN, collective.ends == OWN:
        case True, True:
            chunk_of = np.full((n, n), -1)
            for origin in range(n):
                for target in range(n):
                    share = collective.share(origin, target, n)
                    if share:
                        chunk_of[origin, target] = plan.add_chunk(share, origin, target)
            there = chunk_of[src, dst] >= 0
            src, dst = src[there], dst[there]
            chunk = chunk_of[src, dst]
        case False, False:
            chunk = plan.add_chunk(Fraction(1))
        case from_own, _:
            # One shard per rank: its own, or the one that ends with it.
            for rank in range(n):
                plan.add_chunk(Fraction(1, n), *collective.labels(rank, rank))
            chunk = src if from_own else dst
    plan.send(src, dst, chunk=chunk, op=REDUCE if collective.reduces else COPY, step=0)
    return plan.finish()


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the step of `build` does. Raises `InfeasibleError` for a traffic matrix, whose blocks differ."""
    n, root = topology.ranks, collective.root
    if collective.traffic is not None:
        raise InfeasibleError("direct: blocks of a traffic matrix differ; their sends are written one by one")
    exchange = Exchange()
    if ROOT in (collective.starts, collective.ends):
        others = np.delete(np.arange(n), root)
        ends = np.full(n - 1, root), others
        exchange = Exchange(*(ends if collective.starts == ROOT else ends[::-1]))
    share = Fraction(1, n if OWN in (collective.starts, collective.ends) else 1)
    return (Round(exchange, share, REDUCE if collective.reduces else COPY),)
