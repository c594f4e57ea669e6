"""Direct (one-shot) collectives: every rank sends straight to every rank that needs its data, in one step.

The latency-optimal choice on switches and for small vectors; a broadcast or gather is then a star. The
allreduce sends the whole vector to every rank (one-shot, as in NVIDIA's and MSCCL++'s small-message
allreduce).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.building.token_sends import token_schedule
from blinksim.algorithms.registry import Algorithm, straight
from blinksim.collective import COLLECTIVES, OWN, ROOT, Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import round_robin
from blinksim.schedule.loads import Exchange, Round
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    COLLECTIVES,
    "every rank directly to every other rank in one step (one-shot)",
    sends=straight,
    every_pair=True,
    traffic=True,
    tokens=True,
)


def build(topology: Topology, collective: Collective) -> Schedule:
    """The schedule, a single step."""
    if collective.routing is not None:
        return token_schedule(topology, collective, "direct", by_node=False)
    plan = Plan(topology, collective, "direct", "steps")
    if collective.exchanges:
        chunk = np.full((plan.n, plan.n), -1)
        for origin, target in np.ndindex(plan.n, plan.n):
            if share := collective.share(origin, target, plan.n):
                chunk[origin, target] = plan.add_chunk(share, origin, target)
        src, dst = round_robin(plan.n)
        src, dst = (ends[chunk[src, dst] >= 0] for ends in (src, dst))
        plan.send(src, dst, chunk=chunk[src, dst], op=COPY, step=0)
        return plan.finish()
    plan.add_rounds(rounds(topology, collective))
    return plan.finish()


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the step does. Raises `InfeasibleError` for a traffic matrix, whose blocks differ."""
    n = topology.ranks
    if collective.traffic is not None:
        raise InfeasibleError("direct: blocks of a traffic matrix differ; their sends are written one by one")
    exchange, op = Exchange(), REDUCE if collective.reduces else COPY
    if collective.rooted:
        root, others = np.full(n - 1, collective.root), np.delete(np.arange(n), collective.root)
        exchange = Exchange(root, others) if collective.starts == ROOT else Exchange(others, root)
    if OWN not in (collective.starts, collective.ends):
        return (Round(exchange, Fraction(1), op),)
    own = collective.starts == OWN
    return (Round(exchange, Fraction(1, n), op, chunk=lambda src, dst, step: src if own else dst),)
