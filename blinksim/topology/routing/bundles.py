"""The links of neighbours taken together: parallel ones count as one with the sum of their bandwidths.

A search of a large cluster looks at a few devices, so their neighbours are put together when they are asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import TYPE_CHECKING

import numpy as np

from blinksim.structures.arrays import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from blinksim.topology.graph import Topology

# Ways that a pair of devices divides its data among.
MOST_WAYS = 64
Bundle = tuple[int, ...]
"""Links to take in turn; of parallel links a wide one stands there more often than a narrow one."""
Neighbours = Mapping[int, tuple[Bundle, int]]
"""For each neighbour of a device the links there, and the rank of their width among all widths."""


class Bundles:
    """The neighbours of every device, by its position; in the order in which links to them first occur.

    Examples
    --------
    >>> import blinksim as bs
    >>> machine = bs.load("dgx1-v100")
    >>> Bundles(machine)[machine.index["gpu0"]][machine.index["gpu3"]]
    ((2,), 1)
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        table, count = topology.link_columns, len(topology.devices)
        order = np.argsort(table.src, kind="stable")
        self._links = order
        self._start = np.concatenate([[0], np.cumsum(np.bincount(table.src, minlength=count))]).tolist()
        self._found: dict[int, Neighbours] = {}
        # The links of a device by the label of where they lead.
        self._sorted: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        several = {links: self._width(links) for links in self._parallel()}
        # Integers compare faster than fractions: rank the widths.
        rates = table.bandwidths
        used = distinct(table.figure).tolist()
        place = {width: rank for rank, width in enumerate(sorted({*map(rates.__getitem__, used), *several.values()}))}
        self._rank = [place.get(rate, -1) for rate in rates]
        self._several = {links: (self._weighted(links), place[width]) for links, width in several.items()}

    def __getitem__(self, device: int) -> Neighbours:
        found = self._found.get(device)
        if found is None:
            found = self._found[device] = self._neighbours(device)
        return found

    def all_single(self) -> bool:
        """True if one link at most is taken between any two devices."""
        return all(len(bundle) == 1 for bundle, _ in self._several.values())

    def leading(self, device: int, label: NDArray[np.int64], wanted: int) -> Neighbours:
        """Its neighbours with a label, of those of all devices, which are always the same."""
        found = self._sorted.get(device)
        if found is None:
            own = self._links[self._start[device] : self._start[device + 1]]
            labels = label[self._topology.link_columns.dst[own]]
            order = np.argsort(labels, kind="stable")
            found = self._sorted[device] = labels[order], own[order]
        labels, own = found
        return self._joined(own[np.searchsorted(labels, wanted) : np.searchsorted(labels, wanted, side="right")])

    def _neighbours(self, device: int) -> Neighbours:
        return self._joined(self._links[self._start[device] : self._start[device + 1]])

    def _joined(self, own: NDArray[np.int64]) -> Neighbours:
        """Where these links of a device lead: all that it has there."""
        table, figure = self._topology.link_columns, self._topology.link_columns.figure
        joined: dict[int, list[int]] = {}
        for number, head in zip(own.tolist(), table.dst[own].tolist(), strict=True):
            joined.setdefault(head, []).append(number)
        return {
            end: ((links[0],), self._rank[figure[links[0]]]) if len(links) == 1 else self._several[tuple(links)]
            for end, links in joined.items()
        }

    def _parallel(self) -> Iterator[Bundle]:
        """The links of every two devices with more than one, in their order."""
        table = self._topology.link_columns
        key = table.src * len(self._topology.devices) + table.dst
        order = np.argsort(key, kind="stable")
        cuts = np.flatnonzero(np.diff(key[order])) + 1
        starts, ends = np.concatenate([[0], cuts]), np.concatenate([cuts, [len(key)]])
        for group in np.flatnonzero(ends - starts > 1).tolist():
            yield tuple(order[starts[group] : ends[group]].tolist())

    def _width(self, links: Sequence[int]) -> Fraction:
        """Bytes/s of parallel links together; a bus counts once."""
        chosen = [self._topology.links[i] for i in links]
        buses = {link.bus: link.bandwidth for link in chosen if link.bus is not None}
        return sum((link.bandwidth for link in chosen if link.bus is None), sum(buses.values(), start=Fraction(0)))

    def _weighted(self, links: Sequence[int]) -> Bundle:
        """Parallel links, each as often as its bandwidth demands; only the widest if that needs too many turns."""
        chosen = {i: self._topology.links[i] for i in links}
        on_bus = Counter(link.bus for link in chosen.values())
        share = {i: link.bandwidth / (1 if link.bus is None else on_bus[link.bus]) for i, link in chosen.items()}
        unit = Fraction(
            gcd(*(rate.numerator for rate in share.values())), lcm(*(rate.denominator for rate in share.values()))
        )
        if sum(share.values()) > MOST_WAYS * unit:
            widest = max(share.values())
            return tuple(i for i, rate in share.items() if rate == widest)
        return tuple(i for i, rate in share.items() for _ in range(int(rate / unit)))
