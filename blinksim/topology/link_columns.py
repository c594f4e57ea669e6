"""The links of a topology as columns of whole numbers, for sums over all of them at once.

A cluster has hundreds of thousands of links and few different ones: what a link can carry is a row number of
a short list of exact figures. Copies of a node repeat its columns, so that those of a cluster are put
together from two small tables (`repeated`, `beside`) without a look at any link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from operator import attrgetter

import numpy as np

from blinksim.graphs.arrays import Bools, Floats, Ints, by_place, distinct, scattered
from blinksim.topology.elements import Link

# What links have in common: bytes/s of a lane, lanes, class, latency and overhead in seconds.
Figures = tuple[Fraction, int, str, float, float]


@dataclass(frozen=True, eq=False)
class LinkColumns:
    """Links by their columns (L): src and dst, positions of devices; the row of `figures`; the bus, -1 for none.

    Rows of `figures` differ, and those that no link has may be among them.

    Examples
    --------
    >>> import blinksim as bs
    >>> table = bs.load("dgx-a100", nodes=4).link_columns
    >>> len(table.src), [figures[2] for figures in table.figures]
    (192, ['nvlink', 'nvlink', 'pcie', 'pcie', 'ib'])
    """

    src: Ints
    dst: Ints
    figure: Ints
    figures: tuple[Figures, ...]
    bus: Ints

    @classmethod
    def of(cls, links: Sequence[Link], index: Mapping[str, int]) -> LinkColumns:
        """The columns of links read one by one. index: the position of each device."""
        place, count = index.__getitem__, len(links)
        src, dst = (
            np.fromiter(map(place, map(attrgetter(end), links)), dtype=np.int64, count=count) for end in ("src", "dst")
        )
        figures = map(attrgetter("lane_bandwidth", "lanes", "kind", "latency", "overhead"), links)
        rows: dict[Figures, int] = {}
        figure = np.fromiter((rows.setdefault(row, len(rows)) for row in figures), dtype=np.int64, count=count)
        buses = [*map(attrgetter("bus"), links)]
        names = {bus: number for number, bus in enumerate(dict.fromkeys([None, *buses]), -1)}
        bus = np.fromiter(map(names.__getitem__, buses), dtype=np.int64, count=count)
        return cls(src, dst, figure, tuple(rows), bus)

    def repeated(self, times: int, devices: int) -> LinkColumns:
        """The columns of so many copies one after another, each of so many devices."""
        shift = np.repeat(np.arange(times) * devices, len(self.src))
        buses = int(self.bus.max(initial=-1)) + 1
        bus = np.tile(self.bus, times)
        bus[bus >= 0] += np.repeat(np.arange(times) * buses, len(self.bus))[bus >= 0]
        src, dst = (np.tile(ends, times) + shift for ends in (self.src, self.dst))
        return LinkColumns(src, dst, np.tile(self.figure, times), self.figures, bus)

    def beside(self, other: LinkColumns) -> LinkColumns:
        """These links and then the others, between the same devices; no bus has links of both."""
        known = {figures: row for row, figures in enumerate(self.figures)}
        # Equal figures of both are one row; a fabric of few links has few.
        rows = [known.setdefault(figures, len(known)) for figures in other.figures]
        bus = np.where(other.bus >= 0, other.bus + int(self.bus.max(initial=-1)) + 1, -1)
        figure = np.array(rows, dtype=np.int64)[other.figure]
        pairs = (self.src, other.src), (self.dst, other.dst), (self.figure, figure), (self.bus, bus)
        src, dst, figure, bus = map(np.concatenate, pairs)
        return LinkColumns(src, dst, figure, tuple(known), bus)

    @cached_property
    def bandwidths(self) -> list[Fraction]:
        """Bytes/s of each row of `figures`, all lanes together."""
        return [lane * lanes for lane, lanes, *_ in self.figures]

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The classes that occur, in the order in which they first do."""
        rows, first = np.unique(self.figure, return_index=True)
        return tuple(dict.fromkeys(self.figures[row][2] for row in rows[np.argsort(first)].tolist()))

    @cached_property
    def kind(self) -> Ints:
        """For every link the place of its class among `classes`."""
        number = {kind: place for place, kind in enumerate(self.classes)}
        return np.array([number.get(figures[2], -1) for figures in self.figures], dtype=np.int64)[self.figure]

    @cached_property
    def latency(self) -> Floats:
        """Seconds of every link."""
        return np.array([figures[3] for figures in self.figures], dtype=np.float64)[self.figure]

    @cached_property
    def overhead(self) -> Floats:
        """Seconds of every link."""
        return np.array([figures[4] for figures in self.figures], dtype=np.float64)[self.figure]

    def touched(self, devices: int) -> Bools:
        """Which of so many devices have a link."""
        return scattered(np.append(self.src, self.dst), True, devices, False)

    def crossing(self, part: Sequence[int], leaving: int | None) -> list[int]:
        """The links between different parts, by number; with `leaving`, those out of that one. part: of each device."""
        number = np.array(part, dtype=np.int64)
        a, b = number[self.src], number[self.dst]
        return np.flatnonzero(a != b if leaving is None else (a == leaving) & (b != leaving)).tolist()

    def capacity(self, chosen: Bools | Ints) -> Fraction:
        """Bytes/s that the chosen links carry together; a shared bus counts once, as its widest of them."""
        figure, bus, rates = self.figure[chosen], self.bus[chosen], self.bandwidths
        order = sorted(range(len(rates)), key=rates.__getitem__)
        counts = np.bincount(figure[bus < 0], minlength=len(rates))
        if (bus >= 0).any():
            place = scattered(order, np.arange(len(rates)), len(rates))
            widest = by_place(np.maximum, bus[bus >= 0], place[figure[bus >= 0]], int(bus.max()) + 1, -1)
            counts += np.bincount(np.array(order)[widest[widest >= 0]], minlength=len(rates))
        return sum((rate * times for rate, times in zip(rates, counts.tolist(), strict=True)), Fraction(0))

    @cached_property
    def shared(self) -> bool:
        """True if some links share a bus."""
        return bool((self.bus >= 0).any())

    @cached_property
    def goes_back(self) -> bool:
        """True if each two devices with a link one way have one the other way."""
        count = int(max(self.src.max(initial=0), self.dst.max(initial=0))) + 1
        return np.array_equal(distinct(self.src * count + self.dst), distinct(self.dst * count + self.src))
