"""Symmetries of a machine: permutations of its devices that map devices, links and buses onto equal ones.

Whatever is computed for one device or link holds for its whole orbit under such permutations, which is what
makes thousands of GPUs tractable (orbits of a permutation group: D. F. Holt, Handbook of Computational Group
Theory, 2005, section 4.1). A permutation p is a sequence: device i goes to device p[i]. Besides those that a
cluster is built with (`blinksim.topology.cluster`), some are suggested: by what an edit has left alike in a
cluster, and by names (gpu0 to gpu1, nic0 to nic1, and so on round). Whoever uses them checks them.

Groups of them are commuting ones (rotations of a torus), and any order of alike nodes. Commuting: every
generator has an order, so that an element of the group is a row of exponents, one per generator (the
fundamental theorem of finite abelian groups: Dummit and Foote, Abstract Algebra, 3rd edition, 2004, section
5.2). An orbit of members is a grid: each generator either leaves every one of them in place or moves them
round in a cycle as long as its order. A member then has coordinates, and every pair of members has one image
whose first member is at 0.

Nodes of a cluster can be exchanged at will if the rotation of all nodes and the exchange of the first two are
symmetries that leave the fabric in place: the two generate every order of the nodes. Routes between any two
nodes are then those between two.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import insort
from collections import defaultdict
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from math import lcm, prod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from blinksim.errors import InputError
from blinksim.graphs.arrays import Bools, Ints, distinct, expand, occurrences, per_topology, places, scattered
from blinksim.graphs.connectivity import grouped, joined_labels

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

Permutation: TypeAlias = "Sequence[int] | Ints"
Orbits = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _Encoded:
    """A topology as integer arrays: a colour per device; ends, colour and bus (-1: none) per link; links by key."""

    topology: Topology
    device: Ints
    src: Ints
    dst: Ints
    colour: Ints
    kind: Ints
    bus: Ints
    order: Ints
    keys: Ints

    def apart(self, fixed: Sequence[int]) -> _Encoded:
        """The same with a colour of its own for each of these devices, so that no symmetry moves them."""
        device = self.device.copy()
        device[list(fixed)] = int(device.max(initial=0)) + 1 + np.arange(len(fixed))
        return replace(self, device=device)

    def permutation(self, given: Permutation) -> Ints | None:
        """As an array, None for what does not list each device once."""
        count, perm = len(self.device), np.asarray(given)
        if perm.shape != (count,) or (count and not np.issubdtype(perm.dtype, np.integer)):
            return None
        perm = perm.astype(np.int64)
        return perm if np.array_equal(np.sort(perm), np.arange(count)) else None

    def image(self, permutation: Permutation) -> Ints | None:
        """For each link the index of the link it goes to, or None if `permutation` is no symmetry."""
        found = self.image_or_fault(permutation)
        return None if isinstance(found, str) else found

    def image_or_fault(self, permutation: Permutation) -> Ints | str:
        """As `image`; of what is no symmetry why not, in words that name a device or a link."""
        perm, devices, links = self.permutation(permutation), self.topology.devices, self.topology.links
        count = len(devices)
        if perm is None:
            return f"it does not list each of the {count} devices once"
        if len(odd := np.flatnonzero(self.device[perm] != self.device)):
            first, other = devices[odd[0]].name, devices[perm[odd[0]]].name
            return f"it takes {first} to {other}, a device of another kind or role"
        # What a symmetry of a single node leaves in place need not be looked up.
        moved = perm != np.arange(count)
        touched = np.flatnonzero(moved[self.src] | moved[self.dst])
        image = np.arange(len(self.src))
        if not len(touched):
            return image
        src, dst = perm[self.src[touched]], perm[self.dst[touched]]
        wanted = (src * count + dst) * (int(self.kind.max(initial=0)) + 1) + self.kind[touched]
        place = np.searchsorted(self.keys, wanted)
        place[place == len(self.keys)] = 0
        if len(torn := np.flatnonzero(self.keys[place] != wanted)):
            ends = f"{devices[src[torn[0]]].name}->{devices[dst[torn[0]]].name}"
            return f"it takes link {links[touched[torn[0]]].name} to {ends}, where there is none like it"
        image[touched] = self.order[place]
        if len(odd := np.flatnonzero(self.colour[image] != self.colour)):
            own, other = links[odd[0]].name, links[image[odd[0]]].name
            return f"it takes link {own} to {other}, which has other figures"
        # The links of one bus must go to the links of one bus; as links go one to one, so do buses then.
        shared = np.flatnonzero(self.bus >= 0)
        goes = scattered(self.bus[shared], self.bus[image][shared], int(self.bus.max()) + 1)
        whole = np.array_equal(goes[self.bus[shared]], self.bus[image][shared])
        return image if whole else f"it tears bus {links[shared[0]].bus} apart"


@per_topology
def encoded(topology: Topology) -> _Encoded:
    """The topology as integer arrays."""
    # Devices of one sort have one kind, capacity, abilities and role.
    sorts: dict[Hashable, int] = {}
    rows = ((d.kind, d.capacity, d.can, str(d.attributes.get("reduction_rate"))) for d in topology.devices)
    sort = np.array([sorts.setdefault(row, len(sorts)) for row in rows], dtype=np.int64)
    role = scattered(topology.member_places, 1, len(sort), 0)
    role[[topology.index[name] for name in topology.relays]] = 2
    table = topology.link_columns
    # Links of one bus and links without any are never alike.
    _, colour = np.unique(2 * table.figure + (table.bus >= 0), return_inverse=True)
    keys = (table.src * len(sort) + table.dst) * (int(table.kind.max(initial=0)) + 1) + table.kind
    ends, order = (table.src, table.dst), np.argsort(keys)
    return _Encoded(topology, 3 * sort + role, *ends, colour, table.kind, table.bus, order, keys[order])


def is_automorphism(topology: Topology, permutation: Sequence[int]) -> bool:
    """True if `permutation` of the device indices maps the machine onto itself.

    Kept are the kind, capacity, abilities and role (member, relay, neither) of every device; class, lanes,
    bandwidth, latency and overhead of every link; and which links share a bus. Names, attributes, node
    numbers and rank order may differ. A sequence of the wrong length or with repeats is no automorphism.
    Time: one sort of the links.
    """
    return encoded(topology).image(permutation) is not None


def automorphisms(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Those of the topology's `symmetries` that are automorphisms."""
    return tuple(perm for perm in topology.symmetries if is_automorphism(topology, perm))


