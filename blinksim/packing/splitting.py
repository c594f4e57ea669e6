"""Splitting off: forwarders taken out of a graph, and the paths of the arcs that remain.

Splitting off replaces an arc into a forwarder w and an arc out of it by one arc past it. If at least as much
enters w as leaves it, its arcs can be paired off completely without making any set short (Bang-Jensen, Frank
and Jackson 1995, Preserving and increasing local edge-connectivity in mixed graphs; Jackson 1988). A pool of
known sets limits how much a pair may carry; flows then check that limit, and the sets that turn out short
join the pool (cut generation). The order of the pairs decides how tall the trees become.

Every unit of capacity keeps one physical path. Each arc carries pieces (path, amount). Splitting off joins
the pieces of two arcs one by one (the two lists are laid side by side), so that a tree's arc is one path or,
rarely, several; then the tree becomes several with equal edges. Two paths that meet before their ends leave
out the circle between: no route passes a device twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from blinksim.errors import InfeasibleError
from blinksim.graphs.arrays import Bools, occurrences, side_by_side
from blinksim.graphs.connectivity import grouped
from blinksim.graphs.digraph import CutPool, Digraph
from blinksim.graphs.rooted_trees import RootedTree

Pair = tuple[int, int]


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
    alone = [np.arange(graph.count) == vertex for vertex in graph.members]
    return [*groups, *(~group for group in groups), *alone]


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
    ends = np.unique(np.stack([np.append(tail, head), np.append(head, tail)]), axis=1)
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
        graph.give(start, via, amount)
        slack += amount * (rows[:, via] & ~rows[:, start])
        if end < 0:
            continue
        graph.give(via, end, amount)
        slack += amount * (rows[:, end] & ~rows[:, via])
        if start != end:
            graph.take(start, end, amount)
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
            graph.take(start, via, amount)
            log.append(Split(start, via, -1, amount))
    # First an equal part from each to each, then what is left to anyone, and only then arcs back to their start.
    for group, parts in groups:
        if not ends:
            break
        full = dict(starts)
        for start, end in group:
            pairing.join(start, end, max(1, full[start] // parts))
    everything = [pair for group, _ in groups for pair in group]
    back = [(vertex, vertex) for vertex in pairing.around if vertex in starts and vertex in ends]
    for pairs in (everything, back, everything):
        if not ends:
            break
        for start, end in pairs:
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
        amount = min(starts.get(start, 0), self.ends.get(end, 0), most)
        if not amount:
            return
        inside = pool.inside
        here = inside[via]
        hit = here & ~(inside[start] | inside[end]) | inside[start] & inside[end] & ~here
        if hit & pool.tight:
            return
        if hit:
            amount = min(amount, pool.least(hit))
            pool.pay(hit, amount)
        starts[start] -= amount
        graph.take(start, via, amount)
        graph.take(via, end, amount)
        if start != end:
            graph.give(start, end, amount)
        self.log.append(Split(start, via, end, amount))


def _pairs(
    around: list[int], starts: dict[int, int], ends: dict[int, int], place: Callable[[int], tuple[int, int]]
) -> list[tuple[list[Pair], int]]:
    """Pairs of neighbours in groups, best first, and among how many the arcs of a start are shared in each group.

    Between hosts, equal positions come first (the rails), so that data changes host once and spreads inside
    it; pairs at equal distance follow each other, so that all neighbours are served alike.
    """
    spots = {vertex: place(vertex) for vertex in around}
    hosts = sorted({host for host, _ in spots.values()})
    number = {host: position for position, host in enumerate(hosts)}
    widest = 1 + max(position for _, position in spots.values())
    order = {vertex: position for position, vertex in enumerate(around)}
    groups: dict[tuple[bool, int], list[tuple[int, int, Pair]]] = {}
    for start, end in ((start, end) for start in starts for end in ends if start != end):
        (a, i), (b, j) = spots[start], spots[end]
        same = a == b
        key = (same, 0 if same else (j - i) % widest)
        distance = (order[end] - order[start]) % len(around) if same else (number[b] - number[a]) % len(hosts)
        groups.setdefault(key, []).append((distance, order[start], (start, end)))
    grouped = []
    for key in sorted(groups):
        pairs = [pair for _, _, pair in sorted(groups[key])]
        grouped.append((pairs, max(Counter(start for start, _ in pairs).values())))
    return grouped


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
        self._pieces: dict[Pair, Pieces] = grouped((ends, ((arc,), cap)) for arc, (ends, cap) in arcs if cap)
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
