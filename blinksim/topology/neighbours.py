"""Neighbours of devices for a search of routes.

Parallel links count as one with the sum of their bandwidths. A search of a large cluster looks at a few
devices, so their neighbours are put together when they are asked for. A route between two nodes passes both
nodes and the switches between them only: nodes are alike, so what a route through a third node would gain, the
node of the receiver offers too. Of the fabric only those switches matter that lie on a shortest route between
two switches at which one of the nodes has a port.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import TYPE_CHECKING

import numpy as np

from blinksim.graphs.arrays import distinct
from blinksim.graphs.connectivity import breadth_first, joined_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from blinksim.topology.graph import Topology

    Ints = NDArray[np.int64]

# Routes that a pair of devices divides its data among.
MOST_ROUTES = 64
Bundle = tuple[int, ...]
"""Links to take in rotation; of parallel links a wide one stands there more often than a narrow one."""
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
        # The links of a device by the node where they lead.
        self._sorted: dict[int, tuple[Ints, Ints]] = {}
        self._into: dict[tuple[int, int], Iterable[tuple[int, tuple[Bundle, int]]]] = {}
        several = dict[Bundle, Fraction]()
        for links in self._parallel():
            # A bus counts once.
            chosen = [topology.links[i] for i in links]
            buses = {link.bus: link.bandwidth for link in chosen if link.bus is not None}
            alone = (link.bandwidth for link in chosen if link.bus is None)
            several[links] = sum(alone, start=sum(buses.values(), start=Fraction(0)))
        # Integers compare faster than fractions: rank the widths.
        rates = table.bandwidths
        used = distinct(table.figure).tolist()
        place = {width: rank for rank, width in enumerate(sorted({*map(rates.__getitem__, used), *several.values()}))}
        self._rank = [place.get(rate, -1) for rate in rates]
        self._several = {links: (self._weighted(links), place[width]) for links, width in several.items()}

    def __getitem__(self, device: int) -> Neighbours:
        found = self._found.get(device)
        if found is None:
            found = self._found[device] = self._joined(self._links[self._start[device] : self._start[device + 1]])
        return found

    def all_single(self) -> bool:
        """True if one link at most is taken between any two devices."""
        return all(len(bundle) == 1 for bundle, _ in self._several.values())

    def leading(self, device: int, node: int) -> Iterable[tuple[int, tuple[Bundle, int]]]:
        """Its neighbours in a node, with the links there."""
        found = self._into.get((device, node))
        if found is None:
            if device not in self._sorted:
                own = self._links[self._start[device] : self._start[device + 1]]
                nodes = self._topology.device_nodes[self._topology.link_columns.dst[own]]
                order = np.argsort(nodes, kind="stable")
                self._sorted[device] = nodes[order], own[order]
            nodes, own = self._sorted[device]
            first, last = (np.searchsorted(nodes, node, side=side) for side in ("left", "right"))
            found = self._into[device, node] = self._joined(own[first:last]).items()
        return found

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

    def _weighted(self, links: Sequence[int]) -> Bundle:
        """Parallel links, each as often as its bandwidth demands; only the widest if that needs too many."""
        chosen = {i: self._topology.links[i] for i in links}
        on_bus = Counter(link.bus for link in chosen.values())
        share = {i: link.bandwidth / (1 if link.bus is None else on_bus[link.bus]) for i, link in chosen.items()}
        unit = Fraction(
            gcd(*(rate.numerator for rate in share.values())), lcm(*(rate.denominator for rate in share.values()))
        )
        if sum(share.values()) > MOST_ROUTES * unit:
            widest = max(share.values())
            return tuple(i for i, rate in share.items() if rate == widest)
        return tuple(i for i, rate in share.items() for _ in range(int(rate / unit)))


OUTSIDE = -1
"""The node of devices that join nodes."""

Attached = frozenset[int]


class Neighbourhood:
    """The devices of a cluster as searches of routes see them.

    node: of every device. src, dst: where every link begins and ends.
    """

    def __init__(self, node: Sequence[int], src: Ints, dst: Ints) -> None:
        self.node = node
        of = np.array(node, dtype=np.int64)
        outside = of == OUTSIDE
        between = outside[src] & outside[dst]
        self._inner: dict[int, list[int]] = {place: [] for place in np.flatnonzero(outside).tolist()}
        for a, b in dict.fromkeys(zip(src[between].tolist(), dst[between].tolist(), strict=True)):
            self._inner[a].append(b)
        # Where a node has a port, whichever way its link leads.
        a, b = np.concatenate([src, dst]), np.concatenate([dst, src])
        at = ~outside[a] & outside[b]
        ports = np.divmod(distinct(of[a[at]] * len(node) + b[at]), len(node))
        numbers, first = np.unique(ports[0], return_index=True)
        parts = np.split(ports[1], first[1:])
        self._attached = {
            number: frozenset(part.tolist()) for number, part in zip(numbers.tolist(), parts, strict=True)
        }
        self._hops: dict[int, dict[int, int]] = {}
        self._between: dict[frozenset[Attached], Attached] = {}

    def switches(self, a: int, b: int) -> Attached:
        """The switches of the fabric that routes between the nodes `a` and `b` may pass."""
        key = frozenset(self._attached.get(node, frozenset()) for node in (a, b))
        if key not in self._between:
            ends = frozenset[int]().union(*key)
            hops = {end: self._hops_from(end) for end in ends}
            self._between[key] = ends | {
                switch
                for a in ends
                for b in ends & hops[a].keys()
                for switch, first in hops[a].items()
                if first + self._hops_from(switch).get(b, len(self.node)) == hops[a][b]
            }
        return self._between[key]

    @property
    def inner_links(self) -> int:
        """How many pairs of switches are linked."""
        return sum(map(len, self._inner.values()))

    def _hops_from(self, switch: int) -> dict[int, int]:
        if switch not in self._hops:
            (_, *reached), hops = breadth_first(switch, self._inner.__getitem__).items(), {switch: 0}
            for other, before in reached:
                hops[other] = hops[before] + 1
            self._hops[switch] = hops
        return self._hops[switch]


class Between:
    """What devices without data join, whichever way links lead, so that searches in vain need not be begun.

    src, dst: where every link begins and ends. holds: whether each device holds data, so that routes should
    avoid it.
    """

    def __init__(self, src: Ints, dst: Ints, holds: Sequence[bool]) -> None:
        self._holds = np.array(holds, dtype=np.bool_)
        # Where links lead, by where they begin; and where they begin, by where they lead.
        orders = np.argsort(src, kind="stable"), np.argsort(dst, kind="stable")
        self._ahead, self._back = (src[orders[0]], dst[orders[0]]), (dst[orders[1]], src[orders[1]])
        free = ~self._holds[src] & ~self._holds[dst]
        self._label = joined_labels(len(holds), src[free], dst[free])

    def may_join(self, start: int, end: int) -> bool:
        """False if no route between two devices passes only devices without data."""
        return not self._labels(*self._ahead, start).isdisjoint(self._labels(*self._back, end))

    def _labels(self, begin: Ints, ends: Ints, own: int) -> set[int]:
        """Those of a device without data, and of such neighbours."""
        first, last = np.searchsorted(begin, own), np.searchsorted(begin, own, side="right")
        near = np.append(ends[first:last], own)
        return set(self._label[near[~self._holds[near]]].tolist())
