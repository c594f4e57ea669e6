"""Double binary tree: two trees with half the vector each, so that a rank is a leaf in one of them.

Every port then carries the vector about once per direction, at logarithmic depth (Sanders, Speck and Träff,
"Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 2009; NCCL since
2.4 between nodes).
"""

from __future__ import annotations

from fractions import Fraction

from blinksim.algorithms.building.plan import Parents, Plan, add_rank_trees
from blinksim.algorithms.registry import REDUCE_AND_SPREAD, Algorithm

ENTRY = Algorithm(
    REDUCE_AND_SPREAD,
    "two binary trees with half the vector each, pipelined",
    form="forest",
    source="Sanders, Speck and Träff, Parallel Computing 2009",
)


def two_trees(positions: int) -> list[tuple[Parents, int]]:
    """Two trees and their roots: the in-order tree and its mirror image, or its shift by one for an odd count.

    In the in-order tree over 0 … positions-1, odd positions are leaves, and 0 is the root with one child.
    """
    first = {}
    for place in range(1, positions):
        low = place & -place
        above = (place ^ low) | (low << 1)
        first[place] = above if above < positions else place ^ low

    def moved(place: int) -> int:
        return positions - 1 - place if positions % 2 == 0 else (place + 1) % positions

    return [(first, 0), ({moved(a): moved(b) for a, b in first.items()}, moved(0))]


def rooted_trees(ranks: int, root: int) -> list[tuple[Parents, int]]:
    """Two trees over all ranks with `root` on top of both: it feeds the roots of two over the others."""
    if ranks == 1:
        return [({}, root)] * 2
    trees = []
    for parents, top in two_trees(ranks - 1):
        name = [(root + 1 + place) % ranks for place in range(ranks - 1)]
        trees.append(({name[a]: name[b] for a, b in parents.items()} | {name[top]: root}, root))
    return trees


def fill(plan: Plan) -> None:
    """Sends on both trees, half the vector each."""
    collective = plan.collective
    trees = two_trees(plan.n) if collective.name == "allreduce" else rooted_trees(plan.n, collective.root)
    add_rank_trees(plan, trees, Fraction(1, 2))
