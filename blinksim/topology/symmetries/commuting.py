"""Commuting symmetries of a machine, such as the turns of a torus: who goes where, and who goes there together.

Every generator has an order, so that an element of the group is a row of exponents, one a generator (the fundamental
theorem of finite abelian groups: Dummit and Foote, Abstract Algebra, 3rd edition, 2004, section 5.2). Of the members,
an orbit is a grid: each generator either leaves every one of them in place or moves them round in a cycle as long as
its order. A member then has coordinates, and a pair of members one image in which the first of them is at 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm, prod
from typing import TYPE_CHECKING
from weakref import ref

import numpy as np

from blinksim.errors import InputError
from blinksim.structures.arrays import distinct, expand
from blinksim.topology.symmetry import encoded, orbit_labels, why_not

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from blinksim.topology.graph import Topology

    Ints = NDArray[np.int64]

# Symmetries that are looked at when commuting ones are chosen.
_MOST_TRIED = 64


@dataclass(frozen=True, eq=False)
class Turns:
    """Commuting symmetries of a topology, with G generators.

    generators (G): where each takes every device. orders (G): after how many times it is the identity. links (G): where
    each takes every link. first, place (device), (device, G): of a member, the first of its orbit and the exponents
    that take that one to it; of other devices, themselves and zeros. moves (device, G): whether a generator moves it.
    """

    topology: Topology
    generators: tuple[Ints, ...]
    orders: tuple[int, ...]
    links: tuple[Ints, ...]
    first: Ints
    place: Ints
    moves: NDArray[np.bool_]

    @classmethod
    def of(cls, topology: Topology, generators: Sequence[Sequence[int] | Ints]) -> Turns:
        """From permutations of the devices; raises `InputError`, with a link or a device, for what is not as above."""
        turns = [np.asarray(one, dtype=np.int64) for one in generators]
        known, links = encoded(topology), []
        for number, turn in enumerate(turns):
            image = known.image(turn)
            if image is None:
                raise InputError(f"generator {number} is no symmetry of {topology.name}: {why_not(topology, turn)}")
            links.append(image)
            for other in turns[:number]:
                apart = np.flatnonzero(turn[other] != other[turn])
                if len(apart):
                    name = topology.devices[int(apart[0])].name
                    raise InputError(f"generator {number} and one before it do not commute: they differ at {name}")
        return cls._placed(topology, turns, [order(turn) for turn in turns], links)

    @classmethod
    def _placed(cls, topology: Topology, turns: list[Ints], orders: list[int], links: list[Ints]) -> Turns:
        devices = topology.member_places
        count = len(topology.devices)
        label = orbit_labels(count, turns)
        _, at, where = np.unique(label[devices], return_index=True, return_inverse=True)
        first, place = np.arange(count), np.zeros((count, len(turns)), dtype=np.int64)
        first[devices] = devices[at][where]
        moves = np.stack([turn != np.arange(count) for turn in turns], axis=1) if turns else np.zeros((count, 0), bool)
        each = np.where(moves[devices[np.sort(at)]], np.array(orders, dtype=np.int64), 1)
        if sum(prod(row) for row in each.tolist()) != len(devices):
            raise InputError(
                f"the generators take {topology.members[0]}, or another member, back to itself before their orders are "
                "through; give generators that are independent on the members"
            )
        # Every first member goes round with one generator after another; all of its orbit must come once.
        here, exponents = devices[np.sort(at)], np.zeros((len(at), len(turns)), dtype=np.int64)
        for number, (turn, times) in enumerate(zip(turns, orders, strict=True)):
            moving = moves[here, number]
            rows, powers = [here], [exponents]
            start, base = here[moving], exponents[moving]
            for power in range(1, times):
                start = turn[start]
                base = base.copy()
                base[:, number] = power
                rows.append(start)
                powers.append(base)
            here, exponents = np.concatenate(rows), np.concatenate(powers)
        if len(here) != len(devices) or len(distinct(here)) != len(here):
            seen, times_seen = np.unique(here, return_counts=True)
            again = int(seen[np.argmax(times_seen)])
            raise InputError(
                f"the generators take {topology.devices[again].name} back to itself before their orders are through; "
                "give generators that are independent on the members"
            )
        place[here] = exponents
        return cls(topology, tuple(turns), tuple(orders), tuple(links), first, place, moves)

    def only(self, chosen: Sequence[int]) -> Turns:
        """Some of the generators, by their numbers."""
        if len(chosen) == len(self.generators):
            return self
        parts = ([given[number] for number in chosen] for given in (self.generators, self.links))
        turns, links = parts
        return self._placed(self.topology, turns, [self.orders[number] for number in chosen], links)

    @property
    def size(self) -> int:
        """How many elements the group has."""
        return prod(self.orders)

    def along(self, exponents: Ints, things: Ints, *, links: bool = False) -> Ints:
        """Where elements (M, G) take devices (M), or links."""
        found = things.copy()
        for number, power in enumerate(self.links if links else self.generators):
            left = exponents[:, number] % self.orders[number]
            while left.any():
                odd = (left & 1).astype(bool)
                found[odd] = power[found[odd]]
                left = left >> 1
                if left.any():
                    power = power[power]
        return found

    def between(self, src: Ints, dst: Ints) -> tuple[Ints, Ints, Ints]:
        """For pairs of devices with data (M): the image that stands for it, as two devices, and what takes it there.

        That is the exponents (M, G) which take the image to the pair. A generator that leaves the first of the two in
        place is turned by the second.
        """
        exponents = np.where(self.moves[src], self.place[src], self.place[dst])
        return self.along(-exponents, src), self.along(-exponents, dst), exponents

    def inverse(self, exponents: Ints) -> Ints:
        """What undoes elements."""
        return -exponents

    def route_images(self, exponents: Ints, start: Ints, links: Ints, which: Ints) -> tuple[Ints, Ints]:
        """Where elements (M, G) take routes `which` (M): route r has the links links[start[r]:start[r + 1]].

        Their start (M + 1) and links.
        """
        owner, old = expand(start, links, which)
        ends = np.concatenate([[0], np.cumsum(np.diff(start)[which])])
        return ends, self.along(exponents[owner], old, links=True)

    def images(self, src: Ints, dst: Ints) -> Ints:
        """How many images each pair of devices with data has."""
        times = np.where(self.moves[src] | self.moves[dst], np.array(self.orders, dtype=np.int64), 1)
        return np.asarray(times.prod(axis=1))


def order(turn: Ints) -> int:
    """After how many times a permutation is the identity."""
    lengths = np.bincount(orbit_labels(len(turn), [turn]))
    return lcm(*distinct(lengths).tolist())


# Those of the last topology: builders, times and proofs ask for them one after another.
_last: list[tuple[ref[Topology], Turns | None]] = []
_last_of_nodes: list[tuple[ref[Topology], Turns | None]] = []


def turns_of(topology: Topology) -> Turns | None:
    """What `find_turns` finds, kept for the last topology."""
    if not _last or _last[0][0]() is not topology:
        _last[:] = [(ref(topology), find_turns(topology))]
    return _last[0][1]


def node_turns(topology: Topology) -> Turns | None:
    """What `find_node_turns` finds, kept for the last topology."""
    if not _last_of_nodes or _last_of_nodes[0][0]() is not topology:
        _last_of_nodes[:] = [(ref(topology), find_node_turns(topology))]
    return _last_of_nodes[0][1]


def find_node_turns(topology: Topology) -> Turns | None:
    """Those of `turns_of` that leave every member in its place among those of its node, None if there are none.

    The router shares equal routes out by that place, so the images of a route are those that it finds itself.
    """
    turns = turns_of(topology)
    if turns is None:
        return None
    place, count = np.full(len(topology.devices), -1), dict[int, int]()
    for name in topology.members:
        number = topology.index[name]
        node = topology.devices[number].node
        place[number] = count[node] = count.get(node, -1) + 1
    kept = [number for number, turn in enumerate(turns.generators) if np.array_equal(place[turn], place)]
    return turns.only(kept) if kept else None


def place_turn(topology: Topology) -> tuple[Turns, int] | None:
    """The one of `turns_of` that takes every member of a node so many places on among those of its node, and how many.

    None if there is none, and where nodes have unequally many members. The places go round.
    """
    turns, members = turns_of(topology), topology.member_places
    node = topology.device_nodes[members]
    sizes = np.bincount(node[node >= 0])
    local = int(sizes.max(initial=0))
    if turns is None or (node < 0).any() or not np.isin(sizes, (0, local)).all():
        return None
    grid = members[np.argsort(node, kind="stable")].reshape(-1, local)
    for number, turn in enumerate(turns.generators):
        step = int(np.flatnonzero(grid[0] == turn[grid[0, 0]])[0]) if turn[grid[0, 0]] in grid[0] else 0
        if step and np.array_equal(turn[grid], np.roll(grid, -step, axis=1)):
            return turns.only([number]), step
    return None


def find_turns(topology: Topology, more: Sequence[Sequence[int] | Ints] = ()) -> Turns | None:
    """Commuting symmetries of a topology that move members, as many as are easily found; None if there are none.

    more: permutations to look at besides; those that are no symmetries are left out.

    Taken are its symmetries and those that its names suggest, those with the longest cycles first (of equals those that
    move most), where they commute with all before. One that does not commute is repeated in all places where others
    take it: what turns the nodes below one switch becomes what turns the nodes below every switch.
    """
    from blinksim.topology.symmetries.name_turns import bit_turns, name_turns

    known = encoded(topology)
    members = topology.member_places
    found: list[Ints] = []
    best: Turns | None = None
    given = [*dict.fromkeys((*topology.symmetries, *name_turns(topology), *bit_turns(topology))), *more]
    # To look for links takes longest: only what gets its turn has to be a symmetry, unless there are too many.
    sure = known.image if len(given) > _MOST_TRIED else known.permutation
    candidates = [np.asarray(one, dtype=np.int64) for one in given if sure(one) is not None][:_MOST_TRIED]
    moved = [int((one[members] != members).sum()) for one in candidates]
    orders = {number: order(one) for number, one in enumerate(candidates) if moved[number]}
    links: list[Ints] = []
    rounds: list[int] = []
    for number in sorted(orders, key=lambda number: (moved[number] < len(members), -orders[number], -moved[number])):
        if best is not None and best.size == len(members) and bool(best.moves[members].all()):
            break  # they take any member to any other by one element each: nothing else commutes with all
        one, own = candidates[number], known.image(candidates[number])
        if own is None:
            continue
        turn = _everywhere(one, found) if moved[number] < len(members) and found else one
        if turn is None or np.array_equal(turn[members], members):
            continue
        if not all(np.array_equal(turn[other], other[turn]) for other in found):
            continue
        image, times = (own, orders[number]) if turn is one else (known.image(turn), order(turn))
        if image is None:
            continue
        try:
            best = Turns._placed(topology, [*found, turn], [*rounds, times], [*links, image])
        except InputError:
            continue
        for kept, new in ((found, turn), (links, image)):
            kept.append(new)
        rounds.append(times)
    return best


def _everywhere(turn: Ints, others: Sequence[Ints]) -> Ints | None:
    """The product of what elements of the group turn a permutation into; None if that is no one permutation."""
    for other in others:
        back = np.argsort(other)
        product, shifted = turn, other[turn[back]]
        while not np.array_equal(shifted, turn):
            if not np.array_equal(shifted[product], product[shifted]):
                return None
            product, shifted = shifted[product], other[shifted[back]]
        turn = product
    return turn
