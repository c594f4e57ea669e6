"""Directed graphs whose whole-number capacities shrink as trees are taken out, with a test of the rest.

Out-trees with k(v) of them at every root v fit into capacities g exactly if every member can receive k = sum
of k(v) units from a source that has an arc of capacity k(v) to every v (Edmonds 1973, Edge-disjoint
branchings). A set of vertices is *short* if less than k enters it, from links and from its own roots.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from blinksim.graphs.arrays import Bools, Ints
from blinksim.graphs.network import Flow, Network, guard


class Digraph:
    """Capacities by tail and head, and how many trees each root still needs.

    out: for every vertex {head: capacity}, without zeros. roots: {vertex: trees}. members: who must be
    reached.
    """

    def __init__(self, out: Sequence[Mapping[int, int]], roots: Mapping[int, int], members: Sequence[int]) -> None:
        self.out = [dict(row) for row in out]
        self.roots = {vertex: trees for vertex, trees in roots.items() if trees}
        self.members, self.count = list(members), len(out)
        self._widest = dict[int, list[tuple[int, int]]]()

    @classmethod
    def of(cls, net: Network, capacity: Sequence[int], roots: Mapping[int, int]) -> Digraph:
        """From arc arrays; parallel arcs are added up."""
        out: list[dict[int, int]] = [{} for _ in range(net.vertices)]
        for a, b, c in zip(net.tail.tolist(), net.head.tolist(), capacity, strict=True):
            if c and a != b:
                out[a][b] = out[a].get(b, 0) + c
        guard(sum(map(sum, (row.values() for row in out))) * 2 + sum(roots.values()))
        return cls(out, roots, net.members.tolist())

    @property
    def trees(self) -> int:
        """How many trees all roots together still need."""
        return sum(self.roots.values())

    def arrays(self) -> tuple[Ints, Ints, Ints]:
        """(tail, head, capacity) of all arcs."""
        tail = np.repeat(np.arange(self.count), np.fromiter(map(len, self.out), np.int64, self.count))
        head = np.fromiter((b for row in self.out for b in row), np.int64, len(tail))
        return tail, head, np.fromiter((c for row in self.out for c in row.values()), np.int64, len(tail))

    def change(self, a: int, b: int, amount: int) -> None:
        """Raise the capacity of one arc, or lower it by a negative amount."""
        self.out[a][b] = self.out[a].get(b, 0) + amount
        if not self.out[a][b]:
            del self.out[a][b]
        self._widest.pop(a, None)

    def widest(self, tail: int) -> list[tuple[int, int]]:
        """Minus capacity and head of arcs out of a vertex, the widest first; kept until a `change`."""
        if tail not in self._widest:
            self._widest[tail] = sorted((-capacity, head) for head, capacity in self.out[tail].items())
        return self._widest[tail]

    def slack(self, sets: Bools) -> Ints:
        """By how much each set (a row, boolean by vertex) gets more than it must; below 0 where it is short."""
        tail, head, capacity = self.arrays()
        # In blocks, so that many sets do not need a large matrix.
        blocks = (sets[start : start + 256] for start in range(0, len(sets), 256))
        slack = np.concatenate([(part[:, head] & ~part[:, tail]) @ capacity for part in blocks]) - self.trees
        for root, trees in self.roots.items():
            slack += sets[:, root] * trees
        return slack

    def short_sets(self, first: int = -1, most: int = 0) -> list[Bools]:
        """Sets that too little enters, each found as a least cut before one member; empty if all trees fit.

        first: the member to start with. most: stop after this many sets (0: check every member once).
        """
        tail, head, capacity = self.arrays()
        source, need = self.count, self.trees
        # One arc from the source to every member, at a known place, and one to every other root.
        ends = np.array([*dict.fromkeys((*self.members, *self.roots))], dtype=np.int64)
        supply = np.array([self.roots.get(vertex, 0) for vertex in ends.tolist()], dtype=np.int64)
        tail = np.concatenate([np.full(len(ends), source), tail])
        head = np.concatenate([ends, head])
        capacity = np.concatenate([supply, capacity])
        place = {vertex: number for number, vertex in enumerate(self.members)}
        found: list[Bools] = []
        for sink in sorted(self.members, key=lambda vertex: vertex != first):
            if capacity[place[sink]] >= need:
                continue
            flow = Flow(source + 1, tail, head, capacity, source, sink)
            if flow.value >= need:
                # No short set can hold a member that receives everything: from here on it is as good as the
                # source.
                capacity[place[sink]] = need
            else:
                found.append(~flow.side()[:source])
                if len(found) == most:
                    break
        return found


def _bits(sets: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    while sets:
        low = sets & -sets
        yield low.bit_length() - 1
        sets ^= low


class CutPool:
    """Sets of vertices that must be entered often enough, with the slack that is left of each.

    The sets are numbered; `inside[v]` has bit i set if v lies in set i, so that one operation on whole
    numbers asks a question of all sets at once. slack[i]: capacity that enters set i, plus its own roots'
    trees, minus all trees.
    """

    def __init__(self, graph: Digraph) -> None:
        self.inside = [0] * graph.count
        self.slack: list[int] = []
        self._rows: list[Bools] = []
        self._known: set[bytes] = set()

    def add(self, sets: Sequence[Bools]) -> int:
        """Remember sets (boolean by vertex) until the next `measure`; the number of those that are new."""
        before = len(self._rows)
        for row in sets:
            if (key := np.packbits(row).tobytes()) not in self._known:
                self._known.add(key)
                bit = 1 << len(self._rows)
                self._rows.append(row)
                for vertex in np.flatnonzero(row).tolist():
                    self.inside[vertex] |= bit
        return len(self._rows) - before

    def measure(self, graph: Digraph) -> None:
        """Set every slack to what `graph` has."""
        if self._rows:
            self.slack = graph.slack(np.array(self._rows)).tolist()

    def below(self, amount: int) -> int:
        """The bits of the sets with less slack than `amount` (1 or more)."""
        return int.from_bytes(np.packbits(np.less(self.slack, amount), bitorder="little").tobytes(), "little")

    def least(self, hit: int) -> int:
        """The least slack among the sets whose bits are set in `hit` (not 0)."""
        return min(self.slack[number] for number in _bits(hit))

    def pay(self, hit: int, amount: int) -> None:
        """Take `amount` of the slack of the sets in `hit`."""
        for number in _bits(hit):
            self.slack[number] -= amount
