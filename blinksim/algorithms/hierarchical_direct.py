"""Hierarchical collectives without rings: what crosses between nodes goes straight to the node that wants it.

Two steps for each level, and a message for every other node: for small messages, and for few nodes (Jia et al.,
"Highly scalable deep learning training system", 2018, section 4.2, with an exchange in place of the rings).
"""

from __future__ import annotations

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.hierarchical import add_shards, phases
from blinksim.algorithms.registry import SHARDED, Algorithm, per_pair
from blinksim.collective import Collective
from blinksim.schedule.step_loads import Round
from blinksim.topology.graph import Topology

ENTRY = Algorithm(
    SHARDED,
    "direct inside nodes, and direct between them",
    sends=per_pair,
    source="Jia et al., 2018",
    outlined=True,
)


def fill(plan: Plan) -> None:
    """Local ranks l of all nodes exchange their shards. Raises as `hierarchical` does."""
    add_shards(plan)
    plan.add_rounds(rounds(plan.topology, plan.collective))


def rounds(topology: Topology, collective: Collective) -> tuple[Round, ...]:
    """What the steps have in common. Raises as `fill` does."""
    return phases(topology, collective, direct=True)
