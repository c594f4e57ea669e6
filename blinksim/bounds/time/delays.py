"""How early data can be on a link, and how long before the end it must be there at the latest.

All times are whole femtoseconds, rounded down, so that sums are exact and never claim more than the machine says. Data
starts at the ranks that have some to give, pays the overhead of the first link and the latency of every link. What only
passes through a device pays no overhead there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from math import lcm

from blinksim.collective import ROOT, Collective
from blinksim.topology.graph import Topology

SECOND = 10**15
"""Femtoseconds in a second."""
FAR = 10**30
"""Femtoseconds beyond every time."""
# Questions whose delays are kept in the process.
_KEPT = 64


def femtoseconds(seconds: float) -> int:
    """Whole femtoseconds of the decimal number that was written, rounded down.

    >>> femtoseconds(1.9e-6)
    1900000000
    """
    return int(Fraction(repr(float(seconds))) * SECOND)


@dataclass(frozen=True, eq=False)
class Delays:
    """The delays of one collective on a topology, by the index of a link or device; femtoseconds.

    Attributes
    ----------
    topology, collective
        The part that takes part, and what runs on it.
    latency, overhead : tuple of int
        Of every link.
    src, dst : tuple of int
        The devices that every link joins.
    rate : tuple of int
        Bandwidth of every link in bytes/s, times `scale`.
    scale : int
        Makes every bandwidth whole.
    owners : tuple of bool
        For every device: has a rank data there that others need?
    takers : tuple of bool
        For every device: must a rank there get data of others?
    passing : tuple of int or None
        The earliest that data of another device's rank can pass a device, or arrive there; None for never.
    left : tuple of int or None
        The least latency from a device to one that must get data; 0 there, None if there is no way.
    """

    topology: Topology
    collective: Collective
    latency: tuple[int, ...]
    overhead: tuple[int, ...]
    src: tuple[int, ...]
    dst: tuple[int, ...]
    rate: tuple[int, ...]
    scale: int
    owners: tuple[bool, ...]
    takers: tuple[bool, ...]
    passing: tuple[int | None, ...]
    left: tuple[int | None, ...]

    @cached_property
    def ranks(self) -> list[int]:
        """The device of every rank."""
        found: list[int] = self.topology.member_places.tolist()
        return found

    @cached_property
    def apart(self) -> list[list[int]]:
        """The least time from every rank to every device, the first overhead with it.

        `FAR` where there is no way, and from a rank to itself.
        """
        firsts = (
            [(self.overhead[link] + self.latency[link], self.dst[link]) for link in self._out[device]]
            for device in self.ranks
        )
        return [self._reached(first, device) for first, device in zip(firsts, self.ranks, strict=True)]

    def onward(self, device: int) -> list[int]:
        """The least latency from a device to every one; `FAR` where there is no way."""
        return self._reached([(0, device)])

    def beyond(self, link: int) -> list[int]:
        """The least latency from the end of a link to every device, not back through its start; `FAR` for no way."""
        return self._reached([(0, self.dst[link])], self.src[link])

    @cached_property
    def _out(self) -> list[list[int]]:
        out: list[list[int]] = [[] for _ in self.topology.devices]
        for link, start in enumerate(self.src):
            out[start].append(link)
        return out

    def _reached(self, first: list[tuple[int, int]], but: int | None = None) -> list[int]:
        """When every device is reached by latencies from what is reached first; not through one of them."""
        reached, queue = [FAR] * len(self._out), sorted(first)
        while queue:
            time, here = heappop(queue)
            if reached[here] <= time or here == but:
                continue
            reached[here] = time
            for link in self._out[here]:
                heappush(queue, (time + self.latency[link], self.dst[link]))
        return reached

    def opens(self, link: int) -> int | None:
        """The earliest that a byte can be on the link; None if none ever is."""
        device = self.src[link]
        own = self.overhead[link] if self.owners[device] else None
        through = self.passing[device]
        return through if own is None else own if through is None else min(own, through)

    def closes(self, link: int) -> int | None:
        """How long before the end a byte must have passed the link; None if it leads nowhere."""
        left = self.left[self.dst[link]]
        return None if left is None else self.latency[link] + left

    def idle(self, link: int) -> int | None:
        """How much of any schedule's time the link cannot carry what counts; None if it never can."""
        opens, closes = self.opens(link), self.closes(link)
        return None if opens is None or closes is None else opens + closes

    def first_hops(self, device: int) -> list[int]:
        """The links out of a device that lead to one that must get data."""
        return [link for link, src in enumerate(self.src) if src == device and self.closes(link) is not None]