@per_topology
def orbits(topology: Topology) -> Orbits:
    """The devices grouped by what the topology's symmetries map onto each other.

    Generators that are no automorphism are ignored; without any, every device is an orbit of its own. Indices
    ascend within an orbit and orbits are ordered by their first index.
    """
    known = encoded(topology)
    good = [np.asarray(perm) for perm in candidates(known) if known.image(perm) is not None]
    return _orbits(len(topology.devices), good)


def link_orbits(topology: Topology, fixed: Sequence[int] = ()) -> Orbits:
    """The links, by index, grouped as `orbits` groups devices. fixed: devices that stay where they are."""
    known = encoded(topology).apart(fixed) if fixed else encoded(topology)
    images = [known.image(perm) for perm in candidates(known)]
    return _orbits(len(topology.links), [image for image in images if image is not None])


@per_topology
def candidates(known: _Encoded) -> list[Permutation]:
    """The topology's symmetries; of a cluster also rotations of nodes and exchanges of rails.

    Users check them.
    """
    topology = known.topology
    if topology.nodes < 2:
        return list(topology.symmetries)
    nodes = node_generators(len(topology.devices), alike_nodes_of(known))
    return [*topology.symmetries, *_alike_rails(topology, known), *nodes]


# Devices that another one of their sort is tried to be alike to.
_MOST_TRIED_FIRST = 16


