"""Trees as columns: out-trees of small height, cheapest trees, and the best mix, as in Blink and Blink+.

A linear program over all trees, those that can improve it being generated as trees of least price; then an
integer program over these and further trees, drawn with random prices, for the fewest at the same rate. Its
optimum is the tree-packing bound: the cut for one root (Edmonds 1973), the partition bound for trees used
both ways (Nash-Williams and Tutte 1961).

Spanning trees and arborescences of least price come from NetworkX (Kruskal 1956; Edmonds, Optimum branchings,
1967). With helpers that they may branch at (Steiner trees), the exact dynamic program over sets of terminals
is used (Dreyfus and Wagner, The Steiner problem in graphs, 1971) while there are few terminals, and otherwise
the best spanning tree over small sets of helpers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heapify, heappop, heappush
from itertools import combinations, islice, product
from random import Random
from typing import Any

from blinksim.collective import EVERY, Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.connectivity import breadth_first, distances
from blinksim.graphs.rooted_trees import height, longest_path
from blinksim.packing.choose import MOST_MEMBERS, Limits, fewest, search_trees
from blinksim.packing.columns import Arc, Column, Hops, Mix, best_mix, shortened
from blinksim.schedule.loads import Tree, pruned


def low_trees(hops: Hops, root: int, height: int) -> Iterator[tuple[Arc, ...]]:
    """All out-trees of at most that height from `root` to all members, as arcs with parents first."""
    members = hops.vertices[: hops.members]

    def extend(
        level: Sequence[int], inside: frozenset[int], arcs: tuple[Arc, ...], left: int
    ) -> Iterator[tuple[Arc, ...]]:
        rest = [vertex for vertex in members if vertex not in inside]
        if not rest:
            yield arcs
        elif left:
            # A vertex that joins on this level hangs below one of the last level; None waits for a later one.
            parents = [[*(a for a in level if (a, b) in hops.routes), *[None] * (left > 1)] for b in rest]
            for choice in product(*parents):
                more = tuple((above, vertex) for vertex, above in zip(rest, choice, strict=True) if above is not None)
                if new := [vertex for _, vertex in more]:
                    yield from extend(new, inside.union(new), arcs + more, left - 1)

    far = distances(root, lambda vertex: (other for other in hops.next_to[vertex] if other in members))
    # Where a member is farther away no choice ends in a tree, and there are too many to try.
    if len(far) == len(members) and max(far.values()) <= height:
        yield from extend([root], frozenset([root]), (), height)


def entry_trees(hops: Hops, nodes: Sequence[Sequence[int]], root: int) -> Iterator[tuple[Arc, ...]]:
    """Trees of height 2 over several nodes: `root` sends to its own node, and to one entry in each other node.

    nodes: the members of every node. The n-th tree enters every node at the n-th (counted round) member that
    a hop from the root leads to and that reaches the rest of its node by hops.
    """
    routes = hops.routes
    own = [(root, other) for node in nodes if root in node for other in node if other != root]
    away = [node for node in nodes if root not in node]
    entries = [
        [here for here in node if (root, here) in routes and all(b == here or (here, b) in routes for b in node)]
        for node in away
    ]
    if not routes.keys() >= {*own} or not all(entries):
        return
    for number in range(max(map(len, entries), default=0)):
        chosen = [options[number % len(options)] for options in entries]
        below = [(here, b) for here, node in zip(chosen, away, strict=True) for b in node if b != here]
        yield (*own, *((root, here) for here in chosen), *below)


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

    price: of every arc that may be used; for undirected trees the same both ways. helpers: vertices that may
    be used. Exact, except with many terminals and many helpers.
    """
    targets = [v for v in terminals if v != root]
    usable = [h for h in helpers if any(h in arc for arc in price)]
    if not usable:
        return _spanning(price, root, targets, directed)
    if len(targets) <= MOST_TERMINALS:
        return _dreyfus_wagner(price, root, targets, {root, *targets, *usable})
    sets = (chosen for size in range(len(usable) + 1) for chosen in combinations(usable, size))
    spanning = [_spanning(price, root, [*targets, *chosen], directed) for chosen in islice(sets, MOST_SETS)]
    trees = [pruned(tree, targets) for tree in spanning if tree is not None]
    return min(trees, key=lambda tree: sum(price[arc] + _HOP for arc in tree), default=None)


