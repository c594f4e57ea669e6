"""Delays of data: the earliest time that any is on a link, and the latest at which it arrives by the end.

All times are whole femtoseconds, rounded down, so that sums are exact and never claim more than the machine
says. Data starts at the ranks that have some to give, pays the overhead of the first link and the latency of
every link. What only passes through a device pays no overhead there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from math import lcm

import numpy as np

from blinksim.bounds.certificates import Certificate
from blinksim.collective import ROOT, Collective
from blinksim.graphs.arrays import Bools, Ints, compressed, distinct, expand, scattered
from blinksim.topology.graph import Topology
from blinksim.topology.symmetry import alike_nodes_of, candidates, encoded, orbit_labels

# Femtoseconds in a second.
SECOND = 10**15
# Femtoseconds beyond every time; and far from that even if a few are added up: what comes later counts as if it
# came then, after minutes.
FAR, LONG = 2**63 - 1, 2**58
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
    alpha : array
        Both together.
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
        times = [[femtoseconds(figures[at]) for figures in table.figures] for at in (3, 4)]
        latency, overhead = np.array(times, dtype=np.int64)[:, table.figure]
        self.latency, self.overhead = (list[int](each.tolist()) for each in (latency, overhead))
        self.alpha, self._latency = latency + overhead, np.minimum(latency, LONG)
        self.src: list[int] = table.src.tolist()
        self.dst: list[int] = table.dst.tolist()
        self.scale = lcm(*(table.bandwidths[row].denominator for row in {*rows}))
        scaled = [int(rate * self.scale) for rate in table.bandwidths]
        self.rate = [scaled[row] for row in rows]
        self.ranks: list[int] = topology.member_places.tolist()
        # Along the links and back: the links that go on from each device, in compressed form, and their ends.
        both, count = (topology.ends, topology.ends[::-1]), len(topology.devices)
        self._along = [(*compressed(tail, count), tail, head) for tail, head in both]
        root = {self.ranks[collective.root]} if collective.rooted else set[int]()
        from_root, to_root = collective.starts == ROOT, collective.ends == ROOT
        self.owners = root if from_root else {*self.ranks} - (root if to_root else set())
        self.takers = root if to_root else {*self.ranks} - (root if from_root else set())
        # What symmetries must leave where it is: the root, and ranks with traffic of their own.
        self._fixed = self.ranks if collective.traffic else [*root]
        self.idle_for: dict[int, tuple[Certificate, Fraction, tuple[tuple[int, Fraction], ...]]] = {}
        # The least latency from every device to one that must get data.
        self._left = self._reached(self.takers, back=True)
        # The least latency from a device to every one.
        self.onward = cache(lambda device: self._reached([device]))

    @cached_property
    def passing(self) -> list[int | None]:
        """The earliest that data of another device's rank can pass a device, or arrive there; None for never."""
        (src, dst), every = self.topology.ends, np.arange(len(self.topology.devices))
        out = np.isin(src, [*self.owners])
        found = self.from_others((self.alpha[out], dst[out], src[out]), every, every)
        return [None if time == FAR else time for time in found.tolist()]

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
        src, dst = self.topology.ends
        places = np.arange(len(self.topology.devices))
        rank = scattered(self.topology.member_places, np.arange(len(self.ranks)), len(places), -1)
        found = np.full((len(self.ranks), len(devices)), LONG)
        for first, *others in self.nodes_alike:
            held = rank[first] >= 0
            out = [(src == one, dst != one) for one in first[held].tolist()]
            far = [self._nearest(self.alpha[own], dst[own], dst[own], passed)[0] for own, passed in out]
            for node in (first, *others) if far else ():
                goes = places.copy()
                goes[node], goes[first] = first, node
                found[rank[node[held]]] = np.minimum(far, LONG)[:, goes[devices]]
        return found

    def since(self, devices: Sequence[int]) -> Ints:
        """When data of the ranks of these devices reaches each device at the earliest."""
        src, dst = self.topology.ends
        out = np.isin(src, devices)
        return self._nearest(self.alpha[out], dst[out], dst[out], np.ones(len(src), np.bool_))[0]

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

    def _reached(self, devices: Collection[int], *, back: bool = False) -> list[int]:
        """When every device is reached by latencies from those reached at 0; `FAR` where there is no way."""
        first = np.array([*devices], dtype=np.int64)
        every = np.ones(len(self.src), np.bool_)
        return list[int](self._nearest(0 * first, first, first, every, back)[0].tolist())

    def _nearest(self, time: Ints, device: Ints, source: Ints, passed: Bools, back: bool = False) -> tuple[Ints, Ints]:
        """When every device is reached by latencies, and from which source; `FAR` and -1 where from none.

        time, device, source: what is reached at first. passed: the links that count. All that were reached
        sooner go on together, until there are none (Moore 1959).
        """
        starts, links, _, head = self._along[back]
        best, near = (np.full(len(starts) - 1, other) for other in (FAR, -1))
        while len(time):
            sooner = time < best[device]
            time, device, source = np.minimum(time, LONG)[sooner], device[sooner], source[sooner]
            np.minimum.at(best, device, time)
            least = time == best[device]
            near[device[least]] = source[least]
            front = distinct(device)
            position, link = expand(starts, links, front)
            tail, link = front[position[passed[link]]], link[passed[link]]
            time, device, source = best[tail] + self._latency[link], head[link], near[tail]
        return best, near

    def from_others(
        self, first: tuple[Ints, Ints, Ints], at: Ints, but: Ints, within: Bools | None = None, back: bool = False
    ) -> Ints:
        """When each of some devices is reached by the first source but the one beside it; `FAR` if by none.

        first: times, devices and sources of what is reached at first. at, but: the devices, and those sources.
        within: which devices are passed; default: all. back: how soon they reach sources, where a way ends at
        the first.
        """
        (time, device, source), (*_, tail, head) = first, self._along[back]
        passed = np.ones(len(tail), np.bool_) if within is None else within[tail] & within[head]
        passed[back & np.isin(head, device)] = False
        best, near = self._nearest(time, device, source, passed, back)
        # The second comes from a device with another first, or with the second of one with the same first.
        turn, more = passed & (near[tail] != near[head]) & (near[tail] >= 0), source != near[device]
        times = np.append(time[more], best[tail[turn]] + self._latency[turn])
        device = np.append(device[more], head[turn])
        second, _ = self._nearest(times, device, device, passed, back)
        return np.where(near[at] != but, best[at], second[at])

    @cached_property
    def opens(self) -> list[int]:
        """Of every link the earliest that a byte can be on it; `FAR` if none ever is."""
        src, _ = self.topology.ends
        through = np.array([FAR if time is None else time for time in self.passing])[src]
        return list[int](np.where(np.isin(src, [*self.owners]), np.minimum(self.overhead, through), through).tolist())

    @cached_property
    def closing(self) -> list[int]:
        """Of every link how long before the end a byte must have passed it; `FAR` if it leads nowhere."""
        left = np.array(self._left)[self.topology.ends[1]]
        return list[int](np.where(left == FAR, FAR, self.latency + np.minimum(left, LONG)).tolist())

    def closes(self, link: int) -> int | None:
        """As `closing`; None if the link leads nowhere."""
        return None if self.closing[link] == FAR else self.closing[link]

    def idle(self, link: int) -> int | None:
        """How much of any schedule's time the link cannot carry what counts; None if it never can."""
        ends = self.opens[link], self.closing[link]
        return None if FAR in ends else sum(ends)

    def first_hops(self, device: int) -> list[int]:
        """The links out of a device that lead to one that must get data."""
        starts, links, *_ = self._along[False]
        leaving = links[starts[device] : starts[device + 1]].tolist()
        return [link for link in leaving if self.closes(link) is not None]

    @cached_property
    def only_ranks_hold(self) -> bool:
        """True if no relay can keep data and send it on."""
        members = {*self.ranks}
        return all(place in members for place, device in enumerate(self.topology.devices) if device.holds)

    def block(self, size: int) -> int:
        """The bytes of one rank's block: rates of links times femtoseconds, in units of one for every rank."""
        return size * self.scale * SECOND


@lru_cache(maxsize=_KEPT)
def delays(topology: Topology, collective: Collective) -> Delays:
    """The delays of `collective` on a selected topology."""
    return Delays(topology, collective)
