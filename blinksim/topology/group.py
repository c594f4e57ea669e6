"""Groups of symmetries of a machine: commuting ones (rotations of a torus), and any order of alike nodes.

Commuting: every generator has an order, so that an element of the group is a row of exponents, one per
generator (the fundamental theorem of finite abelian groups: Dummit and Foote, Abstract Algebra, 3rd edition,
2004, section 5.2). An orbit of members is a grid: each generator either leaves every one of them in place or
moves them round in a cycle as long as its order. A member then has coordinates, and every pair of members has
one image whose first member is at 0.

Nodes of a cluster can be exchanged at will if the rotation of all nodes and the exchange of the first two are
symmetries that leave the fabric in place: the two generate every order of the nodes. Routes between any two
nodes are then those between two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm, prod
from typing import TYPE_CHECKING

import numpy as np

from blinksim.errors import InputError
from blinksim.graphs.arrays import Bools, Ints, distinct, expand, per_topology, places
from blinksim.topology import symmetry

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

# Symmetries that are looked at when commuting ones are chosen.
_MOST_TRIED = 64


@dataclass(frozen=True, eq=False)
class Group(ABC):
    """Symmetries of a topology. An element is a row of whole numbers, so that many are applied at once."""

    topology: Topology

    @abstractmethod
    def along(self, elements: Ints, things: Ints, *, links: bool = False) -> Ints:
        """Images of devices or links (M) under elements (M, …)."""

    @abstractmethod
    def inverse(self, elements: Ints) -> Ints:
        """The inverse of each element."""

    @abstractmethod
    def to_pair(self, src: Ints, dst: Ints) -> Ints:
        """For pairs of devices (M): the element that takes the image that stands for a pair to it."""

    def between(self, src: Ints, dst: Ints) -> tuple[Ints, Ints, Ints]:
        """For pairs of devices (M): the image that stands for it, as two devices, and the element from there to it."""
        elements = self.to_pair(src, dst)
        back = self.inverse(elements)
        return self.along(back, src), self.along(back, dst), elements

    def route_images(self, elements: Ints, start: Ints, links: Ints, which: Ints) -> tuple[Ints, Ints]:
        """Images of routes `which` (M) under elements (M, …): route r has links[start[r]:start[r + 1]].

        Their start (M + 1) and links.
        """
        owner, old = expand(start, links, which)
        ends = np.concatenate([[0], np.cumsum(np.diff(start)[which])])
        return ends, self.along(elements[owner], old, links=True)


@dataclass(frozen=True, eq=False)
class CommutingGroup(Group):
    """Commuting symmetries of a topology, with G generators; an element is a row of exponents.

    generators (G): where each takes every device. orders (G): after how many times it is the identity. links
    (G): where each takes every link. first, place (device), (device, G): of a member, the first of its orbit
    and the exponents that take that one to it; of other devices, themselves and zeros. moves (device, G):
    whether a generator moves it.
    """

    generators: tuple[Ints, ...]
    orders: tuple[int, ...]
    links: tuple[Ints, ...]
    first: Ints
    place: Ints
    moves: Bools

    @classmethod
    def of(cls, topology: Topology, generators: Sequence[Sequence[int] | Ints]) -> CommutingGroup:
        """From permutations of the devices; raises `InputError`, with a link or a device, for what is not as above."""
        permutations = [np.asarray(one, dtype=np.int64) for one in generators]
        known, links = symmetry.encoded(topology), []
        for number, perm in enumerate(permutations):
            image = known.image_or_fault(perm)
            if isinstance(image, str):
                raise InputError(f"generator {number} is no symmetry of {topology.name}: {image}")
            links.append(image)
            for earlier in permutations[:number]:
                apart = np.flatnonzero(perm[earlier] != earlier[perm])
                if len(apart):
                    name = topology.devices[int(apart[0])].name
                    raise InputError(f"generator {number} and one before it do not commute: they differ at {name}")
        return cls._on_grids(topology, permutations, [order(perm) for perm in permutations], links)

    @classmethod
    def _on_grids(
        cls, topology: Topology, perms: Sequence[Ints], orders: Sequence[int], links: Sequence[Ints]
    ) -> CommutingGroup:
        """From symmetries that commute; raises `InputError` where an orbit is no grid."""
        members, count = topology.member_places, len(topology.devices)
        _, at, where = np.unique(symmetry.orbit_labels(count, perms)[members], return_index=True, return_inverse=True)
        first, place = np.arange(count), np.zeros((count, len(perms)), dtype=np.int64)
        first[members] = members[at][where]
        moves = np.stack([perm != np.arange(count) for perm in perms], axis=1) if perms else np.zeros((count, 0), bool)
        here = members[np.sort(at)]
        exponents = np.zeros((len(here), len(perms)), dtype=np.int64)
        twice = f"{topology.members[0]}, or another member,"
        if sum(map(prod, np.where(moves[here], np.array(orders, dtype=np.int64), 1).tolist())) == len(members):
            # Every first member goes round with one generator after another; all of its orbit must come once.
            for number, (perm, times) in enumerate(zip(perms, orders, strict=True)):
                moving = moves[here, number]
                round_, powers = [here[moving]], np.tile(exponents[moving], (times - 1, 1))
                for _ in range(1, times):
                    round_.append(perm[round_[-1]])
                powers[:, number] = np.repeat(np.arange(1, times), len(round_[0]))
                here = np.concatenate([here, *round_[1:]])
                exponents = np.concatenate([exponents, powers])
            seen, times_seen = np.unique(here, return_counts=True)
            twice = "" if len(seen) == len(here) else topology.devices[int(seen[np.argmax(times_seen)])].name
        if twice:
            back = f"the generators take {twice} back to itself before their orders are through"
            raise InputError(f"{back}; give generators that are independent on the members")
        place[here] = exponents
        return cls(topology, tuple(perms), tuple(orders), tuple(links), first, place, moves)

    def only(self, chosen: Sequence[int]) -> CommutingGroup:
        """Some of the generators, by their numbers."""
        if len(chosen) == len(self.generators):
            return self
        generators, links = ([given[number] for number in chosen] for given in (self.generators, self.links))
        return self._on_grids(self.topology, generators, [self.orders[number] for number in chosen], links)

    def keeping(self, places: Ints) -> CommutingGroup | None:
        """The generators that take every device to one with the same place, None if there are none."""
        chosen = [number for number, perm in enumerate(self.generators) if np.array_equal(places[perm], places)]
        return self.only(chosen) if chosen else None

    @cached_property
    def orbit(self) -> Ints:
        """The number of every device's orbit."""
        return symmetry.orbit_labels(len(self.first), self.generators)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.orders)

    def along(self, elements: Ints, things: Ints, *, links: bool = False) -> Ints:
        """Images of devices or links (M) under elements (M, G)."""
        images = things.copy()
        for number, power in enumerate(self.links if links else self.generators):
            left = elements[:, number] % self.orders[number]
            while left.any():
                odd = (left & 1).astype(bool)
                images[odd] = power[images[odd]]
                left = left >> 1
                if left.any():
                    power = power[power]
        return images

    def inverse(self, elements: Ints) -> Ints:
        return -elements

    def to_pair(self, src: Ints, dst: Ints) -> Ints:
        """The exponents of the first device, and of the second for a generator that leaves the first in place."""
        return np.where(self.moves[src], self.place[src], self.place[dst])

    def images(self, src: Ints, dst: Ints) -> Ints:
        """The number of images of each pair of devices with data."""
        times = np.where(self.moves[src] | self.moves[dst], np.array(self.orders, dtype=np.int64), 1)
        return np.asarray(times.prod(axis=1))


