"""Symmetries of a machine: permutations of its devices that map devices, links and buses onto equal ones.

Whatever is computed for one device or link holds for its whole orbit under such permutations, which is what
makes thousands of GPUs tractable (orbits of a permutation group: D. F. Holt, Handbook of Computational Group
Theory, 2005, section 4.1). A permutation p is a sequence: device i goes to device p[i]. Besides those that a
cluster is built with (`blinksim.topology.cluster`), some are suggested: by what an edit has left alike in a
cluster, and by names (gpu0 to gpu1, nic0 to nic1, and so on round). Whoever uses them checks them.
"""

from __future__ import annotations

import re
from bisect import insort
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from blinksim.graphs.arrays import Ints, per_topology, places
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
        reached = np.zeros(count, dtype=np.bool_)
        if count and perm.min() >= 0 and perm.max() < count:
            reached[perm] = True
        return perm if reached.all() else None

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
        odd = np.flatnonzero(self.device[perm] != self.device)
        if len(odd):
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
        torn = np.flatnonzero(self.keys[place] != wanted)
        if len(torn):
            ends = f"{devices[src[torn[0]]].name}->{devices[dst[torn[0]]].name}"
            return f"it takes link {links[touched[torn[0]]].name} to {ends}, where there is none like it"
        image[touched] = self.order[place]
        odd = np.flatnonzero(self.colour[image] != self.colour)
        if len(odd):
            own, other = links[odd[0]].name, links[image[odd[0]]].name
            return f"it takes link {own} to {other}, which has other figures"
        # The links of one bus must go to the links of one bus; as links go one to one, so do buses then.
        shared = np.flatnonzero(self.bus >= 0)
        goes = np.zeros(int(self.bus.max()) + 1, dtype=np.int64)
        goes[self.bus[shared]] = self.bus[image][shared]
        whole = np.array_equal(goes[self.bus[shared]], self.bus[image][shared])
        return image if whole else f"it tears bus {links[shared[0]].bus} apart"


@per_topology
def encoded(topology: Topology) -> _Encoded:
    """The topology as integer arrays."""
    # Devices of one sort have one kind, capacity, abilities and role.
    sorts: dict[Hashable, int] = {}
    rows = ((d.kind, d.capacity, d.can, str(d.attributes.get("reduction_rate"))) for d in topology.devices)
    sort = np.array([sorts.setdefault(row, len(sorts)) for row in rows], dtype=np.int64)
    role = np.zeros(len(sort), dtype=np.int64)
    role[topology.member_places] = 1
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
    good = [np.asarray(perm) for perm in candidates(topology) if encoded(topology).image(perm) is not None]
    return _orbits(len(topology.devices), good)


def link_orbits(topology: Topology, fixed: Sequence[int] = ()) -> Orbits:
    """The links, by index, grouped as `orbits` groups devices. fixed: devices that stay where they are."""
    known = encoded(topology).apart(fixed) if fixed else encoded(topology)
    images = [known.image(perm) for perm in (_candidates(topology, known) if fixed else candidates(topology))]
    return _orbits(len(topology.links), [image for image in images if image is not None])


@per_topology
def candidates(topology: Topology) -> list[Permutation]:
    """The topology's symmetries; of a cluster also rotations of nodes and exchanges of rails.

    Users check them.
    """
    return _candidates(topology, encoded(topology))


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

    found = [np.asarray(perm) for perm in candidates(topology) if known.image(perm) is not None]
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


def _candidates(topology: Topology, known: _Encoded) -> list[Permutation]:
    if topology.nodes < 2:
        return list(topology.symmetries)
    count = len(topology.devices)
    sets = alike_nodes_of(topology, known.device, known.colour)
    together = node_generators(count, sets)
    if any(known.image(one) is None for one in together):
        # Some set's nodes differ in what their links share.
        together = [one for table in sets for one in node_generators(count, [table])]
    return [*topology.symmetries, *_alike_rails(topology, known), *together]


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

    The rotation by one block and, of more than two blocks, the swap of the first two; none for fewer than two.
    """
    order, last = [*range(count)], count if last is None else last
    if last - first < 2 * width:
        return []
    blocks, end = order[first:last], first + 2 * width
    rotation = [*order[:first], *blocks[width:], *blocks[:width], *order[last:]]
    swap = [*order[:first], *order[first + width : end], *order[first : first + width], *order[end:]]
    return [rotation, swap] if rotation != swap else [rotation]


# Exchanges of two rails that are tried: all of eight rails, and those of more that are alike.
_MOST_TRIED = 64


def alike_nodes_of(topology: Topology, device: Ints, link: Ints) -> list[Ints]:
    """The sets of nodes with equal devices and links, to the same switches: a row of devices for every node.

    device, link: a number for each, equal for equal ones.
    """
    (src, dst), node, count = topology.ends, topology.device_nodes, len(topology.devices)
    if bool(((node[src] >= 0) & (node[dst] >= 0) & (node[src] != node[dst])).any()):
        return []  # nodes wired back to back
    inside = np.flatnonzero(node >= 0)
    order = inside[np.argsort(node[inside], kind="stable")]
    numbers, first = np.unique(node[order], return_index=True)
    # A switch goes by itself, a device of a node by its place there.
    place = np.arange(count) + count
    place[order] = places(np.diff(first, append=len(order)))
    owner = np.maximum(node[src], node[dst])
    code = (place[src] * 2 * count + place[dst]) * (int(link.max(initial=0)) + 1) + link
    by_owner = np.lexsort((code, owner))
    sides = (np.searchsorted(owner[by_owner], numbers, side=side).tolist() for side in ("left", "right"))
    alike = grouped(
        ((device[group].tobytes(), code[by_owner[start:end]].tobytes()), group)
        for group, start, end in zip(np.split(order, first[1:]), *sides, strict=True)
    )
    return [np.stack(several) for several in alike.values() if len(several) > 1]


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
