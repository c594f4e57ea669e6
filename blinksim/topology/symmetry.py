"""Symmetries of a machine: permutations of its devices that map devices, links and buses onto equal ones.

Whatever is computed for one device or link holds for its whole orbit under such permutations, which is what makes
thousands of GPUs tractable (orbits of a permutation group: D. F. Holt, Handbook of Computational Group Theory, 2005,
section 4.1). A permutation p is a sequence: device i goes to device p[i].
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from blinksim.topology.union_find import UnionFind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from blinksim.topology.graph import Topology

Orbits = tuple[tuple[int, ...], ...]


class _Colours:
    """Small integers for values, equal for equal values; Fractions hash slowly, so known objects go by identity."""

    def __init__(self) -> None:
        self._by_identity: dict[int, int] = {}
        self._by_value: dict[Hashable, int] = {}

    def __call__(self, value: Hashable) -> int:
        # The topology keeps the object alive, so its identity cannot pass to another one.
        colour = self._by_identity.get(id(value))
        if colour is None:
            colour = self._by_value.setdefault(value, len(self._by_value))
            self._by_identity[id(value)] = colour
        return colour


def _ranked(rows: Iterable[tuple[Hashable, ...]]) -> NDArray[np.int64]:
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(row, len(seen)) for row in rows], dtype=np.int64)


@dataclass(frozen=True)
class _Encoded:
    """A topology as integer arrays: a colour per device; ends, colour and bus (-1: none) per link; links by key."""

    device: NDArray[np.int64]
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    colour: NDArray[np.int64]
    kind: NDArray[np.int64]
    bus: NDArray[np.int64]
    order: NDArray[np.int64]
    keys: NDArray[np.int64]

    def key(self, src: NDArray[np.int64], dst: NDArray[np.int64]) -> NDArray[np.int64]:
        """One integer for both ends and the class of every link."""
        kinds = int(self.kind.max(initial=0)) + 1
        return (src * len(self.device) + dst) * kinds + self.kind

    def image(self, permutation: Sequence[int]) -> NDArray[np.int64] | None:
        """For each link the index of the link it goes to, or None if `permutation` is no symmetry."""
        count = len(self.device)
        perm = np.asarray(permutation)
        if perm.shape != (count,) or (count and not np.issubdtype(perm.dtype, np.integer)):
            return None
        if not np.array_equal(np.sort(perm), np.arange(count)):
            return None
        perm = perm.astype(np.int64)
        if not np.array_equal(self.device[perm], self.device):
            return None
        if not len(self.src):
            return self.src
        wanted = self.key(perm[self.src], perm[self.dst])
        place = np.searchsorted(self.keys, wanted)
        place[place == len(self.keys)] = 0
        if not np.array_equal(self.keys[place], wanted):
            return None
        image = self.order[place]
        if not np.array_equal(self.colour[image], self.colour):
            return None
        # The links of one bus must go to the links of one bus; as links go one to one, so do buses then.
        shared = self.bus >= 0
        goes = np.zeros(int(self.bus.max()) + 1, dtype=np.int64)
        goes[self.bus[shared]] = self.bus[image][shared]
        return image if np.array_equal(goes[self.bus[shared]], self.bus[image][shared]) else None


def _encode(topology: Topology) -> _Encoded:
    index, members, relays = topology.index, set(topology.members), set(topology.relays)
    rate = _Colours()
    device = _ranked(
        (
            d.kind,
            None if d.capacity is None else rate(d.capacity),
            str(d.attributes.get("reduction_rate")),
            d.can,
            d.name in members,
            d.name in relays,
        )
        for d in topology.devices
    )
    links = topology.links
    colour = _ranked(
        (link.kind, rate(link.lane_bandwidth), link.lanes, link.latency, link.overhead, link.bus is None)
        for link in links
    )
    buses: dict[str, int] = {}
    bus = np.array(
        [-1 if link.bus is None else buses.setdefault(link.bus, len(buses)) for link in links], dtype=np.int64
    )
    src = np.array([index[link.src] for link in links], dtype=np.int64)
    dst = np.array([index[link.dst] for link in links], dtype=np.int64)
    kind = _ranked((link.kind,) for link in links)
    bare = _Encoded(device, src, dst, colour, kind, bus, src, src)
    keys = bare.key(src, dst)
    order = np.argsort(keys)
    return _Encoded(device, src, dst, colour, kind, bus, order, keys[order])


def is_automorphism(topology: Topology, permutation: Sequence[int]) -> bool:
    """True if `permutation` of the device indices maps the machine onto itself.

    Kept are the kind, capacity, abilities and role (member, relay, neither) of every device; class, lanes, bandwidth,
    latency and overhead of every link; and which links share a bus. Names, attributes, node numbers and rank order may
    differ. A sequence of the wrong length or with repeats is no automorphism. Time: one sort of the links.
    """
    return _encode(topology).image(permutation) is not None


def automorphisms(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Those of the topology's `symmetries` that are automorphisms."""
    encoded = _encode(topology)
    return tuple(perm for perm in topology.symmetries if encoded.image(perm) is not None)


def orbits(topology: Topology) -> Orbits:
    """The devices grouped by what the topology's symmetries map onto each other.

    Generators that are no automorphism are ignored; without any, every device is an orbit of its own. Indices
    ascend within an orbit and orbits are ordered by their first index.
    """
    encoded = _encode(topology)
    good = [np.asarray(perm) for perm in topology.symmetries if encoded.image(perm) is not None]
    return _orbits(len(topology.devices), good)


def link_orbits(topology: Topology) -> Orbits:
    """The links, by index, grouped as `orbits` groups devices."""
    encoded = _encode(topology)
    images = [encoded.image(perm) for perm in topology.symmetries]
    return _orbits(len(topology.links), [image for image in images if image is not None])


def _orbits(count: int, permutations: Sequence[NDArray[Any]]) -> Orbits:
    """Orbits of 0 … count-1, each set of indices that the permutations join."""
    joined = UnionFind(range(count))
    for permutation in permutations:
        for i, j in enumerate(permutation.tolist()):
            if i != j:
                joined.join(i, j)
    return tuple(map(tuple, joined.sets()))


def turn_and_swap(count: int) -> list[list[int]]:
    """Generators of all permutations of `count` things: the turn by one and the swap of the first two."""
    if count < 2:
        return []
    turn = [*range(1, count), 0]
    return [turn, [1, 0, *range(2, count)]] if count > 2 else [turn]


def grid_symmetries(
    sizes: Sequence[int], strides: Sequence[int], positions: Sequence[tuple[int, ...]], wrap: bool
) -> tuple[tuple[int, ...], ...]:
    """Every dimension mirrored and, on a torus, turned by one; dimensions of equal size exchanged."""
    columns = list(zip(*positions, strict=True))

    def numbered(coordinates: Sequence[Sequence[int]]) -> tuple[int, ...]:
        terms = [[place * stride for place in column] for column, stride in zip(coordinates, strides, strict=True)]
        return tuple(map(sum, zip(*terms, strict=True)))

    found = []
    for axis, size in enumerate(sizes):
        if size == 1:
            continue
        before, column, after = columns[:axis], columns[axis], columns[axis + 1 :]
        found.append(numbered([*before, [size - 1 - place for place in column], *after]))
        if wrap and size > 2:
            found.append(numbered([*before, [(place + 1) % size for place in column], *after]))
        twin = next((other for other in range(axis + 1, len(sizes)) if sizes[other] == size), None)
        if twin is not None:
            order = list(columns)
            order[axis], order[twin] = order[twin], order[axis]
            found.append(numbered(order))
    return tuple(found)