@lru_cache(maxsize=_KEPT)
def delays(topology: Topology, collective: Collective) -> Delays:
    """The delays of `collective` on a selected topology."""
    links, index = topology.links, topology.index
    latency = tuple(femtoseconds(link.latency) for link in links)
    overhead = tuple(femtoseconds(link.overhead) for link in links)
    src, dst = tuple(index[link.src] for link in links), tuple(index[link.dst] for link in links)
    scale = lcm(*{link.bandwidth.denominator for link in links})
    rate = tuple(int(link.bandwidth * scale) for link in links)
    ranks = [index[name] for name in topology.members]
    owners, takers = _at_first(ranks, collective), _at_last(ranks, collective)
    every = range(len(topology.devices))
    return Delays(
        topology,
        collective,
        latency,
        overhead,
        src,
        dst,
        rate,
        scale,
        tuple(device in owners for device in every),
        tuple(device in takers for device in every),
        _passing(len(every), owners, src, dst, latency, overhead),
        _left(len(every), takers, src, dst, latency),
    )


def _at_first(ranks: list[int], collective: Collective) -> set[int]:
    """The devices whose own data others need."""
    root = {ranks[collective.root]} if collective.rooted else set()
    return root if collective.starts == ROOT else {*ranks} - (root if collective.ends == ROOT else set())


def _at_last(ranks: list[int], collective: Collective) -> set[int]:
    """The devices that must get data of others."""
    root = {ranks[collective.root]} if collective.rooted else set()
    return root if collective.ends == ROOT else {*ranks} - (root if collective.starts == ROOT else set())


def _passing(
    count: int,
    owners: Iterable[int],
    src: tuple[int, ...],
    dst: tuple[int, ...],
    latency: tuple[int, ...],
    overhead: tuple[int, ...],
) -> tuple[int | None, ...]:
    """Shortest paths from the two nearest owners to every device: one of them is another than the device itself."""
    out = defaultdict[int, list[int]](list)
    for link, start in enumerate(src):
        out[start].append(link)
    queue: list[tuple[int, int, int]] = []
    for owner in owners:
        for link in out[owner]:
            heappush(queue, (overhead[link] + latency[link], dst[link], owner))
    found: list[dict[int, int]] = [{} for _ in range(count)]
    while queue:
        time, device, owner = heappop(queue)
        here = found[device]
        if owner in here or owner == device or len(here) == 2:
            continue
        here[owner] = time
        for link in out[device]:
            heappush(queue, (time + latency[link], dst[link], owner))
    return tuple(min(here.values(), default=None) for here in found)


def _left(
    count: int, takers: Iterable[int], src: tuple[int, ...], dst: tuple[int, ...], latency: tuple[int, ...]
) -> tuple[int | None, ...]:
    into = defaultdict[int, list[int]](list)
    for link, end in enumerate(dst):
        into[end].append(link)
    found: list[int | None] = [None] * count
    queue = [(0, device) for device in takers]
    while queue:
        time, device = heappop(queue)
        if found[device] is not None:
            continue
        found[device] = time
        for link in into[device]:
            heappush(queue, (time + latency[link], src[link]))
    return tuple(found)
