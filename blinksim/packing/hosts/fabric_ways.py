"""Ways through a fabric of several switches: leaves under spines, levels of them, groups of a dragonfly.

Hosts whose ports end at the same switches are a leaf. Copies for every host of another leaf can fill the links between
the switches, while one copy for the leaf, which one of its hosts passes on to the others, seldom does. The hosts then
forward as much in all as before, because every byte enters every host once either way.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm

Path = tuple[int, ...]
# Pieces that a shard is cut into so that all hosts of a leaf pass on equally much.
_MOST_PIECES = 32


class FabricWays:
    """The shortest way from each switch of a fabric to each other.

    ends: the switches (numbers of devices) at the ports of every host. inner: number, ends and bandwidth of every link
    between two switches.
    """

    def __init__(self, ends: Sequence[tuple[int, ...]], inner: Mapping[int, tuple[int, int, Fraction]]) -> None:
        self.ends = tuple(ends)
        self._inner = dict(inner)
        self._out: dict[int, list[tuple[int, int]]] = {}
        for number, (a, b, _) in self._inner.items():
            self._out.setdefault(a, []).append((b, number))
        self._from: dict[int, dict[int, Path]] = {}

    @cached_property
    def leaves(self) -> tuple[tuple[int, ...], ...]:
        """The hosts by the switches that their ports end at."""
        found: dict[tuple[int, ...], list[int]] = {}
        for host, switches in enumerate(self.ends):
            found.setdefault(switches, []).append(host)
        return tuple(map(tuple, found.values()))

    @cached_property
    def leaf_of(self) -> tuple[int, ...]:
        """The number of each host's leaf."""
        place = {host: number for number, leaf in enumerate(self.leaves) for host in leaf}
        return tuple(place[host] for host in range(len(self.ends)))

    @cached_property
    def passed(self) -> tuple[tuple[Fraction, int], ...]:
        """For every leaf: the part of its hosts' shards that one host of each other leaf passes on, in how many pieces.

        A host of a small leaf has fewer to pass to, so it sends more itself, directly. With s hosts in a leaf, 1 - 1/s
        of what comes in for it is passed on inside. Shards passed on in that ratio have every host send out n - 1
        shards for n hosts, as it takes in; those of the largest leaves all are. The pieces have different hosts pass
        them on, so that all hosts of a leaf do it equally often.
        """
        sizes = [len(leaf) for leaf in self.leaves]
        most, found = max(sizes), {}
        for size in set(sizes):
            pieces = lcm(*(other // gcd(size, other) for other in sizes))
            part = Fraction(most * (size - 1), size * (most - 1)) if most > 1 else Fraction(1)
            found[size] = part, pieces if pieces <= _MOST_PIECES else 1
        return tuple(found[size] for size in sizes)

    def way(self, a: int, b: int) -> Path | None:
        """The links from one switch to another, none for the same; None if there is no way."""
        if a not in self._from:
            found: dict[int, Path] = {a: ()}
            queue = deque([a])
            while queue:
                at = queue.popleft()
                for end, number in self._out.get(at, ()):
                    if end not in found:
                        found[end] = (*found[at], number)
                        queue.append(end)
            self._from[a] = found
        return self._from[a].get(b)

    def apart(self) -> bool:
        """True if some port of a host has no way to the same port of another."""
        return any(
            self.way(start, end) is None
            for one in self.leaves
            for other in self.leaves
            for start, end in zip(self.ends[one[0]], self.ends[other[0]], strict=True)
        )

    def narrow(self, widths: Sequence[Fraction]) -> bool:
        """True if the links between switches are full before the ports, when each host sends to each other directly.

        widths: bytes/s of every port, which are used as these compare.
        """
        # In whole units of the widths, which add up quickly.
        unit = Fraction(gcd(*(width.numerator for width in widths)), lcm(*(width.denominator for width in widths)))
        units = [int(width / unit) for width in widths]
        flows: Counter[tuple[int, int]] = Counter()
        for one in self.leaves:
            for other in self.leaves:
                if one is not other:
                    for start, end, width in zip(self.ends[one[0]], self.ends[other[0]], units, strict=True):
                        flows[start, end] += len(one) * len(other) * width
        load: Counter[int] = Counter()
        for (start, end), amount in flows.items():
            for link in self.way(start, end) or ():
                load[link] += amount
        most = (len(self.ends) - 1) / unit
        return any(carried > most * self._inner[link][2] for link, carried in load.items())
