"""Pack out-trees into whole-number capacities: k(v) of them from every root v, exactly.

They exist if no set is short (Edmonds 1973; multiplicities: Schrijver, Combinatorial Optimization, 2003, theorem
53.10). Trees are grown breadth first against a pool of known sets, which keeps them low and costs no flow; flows then
check whether what is left still suffices for the other trees, in growing batches, and a set that turns out short joins
the pool. Where growing gets stuck although nothing is short, one flow per arc finds a tree that exists (Lovasz 1976,
On two minimax theorems in graph): the exact fallback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from blinksim.errors import InfeasibleError
from blinksim.graphs.digraph import CutPool, Digraph
from blinksim.graphs.maxflow import Flow
from blinksim.graphs.rooted_trees import RootedTree

Edge = tuple[int, int]


@dataclass(slots=True)
class Effort:
    """What a packing took: rounds of flow checks, and trees found by the exact fallback."""

    checks: int = 0
    fallbacks: int = 0


@dataclass
class _Growth:
    """A tree while it grows. extra: how often each pool set (by its bit) is entered, beyond the first time."""

    root: int
    reached: list[int]
    inside: list[bool]
    touched: int
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
    batch = 1 << 30
    while graph.roots:
        start, mark = graph.copy(), len(found)
        pool.measure(graph)
        stuck = _fill(graph, pool, found, batch)
        if not graph.roots:
            break
        effort.checks += 1
        short = graph.short_sets()
        if not short:
            batch = min(2 * batch, 1 << 30) if not stuck else max(1, batch)
            if len(found) == mark:
                effort.fallbacks += 1
                found.append(_exact(graph, pool))
                batch = 1
        else:
            made = len(found) - mark
            # Growing respects every known set, so what is short now is new, unless it was short from the start.
            if made == 0 or not pool.add(short):
                raise InfeasibleError("these capacities do not hold the requested trees")
            del found[mark:]
            graph.out, graph.roots = start.out, start.roots
            batch = max(1, made // 4 if stuck else made // 2)
        if progress:
            progress(wanted - graph.trees, wanted)
    return found


def _fill(graph: Digraph, pool: CutPool, found: list[RootedTree], batch: int) -> bool:
    """Grow up to `batch` trees, the roots taking turns; True if growing got stuck before the end."""
    while graph.roots:
        for root in list(graph.roots):
            if batch == 0:
                return False
            tree = _grow_widest(graph, pool, root)
            if tree is None:
                return True
            _remove(graph, tree)
            found.append(tree)
            batch -= 1
    return False


def _grow_widest(graph: Digraph, pool: CutPool, root: int) -> RootedTree | None:
    """The lowest tree from `root` among those found by halving the copies asked for; None if none is found.

    Of equally low ones the first, which has the most copies, so that few trees suffice.
    """
    ask = graph.roots[root]
    best: _Growth | None = None
    while ask:
        growth = _grow(graph, pool, root, ask)
        if growth is not None and (best is None or growth.height < best.height):
            best = growth
        ask //= 2
    if best is None:
        return None
    amount = min([graph.roots[root], *(graph.out[a][b] for a, b in best.edges)])
    for bit, times in best.extra.items():
        amount = min(amount, pool.slack[bit.bit_length() - 1] // times)
    for bit, times in best.extra.items():
        pool.pay(bit, times * amount)
    return RootedTree(root, amount, tuple(best.edges))


def _grow(graph: Digraph, pool: CutPool, root: int, ask: int) -> _Growth | None:
    """Breadth first from `root` over arcs of `ask` or more, entering no pool set more often than its slack allows."""
    inside, slack, out = pool.inside, pool.slack, graph.out
    growth = _Growth(root, [root], [False] * graph.count, inside[root])
    growth.inside[root] = True
    extra, here = growth.extra, growth.inside
    # A set without slack for `ask` more entries counts as tight; it is blocked if it was entered already.
    poor = pool.tight
    if ask > 1:
        for number, value in enumerate(slack):
            if value < ask:
                poor |= 1 << number
    growth.blocked = inside[root] & poor
    missing = len(graph.members) - (root in graph.members)
    level = [root]
    # What is blocked stays blocked, so every arc is asked once, when its tail has just been reached.
    while missing:
        done = len(growth.reached)
        for tail in level:
            outside = ~inside[tail]
            for head, capacity in sorted(out[tail].items(), key=lambda arc: -arc[1]):
                if here[head] or capacity < ask:
                    continue
                enters = inside[head] & outside
                if enters & growth.blocked:
                    continue
                again = enters & growth.touched
                while again:
                    bit = again & -again
                    times = extra.get(bit, 0) + 1
                    extra[bit] = times
                    if slack[bit.bit_length() - 1] < (times + 1) * ask:
                        growth.blocked |= bit
                    again ^= bit
                growth.touched |= enters
                growth.blocked |= enters & poor
                here[head] = True
                growth.reached.append(head)
                growth.edges.append((tail, head))
                missing -= 1
        level = growth.reached[done:]
        if not level:
            return None
        growth.height += 1
    return growth


def _remove(graph: Digraph, tree: RootedTree) -> None:
    for a, b in tree.edges:
        graph.take(a, b, tree.amount)
    left = graph.roots[tree.root] - tree.amount
    if left:
        graph.roots[tree.root] = left
    else:
        del graph.roots[tree.root]


def _exact(graph: Digraph, pool: CutPool) -> RootedTree:
    """One tree that leaves no set short, found with one flow per arc tried; takes it out of `graph`.

    For an arc x->y from inside the unfinished tree to outside, let Z hold y and not x. If Z meets the tree, it must
    keep the entries that all other trees need, so the least value of (capacity into Z) + (trees rooted in Z), which is
    a flow from x to y, must exceed their number. Sets that do not meet the tree are safe anyway.
    """
    root = min(graph.roots, key=lambda vertex: -graph.roots[vertex])
    graph.roots[root] -= 1
    others = {vertex: trees for vertex, trees in graph.roots.items() if trees}
    need = sum(others.values())
    rest = _Rest(graph, others)
    edges: list[Edge] = []
    level, reached = [root], {root}
    while not reached.issuperset(graph.members):
        arc = next(
            (
                (tail, head)
                for tail in level
                for head in sorted(graph.out[tail])
                if head not in reached and rest.allows(pool, need, tail, head)
            ),
            None,
        )
        if arc is None:
            raise InfeasibleError("these capacities do not hold the requested trees")
        graph.take(*arc, 1)
        rest.capacity[rest.place[arc]] -= 1
        edges.append(arc)
        reached.add(arc[1])
        level.append(arc[1])
    if not graph.roots[root]:
        del graph.roots[root]
    return RootedTree(root, 1, tuple(edges))


class _Rest:
    """Arc arrays of what is left for the other trees. capacity: changes as the tree takes arcs; place: of every arc."""

    def __init__(self, graph: Digraph, roots: Mapping[int, int]) -> None:
        self.count = graph.count
        self.tail, self.head, self.capacity = graph.arrays()
        self.place = {
            arc: number for number, arc in enumerate(zip(self.tail.tolist(), self.head.tolist(), strict=True))
        }
        self.roots = np.array(list(roots), dtype=np.int64)
        self.trees = np.array(list(roots.values()), dtype=np.int64)

    def allows(self, pool: CutPool, need: int, start: int, end: int) -> bool:
        """True if the tree may take one of start->end; otherwise the set that speaks against it joins the pool."""
        flow = Flow(
            self.count,
            np.concatenate([self.tail, np.full(len(self.roots), start)]),
            np.concatenate([self.head, self.roots]),
            np.concatenate([self.capacity, self.trees]),
            start,
            end,
        )
        if flow.value > need:
            return True
        pool.add([~flow.side()])
        return False
