"""Which devices a route between two nodes of a cluster may pass: both nodes, and the switches between them.

Nodes are alike, so what a way through a third node would gain, the node of the receiver offers too. Of the fabric only
those switches matter that lie on a shortest way between two switches at which one of the nodes has a port.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

OUTSIDE = -1
"""The node of devices that join nodes."""

Attached = frozenset[int]


class Neighbourhood:
    """The devices of a cluster as searches of routes see them.

    node: of every device. out: for every device, those that its links lead to.
    """

    def __init__(self, node: Sequence[int], out: Sequence[Sequence[int]]) -> None:
        self.node = node
        self._inner = {
            place: [end for end in out[place] if node[end] == OUTSIDE]
            for place in range(len(node))
            if node[place] == OUTSIDE
        }
        ports: dict[int, set[int]] = {}
        for place, ends in enumerate(out):
            for end in ends:
                if (node[place] == OUTSIDE) != (node[end] == OUTSIDE):
                    inside, switch = (place, end) if node[end] == OUTSIDE else (end, place)
                    ports.setdefault(node[inside], set()).add(switch)
        self._attached = {number: frozenset(switches) for number, switches in ports.items()}
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
