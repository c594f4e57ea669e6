"""NVLSTree: NVLS inside the nodes, a double binary tree between them.

In every node, a GPU reads the sum of its node's copies of its shard. The GPUs with the same place in their
nodes add these up along one tree, half of the shard along the other, and each stores the result at its node
(NCCL since 2.18).
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product

from blinksim.algorithms.building.plan import Moves, SwitchPlan
from blinksim.algorithms.registry import Algorithm
from blinksim.graphs.rooted_trees import two_trees

ENTRY = Algorithm(("allreduce",), "NVLS inside the nodes, a double binary tree between them", in_network=True)


def fill(plan: SwitchPlan) -> None:
    """Two chunks for every place in the nodes; raises `InfeasibleError` without switches that do it."""
    local = min(map(len, plan.groups))
    switches = [sorted(plan.reading_switches(group)) if len(group) > 1 else [] for group in plan.groups]
    planes = max(1, *map(len, switches))
    for place, (parents, root), plane in product(range(local), two_trees(len(plan.groups)), range(planes)):
        moves, heads = Moves(plan), [group[place] for group in plan.groups]
        reading = [
            (found[plane % len(found)], head, [gpu for gpu in group if gpu != head])
            for found, head, group in zip(switches, heads, plan.groups, strict=True)
            if found
        ]
        for switch, head, others in reading:
            moves.read(switch, head, {switch: others})
        moves.tree({heads[child]: heads[parent] for child, parent in parents.items()}, heads[root], up=True, down=True)
        for switch, head, others in reading:
            moves.store(switch, head, {switch: others})
        moves.finish(plan.add_chunk(Fraction(1, 2 * local * planes)))