def order(permutation: Ints) -> int:
    """The order of a permutation: after how many times it is the identity."""
    return lcm(*distinct(np.bincount(symmetry.orbit_labels(len(permutation), [permutation]))).tolist())


@per_topology
def node_automorphisms(topology: Topology) -> CommutingGroup | None:
    """Those of `commuting_group` that leave every member in its place among those of its node, None if there are none.

    The router shares equal routes out by that place, so the images of a route are those that it finds itself.
    """
    group, members = commuting_group(topology), topology.member_places
    node, place = topology.device_nodes[members], np.full(len(topology.devices), -1)
    place[members[np.argsort(node, kind="stable")]] = places(np.unique(node, return_counts=True)[1])
    return None if group is None else group.keeping(place)


def find_commuting_group(topology: Topology, more: Sequence[Sequence[int] | Ints] = ()) -> CommutingGroup | None:
    """Commuting symmetries of a topology that move members, as many as are easily found; None if there are none.

    more: permutations to look at besides; those that are no symmetries are left out.

    Taken are its symmetries and those that its names suggest, those with the longest cycles first (of equals
    those that move most), where they commute with all before. One that does not commute is repeated in all
    places where others take it: what rotates the nodes below one switch becomes what rotates the nodes below
    every switch.
    """
    known, members = symmetry.encoded(topology), topology.member_places
    known_ones = (*topology.symmetries, *symmetry.name_rotations(topology), *symmetry.bit_flips(topology))
    given = [*dict.fromkeys(known_ones), *more]
    # To look for links takes longest: only what is chosen has to be a symmetry, unless there are too
    # many.
    sure = known.image if len(given) > _MOST_TRIED else known.permutation
    candidates = [np.asarray(one, dtype=np.int64) for one in given if sure(one) is not None][:_MOST_TRIED]
    moved = [int((one[members] != members).sum()) for one in candidates]
    orders = {number: order(one) for number, one in enumerate(candidates) if moved[number]}
    best = CommutingGroup.of(topology, ())
    for number in sorted(orders, key=lambda number: (moved[number] < len(members), -orders[number], -moved[number])):
        if best.size == len(members) and bool(best.moves[members].all()):
            break  # they take any member to any other by one element each: nothing else commutes with all
        one, before = candidates[number], best.generators
        own = known.image(one)
        if own is None:
            continue
        perm = _everywhere(one, before) if moved[number] < len(members) else one
        if perm is None or np.array_equal(perm[members], members):
            continue
        image, times = (own, orders[number]) if perm is one else (known.image(perm), order(perm))
        if image is None or not all(np.array_equal(perm[other], other[perm]) for other in before):
            continue
        try:
            best = CommutingGroup._on_grids(topology, [*before, perm], [*best.orders, times], [*best.links, image])
        except InputError:
            continue
    return best if best.generators else None