@per_topology
def searched(topology: Topology) -> list[Ints]:
    """The symmetries that are known, and others that move devices of one node only, as a search finds them.

    A device goes to another of its node, and those that links lead to from there follow in turn: to
    themselves where that is possible, else to the first device with the same links to where the others went.
    """
    known, node = encoded(topology), topology.device_nodes.tolist()
    near: list[dict[int, list[int]]] = [defaultdict(list) for _ in node]
    codes = known.colour * (int(known.kind.max(initial=0)) + 1) + known.kind
    for src, dst, code in zip(known.src.tolist(), known.dst.tolist(), codes.tolist(), strict=True):
        insort(near[src][dst], code)
        insort(near[dst][src], ~code)
    sort = [(colour, sorted(links.values())) for colour, links in zip(known.device.tolist(), near, strict=True)]

    def carried(first: int, other: int) -> Ints | None:
        above, goes, comes = {first: first}, {first: other}, {other: first}
        for here in (order := [first]):
            fixed = [one for one in near[here] if one in goes or node[one] != node[first]]
            for image in (here, comes.get(here, here), *near[goes[above[here]]]) if here != first else ():
                links = all(near[image].get(goes.get(one, one)) == near[here][one] for one in fixed)
                if image not in comes and sort[image] == sort[here] and links:
                    goes[here], comes[image] = image, here
                    break
            if here not in goes:
                return None
            fresh = [one for one in near[here] if node[one] == node[first] and one not in above]
            above |= dict.fromkeys(fresh, here)
            order += fresh
        perm = np.arange(len(node))
        perm[list(goes)] = list(goes.values())
        return None if known.image(perm) is None else perm

    found = [np.asarray(perm) for perm in candidates(known) if known.image(perm) is not None]
    alike, firsts = orbit_labels(len(node), found), list[int]()
    for other in np.flatnonzero(topology.device_nodes >= 0).tolist():
        tried = islice((first for first in firsts if sort[first] == sort[other]), _MOST_TRIED_FIRST)
        while alike[other] not in alike[firsts] and (first := next(tried, None)) is not None:
            if (perm := carried(first, other)) is not None:
                found.append(perm)
                alike = orbit_labels(len(node), found)
        if alike[other] not in alike[firsts]:
            firsts.append(other)
    return found


def _orbits(count: int, permutations: Sequence[Ints]) -> Orbits:
    """Orbits of 0 … count-1, each set of indices that the permutations join."""
    label = orbit_labels(count, permutations)
    order = np.argsort(label, kind="stable")
    cuts = np.flatnonzero(np.diff(label[order])) + 1
    return tuple(tuple(part.tolist()) for part in np.split(order, cuts)) if count else ()


def orbit_labels(count: int, permutations: Sequence[Ints]) -> Ints:
    """The number of the orbit of each of 0 … count-1, ordered by their first members."""
    moved = [np.flatnonzero(one != np.arange(count)) for one in permutations]
    goes = [one[places] for one, places in zip(permutations, moved, strict=True)]
    label = joined_labels(count, np.concatenate([np.arange(0), *moved]), np.concatenate([np.arange(0), *goes]))
    return np.unique(label, return_inverse=True)[1].astype(np.int64)


def block_generators(count: int, first: int = 0, last: int | None = None, width: int = 1) -> list[list[int]]:
    """Generators of all permutations of the blocks of `width` of `count` things between `first` and `last`.

    The rotation by one block and, of more than two blocks, the swap of the first two; none for fewer than
    two.
    """
    order, last = [*range(count)], count if last is None else last
    if last - first < 2 * width:
        return []
    blocks, end = order[first:last], first + 2 * width
    rotation = [*order[:first], *blocks[width:], *blocks[:width], *order[last:]]
    swap = [*order[:first], *order[first + width : end], *order[first : first + width], *order[end:]]
    return [rotation, swap] if rotation != swap else [rotation]


# Symmetries that are looked at when commuting ones are chosen, and exchanges of two rails that are tried: all of
# eight rails, and those of more that are alike.
_MOST_TRIED = 64


def alike_nodes_of(known: _Encoded) -> list[Ints]:
    """The sets of nodes with equal devices and links, to the same switches: a row of devices for every node.

    Any order of the nodes of a set is a symmetry.
    """
    topology = known.topology
    (src, dst), node, count = topology.ends, topology.device_nodes, len(topology.devices)
    if bool(((node[src] >= 0) & (node[dst] >= 0) & (node[src] != node[dst])).any()):
        return []  # nodes wired back to back
    inside = np.flatnonzero(node >= 0)
    order = inside[np.argsort(node[inside], kind="stable")]
    numbers, first = np.unique(node[order], return_index=True)
    # A switch goes by itself, a device of a node by its place there.
    place = np.where(node < 0, np.arange(count) + count, occurrences(node))
    owner = np.maximum(node[src], node[dst])
    code = (place[src] * 2 * count + place[dst]) * (int(known.colour.max(initial=0)) + 1) + known.colour
    by_owner = np.lexsort((code, owner))
    links = np.split(code[by_owner], np.searchsorted(owner[by_owner], numbers))[1:]
    nodes = zip(np.split(order, first[1:]), links, strict=True)
    alike = grouped(((known.device[group].tobytes(), own.tobytes()), group) for group, own in nodes)
    sets = [np.stack(several) for several in alike.values() if len(several) > 1]
    if any(known.image(one) is None for one in node_generators(count, sets)):
        # Some set's nodes differ in what their links share.
        ways = ((table, node_generators(count, [table])) for table in sets)
        sets = [table for table, each in ways if all(known.image(one) is not None for one in each)]
    return sets


