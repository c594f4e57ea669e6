"""Trees, chains and rings as columns: listed, or the cheapest by price, and the best mix of trees (Blink, Blink+).

A linear program over all trees, those that can improve it being generated as trees of least price; then an
integer program over these and further trees, drawn with random prices, for the fewest at the same rate. Its
optimum is the tree-packing bound: the cut for one root (Edmonds 1973), the partition bound for trees used
both ways (Nash-Williams and Tutte 1961).

Spanning trees of least price are Kruskal's (1956), arborescences as of Chu and Liu (1965) and Edmonds (1967).
With helpers that they may branch at (Steiner trees), the exact dynamic program over sets of terminals is used
(Dreyfus and Wagner, The Steiner problem in graphs, 1971) while there are few terminals, and otherwise the
best spanning tree over small sets of helpers.

Hamiltonian paths and cycles: all of them on small machines. One of least price is a travelling-salesman tour,
found by CP-SAT's circuit constraint (Perron and Furnon).

A graph whose vertices all have 2k edges falls into k two-factors, sets of cycles that pass every vertex
(Petersen, 1891). Where two edges of one factor and two of another make a square, the factors may exchange
them; each exchange joins cycles or parts them. Tori fall into Hamiltonian cycles this way (Kotzig 1973;
Aubert and Schneider 1982 proved that they always can).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import chain, combinations, islice, pairwise, permutations, product
from operator import itemgetter
from random import Random

import numpy as np

from blinksim.collective import EVERY, Collective
from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Ints
from blinksim.graphs.connectivity import breadth_first, distances, grouped, joined_labels
from blinksim.graphs.rooted_trees import cheapest_parents, height, longest_path
from blinksim.packing.choose import MOST_MEMBERS, Limits, equal_shares, fewest, new_model, search_trees
from blinksim.packing.columns import Arc, Column, Hops, Mix, best_mix, shortened
from blinksim.schedule.loads import Tree, pruned


def low_trees(hops: Hops, root: int, height: int) -> Iterator[tuple[Arc, ...]]:
    """All out-trees of at most that height from `root` to all members, as arcs with parents first."""
    members = hops.vertices[: hops.members]

    def extend(
        level: Sequence[int], inside: frozenset[int], arcs: tuple[Arc, ...], left: int
    ) -> Iterator[tuple[Arc, ...]]:
        if not (rest := [vertex for vertex in members if vertex not in inside]):
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
# The vertices that a hop passes, from the first to the last.
Way = tuple[int, ...]
# Terminals (beside the root) up to which the dynamic program is used, and sets of helpers tried beyond that.
MOST_TERMINALS = 7
MOST_SETS = 64
# Ties go to the tree with fewer hops.
_HOP = 1e-9
# Units of a price, where whole numbers are compared.
_WHOLE = 2**30


def cheapest_tree(
    price: Prices, root: int, terminals: Sequence[int], helpers: Sequence[int] = ()
) -> tuple[Arc, ...] | None:
    """An out-tree (arcs away from `root`, parents first) of least price that reaches all terminals; None without one.

    price: of every arc that may be used. helpers: vertices that may be used. Exact, except with many
    terminals and many helpers.
    """
    targets = [v for v in terminals if v != root]
    usable = [h for h in helpers if any(h in arc for arc in price)]
    if not usable or not targets:
        return _spanning(price, root, targets)
    if len(targets) <= MOST_TERMINALS:
        return LeastTrees(price, targets, {root, *targets, *usable}).traced(root)
    sets = (chosen for size in range(len(usable) + 1) for chosen in combinations(usable, size))
    spanning = [_spanning(price, root, [*targets, *chosen]) for chosen in islice(sets, MOST_SETS)]
    trees = [pruned(tree, targets) for tree in spanning if tree is not None]
    return min(trees, key=lambda tree: sum(price[arc] + _HOP for arc in tree), default=None)


def _spanning(price: Prices, root: int, targets: Sequence[int]) -> tuple[Arc, ...] | None:
    inside = {root, *targets}
    arcs = [arc for arc in price if inside.issuperset(arc) and arc[1] != root]
    # In whole numbers, a hop counting 1; what is no hop costs more than any tree.
    order, whole = [root, *targets], {arc: 1 + int(price[arc] * _WHOLE) for arc in arcs}
    far = sum(whole.values()) + 1
    parents = cheapest_parents(np.array([[whole.get((a, b), far) for b in order] for a in order]), 0)
    hops = ((order[parent], vertex) for vertex, parent in zip(order, parents, strict=True))
    return _away((hop for hop in hops if hop in whole), root, targets)


def _away(arcs: Iterable[Arc], root: int, targets: Sequence[int]) -> tuple[Arc, ...] | None:
    """The arcs met breadth first from `root`, without branches that lead to no target; None if one is cut off."""
    out = grouped(arcs)
    came = breadth_first(root, lambda vertex: sorted(out.get(vertex, ())))
    tree = tuple((a, b) for b, a in came.items() if b != root)
    return pruned(tree, targets) if came.keys() >= {*targets} else None


@cache
def _halves(targets: int) -> list[tuple[Ints, Ints, Ints, Ints]]:
    """The sets of 2, 3, … targets as bits, both parts of their divisions, and where those of each begin."""
    levels = list[tuple[Ints, Ints, Ints, Ints]]()
    for size in range(2, targets + 1):
        sets = [bits for bits in range(1 << targets) if bits.bit_count() == size]
        parts = [(bits, part) for bits in sets for part in range(bits) if part & bits == part > bits ^ part]
        whole, part = np.array(parts).T
        levels.append((np.array(sets), part, whole ^ part, np.searchsorted(whole, sets)))
    return levels


class LeastTrees:
    """Trees of least price from every vertex to all targets (Dreyfus and Wagner). least: these, or inf."""

    def __init__(self, price: Prices, targets: Sequence[int], inside: Iterable[int]) -> None:
        self.vertices, self.targets = sorted(inside), targets
        place = {vertex: number for number, vertex in enumerate(self.vertices)}
        far = np.array([[price.get((a, b), np.inf) for b in place] for a in place]) + _HOP
        before = np.arange(len(place))[:, None]
        np.fill_diagonal(far, 0.0)
        for middle in range(len(place)):
            sums = far[:, middle, None] + far[middle]
            far, before = np.minimum(far, sums), np.where(sums < far, before[middle], before)
        # Of every set of targets, as bits: the least trees from each vertex, and those that part there.
        best, parted = np.full((2, 1 << len(targets), len(place)), np.inf)
        for number, target in enumerate(targets):
            best[1 << number], parted[1 << number, place[target]] = far[:, place[target]], 0.0
        for sets, part, rest, begin in _halves(len(targets)):
            parted[sets] = np.minimum.reduceat(best[part] + best[rest], begin, axis=0)
            best[sets] = (far + parted[sets][:, None]).min(axis=2)
        self._far, self._before, self._best, self._parted = far, before, best, parted
        self.least: dict[int, float] = dict(zip(self.vertices, best[-1].tolist(), strict=True))

    def traced(self, root: int) -> tuple[Arc, ...] | None:
        """The best tree from `root`; None without one."""
        if self.least[root] == np.inf:
            return None
        arcs, stack = set[Arc](), [(len(self._best) - 1, self.vertices.index(root))]
        for bits, here in stack:
            last = end = int((self._far[here] + self._parted[bits]).argmin())
            while last != here:
                above = int(self._before[here, last])
                arcs.add((self.vertices[above], self.vertices[last]))
                last = above
            if bits & (bits - 1):
                _, part, rest, _ = _halves(len(self.targets))[bits.bit_count() - 2]
                mine = np.flatnonzero((part | rest) == bits)
                first = mine[(self._best[part[mine], end] + self._best[rest[mine], end]).argmin()]
                stack += [(int(part[first]), end), (int(rest[first]), end)]
        return _away(arcs, root, self.targets)


DOWN, UP, BOTH = "down", "up", "both"


def use_of(collective: Collective) -> str:
    """The direction in which a collective uses its trees: `DOWN` from the root, `UP` to it, or `BOTH`."""
    return BOTH if collective.reduces and collective.ends == EVERY else UP if collective.reduces else DOWN


def as_tree(hops: Hops, root: int, share: Fraction, ways: Sequence[Way], use: str, up: Sequence[Way] = ()) -> Tree:
    """One tree with the links of its ways, used down, up or both ways. up: others towards the root."""
    links = hops.routes.__getitem__
    down, back = (
        tuple((way[0], way[-1], tuple(chain(*map(links, pairwise(way[::step]))))) for way in side)
        for side, step in ((ways if use != UP else (), 1), (up or ways if use != DOWN else (), -1))
    )
    return Tree(root, share, down, back)


def passing(price: Prices, forwards: Sequence[int]) -> tuple[Prices, dict[Arc, Sequence[Arc]]]:
    """The least prices from vertex to vertex through those that only forward, and the hops on the way.

    From all vertices at once, a hop more at a time (Bellman, On a routing problem, 1958).
    """
    hops, least, ways = sorted(price, key=itemgetter(1)), dict[Arc, float](), dict[Arc, Sequence[Arc]]()
    if not forwards:
        return price, {hop: (hop,) for hop in hops}
    ends = sorted({*chain(*hops)}.difference(forwards))
    (tail, head), cost = np.array(hops).T, np.array([price[hop] + _HOP for hop in hops])
    begin, onward = np.flatnonzero(np.diff(head, prepend=-1)), np.where(np.isin(tail, forwards), cost, np.inf)
    out = np.where(tail == np.array(ends)[:, None], cost, np.inf)
    far = np.full((len(ends), max(tail.max(), head.max()) + 1), np.inf)
    while True:
        via = np.minimum(out, far[:, tail] + onward)
        nearer = np.minimum.reduceat(via, begin, axis=1)
        if (nearer == far[:, head[begin]]).all():
            break
        far[:, head[begin]] = nearer
    row, hop = np.nonzero(via == far[:, head])
    last = dict(zip(zip(row.tolist(), head[hop].tolist(), strict=True), hop.tolist(), strict=True))
    for (number, a), (_, b) in permutations(enumerate(ends), 2):
        if far[number, b] < np.inf:
            way = [hops[last[number, b]]]
            while way[-1][0] != a:
                way.append(hops[last[number, way[-1][0]]])
            least[a, b], ways[a, b] = float(far[number, b]), way[::-1]
    return least, ways


def ways_of(arcs: Iterable[Arc], forwards: Sequence[int]) -> list[Way]:
    """The hops of a tree, with those that follow each other through vertices that only forward as one way."""
    ways = list[Way]()
    for a, b in arcs:
        ways.append((*ways.pop(), b) if a in forwards else (a, b))
    return ways


# Trees drawn with random prices beside those that the linear program asks for, per root.
_DRAWN = 60


@dataclass(frozen=True)
class TreeSearch:
    """Trees from `roots` (groups, with equal rates) to all members of `hops`.

    use: DOWN loads the arcs away from the root, UP those towards it, BOTH both; then the root only names the
    tree. hops_first: a tree's cost, which decides between equals, is its number of hops instead of its
    height. apart: a tree towards a root may be another one than away from it, and any vertex that root.
    forwards: helpers that only pass on: a tree may pass one several times, by a hop in and the next hop out.
    """

    hops: Hops
    roots: tuple[int, ...]
    use: str
    hops_first: bool = False
    apart: bool = False
    forwards: tuple[int, ...] = ()

    def used(self, arcs: Sequence[Arc]) -> tuple[Arc, ...]:
        """The hops that these arcs of a tree load."""
        reverse = tuple((b, a) for a, b in arcs)
        return {DOWN: tuple(arcs), UP: reverse, BOTH: (*arcs, *reverse)}[self.use]

    def column(self, arcs: tuple[Arc, ...], group: int = 0) -> Column:
        """The tree's load; its cost is its height, from its centre if it is used both ways."""
        cost = len(arcs)
        if not self.hops_first:
            cost = len(longest_path(arcs)) // 2 if self.use == BOTH else height(self.roots[group], arcs)
        return Column(arcs, self.hops.load(self.used(arcs)), cost, group)

    def cheapest(self, cost: Mapping[Arc, float]) -> list[Column]:
        """The cheapest tree of every root that reaches all members."""
        back, members = {(b, a): one for (a, b), one in cost.items()}, self.hops.vertices[: self.hops.members]
        helpers = [v for v in self.hops.vertices[self.hops.members :] if v not in self.forwards]
        if self.apart and (len(members) <= MOST_TERMINALS or not helpers):
            return self._pairs((cost, back), members, helpers)
        both = {arc: value + back[arc] for arc, value in cost.items() if arc in back}
        prices, ways = passing({DOWN: cost, UP: back, BOTH: both}[self.use], self.forwards)
        trees = [cheapest_tree(prices, root, members, helpers) for root in self.roots]
        hops = [arcs and tuple(chain(*map(ways.__getitem__, arcs))) for arcs in trees]
        return [self.column(arcs, group) for group, arcs in enumerate(hops) if arcs is not None]

    def _pairs(self, both: Sequence[Prices], members: Sequence[int], helpers: Sequence[int]) -> list[Column]:
        """The cheapest trees from and to a vertex: of every member, or with helpers of the best vertex."""
        prices, ways = zip(*(passing(one, self.forwards) for one in both), strict=True)
        if helpers:
            sides = [LeastTrees(one, members, {*members, *helpers}) for one in prices]
            root = min((*members, *helpers), key=lambda v: (sum(side.least[v] for side in sides), v))
            pairs = [[side.traced(root) for side in sides]]
        else:
            roots = ((root, [v for v in members if v != root]) for root in members)
            pairs = [[_spanning(one, root, others) for one in prices] for root, others in roots]
        found = list[Column]()
        for pair in pairs:
            sides_of = zip(ways, pair, strict=True)
            down, up = (arcs and tuple(chain(*map(way.__getitem__, arcs))) for way, arcs in sides_of)
            if down and up:
                load = self.hops.load((*down, *((b, a) for a, b in up)))
                found.append(Column(down, load, len(down) + len(up), 0, up))
        return found

    def first(self) -> list[Column]:
        """A tree of fewest hops for every root; raises `InfeasibleError` if some member cannot be reached."""
        first = self.cheapest(dict.fromkeys(self.hops.routes, 1.0))
        if len({column.group for column in first}) < len(self.roots):
            raise InfeasibleError("some member cannot be reached by hops that pass no other member")
        return first

    def best(self) -> Mix:
        """The best mix of all trees; raises `InfeasibleError` if some member cannot be reached."""
        first, hops, even = self.first(), self.hops, [1] * len(self.roots)
        return best_mix(
            first, hops.capacity, weights=even, rounds=300, price=lambda each: self.cheapest(hops.cost(each))
        )

    def drawn(self, seed: int, number: int = _DRAWN) -> list[Column]:
        """Trees with random prices, over all hops and over the wide ones only: wide trees mean few trees."""
        random, room, columns = Random(seed), self.hops.capacity, dict[Column, None]()
        widths = {arc: min(room[r] // times for r, times in load) for arc, load in self.hops.loads.items()}
        for least in sorted({*widths.values()}):
            wide = [arc for arc, width in widths.items() if width >= least]
            for _ in range(number):
                cost = {arc: 1.0 + random.random() for arc in wide}
                if self.use == BOTH:
                    cost = {(a, b): cost[min(a, b), max(a, b)] for a, b in wide if (b, a) in cost}
                columns |= dict.fromkeys(self.cheapest(cost))
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
            if trees := search_trees(loads, self.roots[0], hops.capacity, rate, count, short):
                columns = tuple(self.column(arcs) for arcs, _ in trees)
                return replace(mix, columns=columns, rates=tuple(value for _, value in trees))
            if trees is None:
                break
        drawn = self.drawn(limits.seed, max(4, _DRAWN // len(self.roots)))
        return shortened(fewest(mix, drawn, hops.capacity, rate, limits, cheapest), hops.capacity)


# Most orders that are listed; beyond that, orders are priced, up to this many ranks.
MOST_LISTED = 3000
MOST_PRICED = 24
_PRICE_SCALE = 1_000_000
_ORDER_EFFORT = 0.2


def listed(hops: Hops, *, closed: bool, both: bool, most_ranks: int) -> list[Column] | None:
    """A column for every order of the members in which each hops to the next, and the last to the first if `closed`.

    both: hops must exist in both directions, and of an order and its reverse only one is given; otherwise
    orders are directed. None if there are too many, or more ranks than `most_ranks`.
    """
    if hops.members > most_ranks:
        return None
    members = hops.vertices[: hops.members]
    rank = {vertex: number for number, vertex in enumerate(members)}
    joined = hops.both if both else hops.next_to
    next_to = [[rank[b] for b in joined[a] if b in rank] for a in members]
    orders = list(islice(hamiltonian(next_to, closed=closed, both=both), MOST_LISTED + 1))
    return [column(hops, order, closed=closed, both=both) for order in orders] if len(orders) <= MOST_LISTED else None


def column(hops: Hops, order: Order, *, closed: bool, both: bool) -> Column:
    """The load of one order: every hop once, or once in each direction."""
    places = [hops.vertices[rank] for rank in ((*order, order[0]) if closed and len(order) > 1 else order)]
    arcs = tuple(pairwise(places))
    return Column(arcs, hops.load((*arcs, *((b, a) for a, b in arcs)) if both else arcs))


def orders_of(hops: Hops, columns: Sequence[Column], counts: Sequence[int], *, closed: bool) -> list[Order]:
    """The ranks in the order of each column's hops, as often as it counts."""
    rank, orders = {vertex: number for number, vertex in enumerate(hops.vertices)}, list[Order]()
    for column, times in zip(columns, counts, strict=True):
        places = [column.arcs[0][0], *(b for _, b in column.arcs)]
        orders += [tuple(rank[v] for v in (places[:-1] if closed else places))] * times
    return orders


def even_orders(
    hops: Hops, pool: Sequence[Column], channels: int, limits: Limits, *, closed: bool, most: Fraction | None = None
) -> list[Order]:
    """The orders of at most `channels` equal channels that carry the most together; the fewest of these.

    most: a rate that nothing exceeds.
    """
    mix = best_mix(pool, hops.capacity)
    best = max(mix.rate, Fraction(mix.optimum).limit_denominator(10_000))
    _, counts = equal_shares(pool, hops.capacity, channels, best if most is None else min(most, best), limits)
    return orders_of(hops, pool, counts, closed=closed)


def priced(
    hops: Hops, start: Sequence[Column], capacity: Sequence[int], *, closed: bool, both: bool, limits: Limits
) -> tuple[list[Column], tuple[Column, ...]]:
    """The columns of `start` (or the cheapest order), and those that a linear program over all orders takes."""
    if hops.members > MOST_PRICED:
        return list(start), ()
    rank = {vertex: number for number, vertex in enumerate(hops.vertices[: hops.members])}
    arcs = [(a, b) for a, b in hops.routes if a in rank and b in rank and (not both or (b, a) in hops.routes)]
    ends = [(rank[a], rank[b]) for a, b in arcs]

    def price(prices: Sequence[float]) -> list[Column]:
        cost = hops.cost(prices)
        costs = [cost[a, b] + (cost[b, a] if both else 0.0) for a, b in arcs]
        order = cheapest_order(ends, costs, hops.members, closed=closed, limits=limits)
        return [] if order is None else [column(hops, order, closed=closed, both=both)]

    pool = list(start) or price([1.0] * len(capacity))
    # Each answer takes longer on a larger machine.
    rounds = 60 if hops.members <= 16 else 40
    return pool, best_mix(pool, capacity, price=price, rounds=rounds).columns if pool else ()


def cheapest_order(arcs: Sequence[Arc], cost: Sequence[float], n: int, *, closed: bool, limits: Limits) -> Order | None:
    """An order of 0 … n-1 along `arcs` with the least sum of costs that a short search finds; None if none."""
    model = new_model()
    literals = [(a, b, model.new_bool_var("")) for a, b in arcs]
    circuit = list(literals)
    if not closed:
        # A further vertex closes the path: it comes before the first and after the last.
        circuit += [(n, a, model.new_bool_var("")) for a in range(n)]
        circuit += [(a, n, model.new_bool_var("")) for a in range(n)]
    model.add_circuit(circuit)
    scale = _PRICE_SCALE / (max(cost, default=0.0) or 1.0)
    model.minimize(sum(round(c * scale) * x for c, (_, _, x) in zip(cost, literals, strict=True)))
    if (solver := replace(limits, effort=_ORDER_EFFORT).solved(model)) is None:
        return None
    follows = {a: b for a, b, x in circuit if solver.value(x)}
    order = [0 if closed else follows[n]]
    while len(order) < n:
        order.append(follows[order[-1]])
    return tuple(order)


# --- orders of all vertices ----------------------------------------------------------------------------

Order = tuple[int, ...]


def hamiltonian(
    next_to: Sequence[Sequence[int]], *, closed: bool, both: bool, starts: Sequence[int] | None = None
) -> Iterator[Order]:
    """Orders of the vertices in which each is next to the one before, and the last to the first if `closed`.

    next_to: for each vertex those that may follow it. both: neighbours are mutual, and of an order and its
    reverse only one is given; otherwise orders are directed. Closed orders start at vertex 0, others at one
    of `starts` (default: any).
    """
    n = len(next_to)

    def extend(path: list[int], seen: int) -> Iterator[Order]:
        if len(path) == n:
            ends = (path[1], path[-1]) if closed else (path[0], path[-1])
            if (not closed or path[0] in next_to[path[-1]]) and (not both or n < 3 or ends[0] < ends[1]):
                yield tuple(path)
            return
        for b in next_to[path[-1]]:
            if not seen >> b & 1:
                path.append(b)
                yield from extend(path, seen | 1 << b)
                path.pop()

    for first in starts or range(1 if closed or (both and n < 3) else n):
        yield from extend([first], 1 << first)


_Factor = list[list[int]]
_Square = tuple[int, int, int, int]
# Exchanges that only move cycles about, between two that join some, before the search gives up.
_PATIENCE = 400


def disjoint_cycles(edges: Sequence[tuple[int, int]], count: int) -> list[Order]:
    """Hamiltonian cycles of the vertices 0 … count-1 that use each of `edges` once; empty if none were found.

    edges: each once, as (a, b) in any order; parallel ones are allowed. The answer is the same everywhere.
    """
    degree = Counter(vertex for edge in edges for vertex in edge)
    if count < 3 or len(degree) < count or len({*degree.values()}) > 1 or degree[0] % 2:
        return []
    import networkx as nx

    graph: nx.MultiGraph[int] = nx.MultiGraph(edges)
    if not nx.is_connected(graph):
        return []
    # The neighbours of every vertex in each factor: an Euler tour's directions, as perfect matchings.
    left = grouped(nx.eulerian_circuit(graph, source=0))
    factors = []
    for _ in range(len(edges) // count):
        pairs = nx.Graph((a, count + b) for a in range(count) for b in left[a])
        matched = nx.bipartite.hopcroft_karp_matching(pairs, range(count))
        factor: _Factor = [[] for _ in range(count)]
        for a in range(count):
            b = matched[a] - count
            left[a].remove(b)
            factor[a].append(b)
            factor[b].append(a)
        factors.append(factor)
    return _Merging(factors, count).cycles()


class _Merging:
    """Two-factors on their way to single cycles. label: by factor and vertex the first of its cycle."""

    def __init__(self, factors: list[_Factor], count: int) -> None:
        self.factors, self.count = factors, count
        self.label = [self._labels(factor) for factor in factors]
        self.random = Random(0)

    @property
    def total(self) -> int:
        return sum(map(len, map(set, self.label)))

    def cycles(self) -> list[Order]:
        patience, pairs = _PATIENCE, list(permutations(range(len(self.factors)), 2))
        while self.total > len(self.factors):
            if self._exchanged_one(pairs, range(self.count), -1):
                continue
            # Squares drawn at random may leave as many cycles, or one or two more.
            patience -= 1
            drawn = self.random.sample(range(self.count), self.count)
            tries = ((self.random.sample(pairs, len(pairs)), drawn, more) for more in (0, 2))
            if patience < 0 or not any(self._exchanged_one(*each) for each in tries):
                return []
        orders = []
        for factor in self.factors:
            # Along the cycle from vertex 0, after one of its neighbours.
            order = [factor[0][1], 0]
            while len(order) <= self.count:
                ahead, behind = factor[order[-1]]
                order.append(ahead if behind == order[-2] else behind)
            orders.append(tuple(order[1:]))
        return orders

    def _exchanged_one(self, pairs: Iterable[tuple[int, int]], vertices: Sequence[int], more: int) -> bool:
        """Exchanges the first square of two factors that leaves at most `more` cycles more, if there is one.

        more: if negative, only squares count that join two cycles of their first factor.
        """
        for first, second in pairs:
            for square in self._squares(first, second, vertices):
                parts = self.label[first][square[0]] != self.label[first][square[3]]
                if (parts or more >= 0) and self._exchanged(first, second, square, more):
                    return True
        return False

    def _squares(self, first: int, second: int, vertices: Sequence[int]) -> Iterator[_Square]:
        """(a, b, c, d) with a-b and c-d in one factor, b-c and d-a in the other."""
        one, other = self.factors[first], self.factors[second]
        for a in vertices:
            for b in list(one[a]):
                for d in list(other[a]):
                    for c in list(other[b]):
                        if len({a, b, c, d}) == 4 and c in one[d]:
                            yield a, b, c, d

    def _exchanged(self, first: int, second: int, square: _Square, more: int) -> bool:
        """Exchanges a square, and takes that back unless there are then at most `more` cycles more."""
        before, labels = self.total, (self.label[first], self.label[second])
        self._exchange(first, second, square)
        self.label[first], self.label[second] = (self._labels(self.factors[which]) for which in (first, second))
        if self.total - before <= more:
            return True
        self._exchange(second, first, square)
        self.label[first], self.label[second] = labels
        return False

    def _exchange(self, first: int, second: int, square: _Square) -> None:
        a, b, c, d = square
        one, two = self.factors[first], self.factors[second]
        for x, y, giver, taker in ((a, b, one, two), (c, d, one, two), (b, c, two, one), (d, a, two, one)):
            for here, there in ((x, y), (y, x)):
                giver[here].remove(there)
                taker[here].append(there)

    def _labels(self, factor: _Factor) -> list[int]:
        joined = np.arange(self.count).repeat(2), np.ravel(factor)
        return list[int](joined_labels(self.count, *joined).tolist())
