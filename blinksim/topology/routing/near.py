"""Which devices a route between two nodes of a cluster may pass: both nodes, and the switches between them.

Nodes are alike, so what a way through a third node would gain, the node of the receiver offers too. Of the fabric only
those switches matter that lie on a shortest way between two switches at which one of the nodes has a port.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from blinksim.structures.arrays import distinct
from blinksim.structures.union_find import joined_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

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
            self._between[key] = self._on_the_way(frozenset[int]().union(*key))
        return self._between[key]

    @property
    def inner_links(self) -> int:
        """How many pairs of switches are linked."""
        return sum(map(len, self._inner.values()))

    def _on_the_way(self, ends: Attached) -> Attached:
        hops = {end: self._hops_from(end) for end in ends}
        return ends | {
            switch
            for a in ends
            for b in ends & hops[a].keys()
            for switch, first in hops[a].items()
            if first + self._hops_from(switch).get(b, len(self.node)) == hops[a][b]
        }

    def _hops_from(self, switch: int) -> dict[int, int]:
        if switch not in self._hops:
            found, queue = {switch: 0}, deque([switch])
            while queue:
                at = queue.popleft()
                for end in self._inner[at]:
                    if end not in found:
                        found[end] = found[at] + 1
                        queue.append(end)
            self._hops[switch] = found
        return self._hops[switch]


class _Beside:
    """Where links lead, by where they begin."""

    def __init__(self, begin: Ints, end: Ints) -> None:
        order = np.argsort(begin, kind="stable")
        self._begin, self._end = begin[order], end[order]

    def of(self, place: int) -> Ints:
        """The other ends of its links."""
        first, last = np.searchsorted(self._begin, place), np.searchsorted(self._begin, place, side="right")
        return self._end[first:last]


class Between:
    """What devices without data join, whichever way links lead, so that searches in vain need not be begun.

    src, dst: where every link begins and ends. holds: whether each device holds data, so that routes should avoid it.
    """

    def __init__(self, src: Ints, dst: Ints, holds: Sequence[bool]) -> None:
        self._holds = np.array(holds, dtype=np.bool_)
        self._ahead, self._back = _Beside(src, dst), _Beside(dst, src)
        free = ~self._holds[src] & ~self._holds[dst]
        self._label = joined_labels(len(holds), src[free], dst[free])

    def may_join(self, start: int, end: int) -> bool:
        """False if no route between two devices passes only devices without data."""
        first = self._labels(self._ahead.of(start), start)
        return not first.isdisjoint(self._labels(self._back.of(end), end))

    def _labels(self, beside: Ints, own: int) -> set[int]:
        """Those of a device without data, and of such neighbours."""
        near = np.append(beside, own)
        return set(self._label[near[~self._holds[near]]].tolist())
