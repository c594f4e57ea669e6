"""Symmetries of a machine: permutations of its devices that map devices, links and buses onto equal ones.

Whatever is computed for one device or link holds for its whole orbit under such permutations, which is what makes
thousands of GPUs tractable (orbits of a permutation group: D. F. Holt, Handbook of Computational Group Theory, 2005,
section 4.1). A permutation p is a sequence: device i goes to device p[i].
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import ref

import numpy as np

from blinksim.structures.union_find import joined_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from blinksim.topology.elements import Device
    from blinksim.topology.graph import Topology

Permutation: TypeAlias = "Sequence[int] | NDArray[np.int64]"
Orbits = tuple[tuple[int, ...], ...]


def _sorts(topology: Topology) -> NDArray[np.int64]:
    """A number for every device, equal for those of one kind, capacity, abilities and role.

    Copies of a device share its parts, so devices are told apart by identity first: fractions hash slowly.
    """
    seen: dict[Hashable, int] = {}
    quick: dict[tuple[int, int, str, int], int] = {}

    def number(device: Device) -> int:
        key = id(device.attributes), id(device.can), device.kind, id(device.capacity)
        found = quick.get(key)
        if found is None:
            row = device.kind, device.capacity, device.can, str(device.attributes.get("reduction_rate"))
            found = quick[key] = seen.setdefault(row, len(seen))
        return found

    sort = np.fromiter(map(number, topology.devices), dtype=np.int64, count=len(topology.devices))
    role = np.zeros(len(sort), dtype=np.int64)
    role[topology.member_places] = 1
    role[[topology.index[name] for name in topology.relays]] = 2
    return np.asarray(3 * sort + role)


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

    def apart(self, fixed: Sequence[int]) -> _Encoded:
        """The same with a colour of its own for each of these devices, so that no symmetry moves them."""
        if not fixed:
            return self
        device = self.device.copy()
        device[list(fixed)] = int(device.max()) + 1 + np.arange(len(fixed))
        return replace(self, device=device)

    def permutation(self, given: Permutation) -> NDArray[np.int64] | None:
        """As an array, None for what does not list each device once."""
        count, perm = len(self.device), np.asarray(given)
        if perm.shape != (count,) or (count and not np.issubdtype(perm.dtype, np.integer)):
            return None
        perm = perm.astype(np.int64)
        return perm if _is_permutation(perm) else None

    def image(self, permutation: Permutation) -> NDArray[np.int64] | None:
        """For each link the index of the link it goes to, or None if `permutation` is no symmetry."""
        count, perm = len(self.device), self.permutation(permutation)
        if perm is None or not np.array_equal(self.device[perm], self.device):
            return None
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
        if not np.array_equal(self.keys[place], wanted):
            return None
        image[touched] = self.order[place]
        if not np.array_equal(self.colour[image], self.colour):
            return None
        # The links of one bus must go to the links of one bus; as links go one to one, so do buses then.
        shared = self.bus >= 0
        goes = np.zeros(int(self.bus.max()) + 1, dtype=np.int64)
        goes[self.bus[shared]] = self.bus[image][shared]
        return image if np.array_equal(goes[self.bus[shared]], self.bus[image][shared]) else None


def _is_permutation(perm: NDArray[np.int64]) -> bool:
    """Whether it lists each of its indices once."""
    reached = np.zeros(len(perm), dtype=np.bool_)
    if len(perm) and (perm.min() < 0 or perm.max() >= len(perm)):
        return False
    reached[perm] = True
    return bool(reached.all())


# That of the last topology: bounds, packings and proofs ask for it one after another.
_last: list[tuple[ref[Topology], _Encoded]] = []


def encoded(topology: Topology) -> _Encoded:
    """The topology as integer arrays."""
    if not _last or _last[0][0]() is not topology:
        _last[:] = [(ref(topology), _encode(topology))]
    return _last[0][1]


def _encode(topology: Topology) -> _Encoded:
    device = _sorts(topology)
    table = topology.link_columns
    # Links of one bus and links without any are never alike.
    _, colour = np.unique(2 * table.figure + (table.bus >= 0), return_inverse=True)
    src, dst, kind, bus = table.src, table.dst, table.kind, table.bus
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
    return encoded(topology).image(permutation) is not None


def why_not(topology: Topology, permutation: Permutation) -> str:
    """Why a permutation of the device indices is no automorphism, in words that name a device or a link."""
    known, names = encoded(topology), [device.name for device in topology.devices]
    perm = np.asarray(permutation, dtype=np.int64)
    if perm.shape != (len(names),) or not np.array_equal(np.sort(perm), np.arange(len(names))):
        return f"it does not list each of the {len(names)} devices once"
    odd = np.flatnonzero(known.device[perm] != known.device)
    if len(odd):
        return f"it takes {names[odd[0]]} to {names[perm[odd[0]]]}, a device of another kind or role"
    wanted = known.key(perm[known.src], perm[known.dst])
    place = np.minimum(np.searchsorted(known.keys, wanted), len(known.keys) - 1)
    torn = np.flatnonzero(known.keys[place] != wanted)
    if len(torn):
        link = topology.links[int(torn[0])]
        ends = names[perm[known.src[torn[0]]]], names[perm[known.dst[torn[0]]]]
        return f"it takes link {link.name} to {ends[0]}->{ends[1]}, where there is none like it"
    image = known.order[place]
    odd = np.flatnonzero(known.colour[image] != known.colour)
    if len(odd):
        link, other = topology.links[int(odd[0])], topology.links[int(image[odd[0]])]
        return f"it takes link {link.name} to {other.name}, which has other figures"
    for number in np.flatnonzero(known.bus >= 0).tolist():
        return f"it tears bus {topology.links[number].bus} of link {topology.links[number].name} apart"
    return "nothing is wrong with it"


def automorphisms(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Those of the topology's `symmetries` that are automorphisms."""
    known = encoded(topology)
    return tuple(perm for perm in topology.symmetries if known.image(perm) is not None)


