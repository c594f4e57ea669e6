"""Pack out-trees into whole-number capacities: k(v) of them from every root v, exactly.

They exist if no set is short (Edmonds 1973; multiplicities: Schrijver, Combinatorial Optimization, 2003, theorem
53.10). Trees are grown breadth first against a pool of known sets, which keeps them low and costs no flow. A tree that
can be completed has an arc by which it may grow (Lovasz 1976, On two minimax theorems in graph), so where growing ends
too early, a set that is not in the pool is short already. Flows find such sets (cut generation), and the trees that
they speak against are taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from blinksim.errors import InfeasibleError
from blinksim.graphs.digraph import CutPool, Digraph, Mask
from blinksim.graphs.rooted_trees import RootedTree

Edge = tuple[int, int]

# Trees that are grown, at least, before flows check them.
_BATCH = 4


@dataclass(slots=True)
class Effort:
    """What a packing took: rounds of flow checks, and trees taken back."""

    checks: int = 0
    taken_back: int = 0


@dataclass
class _Growth:
    """A tree while it grows. extra: how often each pool set (by its bit) is entered, beyond the first time.

    missing: how many members it does not reach.
    """

    root: int
    reached: list[int]
    inside: list[bool]
    touched: int
    missing: int
    edges: list[Edge] = field(default_factory=list)
    extra: dict[int, int] = field(default_factory=dict)
    blocked: int = 0
    height: int = 0


def pack(
    graph: Digraph, pool: CutPool, effort: Effort | None = None, progress: Callable[[int, int], None] | None = None
) -> list[RootedTree]:
    """Trees that span the members of `graph`, whose other vertices must have no arcs; takes them out of `graph`.

    No set may be short at the start; raises `InfeasibleError` otherwise. progress: called with trees done and wanted.
    """
    effort = effort or Effort()
    wanted = graph.trees
    found: list[RootedTree] = []
    low = {root: _depth(graph, root) for root in graph.roots}
    batch, sure = wanted, 0
    pool.measure(graph)
    while True:
        end = _fill(graph, pool, found, low, len(found) + batch)
        if end is None and not graph.roots:
            return found
        effort.checks += 1
        sets = _short(graph, end)
        if end is None and not sets:
            batch, sure = 2 * batch, len(found)
        else:
            # Growing respects every known set, so what is short now is new, unless it was short from the start.
            if not pool.add(sets):
                raise InfeasibleError("these capacities do not hold the requested trees")
            before = len(found)
            _take_back(graph, found, sets)
            effort.taken_back += before - len(found)
            batch, sure = max(_BATCH, (len(found) - sure) // 2), min(sure, len(found))
            pool.measure(graph)
        if progress:
            progress(wanted - graph.trees, wanted)


def _depth(graph: Digraph, root: int) -> int:
    """The most arcs that a shortest path from `root` takes: no tree is lower."""
    reached, level, depth = {root}, {root}, -1
    while level:
        level = {head for tail in level for head in graph.out[tail]} - reached
        reached |= level
        depth += 1
    return depth


def _fill(graph: Digraph, pool: CutPool, found: list[RootedTree], low: Mapping[int, int], most: int) -> _Growth | None:
    """Grow trees, the roots taking turns, until there are `most`; the tree that meets a dead end if one does."""
    while graph.roots:
        for root in list(graph.roots):
            if len(found) == most:
                return None
            growth = _widest(graph, pool, root, low[root])
            if growth.missing:
                return growth
            found.append(_taken(graph, pool, growth))
    return None


def _widest(graph: Digraph, pool: CutPool, root: int, low: int) -> _Growth:
    """The lowest tree from `root` among those found by halving the copies asked for; a dead end if none is found.

    Of equally low ones the first, which has the most copies, so that few trees suffice. low: the least height.
    """
    ask = graph.roots[root]
    best = growth = _grow(graph, pool, root, ask)
    while ask > 1 and (best.missing or best.height > low):
        ask //= 2
        growth = _grow(graph, pool, root, ask)
        if best.missing or (not growth.missing and growth.height < best.height):
            best = growth
    return best


def _taken(graph: Digraph, pool: CutPool, growth: _Growth) -> RootedTree:
    """As many copies of a complete tree as fit, taken out of `graph`."""
    root, out = growth.root, graph.out
    amount = min([graph.roots[root], *(out[a][b] for a, b in growth.edges)])
    for bit, times in growth.extra.items():
        amount = min(amount, pool.slack[bit.bit_length() - 1] // times)
    for bit, times in growth.extra.items():
        pool.pay(bit, times * amount)
    for a, b in growth.edges:
        graph.take(a, b, amount)
    graph.roots[root] -= amount
    if not graph.roots[root]:
        del graph.roots[root]
    return RootedTree(root, amount, tuple(growth.edges))


def _grow(graph: Digraph, pool: CutPool, root: int, ask: int) -> _Growth:
    """Breadth first from `root` over arcs of `ask` or more, entering no pool set more often than its slack allows."""
    inside, slack, out = pool.inside, pool.slack, graph.out
    missing = len(graph.members) - (root in graph.members)
    growth = _Growth(root, [root], [False] * graph.count, inside[root], missing)
    growth.inside[root] = True
    extra, here, reached, edges = growth.extra, growth.inside, growth.reached, growth.edges
    touched = inside[root]
    # A set without slack for `ask` more entries counts as tight; it is blocked if it was entered already.
    poor = pool.below(ask)
    blocked = touched & poor
    level = [root]
    # What is blocked stays blocked, so every arc is asked once, when its tail has just been reached.
    while missing:
        done = len(reached)
        for tail in level:
            arcs = [(-capacity, head) for head, capacity in out[tail].items() if not here[head] and capacity >= ask]
            outside = ~inside[tail]
            for _, head in sorted(arcs):
                enters = inside[head] & outside
                if enters & blocked:
                    continue
                again = enters & touched
                while again:
                    bit = again & -again
                    times = extra.get(bit, 0) + 1
                    extra[bit] = times
                    if slack[bit.bit_length() - 1] < (times + 1) * ask:
                        blocked |= bit
                    again ^= bit
                touched |= enters
                blocked |= enters & poor
                here[head] = True
                reached.append(head)
                edges.append((tail, head))
                missing -= 1
        level = reached[done:]
        if not level:
            break
        growth.height += 1
    growth.missing = missing
    return growth


def _short(graph: Digraph, growth: _Growth | None) -> list[Mask]:
    """Sets that are short in what is left; if a tree is growing, for the other trees and for what this one lacks.

    In the place of the growing tree's root stands a vertex that hands its data to all that the tree has reached.
    """
    if growth is None:
        return graph.short_sets()
    rest = graph.copy()
    for a, b in growth.edges:
        rest.take(a, b, 1)
    rest.roots[growth.root] -= 1
    rest.roots = {root: trees for root, trees in rest.roots.items() if trees}
    rest.roots[graph.count] = 1
    rest.out.append(dict.fromkeys(growth.reached, 1))
    return [side[:-1] for side in rest.short_sets()]


def _take_back(graph: Digraph, found: list[RootedTree], sets: Sequence[Mask]) -> None:
    """Give the last trees of `found` back to `graph` until none of `sets` is short."""
    rows = np.array(sets)
    slack = graph.slack(rows)
    while (slack < 0).any():
        if not found:
            raise InfeasibleError("these capacities do not hold the requested trees")
        tree = found.pop()
        graph.roots[tree.root] = graph.roots.get(tree.root, 0) + tree.amount
        for a, b in tree.edges:
            graph.give(a, b, tree.amount)
        ends = np.array(tree.edges)
        enters = (rows[:, ends[:, 1]] & ~rows[:, ends[:, 0]]).sum(axis=1)
        slack += tree.amount * (enters - ~rows[:, tree.root])
