"""Double binary tree: two trees with half the vector each, so that a rank is a leaf in one of them.

Every port then carries the vector about once per direction, at logarithmic depth (Sanders, Speck and Träff,
"Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 2009; NCCL since
2.4 between nodes).
"""

from __future__ import annotations

from fractions import Fraction

from blinksim.algorithms.building.plan import Plan, add_rank_trees
from blinksim.algorithms.registry import REDUCE_AND_SPREAD, Algorithm
from blinksim.graphs.rooted_trees import Parents, two_trees

ENTRY = Algorithm(REDUCE_AND_SPREAD, "two binary trees with half the vector each, pipelined", form="forest")


def fill(plan: Plan) -> None:
    """Sends on both trees, half the vector each."""
    collective = plan.collective
    trees = two_trees(plan.n) if collective.name == "allreduce" else two_trees_from(collective.root, plan.n)
    add_rank_trees(plan, trees, Fraction(1, 2))


def two_trees_from(root: int, ranks: int) -> list[tuple[Parents, int]]:
    """Two trees over all ranks with `root` on top of both: it feeds the roots of two over the others."""
    names, trees = [*range(root + 1, ranks), *range(root)], two_trees(ranks - 1) if ranks > 1 else ()
    below = [{names[a]: names[b] for a, b in parents.items()} | {names[top]: root} for parents, top in trees]
    return [(parents, root) for parents in below or ({}, {})]
