"""Allreduce: what each rank of one part contributes must cross to each rank of the other part.

Early, few contributions can have come together in what crosses; late, what crosses can still reach a few ranks only.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import combinations

from blinksim.bounds.time.delays import Delays, delays
from blinksim.bounds.time.theorems.messages import Spreading
from blinksim.bounds.time.theorems.theorem import Theorem, block, only_ranks_hold, units
from blinksim.bounds.time.time_certificate import amount, carried
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Topology

Place = Iterable[Iterable[str]]
# Ranks up to which the ways between all of them are looked for, and up to which any part of them may be the place.
_MOST, _ANY = 64, 8
# Longer than any bound, and far from the largest number of 64 bits even if a few are added up.
_LONG = 2**58


class CrossingPairs(Theorem):
    """Every pair of a rank outside and one inside needs a crossing of its own, or shares one with other pairs.

    Follow what a rank outside contributes to an element on its way to a rank inside, and take the last link on which it
    crosses. A message that can be on the link at t started at some rank a while before, with what this rank can have
    heard by then from ranks outside: N(t) of them at most. It ends at some rank a while later; from there, messages
    inside reach M(T - t) ranks at most. So a byte that crosses at t serves N(t) M(T - t) pairs at most.
    """

    kind = "crossing-pairs"

    def __init__(self, facts: Delays, size: int, inside: set[int]) -> None:
        self.facts, self.size = facts, size
        self.takers = [rank for rank, device in enumerate(facts.ranks) if device in inside]
        self.givers = [rank for rank, device in enumerate(facts.ranks) if device not in inside]
        if not self.takers or not self.givers:
            raise InputError("crossing-pairs: the ranks are all on one side")
        self.inside = inside

    @classmethod
    def stated(cls, topology: Topology, collective: Collective, size: int, where: Place) -> CrossingPairs:
        """where: the devices of the part inside."""
        names = [name for part in where for name in part]
        if any(name not in topology.index for name in names) or len({*names}) != len(names):
            raise InputError(f"crossing-pairs: the part is no list of devices of {topology.name}")
        facts = delays(topology, collective)
        if collective.name != "allreduce" or topology.ranks > _MOST or not only_ranks_hold(facts):
            raise InputError(f"crossing-pairs says nothing about {collective} on {topology.name}")
        return cls(facts, size, {topology.index[name] for name in names})

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> list[tuple[tuple[str, ...], ...]]:
        facts = delays(topology, collective)
        if collective.name != "allreduce" or not 1 < topology.ranks <= _MOST or not only_ranks_hold(facts):
            return []
        names = [device.name for device in topology.devices]
        return [(tuple(name for device, name in enumerate(names) if device in part),) for part in _parts(facts)]

    @cached_property
    def waits(self) -> tuple[list[int], list[int]]:
        """Rates, and how long each has nothing to carry: the k-th contribution and the j-th rank with every link."""
        import numpy as np

        facts, everyone = self.facts, range(len(self.facts.ranks))
        links = _crossing(facts, self.inside)
        apart = np.array([[min(facts.apart[a][b], _LONG) for b in facts.ranks] for a in everyone], dtype=np.int64)
        np.fill_diagonal(apart, 0)
        ends = {facts.dst[link]: facts.onward(facts.dst[link]) for link in links}
        # start (link, rank): from a rank to the link. end (link, rank): from the link to a rank inside.
        start = [[self._start(rank, link) for rank in everyone] for link in links]
        end = [
            [min(facts.latency[link] + ends[facts.dst[link]][facts.ranks[rank]], _LONG) for rank in self.takers]
            for link in links
        ]
        spreading = Spreading.among(facts, self.inside)
        jumps = [0] if spreading is None else spreading.jumps(len(self.takers))
        jumps += [_LONG] * (len(self.takers) - len(jumps))
        # heard (k, rank): until a rank has heard from k + 1 outside. reached (rank, j): until it has told j inside.
        heard = np.sort(apart[self.givers], axis=0)
        reached = np.maximum(np.sort(apart[np.ix_(self.takers, self.takers)], axis=1), jumps)
        before = (np.array(start, dtype=np.int64)[:, None, :] + heard).min(axis=2)
        after = (np.array(end, dtype=np.int64)[:, :, None] + reached).min(axis=1)
        total = np.minimum((before[:, :, None] + after[:, None, :]).reshape(len(links), -1), _LONG)
        waits = dict[int, int]()
        for link, row in zip(links, total.tolist(), strict=True):
            for wait in row:
                waits[wait] = waits.get(wait, 0) + facts.rate[link] * facts.topology.ranks
        return [*waits.values()], [*waits]

    def _start(self, rank: int, link: int) -> int:
        facts, src = self.facts, self.facts.src[link]
        return facts.overhead[link] if facts.ranks[rank] == src else min(facts.apart[rank][src], _LONG)

    def there(self, time: int) -> int:
        return carried(*self.waits, time)

    def needed(self, time: int) -> int:
        return block(self.facts, self.size) * self.facts.topology.ranks * len(self.givers) * len(self.takers)

    def unit(self) -> int:
        return units(self.facts)

    def words(self, time: int) -> str:
        return (
            f"{amount(Fraction(self.size))} of each of {len(self.givers)} ranks must get to each of {len(self.takers)} "
            f"others; what crosses early has few contributions in it, what crosses late reaches few ranks"
        )


@lru_cache(maxsize=64)
def _parts(facts: Delays) -> tuple[frozenset[int], ...]:
    """Parts of the machine: nodes, or as many ranks as can be, with the least bandwidth into them; one of a kind."""
    devices, everyone = facts.topology.devices, frozenset(range(len(facts.topology.devices)))
    hosts = {devices[rank].node for rank in facts.ranks}
    if len(hosts) > 1:
        return tuple(frozenset(d for d in everyone if devices[d].node == host) for host in sorted(hosts))
    relays, n = everyone - {*facts.ranks}, len(facts.ranks)
    found = list[frozenset[int]]()
    for count in (1, n - 1) if relays or n > _ANY else range(1, n):
        # Switches go with the larger part, so that the ports of the smaller one are what is crossed.
        inside = relays if 2 * count > n else frozenset[int]()
        chosen = [frozenset(ranks) | inside for ranks in combinations(facts.ranks, count)]
        into = [sum(facts.rate[link] for link in _crossing(facts, part)) for part in chosen]
        least = [part for part, rate in zip(chosen, into, strict=True) if rate == min(into)]
        found += {_kind(facts, part): part for part in reversed(least)}.values()
    return tuple(found)


def _crossing(facts: Delays, inside: Container[int]) -> list[int]:
    return [link for link, src in enumerate(facts.src) if src not in inside and facts.dst[link] in inside]


def _kind(facts: Delays, inside: frozenset[int]) -> tuple[object, ...]:
    """What parts that do not differ have in common: links into them, and ways between the ranks of either side."""
    links = sorted((facts.rate[e], facts.overhead[e], facts.latency[e]) for e in _crossing(facts, inside))
    ways = [
        sorted(sorted(facts.apart[a][b] for b in side) for a, device in enumerate(facts.ranks) if device in side)
        for side in (inside & {*facts.ranks}, {*facts.ranks} - inside)
    ]
    return tuple(links), str(ways)
