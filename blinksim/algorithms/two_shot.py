"""Two-shot allreduce: direct reduce-scatter, then direct allgather; bandwidth-optimal on switches."""

from __future__ import annotations

from fractions import Fraction

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.graphs.arrays import round_robin
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.schedule.step_loads import Exchange, Round
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    "two_shot",
    ("allreduce",),
    "direct reduce-scatter, then direct allgather",
    order=110,
    sends=per_pair,
    every_pair=True,
    outlined=True,
)


def build(topology: Topology, collective: Collective) -> Schedule:
    """The schedule: shard r is reduced by rank r in step 0 and sent to all ranks in step 1."""
    plan = Plan(topology, collective, "two_shot", "steps")
    for _ in range(plan.n):
        plan.add_chunk(Fraction(1, plan.n))
    src, dst = round_robin(plan.n)
    if len(src):
        plan.send(src, dst, chunk=dst, op=REDUCE, step=0)
        plan.send(src, dst, chunk=src, op=COPY, step=1)
    return plan.finish()


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What both steps of `build` do: every rank sends a shard to every other."""
    every, share = Exchange(), Fraction(1, topology.ranks)
    return Round(every, share, REDUCE), Round(every, share, COPY)
