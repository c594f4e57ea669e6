"""Trees of least price: spanning ones, and those that may branch at helpers (Steiner trees).

Spanning trees and arborescences come from NetworkX (Kruskal 1956; Edmonds, Optimum branchings, 1967). With
helpers, the exact dynamic program over sets of terminals is used (Dreyfus and Wagner, The Steiner problem in
graphs, 1971) while there are few terminals, and otherwise the best spanning tree over small sets of helpers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations, islice

from blinksim.packing.columns import Arc

Prices = Mapping[Arc, float]
# Terminals (beside the root) up to which the dynamic program is used, and sets of helpers tried beyond that.
MOST_TERMINALS = 7
MOST_SETS = 64
# Ties go to the tree with fewer hops.
_HOP = 1e-9


def cheapest_tree(
    price: Prices, root: int, terminals: Sequence[int], helpers: Sequence[int] = (), *, directed: bool = True
) -> tuple[Arc, ...] | None:
    """An out-tree (arcs away from `root`, parents first) of least price that reaches all terminals; None without one.

    price: of every arc that may be used; for undirected trees the same both ways. helpers: vertices that may be used.
    Exact, except with many terminals and many helpers.
    """
    targets = [v for v in terminals if v != root]
    usable = [h for h in helpers if any(h in arc for arc in price)]
    if not usable:
        return _spanning(price, root, targets, directed)
    if len(targets) <= MOST_TERMINALS:
        return _dreyfus_wagner(price, root, targets, {root, *targets, *usable})
    sets = (chosen for size in range(len(usable) + 1) for chosen in combinations(usable, size))
    spanning = [_spanning(price, root, [*targets, *chosen], directed) for chosen in islice(sets, MOST_SETS)]
    trees = [_pruned(tree, root, targets) for tree in spanning if tree is not None]
    return min(trees, key=lambda tree: sum(price[arc] + _HOP for arc in tree), default=None)


def _spanning(price: Prices, root: int, targets: Sequence[int], directed: bool) -> tuple[Arc, ...] | None:
    if len(targets) == 1:
        arc = root, targets[0]
        return (arc,) if arc in price and (directed or arc[::-1] in price) else None
    import networkx as nx

    inside = {root, *targets}
    arcs = [(a, b, price[a, b] + _HOP) for a, b in price if a in inside and b in inside and b != root]
    if directed:
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(inside)
        graph.add_weighted_edges_from(arcs)
        try:
            tree = nx.minimum_spanning_arborescence(graph)
        except nx.NetworkXException:
            return None
        return _away(tree.edges, root, targets)
    plain: nx.Graph[int] = nx.Graph()
    plain.add_nodes_from(inside)
    plain.add_weighted_edges_from((a, b, c) for a, b, c in arcs if (b, a) in price)
    edges = list(nx.minimum_spanning_edges(plain, data=False))
    return _away([*edges, *((b, a) for a, b in edges)], root, targets)


def _away(arcs: Iterable[Arc], root: int, targets: Sequence[int]) -> tuple[Arc, ...] | None:
    """The arcs met breadth first from `root`, without branches that lead to no target; None if one is cut off."""
    out: dict[int, list[int]] = {}
    for a, b in arcs:
        out.setdefault(a, []).append(b)
    seen, queue, tree = {root}, deque([root]), []
    while queue:
        a = queue.popleft()
        for b in sorted(out.get(a, ())):
            if b not in seen:
                seen.add(b)
                queue.append(b)
                tree.append((a, b))
    return _pruned(tuple(tree), root, targets) if seen.issuperset(targets) else None


def _pruned(tree: tuple[Arc, ...], root: int, targets: Sequence[int]) -> tuple[Arc, ...]:
    needed, chosen = set(targets), []
    for a, b in reversed(tree):
        if b in needed:
            needed.add(a)
            chosen.append((a, b))
    return tuple(reversed(chosen))


def _dreyfus_wagner(price: Prices, root: int, targets: Sequence[int], inside: set[int]) -> tuple[Arc, ...] | None:
    """The exact tree of least price, from a table of the best trees from every vertex to every set of targets."""
    if not targets:
        return ()
    into: dict[int, list[tuple[int, float]]] = {v: [] for v in inside}
    for (a, b), cost in price.items():
        if a in inside and b in inside:
            into[b].append((a, cost + _HOP))
    full, far = (1 << len(targets)) - 1, float("inf")
    # The least price of a tree from a vertex to all targets of a set, whose bits these are; and what such a tree
    # consists of: an arc and the tree of the same set at its end, or the trees of two parts of the set.
    best: list[dict[int, float]] = [{} for _ in range(full + 1)]
    below: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for bits in range(1, full + 1):
        value = best[bits]
        if bits & (bits - 1) == 0:
            value[targets[bits.bit_length() - 1]] = 0.0
        part = (bits - 1) & bits
        while part > bits ^ part:
            for v, cost in best[part].items():
                total = cost + best[bits ^ part].get(v, far)
                if total < value.get(v, far):
                    value[v], below[bits, v] = total, [(part, v), (bits ^ part, v)]
            part = (part - 1) & bits
        # Trees are led from further vertices to those known, nearest first (Dijkstra).
        queue = [(cost, v) for v, cost in value.items()]
        heapify(queue)
        while queue:
            cost, v = heappop(queue)
            for u, step in into[v] if cost <= value[v] else ():
                if cost + step < value.get(u, far):
                    value[u], below[bits, u] = cost + step, [(bits, v)]
                    heappush(queue, (cost + step, u))
    if root not in best[full]:
        return None
    arcs, stack = set[Arc](), [(full, root)]
    for bits, v in stack:
        following = below.get((bits, v), [])
        stack += following
        arcs.update((v, end) for _, end in following if end != v)
    return _away(arcs, root, targets)