def _spanning(price: Prices, root: int, targets: Sequence[int], directed: bool) -> tuple[Arc, ...] | None:
    if len(targets) == 1:
        arc = root, targets[0]
        return (arc,) if arc in price and (directed or arc[::-1] in price) else None
    import networkx as nx

    inside = {root, *targets}
    graph: Any = nx.DiGraph() if directed else nx.Graph()
    graph.add_nodes_from(inside)
    within = (arc for arc in price if inside.issuperset(arc) and arc[1] != root)
    arcs = (arc for arc in within if directed or arc[::-1] in price)
    graph.add_weighted_edges_from((*arc, price[arc] + _HOP) for arc in arcs)
    if not directed:
        edges = list(nx.minimum_spanning_edges(graph, data=False))
        return _away([*edges, *((b, a) for a, b in edges)], root, targets)
    try:
        return _away(nx.minimum_spanning_arborescence(graph).edges, root, targets)
    except nx.NetworkXException:
        return None


def _away(arcs: Iterable[Arc], root: int, targets: Sequence[int]) -> tuple[Arc, ...] | None:
    """The arcs met breadth first from `root`, without branches that lead to no target; None if one is cut off."""
    out: dict[int, list[int]] = {}
    for a, b in arcs:
        out.setdefault(a, []).append(b)
    came = breadth_first(root, lambda vertex: sorted(out.get(vertex, ())))
    tree = tuple((a, b) for b, a in came.items() if b != root)
    return pruned(tree, targets) if came.keys() >= {*targets} else None


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


DOWN, UP, BOTH = "down", "up", "both"


def use_of(collective: Collective) -> str:
    """The direction in which a collective uses its trees: `DOWN` from the root, `UP` to it, or `BOTH`."""
    return BOTH if collective.reduces and collective.ends == EVERY else UP if collective.reduces else DOWN


def as_tree(hops: Hops, root: int, share: Fraction, arcs: Sequence[Arc], use: str) -> Tree:
    """One tree with the links of its hops, used downwards, upwards or both ways."""
    down = tuple((a, b, hops.routes[a, b]) for a, b in arcs) if use != UP else ()
    up = tuple((a, b, hops.routes[b, a]) for a, b in arcs) if use != DOWN else ()
    return Tree(root, share, down, up)


# Trees drawn with random prices beside those that the linear program asks for, per root.
_DRAWN = 60