def node_generators(count: int, sets: Sequence[Ints]) -> list[Ints]:
    """The rotation by one of the nodes of every set, and the exchange of its first two, in all sets at once.

    Sets have no devices in common, so the orbits are those of the rotations and exchanges of one set each. No
    switch moves. Users check them. count: of all devices.
    """
    rotation, swap = np.arange(count), np.arange(count)
    for table in sets:
        rotation[table] = np.roll(table, -1, axis=0)
        swap[table[:2]] = table[1::-1]
    return [rotation, swap]


def _alike_rails(topology: Topology, known: _Encoded) -> list[Ints]:
    """Exchanges of two rails that are alike: of the devices whose names end in two numbers, in all nodes at once.

    Such as ``n0.gpu3`` with ``n0.gpu5``, ``n0.nic3`` with ``n0.nic5`` and ``fabric3`` with ``fabric5``.
    """
    rows = _numbered(topology)
    ranks = set(topology.member_places.tolist())
    exchanges: list[Ints] = []
    leaders: list[int] = []
    tried = 0
    for number in sorted({number for row in rows for number, place in row.items() if place in ranks}):
        for leader in leaders:
            tried += 1
            if tried > _MOST_TRIED:
                return exchanges
            goes = np.arange(len(topology.devices))
            for row in rows:
                if leader in row and number in row:
                    goes[[row[leader], row[number]]] = row[number], row[leader]
            if known.image(goes) is not None:
                exchanges.append(goes)
                break
        else:
            leaders.append(number)
    return exchanges


_NUMBERED = re.compile(r"(.*?)([0-9]+)")


def _numbered(topology: Topology) -> list[dict[int, int]]:
    """The devices whose names differ in a number at their end: for each such row, places by number."""
    rows: dict[str, dict[int, int]] = defaultdict(dict)
    for place, device in enumerate(topology.devices):
        if match := _NUMBERED.fullmatch(device.name):
            rows[match[1]][int(match[2])] = place
    return list(rows.values())