commuting_group = per_topology(find_commuting_group)
"""The commuting symmetries that `find_commuting_group` finds without any more, kept for the last topology."""


def _everywhere(permutation: Ints, others: Sequence[Ints]) -> Ints | None:
    """The product of a permutation's conjugates under the group; None if they do not commute."""
    for other in others:
        back = np.argsort(other)
        product, shifted = permutation, other[permutation[back]]
        while not np.array_equal(shifted, permutation):
            if not np.array_equal(shifted[product], product[shifted]):
                return None
            product, shifted = shifted[product], other[shifted[back]]
        permutation = product
    return permutation


@dataclass(frozen=True, eq=False)
class NodeGroup(Group):
    """All orders of the nodes of a cluster. table (node, place): the devices of every node, in the same order.

    An element takes the nodes in its first two columns to those in the last two; they are -2 where unused.
    Pairs with a device of the fabric stand for themselves.
    """

    table: Ints
    node: Ints
    place: Ints

    def along(self, elements: Ints, things: Ints, *, links: bool = False) -> Ints:
        """Images of devices or links (M) under elements (M, 4); those of the fabric stay (node -1)."""
        table, node, place = self.links if links else (self.table, self.node, self.place)
        images, host = things.copy(), node[things]
        for source, target in ((0, 2), (1, 3)):
            here = np.flatnonzero(host == elements[:, source])
            images[here] = table[elements[here, target], place[things[here]]]
        return images

    def inverse(self, elements: Ints) -> Ints:
        return elements[:, [2, 3, 0, 1]]

    def to_pair(self, src: Ints, dst: Ints) -> Ints:
        """From the first two nodes: the router looks at devices in their order, so what comes first stays first."""
        a, b = self.node[src], self.node[dst]
        here, there = (a > b).astype(np.int64), (a < b).astype(np.int64)
        elements = np.stack([here, np.where(a != b, there, -2), a, np.where(a != b, b, -2)], axis=1)
        elements[(a < 0) | (b < 0)] = -2
        return elements

    @cached_property
    def links(self) -> tuple[Ints, Ints, Ints]:
        """The links of every node in the same order, as (node, place); of every link its node, or -1, and its place."""
        known, count = symmetry.encoded(self.topology), len(self.node)
        of = np.maximum(self.node[known.src], self.node[known.dst])
        model = np.flatnonzero(of == 0)
        kinds = int(known.kind.max(initial=0)) + 1
        src, dst = (
            np.where(self.node[side] >= 0, self.table[:, self.place[side]], side)
            for side in (known.src[model], known.dst[model])
        )
        own = known.order[np.searchsorted(known.keys, (src * count + dst) * kinds + known.kind[model])]
        place = np.zeros(len(of), dtype=np.int64)
        place[own] = np.arange(len(model))
        return own, of, place