# Those of the last topology: whether a bound is feasible, and the bound itself, take them.
_last_orbits: list[tuple[ref[Topology], Orbits]] = []


def orbits(topology: Topology) -> Orbits:
    """The devices grouped by what the topology's symmetries map onto each other.

    Generators that are no automorphism are ignored; without any, every device is an orbit of its own. Indices
    ascend within an orbit and orbits are ordered by their first index.
    """
    if not _last_orbits or _last_orbits[0][0]() is not topology:
        known = encoded(topology)
        good = [np.asarray(perm) for perm in candidates(topology) if known.image(perm) is not None]
        _last_orbits[:] = [(ref(topology), _orbits(len(topology.devices), good))]
    return _last_orbits[0][1]


def link_orbits(topology: Topology, fixed: Sequence[int] = ()) -> Orbits:
    """The links, by index, grouped as `orbits` groups devices. fixed: devices that stay where they are."""
    known = encoded(topology).apart(fixed)
    images = [known.image(perm) for perm in (_candidates(topology, known) if fixed else candidates(topology))]
    return _orbits(len(topology.links), [image for image in images if image is not None])


def candidates(topology: Topology) -> list[Permutation]:
    """The topology's symmetries; of a cluster also those that an edit has left: turns of nodes, exchanges of rails.

    Users check them.
    """
    if not _last_candidates or _last_candidates[0][0]() is not topology:
        _last_candidates[:] = [(ref(topology), _candidates(topology, encoded(topology)))]
    return _last_candidates[0][1]


# Those of the last topology: bounds take them for devices and for links.
_last_candidates: list[tuple[ref[Topology], list[Permutation]]] = []


def _candidates(topology: Topology, known: _Encoded) -> list[Permutation]:
    if topology.nodes < 2:
        return list(topology.symmetries)
    from blinksim.topology.symmetries.alike_nodes import alike_nodes_of, alike_rails, turn_and_exchange

    count = len(topology.devices)
    rails = alike_rails(topology, lambda goes: known.image(goes) is not None)
    sets = alike_nodes_of(topology, known.device, known.colour)
    together = turn_and_exchange(count, sets)
    if any(known.image(one) is None for one in together):
        # Some set's nodes differ in what their links share.
        together = [one for table in sets for one in turn_and_exchange(count, [table])]
    return [*topology.symmetries, *rails, *together]


def _orbits(count: int, permutations: Sequence[NDArray[Any]]) -> Orbits:
    """Orbits of 0 … count-1, each set of indices that the permutations join."""
    label = orbit_labels(count, permutations)
    order = np.argsort(label, kind="stable")
    cuts = np.flatnonzero(np.diff(label[order])) + 1
    return tuple(tuple(part.tolist()) for part in np.split(order, cuts)) if count else ()


def orbit_labels(count: int, permutations: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """The number of the orbit of each of 0 … count-1, ordered by their first members."""
    moved = [np.flatnonzero(one != np.arange(count)) for one in permutations]
    goes = [one[places] for one, places in zip(permutations, moved, strict=True)]
    label = joined_labels(count, np.concatenate([np.arange(0), *moved]), np.concatenate([np.arange(0), *goes]))
    return np.unique(label, return_inverse=True)[1].astype(np.int64)


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
