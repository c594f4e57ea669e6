"""Delays of data: the earliest time that any is on a link, and the latest at which it arrives by the end.

All times are whole femtoseconds, rounded down, so that sums are exact and never claim more than the machine
says. Data starts at the ranks that have some to give, pays the overhead of the first link and the latency of
every link. What only passes through a device pays no overhead there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from heapq import heapify, heappop, heappush
from math import lcm
from operator import add

import numpy as np

from blinksim.bounds.certificates import Certificate
from blinksim.collective import ROOT, Collective
from blinksim.graphs.arrays import Ints, scattered
from blinksim.topology.graph import Topology
from blinksim.topology.symmetry import alike_nodes_of, candidates, encoded, orbit_labels

# Femtoseconds in a second.
SECOND = 10**15
# Femtoseconds beyond every time; and in 64 bits, far from the largest number even if a few are added up.
FAR, LONG = 10**30, 2**58
# Questions whose delays are kept in the process.
_KEPT = 64


@lru_cache(maxsize=_KEPT)
def femtoseconds(seconds: float) -> int:
    """Whole femtoseconds of the decimal number that was written, rounded down.

    >>> femtoseconds(1.9e-6)
    1900000000
    """
    return int(Fraction(repr(float(seconds))) * SECOND)


class Delays:
    """The delays of one collective on a topology, by the index of a link or device; femtoseconds.

    Attributes
    ----------
    topology, collective
        The part that takes part, and what runs on it.
    latency, overhead : list of int
        Of every link.
    src, dst : list of int
        The devices that every link joins.
    rate : list of int
        Bandwidth of every link in bytes/s, times `scale`.
    scale : int
        Makes every bandwidth whole.
    ranks : list of int
        The device of every rank.
    owners, takers : set of int
        Devices where a rank has data that others need, and where one must get data of others.
    idle_for : dict
        By the id of a certificate of a rate: itself, the price of all links, and of those idle as long.
    """

    def __init__(self, topology: Topology, collective: Collective) -> None:
        table = topology.link_columns
        rows: list[int] = table.figure.tolist()
        self.topology, self.collective = topology, collective
        latency, overhead = ([femtoseconds(figures[at]) for figures in table.figures] for at in (3, 4))
        self.latency, self.overhead = [latency[row] for row in rows], [overhead[row] for row in rows]
        self.src: list[int] = table.src.tolist()
        self.dst: list[int] = table.dst.tolist()
        self.scale = lcm(*(table.bandwidths[row].denominator for row in {*rows}))
        scaled = [int(rate * self.scale) for rate in table.bandwidths]
        self.rate = [scaled[row] for row in rows]
        self.ranks: list[int] = topology.member_places.tolist()
        self._out, self._into = ([list[int]() for _ in topology.devices] for _ in range(2))
        for link, (src, dst) in enumerate(zip(self.src, self.dst, strict=True)):
            self._out[src].append(link)
            self._into[dst].append(link)
        root = {self.ranks[collective.root]} if collective.rooted else set[int]()
        from_root, to_root = collective.starts == ROOT, collective.ends == ROOT
        self.owners = root if from_root else {*self.ranks} - (root if to_root else set())
        self.takers = root if to_root else {*self.ranks} - (root if from_root else set())
        # What symmetries must leave where it is: the root, and ranks with traffic of their own.
        self._fixed = self.ranks if collective.traffic else [*root]
        self.idle_for: dict[int, tuple[Certificate, Fraction, tuple[tuple[int, Fraction], ...]]] = {}
        # The least latency from every device to one that must get data.
        self._left = self._reached([(0, device) for device in self.takers], back=True)
        # The least latency from a device to every one; `FAR` where there is no way.
        self.onward = cache(lambda device: self._reached([(0, device)]))

    @cached_property
    def passing(self) -> list[int | None]:
        """The earliest that data of another device's rank can pass a device, or arrive there; None for never."""
        first = ((owner, link) for owner in self.owners for link in self._out[owner])
        starts = [(self.overhead[link] + self.latency[link], self.dst[link], owner) for owner, link in first]
        return [other_than(device, here) for device, here in enumerate(self.two_nearest(starts))]

    @cached_property
    def nodes_alike(self) -> list[Ints]:
        """Devices in rows, one for each of the nodes that can change places; last, all other ranks."""
        tables = alike_nodes_of(encoded(self.topology).apart(self._fixed))
        others = {*self.ranks}.difference(*(table.ravel().tolist() for table in tables))
        return [*tables, np.array([sorted(others)], dtype=np.int64)]

    def unlike(self, part: frozenset[int] = frozenset()) -> Ints:
        """Ranks that stand for all others, by symmetries that leave the part where it is."""
        rows = list[Ints]()
        for table in self.nodes_alike:
            within = np.isin(table, [*part]).any(axis=1)
            rows += [*table[within], *table[~within][:1]]
        return np.flatnonzero(np.isin(self.ranks, np.concatenate(rows)))

    def ways(self, devices: Sequence[int] | Ints) -> Ints:
        """The least time from every rank to each of these devices, the first overhead with it.

        `LONG` where there is no way, and from a rank to itself. An exchange of two nodes that are alike takes
        the ways of one to those of the other.
        """
        hops = [*zip(map(add, self.overhead, self.latency), self.dst, strict=True)]
        places = np.arange(len(self._out))
        rank = scattered(self.topology.member_places, np.arange(len(self.ranks)), len(places), -1)
        found = np.full((len(self.ranks), len(devices)), LONG)
        for first, *others in self.nodes_alike:
            held = rank[first] >= 0
            far = [self._reached([hops[link] for link in self._out[one]], one) for one in first[held].tolist()]
            known = np.array([[min(time, LONG) for time in row] for row in far])
            for node in (first, *others) if far else ():
                goes = places.copy()
                goes[node], goes[first] = first, node
                found[rank[node[held]]] = known[:, goes[devices]]
        return found

    def alike(self, things: Sequence[Sequence[frozenset[int]]]) -> list[int]:
        """For each of `things`, sets of devices, the place of the first that a symmetry takes to it."""
        number = {tuple(thing): place for place, thing in enumerate(things)}
        parts = {part for thing in things for part in thing}
        known, images = encoded(self.topology).apart(self._fixed), []
        for perm in candidates(encoded(self.topology)):
            if known.image(perm) is not None:
                to = {part: frozenset(perm[place] for place in part) for part in parts}.__getitem__
                images.append(np.array([number.get((*map(to, thing),), i) for i, thing in enumerate(things)]))
        label = orbit_labels(len(things), images)
        return [int(first) for first in np.unique(label, return_index=True)[1][label]]

    def _reached(self, first: list[tuple[int, int]], but: int | None = None, *, back: bool = False) -> list[int]:
        """When every device is reached by latencies from what is reached first; not through one of them."""
        within = None if but is None else {*range(len(self._out))} - {but}
        found = self.two_nearest([(time, device, -1) for time, device in first], within, back=back)
        return [here.get(-1, FAR) for here in found]

    def two_nearest(
        self, first: list[tuple[int, int, int]], within: Collection[int] | None = None, *, back: bool = False
    ) -> list[dict[int, int]]:
        """Of every device the two sources that reach it first by latencies, and when.

        first: (time, device, source) of what is reached at first. within: the devices that are passed; default:
        all. back: the two that every device reaches first, and a way ends at the first of them.
        """
        along, ends = (self._into, self.src) if back else (self._out, self.dst)
        found: list[dict[int, int]] = [{} for _ in along]
        heapify(first)
        while first:
            time, device, source = heappop(first)
            here = found[device]
            ended = back and device in here
            if ended or source in here or len(here) == 2 or (within is not None and device not in within):
                continue
            here[source] = time
            for link in along[device]:
                # Most devices have two sources already.
                if len(there := found[ends[link]]) < 2 and source not in there:
                    heappush(first, (time + self.latency[link], ends[link], source))
        return found

    def opens(self, link: int) -> int | None:
        """The earliest that a byte can be on the link; None if none ever is."""
        through = self.passing[self.src[link]]
        if self.src[link] not in self.owners:
            return through
        return self.overhead[link] if through is None else min(self.overhead[link], through)

    def closes(self, link: int) -> int | None:
        """How long before the end a byte must have passed the link; None if it leads nowhere."""
        left = self._left[self.dst[link]]
        return None if left >= FAR else self.latency[link] + left

    def idle(self, link: int) -> int | None:
        """How much of any schedule's time the link cannot carry what counts; None if it never can."""
        opens, closes = self.opens(link), self.closes(link)
        return None if opens is None or closes is None else opens + closes

    def first_hops(self, device: int) -> list[int]:
        """The links out of a device that lead to one that must get data."""
        return [link for link in self._out[device] if self.closes(link) is not None]

    @cached_property
    def only_ranks_hold(self) -> bool:
        """True if no relay can keep data and send it on."""
        members = {*self.ranks}
        return all(place in members for place, device in enumerate(self.topology.devices) if device.holds)

    def block(self, size: int) -> int:
        """The bytes of one rank's block: rates of links times femtoseconds, in units of one for every rank."""
        return size * self.scale * SECOND


def other_than(device: int, sources: dict[int, int]) -> int | None:
    """When the first of the sources but the device itself; None if there is none."""
    return min((time for source, time in sources.items() if source != device), default=None)


@lru_cache(maxsize=_KEPT)
def delays(topology: Topology, collective: Collective) -> Delays:
    """The delays of `collective` on a selected topology."""
    return Delays(topology, collective)
