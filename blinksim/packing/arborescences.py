"""Arborescences (out-trees) packed into whole-number capacities, k(v) from every root v, then made lower.

They exist if no set is short (Edmonds 1973; multiplicities: Schrijver, Combinatorial Optimization, 2003,
theorem 53.10). Trees are grown breadth first against a pool of known sets, which keeps them low and costs no
flow. A tree that can be completed has an arc by which it may grow (Lovasz 1976, On two minimax theorems in
graph), so if growing ends too early, a set outside the pool is short already. Flows find such sets (cut
generation), and the trees that violate them are taken back. Where there are very many of them, a tree grows
by the arcs that flows allow.

A packing at the best rate often leaves no capacity over, so its last trees consist of leftovers and are high.
To lower them, two trees that both enter a vertex exchange the arcs by which they do, which keeps the load of
every arc. Each exchange lifts the farthest vertex of the tree with the longest delay, and takes no vertex of
the other tree as far, so that ever fewer vertices are that far.

Forwarders are split off before: an arc into a forwarder w and an arc out of it become one arc past it. If at
least as much enters w as leaves it, its arcs can be paired off completely without making any set short
(Bang-Jensen, Frank and Jackson 1995, Preserving and increasing local edge-connectivity in mixed graphs;
Jackson 1988). A pool of known sets limits how much a pair may carry; flows then check that limit, and the
sets that turn out short join the pool. The order of the pairs decides how tall the trees become.

Every unit of capacity keeps one physical path. Each arc carries pieces (path, amount). Splitting off joins
the pieces of two arcs one by one (the two lists are laid side by side), so that a tree's arc is one path or,
rarely, several; then the tree becomes several with equal edges. Two paths that meet before their ends leave
out the circle between: no route passes a device twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Bools, occurrences, side_by_side
from blinksim.graphs.connectivity import distances, grouped
from blinksim.graphs.digraph import CutPool, Digraph
from blinksim.graphs.rooted_trees import RootedTree, from_parents

Edge = tuple[int, int]

# Trees that are grown, at least, before flows check them.
_BATCH = 4
# Dead ends after which a tree is grown by flows: on 6 DGX-1 P100 a broadcast ends after 770 of them and takes
# 2.3 s, on 8 after more than 30,000; a tree by flows takes 0.1 s there.
_MOST_SETS = 64


@dataclass
class _Growth:
    """A tree while it grows. extra: how often each pool set (by its bit) is entered, beyond the first time.

    missing: how many members it does not reach.
    """

    root: int
    missing: int
    edges: list[Edge] = field(default_factory=list)
    extra: Counter[int] = field(default_factory=Counter)
    height: int = 0


def pack(graph: Digraph, pool: CutPool, progress: Callable[[int, int], None] | None = None) -> list[RootedTree]:
    """Trees that span the members of `graph`, whose other vertices must have no arcs; takes them out of `graph`.

    No set may be short at the start; raises `InfeasibleError` otherwise. progress: called after every check
    by flows with trees done, fewer than before if some were taken back, and wanted.
    """
    wanted = graph.trees
    grown: list[RootedTree] = []
    # The most arcs that a shortest path from each root takes: no tree is lower.
    low = {root: max(distances(root, graph.out.__getitem__).values()) for root in graph.roots}
    batch, sure = wanted, 0
    pool.measure(graph)
    dead_ends = 0
    while True:
        if dead_ends == _MOST_SETS:
            while graph.short_sets(most=1):
                _take_back(graph, grown)
            grown.append(grown_by_flows(graph, next(iter(graph.roots))))
            pool.measure(graph)
            dead_ends = 0
        end = _fill(graph, pool, grown, low, len(grown) + batch)
        if end is None and not graph.roots:
            return grown
        # If a tree is growing, sets that are short for the other trees or for what this one lacks.
        rest = graph if end is None else _without(graph, end.root, end.edges)
        sets = [side[: graph.count] for side in rest.short_sets()]
        if end is None and not sets:
            batch, sure = 2 * batch, len(grown)
        else:
            # Growing respects every known set, so what is short now is new, unless it was short from the
            # start.
            if not pool.add(sets):
                raise InfeasibleError("these capacities do not hold the requested trees")
            # Give the last trees of `grown` back to `graph` until none of `sets` is short.
            rows = np.array(sets)
            slack = graph.slack(rows)
            while (slack < 0).any():
                tree = _take_back(graph, grown)
                ends = np.array(tree.edges)
                enters = (rows[:, ends[:, 1]] & ~rows[:, ends[:, 0]]).sum(axis=1)
                slack += tree.amount * (enters - ~rows[:, tree.root])
            batch, sure = max(_BATCH, (len(grown) - sure) // 2), min(sure, len(grown))
            dead_ends += 1
            pool.measure(graph)
        if progress:
            progress(wanted - graph.trees, wanted)


def _take_back(graph: Digraph, grown: list[RootedTree]) -> RootedTree:
    """Give the last tree back to `graph`; raises `InfeasibleError` if there is none."""
    if not grown:
        raise InfeasibleError("these capacities do not hold the requested trees")
    tree = grown.pop()
    graph.roots[tree.root] = graph.roots.get(tree.root, 0) + tree.amount
    for a, b in tree.edges:
        graph.change(a, b, tree.amount)
    return tree


def _fill(graph: Digraph, pool: CutPool, grown: list[RootedTree], low: Mapping[int, int], most: int) -> _Growth | None:
    """Grow trees, the roots round-robin, until there are `most`; the tree that meets a dead end if one does."""
    while graph.roots:
        for root in list(graph.roots):
            if len(grown) == most:
                return None
            # The lowest of the trees that halving the copies asked for finds; of equally low ones the first,
            # which has the most copies, so that few trees suffice.
            ask = graph.roots[root]
            best = _grow(graph, pool, root, ask, graph.count)
            while ask > 1 and (best.missing or best.height > low[root]):
                ask //= 2
                growth = _grow(graph, pool, root, ask, graph.count if best.missing else best.height - 1)
                best = best if growth.missing and not best.missing else growth
            if best.missing:
                return best
            # As many copies of it as fit are taken out of `graph`.
            amount = min([graph.roots[root], *(graph.out[a][b] for a, b in best.edges)])
            amount = min([amount, *(pool.slack[bit.bit_length() - 1] // times for bit, times in best.extra.items())])
            for bit, times in best.extra.items():
                pool.pay(bit, times * amount)
            grown.append(_taken_out(graph, root, amount, best.edges))
    return None


def _taken_out(graph: Digraph, root: int, amount: int, edges: Sequence[Edge]) -> RootedTree:
    """Take so many equal trees out of `graph`, as `_take_back` gives them back."""
    for a, b in edges:
        graph.change(a, b, -amount)
    graph.roots[root] -= amount
    if not graph.roots[root]:
        del graph.roots[root]
    return RootedTree(root, amount, tuple(edges))


def _grow(graph: Digraph, pool: CutPool, root: int, ask: int, most: int) -> _Growth:
    """Breadth first from `root` over arcs of `ask` or more, entering no pool set more often than its slack.

    most: how high the tree may be.
    """
    inside, slack = pool.inside, pool.slack
    growth = _Growth(root, len(graph.members) - (root in graph.members))
    here = [vertex == root for vertex in range(graph.count)]
    extra, edges = growth.extra, growth.edges
    touched = inside[root]
    # A set without slack for `ask` more entries counts as tight; it is blocked if it was entered already.
    poor = pool.below(ask)
    blocked = touched & poor
    level = [root]
    # What is blocked stays blocked, so every arc is asked once, when its tail has just been reached.
    while growth.missing and growth.height < most:
        done = len(edges)
        for tail in level:
            outside = ~inside[tail]
            for less, head in graph.widest(tail):
                if less > -ask:
                    break
                if here[head] or inside[head] & outside & blocked:
                    continue
                enters = inside[head] & outside
                again = enters & touched
                while again:
                    bit = again & -again
                    extra[bit] += 1
                    if slack[bit.bit_length() - 1] < (extra[bit] + 1) * ask:
                        blocked |= bit
                    again ^= bit
                touched |= enters
                blocked |= enters & poor
                here[head] = True
                edges.append((tail, head))
                growth.missing -= 1
        if not (level := [head for _, head in edges[done:]]):
            break
        growth.height += 1
    return growth


def grown_by_flows(graph: Digraph, root: int) -> RootedTree:
    """A tree taken out of `graph`, in which no set is short, and an arc at a time, each of which leaves it so."""
    rest, edges, queue = _without(graph, root), list[Edge](), [root]
    reached = rest.out[-1]
    for tail in queue:
        for head in sorted(rest.out[tail], key=rest.out[tail].__getitem__, reverse=True):
            if head in reached:
                continue
            rest.change(tail, head, -1)
            reached[head] = 1
            # Only sets around the head have lost anything.
            rest.members = [head]
            if rest.short_sets():
                rest.change(tail, head, 1)
                del reached[head]
            else:
                queue.append(head)
                edges.append((tail, head))
    return _taken_out(graph, root, 1, edges)


def _without(graph: Digraph, root: int, edges: Sequence[Edge] = ()) -> Digraph:
    """What is left beside a tree that grows: in place of its root, a vertex hands on to all that it has reached."""
    roots = {vertex: trees - (vertex == root) for vertex, trees in graph.roots.items()} | {graph.count: 1}
    rest = Digraph([*graph.out, dict.fromkeys((root, *(head for _, head in edges)), 1)], roots, graph.members)
    for a, b in edges:
        rest.change(a, b, -1)
    return rest


# Vertices of all trees up to which they are compared, and trees that are looked at for exchanges, again and
# again.
_MOST_VERTICES, _MOST_LOOKS = 2_000_000, 1_000_000
# An arc between hosts is as long as so many inside one, as a NIC takes longer than a GPU's links do.
_ACROSS = 8
# One of so many trees may be divided: more trees make more messages.
_DIVIDED = 8
_SPARE = -1


class _Move(NamedTuple):
    """A tree enters `vertex` from `parent`, by the arc of another tree or by a spare one (`_SPARE`).

    divides: True if the amounts differ. after, depth: how far the other tree then ends there, and how far
    this vertex is. Less is better.
    """

    divides: bool
    after: int
    depth: int
    tree: int
    vertex: int
    parent: int
    other: int


def lowered(trees: Sequence[RootedTree], spare: Digraph, host: Sequence[int]) -> list[RootedTree]:
    """Trees that carry as much from every root, and together load arcs as these do but for spare ones.

    spare: capacities that are left over; what is used of them is taken out. host: by vertex.
    """
    if not trees or len(trees) * spare.count > _MOST_VERTICES:
        return [*trees]
    return _Exchange(trees, spare, host).run()


def longest(trees: Sequence[RootedTree], host: Sequence[int]) -> int:
    """How long a piece of the data is on its way, at most, in units of an amount of 1 over an arc inside a host."""
    worst = 0
    for tree in trees:
        depth = {tree.root: 0}
        for above, vertex in tree.edges:
            depth[vertex] = depth[above] + (1 if host[above] == host[vertex] else _ACROSS)
        worst = max(worst, tree.amount * max(depth.values()))
    return worst


class _Exchange:
    """Trees by their parents.

    parent, depth, below : array (T, n)
        By tree and vertex: -1 for the root and outside of the tree; how far the root is; how far down what
        hangs below goes.
    inside : array (T, n)
        True if the vertex is in the tree.
    """

    def __init__(self, trees: Sequence[RootedTree], spare: Digraph, host: Sequence[int]) -> None:
        self.spare, self.looks, self.divisions = spare, 0, len(trees) // _DIVIDED
        self.length = np.where(np.equal.outer(host, host), 1, _ACROSS)
        self.roots = np.array([tree.root for tree in trees])
        self.amounts = np.array([tree.amount for tree in trees])
        shape = len(trees), spare.count
        self.parent = np.full(shape, -1)
        self.depth, self.below = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for number, tree in enumerate(trees):
            for above, vertex in tree.edges:
                self.parent[number, vertex] = above
            self._measure(number)
        self.inside = self.parent >= 0
        self.inside[np.arange(len(trees)), self.roots] = True

    def run(self) -> list[RootedTree]:
        """Until no exchange helps any tree, or it has taken long."""
        done, moved = np.ones(len(self.roots), dtype=bool), True
        while self.looks < _MOST_LOOKS and (moved or not done.all()):
            if done.all():
                done, moved = np.zeros(len(self.roots), dtype=bool), False
            worst = np.where(done, -1, self.depth.max(axis=1) * self.amounts)
            tree = int(worst.argmax())
            vertex, moves = int(self.depth[tree].argmax()), list[_Move]()
            # What lifts the farthest vertex of the tree, by itself or with those above it.
            while vertex != self.roots[tree]:
                # Over a spare arc, or in exchange for one of another tree.
                new = self.depth[tree] + self.length[:, vertex]
                tails = np.flatnonzero(self.inside[tree] & (new < self.depth[tree, vertex])).tolist()
                wide = [tail for tail in tails if self.spare.out[tail].get(vertex, 0) >= self.amounts[tree]]
                unused = [_Move(False, 0, int(new[tail]), tree, vertex, tail, _SPARE) for tail in wide]
                move = min(unused, default=None) or self._exchanged(tree, vertex, int(worst[tree]))
                moves += [move] if move else []
                vertex = int(self.parent[tree, vertex])
            if moves:
                self._do(min(moves))
                done, moved = np.append(done, [False] * (len(self.roots) - len(done))), True
            else:
                done[tree] = True
        return [
            RootedTree(root, amount, self._arcs(tree))
            for tree, (root, amount) in enumerate(zip(self.roots.tolist(), self.amounts.tolist(), strict=True))
        ]

    def _arcs(self, tree: int) -> tuple[tuple[int, int], ...]:
        above = self.parent[tree].tolist()
        return from_parents({vertex: one for vertex, one in enumerate(above) if one >= 0}, int(self.roots[tree]))

    def _measure(self, tree: int) -> None:
        depth, below = [0] * self.spare.count, [0] * self.spare.count
        arcs = self._arcs(tree)
        lengths = [int(self.length[arc]) for arc in arcs]
        for (above, vertex), length in zip(arcs, lengths, strict=True):
            depth[vertex] = depth[above] + length
        for (above, vertex), length in zip(reversed(arcs), reversed(lengths), strict=True):
            below[above] = max(below[above], below[vertex] + length)
        self.depth[tree], self.below[tree] = depth, below

    def _exchanged(self, tree: int, vertex: int, top: int) -> _Move | None:
        """Over the arc by which another tree enters the vertex, which takes the arc of this one."""
        self.looks += len(self.roots)
        above, parents = int(self.parent[tree, vertex]), self.parent[:, vertex]
        after = self.depth[:, above] + self.length[above, vertex] + self.below[:, vertex]
        new = self.depth[tree, parents] + self.length[parents, vertex]
        # What hangs below the vertex is farther than it is already, so that no parent which lifts it does.
        fits = self.inside[:, above] & (parents >= 0) & (after * np.minimum(self.amounts, self.amounts[tree]) < top)
        fits &= self.inside[tree, parents] & (new < self.depth[tree, vertex])
        divides = self.amounts != self.amounts[tree]
        if not self.divisions:
            fits &= ~divides
        places = np.flatnonzero(fits)
        for other in places[np.lexsort((new[places], after[places], divides[places]))].tolist():
            # The arc that it would take must not come from below the vertex.
            ancestor = above
            while ancestor not in (-1, vertex):
                ancestor = int(self.parent[other, ancestor])
            if ancestor != vertex:
                parent = int(parents[other])
                return _Move(bool(divides[other]), int(after[other]), int(new[other]), tree, vertex, parent, other)
        return None

    def _do(self, move: _Move) -> None:
        vertex, above = move.vertex, int(self.parent[move.tree, move.vertex])
        if move.other == _SPARE:
            amount = int(self.amounts[move.tree])
            self.spare.change(move.parent, vertex, -amount)
            self.spare.change(above, vertex, amount)
        else:
            if move.divides:
                # As much of the large tree is left as the small one has; the rest is another one.
                small, large = sorted((move.tree, move.other), key=lambda tree: int(self.amounts[tree]))
                self.divisions -= 1
                self.roots = np.append(self.roots, self.roots[large])
                self.amounts = np.append(self.amounts, self.amounts[large] - self.amounts[small])
                self.amounts[large] = self.amounts[small]
                self.parent, self.depth, self.below, self.inside = (
                    np.concatenate([rows, rows[large : large + 1]])
                    for rows in (self.parent, self.depth, self.below, self.inside)
                )
            self.parent[move.other, vertex] = above
            self._measure(move.other)
        self.parent[move.tree, vertex] = move.parent
        self._measure(move.tree)


@dataclass(frozen=True, slots=True)
class Split:
    """`amount` of the arcs start->via and via->end became an arc start->end (gone, if start is end).

    end -1: while pairing, `amount` of start->via was given up.
    """

    start: int
    via: int
    end: int
    amount: int


def usual_sets(graph: Digraph, host: Sequence[int]) -> list[Bools]:
    """Sets that are likely to be tight: members alone, hosts, and all but one of these."""
    hosts = np.asarray(host)
    here = sorted({int(hosts[vertex]) for vertex in graph.members})
    groups = [hosts == one for one in here] if len(here) > 1 else []
    return [*groups, *(~group for group in groups), *(np.arange(graph.count) == vertex for vertex in graph.members)]


def split_off(
    graph: Digraph, host: Sequence[int], pool: CutPool, progress: Callable[[int, int], None] | None = None
) -> list[Split]:
    """Remove the arcs of all vertices that are no member and no root from `graph`, in place; what was joined, in order.

    No set may be short at the start, and every such vertex must take in at least what it gives out; otherwise
    `InfeasibleError` is raised. host: node number by vertex. pool: gains the sets that were found short on
    the way. progress: called with 0 and the number of trees before every round.
    """
    wanted = graph.trees
    tail, head, _ = graph.arrays()
    # As pairs with their places, for which NumPy loads no masked arrays.
    ends, _ = np.unique(np.stack([np.append(tail, head), np.append(head, tail)]), axis=1, return_index=True)
    neighbours = np.bincount(ends[0], minlength=graph.count)
    # Vertices with few neighbours come first, those of hosts before those of the fabric.
    members = {*graph.members, *graph.roots}
    order = [vertex for vertex in range(graph.count) if vertex not in members]
    order.sort(key=lambda vertex: (neighbours[vertex] > 2, host[vertex] < 0, vertex))
    # The host of every member, and its position among the members there.
    hosts = [host[vertex] for vertex in graph.members]
    spots = zip(hosts, occurrences(np.array(hosts)).tolist(), strict=True)
    place = dict(zip(graph.members, spots, strict=True))
    log: list[Split] = []
    at, batch, last = 0, len(order), -1
    pool.measure(graph)
    while at < len(order):
        if progress:
            progress(0, wanted)
        start, end = at, min(at + batch, len(order))
        complete = exact = True
        while complete and at < end:
            complete, series = _split(graph, order[at], pool, log, host, place)
            exact &= series
            at += complete
        short = [] if complete and exact else graph.short_sets(last)
        if complete and not short:
            batch *= 2
            continue
        # Pairing respects every known set, so what is short now is new, unless it was short from the start.
        first = _undo(graph, log, short) if pool.add(short) else None
        if first is None:
            raise InfeasibleError("a forwarder gives out more than it takes in, so its links cannot be paired off")
        pool.measure(graph)
        last = next((v for v in graph.members if short[0][v]), -1)
        at = order.index(first)
        batch = max(1, (end - start) // 2)
    return [split for split in log if split.end >= 0]


def _undo(graph: Digraph, log: list[Split], sets: Sequence[Bools]) -> int | None:
    """Take the last splits of `log` back until none of `sets` is short; the vertex of the first of them.

    None if that does not suffice, or if there was nothing to take back.
    """
    rows = np.array(sets)
    slack = graph.slack(rows)
    via = None
    while (slack < 0).any():
        if not log:
            return None
        split = log.pop()
        start, via, end, amount = split.start, split.via, split.end, split.amount
        graph.change(start, via, amount)
        slack += amount * (rows[:, via] & ~rows[:, start])
        if end < 0:
            continue
        graph.change(via, end, amount)
        slack += amount * (rows[:, end] & ~rows[:, via])
        if start != end:
            graph.change(start, end, -amount)
            slack -= amount * (rows[:, end] & ~rows[:, start])
    return via


def _split(
    graph: Digraph, via: int, pool: CutPool, log: list[Split], host: Sequence[int], place: dict[int, tuple[int, int]]
) -> tuple[bool, bool]:
    """Pair off the arcs of one vertex as far as the pool allows: (no arc is left at it, no set can suffer)."""
    pairing = _Pairing(graph, via, pool, log)
    if not pairing.around:
        return True, True
    starts, ends, excess = pairing.starts, pairing.ends, pairing.excess
    # With two neighbours there is only one choice.
    series = not ends or (len(pairing.around) <= 2 and not excess)
    groups = _pairs(pairing.around, starts, ends, lambda v: place.get(v, (host[v], 0)))
    # The arcs in are lowered by what comes in beyond what goes out, but not where a set needs it.
    for start in sorted(starts, key=lambda vertex: -starts[vertex]):
        hit = pool.inside[via] & ~pool.inside[start]
        amount = min(excess, starts[start], pool.least(hit) if hit else excess)
        if amount > 0:
            pool.pay(hit, amount)
            starts[start] -= amount
            excess -= amount
            graph.change(start, via, -amount)
            log.append(Split(start, via, -1, amount))
    # First an equal part from each to each, then what is left to anyone, and only then arcs back to their
    # start.
    for group, parts in groups:
        if not ends:
            break
        full = dict(starts)
        for start, end in group:
            pairing.join(start, end, max(1, full[start] // parts))
    everything = [pair for group, _ in groups for pair in group]
    back = [(vertex, vertex) for vertex in pairing.around if vertex in starts and vertex in ends]
    for start, end in (*everything, *back, *everything):
        if not ends:
            break
        pairing.join(start, end, 1 << 62)
    return not ends and not any(starts.values()), series


class _Pairing:
    """The arcs into and out of one vertex while they are paired off: what is left of each, by its other end."""

    def __init__(self, graph: Digraph, via: int, pool: CutPool, log: list[Split]) -> None:
        self.graph, self.via, self.pool, self.log = graph, via, pool, log
        self.ends = graph.out[via]
        self.starts = {vertex: row[via] for vertex, row in enumerate(graph.out) if via in row}
        self.around = list(dict.fromkeys((*self.starts, *self.ends)))
        self.excess = sum(self.starts.values()) - sum(self.ends.values())

    def join(self, start: int, end: int, most: int) -> None:
        """Turn up to `most` of the arcs from `start` and to `end` into an arc past the vertex, as the pool allows."""
        starts, graph, via, pool = self.starts, self.graph, self.via, self.pool
        if not (amount := min(starts.get(start, 0), self.ends.get(end, 0), most)):
            return
        inside = pool.inside
        here = inside[via]
        hit = here & ~(inside[start] | inside[end]) | inside[start] & inside[end] & ~here
        if hit and (amount := min(amount, pool.least(hit))) <= 0:
            return
        pool.pay(hit, amount)
        starts[start] -= amount
        graph.change(start, via, -amount)
        graph.change(via, end, -amount)
        if start != end:
            graph.change(start, end, amount)
        self.log.append(Split(start, via, end, amount))


def _pairs(
    around: list[int], starts: dict[int, int], ends: dict[int, int], place: Callable[[int], tuple[int, int]]
) -> list[tuple[list[Edge], int]]:
    """Pairs of neighbours in groups, best first, and among how many the arcs of a start are shared in each group.

    Between hosts, equal positions come first (the rails), so that data changes host once and spreads inside
    it; pairs at equal distance follow each other, so that all neighbours are served alike.
    """
    spots = {vertex: place(vertex) for vertex in around}
    hosts = sorted({host for host, _ in spots.values()})
    number = {host: position for position, host in enumerate(hosts)}
    widest = 1 + max(position for _, position in spots.values())
    order = {vertex: position for position, vertex in enumerate(around)}
    groups: dict[tuple[bool, int], list[tuple[int, int, Edge]]] = {}
    for start, end in ((start, end) for start in starts for end in ends if start != end):
        (a, i), (b, j) = spots[start], spots[end]
        same = a == b
        key = (same, 0 if same else (j - i) % widest)
        distance = (order[end] - order[start]) % len(around) if same else (number[b] - number[a]) % len(hosts)
        groups.setdefault(key, []).append((distance, order[start], (start, end)))
    rows = [[pair for _, _, pair in sorted(groups[key])] for key in sorted(groups)]
    return [(pairs, max(Counter(start for start, _ in pairs).values())) for pairs in rows]


Path = tuple[int, ...]
Pieces = list[tuple[Path, int]]


@dataclass(frozen=True, slots=True)
class RoutedTree:
    """`amount` equal trees from `root`: edges (parent, child, arcs of the path), parents before their children."""

    root: int
    amount: int
    edges: tuple[tuple[int, int, Path], ...]


class Routes:
    """The pieces of every arc of the graph that is left after `split_off`."""

    def __init__(self, tail: Sequence[int], head: Sequence[int], capacity: Sequence[int], log: Iterable[Split]) -> None:
        arcs = enumerate(zip(zip(tail, head, strict=True), capacity, strict=True))
        self._pieces: dict[Edge, Pieces] = grouped((ends, ((arc,), cap)) for arc, (ends, cap) in arcs if cap)
        for split in log:
            first = self._take((split.start, split.via), split.amount)
            second = self._take((split.via, split.end), split.amount)
            if split.start != split.end:
                into = self._pieces.setdefault((split.start, split.end), [])
                for (one, two), amount in side_by_side((first, second)):
                    # The same ends, and no vertex twice.
                    path: list[int] = []
                    for arc in one + two:
                        path.append(arc)
                        starts = [tail[passed] for passed in path]
                        if head[arc] in starts:
                            del path[starts.index(head[arc]) :]
                    if into and into[-1][0] == tuple(path):
                        amount += into.pop()[1]
                    into.append((tuple(path), amount))

    def _take(self, arc: tuple[int, int], amount: int) -> Pieces:
        """Remove `amount` from an arc's pieces; first the smallest piece that alone is enough, else the largest."""
        pieces = self._pieces[arc]
        taken: Pieces = []
        while amount:
            order = [(size < amount, abs(size - amount)) for _, size in pieces]
            number = order.index(min(order))
            path, size = pieces[number]
            part = min(size, amount)
            taken.append((path, part))
            if part == size:
                pieces.pop(number)
            else:
                pieces[number] = (path, size - part)
            amount -= part
        return taken

    def route(self, trees: Iterable[RootedTree]) -> list[RoutedTree]:
        """The trees with paths, those that need several paths on an edge cut up."""
        routed = []
        for tree in trees:
            parts = [self._take(edge, tree.amount) for edge in tree.edges]
            # Where any edge's path ends, a new tree begins.
            for paths, amount in side_by_side(parts) if parts else [((), tree.amount)]:
                edges = tuple((a, b, path) for (a, b), path in zip(tree.edges, paths, strict=True))
                routed.append(RoutedTree(tree.root, amount, edges))
        return routed