@per_topology
def name_rotations(topology: Topology) -> list[tuple[int, ...]]:
    """Permutations of the devices that raise the numbers at the end of names, those of all nodes at once.

    The members of a node go round by one, by two, … up to half of these, and so do names of which there are
    as many or several for each: where ``gpu0`` to ``gpu7`` go by one, ``nic0`` to ``nic7`` do too, and
    ``efa0`` to ``efa31`` go by four. Several names for each member also go round among these.

    Examples
    --------
    >>> import blinksim as bs
    >>> len(name_rotations(bs.load("hgx-h200")))
    4
    """
    numbered, held = _numbered(topology), set(topology.member_places.tolist())
    count = max((len(row) for row in numbered if held.issuperset(row.values())), default=1)
    whole = (row for row in numbered if len(row) % count == 0 and max(row) == len(row) - 1)
    alike = grouped((len(row), [row[number] for number in sorted(row)]) for row in whole)
    # Names of one length as an array: rows, members of a node, devices for each of these.
    tables = [np.reshape(rows, (len(rows), count, -1)) for rows in alike.values()]
    found = [tuple(range(len(topology.devices)))]
    for some in ([table for table in tables if table.shape[2] == 1], tables):
        # Switches between the nodes rotate along where they are rails, and stay where they are leaves.
        inside = [table[(topology.device_nodes[table] >= 0).all(axis=(1, 2))] for table in some]
        for by in range(1, count // 2 + 1):
            found += [_rolled(topology, rows, by, 1) for rows in (some, inside)]
    return [*dict.fromkeys([*found, _rolled(topology, inside, 1, 2)])][1:]


def _rolled(topology: Topology, tables: Sequence[Ints], by: int, axis: int) -> tuple[int, ...]:
    """The devices with those in tables so many places on along an axis."""
    goes = np.arange(len(topology.devices))
    for table in tables:
        goes[table] = np.roll(table, -by, axis=axis)
    return tuple(goes.tolist())


def bit_flips(topology: Topology) -> list[tuple[int, ...]]:
    """Permutations that flip a bit of all members' numbers, where nothing but 2^d members is there, as in a hypercube.

    Examples
    --------
    >>> import blinksim as bs
    >>> bit_flips(bs.load("hypercube:2"))
    [(1, 0, 3, 2), (2, 3, 0, 1)]
    """
    count = topology.ranks
    if count != len(topology.devices) or count & (count - 1):
        return []
    places = topology.member_places.tolist()
    number = {place: rank for rank, place in enumerate(places)}
    return [tuple(places[number[place] ^ 1 << bit] for place in range(count)) for bit in range(count.bit_length() - 1)]


def with_name_rotations(topology: Topology) -> Topology:
    """The machine with these among its symmetries; those that are none of it are ignored wherever they are used."""
    return replace(topology, symmetries=(*topology.symmetries, *name_rotations(topology)))


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
        known, links = encoded(topology), []
        for number, perm in enumerate(permutations):
            image = known.image_or_fault(perm)
            if isinstance(image, str):
                raise InputError(f"generator {number} is no symmetry of {topology.name}: {image}")
            links.append(image)
            for earlier in permutations[:number]:
                if len(apart := np.flatnonzero(perm[earlier] != earlier[perm])):
                    name = topology.devices[int(apart[0])].name
                    raise InputError(f"generator {number} and one before it do not commute: they differ at {name}")
        return cls._on_grids(topology, permutations, [order(perm) for perm in permutations], links)

    @classmethod
    def _on_grids(
        cls, topology: Topology, perms: Sequence[Ints], orders: Sequence[int], links: Sequence[Ints]
    ) -> CommutingGroup:
        """From symmetries that commute; raises `InputError` where an orbit is no grid."""
        members, count = topology.member_places, len(topology.devices)
        _, at, where = np.unique(orbit_labels(count, perms)[members], return_index=True, return_inverse=True)
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

    def keeping(self, places: Ints) -> CommutingGroup | None:
        """The generators that take every device to one with the same place, None if there are none."""
        chosen = [number for number, perm in enumerate(self.generators) if np.array_equal(places[perm], places)]
        if not chosen or len(chosen) == len(self.generators):
            return self if chosen else None
        generators, links = ([given[number] for number in chosen] for given in (self.generators, self.links))
        return self._on_grids(self.topology, generators, [self.orders[number] for number in chosen], links)

    @cached_property
    def orbit(self) -> Ints:
        """The number of every device's orbit."""
        return orbit_labels(len(self.first), self.generators)

    @property
    def regular(self) -> bool:
        """True if one element each takes a member to all members."""
        members = self.topology.member_places
        return prod(self.orders) == len(members) and bool(self.moves[members].all())

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
    return lcm(*distinct(np.bincount(orbit_labels(len(permutation), [permutation]))).tolist())


@per_topology
def node_automorphisms(topology: Topology) -> CommutingGroup | None:
    """Those of `commuting_group` that leave every member in its place among those of its node, None if there are none.

    The router shares equal routes out by that place, so the images of a route are those that it finds itself.
    """
    group, members = commuting_group(topology), topology.member_places
    place = scattered(members, occurrences(topology.device_nodes[members]), len(topology.devices))
    return None if group is None else group.keeping(place)


def find_commuting_group(topology: Topology, more: Sequence[Sequence[int] | Ints] = ()) -> CommutingGroup | None:
    """Commuting symmetries of a topology that move members, as many as are easily found; None if there are none.

    more: permutations to look at besides; those that are no symmetries are left out.

    Taken are its symmetries and those that its names suggest, those with the longest cycles first (of equals
    those that move most), where they commute with all before. One that does not commute is repeated in all
    places where others take it: what rotates the nodes below one switch becomes what rotates the nodes below
    every switch.
    """
    known, members = encoded(topology), topology.member_places
    given = [*dict.fromkeys((*topology.symmetries, *name_rotations(topology), *bit_flips(topology))), *more]
    # To look for links takes longest: only what is chosen has to be a symmetry, unless there are too
    # many.
    sure = known.image if len(given) > _MOST_TRIED else known.permutation
    candidates = [np.asarray(one, dtype=np.int64) for one in given if sure(one) is not None][:_MOST_TRIED]
    moved = [int((one[members] != members).sum()) for one in candidates]
    orders = {number: order(one) for number, one in enumerate(candidates) if moved[number]}
    best = CommutingGroup.of(topology, ())
    for number in sorted(orders, key=lambda number: (moved[number] < len(members), -orders[number], -moved[number])):
        if best.regular:
            break  # they take any member to any other by one element each: nothing else commutes with all
        one, before = candidates[number], best.generators
        if (own := known.image(one)) is None:
            continue
        perm = _everywhere(one, before) if moved[number] < len(members) else one
        if perm is None or np.array_equal(perm[members], members):
            continue
        image, times = (own, orders[number]) if perm is one else (known.image(perm), order(perm))
        if image is None or not all(np.array_equal(perm[other], other[perm]) for other in before):
            continue
        with suppress(InputError):
            best = CommutingGroup._on_grids(topology, [*before, perm], [*best.orders, times], [*best.links, image])
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
    """All orders of the nodes of a cluster in which each comes to where one like it was.

    table (node, place): the devices of every node, in the same order where nodes are alike; -1 past the last.
    sort (node): the first node like it.

    An element takes the nodes in its first two columns to those in the last two; they are -2 where unused.
    Pairs with a device of the fabric stand for themselves. A route passes no third node that is like the node
    of an end: that end would have a shorter one.
    """

    table: Ints
    sort: Ints
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
        """From the first two nodes like them: the router looks at devices in their order, which stays."""
        a, b = self.node[src], self.node[dst]
        one = self.sort[np.minimum(a, b)]
        codes = np.sort(self.sort * len(self.sort) + np.arange(len(self.sort)))
        after = np.searchsorted(codes, self.sort[np.maximum(a, b)] * len(self.sort) + one, side="right")
        other = codes[after % len(codes)] % len(codes)
        here, there = np.where(a > b, other, one), np.where(a < b, other, one)
        elements = np.stack([here, np.where(a != b, there, -2), a, np.where(a != b, b, -2)], axis=1)
        elements[(a < 0) | (b < 0)] = -2
        return elements

    @cached_property
    def links(self) -> tuple[Ints, Ints, Ints]:
        """The links of every node in the same order, as (node, place); of every link its node and its place.

        Of those between switches -1, and the place among them.
        """
        known, count = encoded(self.topology), len(self.node)
        of, kinds = np.maximum(self.node[known.src], self.node[known.dst]), int(known.kind.max(initial=0)) + 1
        ends = np.where(self.node < 0, count + np.arange(count), self.place)
        order = np.lexsort(((ends[known.src] * 2 * count + ends[known.dst]) * kinds + known.kind, of))
        many = np.bincount(of + 1)
        place = scattered(order, places(many), len(of))
        inside = np.flatnonzero(of >= 0)
        own = scattered((of[inside], place[inside]), inside, (len(self.table), int(many[1:].max(initial=0))))
        return own, of, place


@per_topology
def nodes_by_sort(topology: Topology) -> NodeGroup | None:
    """The nodes of a cluster, None if no two are alike, or the fabric tells all apart, or links join two."""
    node, sets = topology.device_nodes, alike_nodes_of(encoded(topology))
    inside = np.flatnonzero(node >= 0)
    place, many = occurrences(node), np.bincount(node[inside])
    sort, width = np.arange(len(many)), int(many.max(initial=0))
    for alike in sets:
        sort[node[alike[:, 0]]] = node[alike[0, 0]]
    table = scattered((node[inside], place[inside]), inside, (len(many), width))
    return NodeGroup(topology, table, sort, node, place) if sets else None


def node_group(topology: Topology) -> NodeGroup | None:
    """The nodes of a cluster, None if they are not all alike, or if the fabric tells them apart, or links join two."""
    group = nodes_by_sort(topology)
    return group if group is not None and len(group.sort) > 2 and not group.sort.any() else None


def alike_nodes(topology: Topology) -> Group | None:
    """What takes routes to routes that the router would find itself: any order of the nodes, or some."""
    turned = node_automorphisms(topology) if topology.symmetries and node_group(topology) is None else None
    return turned or nodes_by_sort(topology)


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
        group = alike_nodes(topology) if len(src) > _MANY_PAIRS else None
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