@dataclass(frozen=True)
class TreeSearch:
    """Trees from `roots` (groups, with equal rates) to all members of `hops`.

    use: DOWN loads the arcs away from the root, UP those towards it, BOTH both; then the root only names the
    tree. hops_first: a tree's cost, which decides between equals, is its number of hops instead of its
    height.
    """

    hops: Hops
    roots: tuple[int, ...]
    use: str
    hops_first: bool = False

    def used(self, arcs: Sequence[Arc]) -> tuple[Arc, ...]:
        """The hops that these arcs of a tree load."""
        reverse = tuple((b, a) for a, b in arcs)
        return {DOWN: tuple(arcs), UP: reverse, BOTH: (*arcs, *reverse)}[self.use]

    def column(self, arcs: tuple[Arc, ...], group: int = 0) -> Column:
        """The tree's load; its cost is its height, from its centre if it is used both ways."""
        cost = len(arcs) if self.hops_first else self.height(arcs, group)
        return Column(arcs, self.hops.load(self.used(arcs)), cost, group)

    def height(self, arcs: Sequence[Arc], group: int = 0) -> int:
        """The most hops from the root, or from the centre of a tree that is used both ways."""
        return len(longest_path(arcs)) // 2 if self.use == BOTH else height(self.roots[group], arcs)

    def prices(self, cost: Mapping[Arc, float]) -> Prices:
        """What each arc of a tree costs, if each hop costs `cost`."""
        if self.use == DOWN:
            return cost
        if self.use == UP:
            return {(b, a): value for (a, b), value in cost.items()}
        return {(a, b): value + cost[b, a] for (a, b), value in cost.items() if (b, a) in cost}

    def cheapest(self, cost: Mapping[Arc, float], group: int) -> Column | None:
        vertices, ranked = self.hops.vertices, self.hops.members
        members, helpers, directed = vertices[:ranked], vertices[ranked:], self.use != BOTH
        arcs = cheapest_tree(self.prices(cost), self.roots[group], members, helpers, directed=directed)
        return None if arcs is None else self.column(arcs, group)

    def best(self) -> Mix:
        """The best mix of all trees; raises `InfeasibleError` if some member cannot be reached."""

        def price(cost: Mapping[Arc, float]) -> list[Column]:
            found = (self.cheapest(cost, group) for group in range(len(self.roots)))
            return [column for column in found if column is not None]

        first, hops = price(dict.fromkeys(self.hops.routes, 1.0)), self.hops
        if len(first) < len(self.roots):
            raise InfeasibleError("some member cannot be reached by hops that pass no other member")
        groups = len(first)
        return best_mix(first, hops.capacity, groups=groups, rounds=300, price=lambda each: price(hops.cost(each)))

    def drawn(self, seed: int, number: int = _DRAWN) -> list[Column]:
        """Trees with random prices, over all hops and over the wide ones only: wide trees mean few trees."""
        random = Random(seed)
        widths = sorted({min(self.hops.capacity[r] // t for r, t in load) for load in self.hops.loads.values()})
        columns: dict[Column, None] = {}
        for width in widths:
            wide = [
                arc for arc, load in self.hops.loads.items() if all(self.hops.capacity[r] >= t * width for r, t in load)
            ]
            for _ in range(number):
                cost = {arc: 1.0 + random.random() for arc in wide}
                if self.use == BOTH:
                    cost = {(a, b): cost[min(a, b), max(a, b)] for a, b in wide if (b, a) in cost}
                for group in range(len(self.roots)):
                    column = self.cheapest(cost, group)
                    if column is not None:
                        columns[column] = None
        return list(columns)

    def few(self, mix: Mix, limits: Limits, *, loss: Fraction = Fraction(0), cheapest: bool = False) -> Mix:
        """At least (1 - loss) of the rate of `mix` with as few trees as the search finds.

        One root without helpers on a small machine: a number of trees that is proved to be least, if the
        proof ends in time (`choose.search_trees`). Otherwise the fewest of those known (`choose.fewest`).
        cheapest: the least sum of rate times cost comes first.
        """
        rate, hops = mix.rate * (1 - loss), self.hops
        small = len(self.roots) == 1 and len(hops.vertices) == hops.members <= MOST_MEMBERS
        used = {arc: self.used((arc,)) for arc in hops.routes}
        loads = {arc: hops.load(uses) for arc, uses in used.items() if all(use in hops.routes for use in uses)}
        short = replace(limits, effort=limits.effort / 4)
        for count in range(1, len(mix.columns) + 1) if small and not cheapest else ():
            trees = search_trees(loads, self.roots[0], hops.capacity, rate, rate.denominator, count, short)
            if trees:
                columns = tuple(self.column(arcs) for arcs, _ in trees)
                return replace(mix, columns=columns, rates=tuple(value for _, value in trees))
            if trees is None:
                break
        drawn = self.drawn(limits.seed, max(4, _DRAWN // len(self.roots)))
        fewer = fewest(mix, drawn, hops.capacity, rate=rate, limits=limits, cheapest=cheapest)
        return shortened(fewer, hops.capacity)
