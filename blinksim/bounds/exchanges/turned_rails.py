"""Rails of nodes that symmetries turn into each other: read in one node, and what equal blocks load, by orbits.

Tens of thousands of ranks have a billion pairs, but what one node sends to all others says it all: its images under the
group are what the others send, and what all of them load is spread evenly over the orbits of links.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import overload
from weakref import ref

import numpy as np

from blinksim.bounds.exchanges.rails import Floats, Ints, Rails, Route, Table, Uses
from blinksim.errors import InfeasibleError
from blinksim.schedule.turned.symmetric import Pool
from blinksim.topology.graph import Topology
from blinksim.topology.group import Turns, node_turns


@dataclass(frozen=True, eq=False)
class TurnedRails(Rails):
    """Rails whose nodes are images of the first one under the elements of `turns`; members keep their places."""

    turns: Turns

    def routes(self, ways: Sequence[Sequence[Route]], places: Ints, turn: int) -> Table:
        return ways.routes(places, turn) if isinstance(ways, Images) else super().routes(ways, places, turn)

    @cached_property
    def trunks(self) -> dict[tuple[int, int], Sequence[Route]]:
        """As those of all nodes, but from the switches of the first node only."""
        router, pairs = self.topology.router, ((out, into) for out, into, _ in self._crossings())
        return {pair: router.ways(*pair) for pair in dict.fromkeys(pairs)}

    def _crossings(self) -> Iterator[tuple[int, int, int]]:
        """For every way of the first node: its switch, another where such ways enter nodes, and how many nodes."""
        for k, v in product(range(self.local), range(self.exit.shape[2])):
            out = int(self.exit[0, k, v])
            entries, times = np.unique(self.entry[1:, k, v], return_counts=True)
            yield from (
                (out, into, many) for into, many in zip(entries.tolist(), times.tolist(), strict=True) if into != out
            )

    @cached_property
    def alike(self) -> bool:
        """True if all members' ways to the fabric have the same rate, and those from it."""
        for ways in (self.up, self.down):
            uses = Uses.of([ways[k] for k in range(self.local)], self.resources)
            rate = np.full(self.local, np.inf)
            np.minimum.at(rate, uses.route, self.resources.rates[uses.resource] / uses.part)
            if len(np.unique(rate)) > 1:
                return False
        return True

    @cached_property
    def equal_blocks_time(self) -> float:
        """Seconds for a byte from every rank to every other, over the places of the receivers."""
        pool, shared = Pool.of(self.turns), self.resources
        each = np.repeat(self._first_loads(), np.diff(shared.starts))
        together = np.bincount(pool.orbit[shared.members], each, len(pool.size)) * self.nodes
        return float((together / pool.shared.rates).max())

    def _first_loads(self) -> Floats:
        """Bytes on every link of what the first node sends."""
        nodes, local = self.ranks.shape
        count = self.exit.shape[2]
        found = np.zeros(len(self.topology.links))

        def add(ways: Sequence[Route], amount: float) -> None:
            for way in ways:
                np.add.at(found, list(way), amount / len(ways))

        for pair in range(local * local):
            add(self.inside[pair], nodes)
        for k in range(local):
            add(self.up[k], (nodes - 1) * local)
        for out, into, times in self._crossings():
            add(self.trunks[out, into], times * local / count)
        assert isinstance(self.down, Images)
        for rows in self.down.all_ways():
            np.add.at(found, rows[1:].ravel(), local / count)
        return found


class Images(Sequence[Sequence[Route]]):
    """Ways of the first node, P lists of them, and their images in all nodes: list p of node a is at a * P + p."""

    def __init__(self, turns: Turns, elements: Ints, ways: Sequence[Sequence[Route]]) -> None:
        self._nodes = len(elements)
        self._ways = [[_images(turns, elements, way) for way in one] for one in ways]

    def __len__(self) -> int:
        return self._nodes * len(self._ways)

    @overload
    def __getitem__(self, place: int) -> Sequence[Route]: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Sequence[Route]]: ...

    def __getitem__(self, place: int | slice) -> Sequence[Route] | Sequence[Sequence[Route]]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        node, number = divmod(place, len(self._ways))
        return [tuple(links[node].tolist()) for links in self._ways[number]]

    def routes(self, places: Ints, turn: int) -> Table:
        """As `Rails.routes`, for places of the same list in several nodes."""
        node, number = np.divmod(places, len(self._ways))
        ways = self._ways[int(number[0])] if len(number) else [np.zeros((1, 0), dtype=np.int64)]
        assert len(set(number.tolist())) <= 1
        links = ways[turn % len(ways)][node]
        return np.arange(len(links) + 1) * links.shape[1], links.ravel()

    def all_ways(self) -> Iterator[Ints]:
        """The links of every way in all nodes, (N, length)."""
        for ways in self._ways:
            yield from ways

    def ends(self, devices: Ints, place: int) -> Ints:
        """For every node, list and way, all lists as long: the device at one place of the way, (N, P, V).

        devices: of every link, where it starts or ends.
        """
        return np.stack([np.stack([devices[links[:, place]] for links in ways], axis=1) for ways in self._ways], axis=1)


