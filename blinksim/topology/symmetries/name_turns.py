"""Symmetries that names suggest: gpu0 to gpu1, nic0 to nic1, and so on round. Whoever uses them checks them."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import ref

if TYPE_CHECKING:
    from blinksim.topology.graph import Topology

_NUMBERED = re.compile(r"(.*?)([0-9]+)")


# Those of the last topology: bounds and builders ask for them one after another.
_last: list[tuple[ref[Topology], list[tuple[int, ...]]]] = []


def name_turns(topology: Topology) -> list[tuple[int, ...]]:
    """Permutations of the devices that raise the numbers at the end of names, those of all nodes at once.

    Names turn together if there are as many of them as members of a node: ``gpu0`` to ``gpu7`` and ``nic0`` to
    ``nic7``. By one, by two, … up to half of these.

    Examples
    --------
    >>> import blinksim as bs
    >>> len(name_turns(bs.load("hgx-h200")))
    3
    """
    if not _last or _last[0][0]() is not topology:
        _last[:] = [(ref(topology), _name_turns(topology))]
    return _last[0][1]


def _name_turns(topology: Topology) -> list[tuple[int, ...]]:
    rows: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    # All nodes have the same names behind their own.
    known: dict[str, re.Match[str] | None] = {}
    for place, device in enumerate(topology.devices):
        node, dot, name = device.name.rpartition(".")
        if name not in known:
            known[name] = _NUMBERED.fullmatch(name)
        found = known[name]
        if found:
            rows[node + dot, found[1]][int(found[2])] = place
    held = {topology.index[name] for name in topology.members}
    count = max((len(row) for row in rows.values() if held.issuperset(row.values())), default=0)
    numbers = set(range(count))
    alike = [row for row in rows.values() if row.keys() == numbers]
    # Switches between the nodes turn along where they are rails, and stay where they are leaves.
    inside = [row for row in alike if all(topology.devices[place].node >= 0 for place in row.values())]
    turns = []
    for some in (alike, inside) if len(inside) < len(alike) else (alike,):
        for by in range(1, count // 2 + 1):
            if count % by == 0:
                goes = list(range(len(topology.devices)))
                for row in some:
                    for number, place in row.items():
                        goes[place] = row[(number + by) % count]
                turns.append(tuple(goes))
    return turns


def bit_turns(topology: Topology) -> list[tuple[int, ...]]:
    """Permutations that flip a bit of all members' numbers, where nothing but 2^d members is there, as in a hypercube.

    Examples
    --------
    >>> import blinksim as bs
    >>> bit_turns(bs.load("hypercube:2"))
    [(1, 0, 3, 2), (2, 3, 0, 1)]
    """
    count = topology.ranks
    if count != len(topology.devices) or count & (count - 1):
        return []
    places = topology.member_places.tolist()
    number = {place: rank for rank, place in enumerate(places)}
    return [tuple(places[number[place] ^ 1 << bit] for place in range(count)) for bit in range(count.bit_length() - 1)]


def with_name_turns(topology: Topology) -> Topology:
    """The machine with these among its symmetries; those that are none of it are ignored wherever they are used."""
    return replace(topology, symmetries=(*topology.symmetries, *name_turns(topology)))
