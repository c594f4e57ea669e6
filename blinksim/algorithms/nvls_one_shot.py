"""One-shot NVLS allreduce: every GPU reads the whole reduced vector from the switch.

One operation of the switches in place of a read and a store, so the least latency; but every GPU sends its
copy once for every reader: with n GPUs a port carries n times the vector outwards. NCCL's symmetric-memory
kernels do it for small sizes (NCCL 2.27).
"""

from __future__ import annotations

from blinksim.algorithms.building.plan import Moves, SwitchPlan
from blinksim.algorithms.registry import Algorithm

ENTRY = Algorithm(("allreduce",), "every GPU reads the sum from the switches", in_network=True)


def fill(plan: SwitchPlan) -> None:
    """A chunk for every switch; raises `InfeasibleError` without a switch that reduces into readers."""
    for switch, part in plan.reading_switches(plan.ranks, ("reduce_into_reader",)).items():
        moves = Moves(plan)
        moves.read_all(switch, plan.ranks)
        moves.finish(plan.add_chunk(part))