def _images(turns: Turns, elements: Ints, way: Route) -> Ints:
    """The images of a way, a row for each element."""
    links = np.tile(np.array(way, dtype=np.int64), len(elements))
    return turns.along(np.repeat(elements, len(way), axis=0), links, links=True).reshape(len(elements), len(way))


# Those of the last topology: the bound and the schedule ask for them.
_last: list[tuple[ref[Topology], TurnedRails | None]] = []


def turned_rails(topology: Topology) -> TurnedRails | None:
    """The cluster as rails by symmetry; None unless turns take one node to every other, by one element each.

    None as well where members of a node reach each other only through others, or not all have ways to the fabric.
    """
    if not _last or _last[0][0]() is not topology:
        _last[:] = [(ref(topology), _read(topology))]
    return _last[0][1]


def _read(topology: Topology) -> TurnedRails | None:
    turns = node_turns(topology) if topology.nodes > 1 else None
    if turns is None:
        return None
    members = np.array([topology.index[name] for name in topology.members], dtype=np.int64)
    node = topology.device_nodes
    first = members[node[members] == node[members[0]]]
    if turns.size * len(first) != len(members):
        return None
    elements = np.indices(turns.orders).reshape(len(turns.orders), -1).T
    device = np.stack([turns.along(elements, np.full(turns.size, member)) for member in first.tolist()], axis=1)
    if len(np.unique(node[device[:, 0]])) != turns.size:
        return None
    try:
        ways = _first_ways(topology, node, device[:2])
    except InfeasibleError:
        return None
    if ways is None:
        return None
    inside, outward, inward = ways
    # What enters the second node, as it enters the first.
    back = [[tuple(_images(turns, -elements[1:2], way)[0].tolist()) for way in one] for one in inward]
    up, down = Images(turns, elements, outward), Images(turns, elements, back)
    rank = np.full(len(node), -1, dtype=np.int64)
    rank[members] = np.arange(len(members))
    src, dst = (ends.astype(np.int64) for ends in topology.ends)
    exits, entries = up.ends(dst, -1), down.ends(src, 0)
    return TurnedRails(topology, rank[device], Images(turns, elements, inside), up, down, exits, entries, turns)


_Ways = list[Sequence[Route]]


def _first_ways(topology: Topology, node: Ints, device: Ints) -> tuple[_Ways, _Ways, _Ways] | None:
    """Ways inside the first of two nodes, from each of its members to the fabric, and from there into the other.

    device: (2, L). None unless all members have as many, over the fabric and not through other members.
    """
    router, (here, there) = topology.router, device.tolist()
    head = topology.ends[1].astype(np.int64)
    holds = np.array([one.holds for one in topology.devices])
    inside: _Ways = [router.ways(a, b) if a != b else () for a in here for b in here]
    if any(holds[head[list(way[:-1])]].any() for ways in inside for way in ways):
        return None
    outward: _Ways = []
    inward: _Ways = []
    for a, b in zip(here, there, strict=True):
        found: dict[tuple[Route, Route], None] = {}
        for way in router.ways(a, b):
            passed = head[list(way)]
            outside = np.flatnonzero(node[passed] < 0)
            if not len(outside) or holds[passed[:-1]].any():
                return None
            found[way[: outside[0] + 1], way[outside[-1] + 1 :]] = None
        outward.append([out for out, _ in found])
        inward.append([into for _, into in found])
    if len({len(ways) for ways in outward}) > 1:
        return None
    return inside, outward, inward
