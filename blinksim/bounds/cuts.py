"""The tightest cut: least capacity out of a set of devices over the data that must leave it, exactly.

Discrete Newton (Dinkelbach 1967) over minimum cuts: at the present ratio x, connect a source to every vertex with x
times its weight; a sink that cannot receive all of it shows a set with a smaller ratio. Each ratio is a quotient of
whole numbers, and the last set is the witness. For trees the bound is attained (Edmonds 1973).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from blinksim.errors import InfeasibleError
from blinksim.graphs.maxflow import Flow
from blinksim.graphs.network import Array, Network, guard

Mask = NDArray[np.bool_]


class _Hosts:
    """The arcs of each host with those that join it to the fabric: small pieces in which most sinks can be served."""

    def __init__(self, net: Network) -> None:
        a, b = net.host[net.tail], net.host[net.head]
        own = np.where(a == b, a, np.where(a < 0, b, np.where(b < 0, a, -2)))
        self._arcs = self._grouped(own)
        self._vertices = self._grouped(net.host)
        self._none = np.zeros(0, dtype=np.int64)
        self._local = np.zeros(net.vertices, dtype=np.int64)
        self.useful = len(self._vertices) > 3

    @staticmethod
    def _grouped(key: Array) -> dict[int, Array]:
        order = np.argsort(key, kind="stable")
        values, starts = np.unique(key[order], return_index=True)
        return dict(zip(values.tolist(), np.split(order, starts[1:]), strict=True))

    def piece(self, hosts: Sequence[int]) -> tuple[Array, Array, Array]:
        """(vertices, arcs, place of every vertex among them) of some hosts and the fabric."""
        which = dict.fromkeys((*hosts, -1))
        vertices = np.concatenate([self._vertices.get(host, self._none) for host in which])
        arcs = np.concatenate([self._arcs.get(host, self._none) for host in which])
        self._local[vertices] = np.arange(len(vertices))
        return vertices, arcs, self._local


class _Search:
    """State of one search: the ratio and its witness, and the sinks already served at it."""

    def __init__(self, net: Network, weight: Array) -> None:
        self.net, self.weight, self.total = net, weight, int(weight.sum())
        self.out = np.zeros(net.vertices, dtype=np.int64)
        np.add.at(self.out, net.tail, net.capacity)
        self.served = np.zeros(net.vertices, dtype=bool)
        self.ratio, self.side = Fraction(0), self.served
        self._sum = int(net.capacity.sum())

    def start(self, sinks: Array) -> None:
        """Begin with the best of the cuts around one sink."""
        entering = np.zeros(self.net.vertices, dtype=np.int64)
        np.add.at(entering, self.net.head, self.net.capacity)
        rest = self.total - self.weight[sinks]
        first = int(np.argmin(entering[sinks] / rest))
        self.ratio = Fraction(int(entering[sinks][first]), int(rest[first]))
        self.side = np.ones(self.net.vertices, dtype=bool)
        self.side[sinks[first]] = False

    def flow(
        self, sink: int, vertices: Array | None = None, arcs: Array | None = None, place: Array | None = None
    ) -> Flow:
        """The flow into `sink` at the present ratio, in the whole network or in a piece of it."""
        p, q = self.ratio.numerator, self.ratio.denominator
        net, served, out, weight = self.net, self.served, self.out, self.weight
        if vertices is None or arcs is None or place is None:
            tail, head, capacity, count = net.tail, net.head, net.capacity, net.vertices
        else:
            tail, head, capacity = place[net.tail[arcs]], place[net.head[arcs]], net.capacity[arcs]
            served, out, weight = served[vertices], out[vertices], weight[vertices]
            sink, count = int(place[sink]), len(vertices)
        # A served vertex may send any amount: no cut with it on the far side can be violated any more.
        supply = np.where(served, out * q, weight * p)
        sources = np.flatnonzero(supply)
        return Flow(
            count + 1,
            np.concatenate([np.full(len(sources), count), tail]),
            np.concatenate([sources, head]),
            np.concatenate([supply[sources], capacity * q]),
            count,
            sink,
        )

    def improve(self, sink: int) -> None:
        """Lower the ratio until `sink` can receive everything."""
        while True:
            p, q = self.ratio.numerator, self.ratio.denominator
            guard(2 * q * self._sum + p * self.total)
            flow = self.flow(sink)
            if flow.value >= p * self.total:
                return
            side = flow.side()[:-1] | self.served
            crossing = side[self.net.tail] & ~side[self.net.head]
            self.ratio = Fraction(int(self.net.capacity[crossing].sum()), int(self.weight[side].sum()))
            self.side = side
            if not self.ratio:
                return

    def serve(self, sink: int, orbit: Array, hosts: _Hosts, reference: int) -> None:
        """Check one sink, in a piece if that suffices, and with it all of its orbit."""
        if hosts.useful:
            own = int(self.net.host[sink])
            near = hosts.piece((own, reference))
            if self.flow(sink, *near).value >= self.ratio.numerator * self.total:
                self.served[orbit] = True
                return
        self.improve(sink)
        self.served[orbit] = True


def tightest(net: Network, weight: Array, sinks: Array, orbits: Sequence[Array] = ()) -> tuple[Fraction, Mask]:
    """The least capacity-over-weight ratio of all sets that lack a sink, in units of `net`, and such a set of vertices.

    weight: whole number per vertex, what a set that holds the vertex must send. sinks: vertices that all must receive.
    orbits: groups of equivalent sinks; one of each group is checked. Raises `InfeasibleError` if some sink
    cannot be reached. Flows: one per sink or orbit, most of them on a small piece, and one per improvement.
    """
    search = _Search(net, weight)
    search.start(sinks)
    hosts = _Hosts(net)
    groups = {int(group[0]): group for group in orbits} or {sink: np.array([sink]) for sink in sinks.tolist()}
    reference = -1
    p = search.ratio
    guard(2 * p.denominator * int(net.capacity.sum()) + p.numerator * search.total)
    for sink, group in sorted(groups.items(), key=lambda entry: int(net.host[entry[0]])):
        if len(groups) == 1:
            search.improve(sink)
            break
        search.serve(sink, group, hosts, reference)
        if not search.ratio:
            raise InfeasibleError("the links do not reach every member")
        # Serving a host from its predecessor keeps the pieces small; within a host, from itself.
        reference = int(net.host[sink])
    if not search.ratio:
        raise InfeasibleError("the links do not reach every member")
    return search.ratio, search.side