@per_topology
def node_group(topology: Topology) -> NodeGroup | None:
    """The nodes of a cluster, None if they are not all alike, or if the fabric tells them apart, or links join two."""
    node, known = topology.device_nodes, symmetry.encoded(topology)
    count = int(node.max(initial=-1)) + 1
    sets = symmetry.alike_nodes_of(topology, known.device, known.colour) if count > 2 else []
    if len(sets) != 1 or len(sets[0]) < count:
        return None
    (table,) = sets
    if any(known.image(one) is None for one in symmetry.node_generators(len(node), sets)):
        return None
    place = np.zeros(len(node), dtype=np.int64)
    place[table] = np.arange(table.shape[1])
    return NodeGroup(topology, table, node, place)


def alike_nodes(topology: Topology) -> Group | None:
    """What takes routes to routes that the router would find itself: any order of the nodes, or some."""
    return node_group(topology) or node_automorphisms(topology)


# Pairs from which on symmetries are worth looking for.
_MANY_PAIRS = 200


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of devices (M), by those that stand for them: src, dst (U).

    which (M): the number of what stands for every pair. group, elements (M, …): what takes the routes of that
    one to those of the pair; None if each stands for itself.
    """

    src: Ints
    dst: Ints
    which: Ints
    group: Group | None = None
    elements: Ints | None = None

    @classmethod
    def of(cls, topology: Topology, src: Ints, dst: Ints) -> Pairs:
        """The pairs src[i] to dst[i]; few pairs each stand for themselves."""
        group = alike_nodes(topology) if len(src) > _MANY_PAIRS and topology.symmetries else None
        if group is None:
            return cls(src, dst, np.arange(len(src)))
        a, b, elements = group.between(src, dst)
        count = len(topology.devices)
        one, which = np.unique(a * count + b, return_inverse=True)
        return cls(one // count, one % count, which, group, elements)

    def images(self, start: Ints, links: Ints) -> tuple[Ints, Ints]:
        """Start (M + 1) and links of all pairs, where those that stand for them have links[start[u]:start[u + 1]]."""
        if self.group is None or self.elements is None:
            return start, links
        return self.group.route_images(self.elements, start, links, self.which)
