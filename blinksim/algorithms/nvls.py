"""NVLS: the switches add what a GPU reads and multicast what it stores.

Two-shot, as NCCL's kernels: every GPU owns a shard, reads the sum of all copies of it, and stores it at all
GPUs. With n GPUs, a port carries 1 + 1/n of the vector each way, its GPU's own copies included. Allgather is
the store alone, reducescatter the read; broadcast and reduce have one owner (NVIDIA, NCCL 2.17: NVLink
SHARP).
"""

from __future__ import annotations

from fractions import Fraction

from blinksim.algorithms.building.plan import Moves, SwitchPlan
from blinksim.algorithms.registry import Algorithm
from blinksim.collective import EVERY, ON_TREES

ENTRY = Algorithm(ON_TREES, "switches add what GPUs read and multicast what they store", in_network=True)


def fill(plan: SwitchPlan) -> None:
    """A chunk for every GPU and switch; raises `InfeasibleError` without a switch that does it."""
    collective = plan.collective
    owners = [collective.root] if collective.rooted else range(len(plan.ranks))
    for switch, part in plan.reading_switches(plan.ranks).items():
        for owner in owners:
            moves = Moves(plan)
            others = {switch: [gpu for gpu in plan.ranks if gpu != plan.ranks[owner]]}
            if collective.reduces:
                moves.read(switch, plan.ranks[owner], others)
            if collective.ends == EVERY:
                moves.store(switch, plan.ranks[owner], others)
            moves.finish(plan.add_chunk(part * Fraction(1, len(owners)), *collective.labels(owner, owner)))
