"""What an edit has left alike in a cluster: nodes, where another one was changed; rails, where one is out of order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from blinksim.topology.graph import Topology

    Ints = NDArray[np.int64]

# Exchanges of two rails that are tried: all of eight rails, and those of more that are alike.
_MOST_TRIED = 64


def alike_nodes_of(topology: Topology, device: Ints, link: Ints) -> list[Ints]:
    """The sets of nodes with equal devices and links, to the same switches: a row of devices for every node.

    device, link: a number for each, equal for equal ones.
    """
    (src, dst), count = topology.ends, len(topology.devices)
    node = np.array([one.node for one in topology.devices], dtype=np.int64)
    inside = np.flatnonzero(node >= 0)
    order = inside[np.argsort(node[inside], kind="stable")]
    first = np.flatnonzero(np.diff(node[order], prepend=-1))
    groups = np.split(order, first[1:])
    place = np.arange(count) + count  # a switch goes by itself, a device of a node by its place there
    for group in groups:
        place[group] = np.arange(len(group))
    colours = int(link.max(initial=0)) + 1
    code = (place[src] * 2 * count + place[dst]) * colours + link
    owner = np.maximum(node[src], node[dst])
    if bool(((node[src] >= 0) & (node[dst] >= 0) & (node[src] != node[dst])).any()):
        return []  # nodes wired back to back
    by_owner = np.lexsort((code, owner))
    cuts = np.searchsorted(owner[by_owner], [node[group[0]] for group in groups])
    ends = np.searchsorted(owner[by_owner], [node[group[0]] for group in groups], side="right")
    alike: dict[tuple[bytes, bytes], list[Ints]] = defaultdict(list)
    for group, start, end in zip(groups, cuts.tolist(), ends.tolist(), strict=True):
        alike[device[group].tobytes(), code[by_owner[start:end]].tobytes()].append(group)
    return [np.stack(several) for several in alike.values() if len(several) > 1]


def turn_and_exchange(count: int, sets: Sequence[Ints]) -> list[Ints]:
    """The turn by one of the nodes of every set, and the exchange of its first two, in all sets at once.

    Sets have no devices in common, so the orbits are those of the turns and exchanges of one set each. No switch moves.
    Users check them. count: of all devices.
    """
    turn, swap = np.arange(count), np.arange(count)
    for table in sets:
        turn[table] = np.roll(table, -1, axis=0)
        swap[table[:2]] = table[1::-1]
    return [turn, swap]


def alike_rails(topology: Topology, holds: Callable[[Ints], bool]) -> list[Ints]:
    """Exchanges of two rails that are alike: of the devices whose names end in two numbers, in all nodes at once.

    Such as ``n0.gpu3`` with ``n0.gpu5``, ``n0.nic3`` with ``n0.nic5`` and ``fabric3`` with ``fabric5``. holds: whether
    a permutation is a symmetry.
    """
    rows = defaultdict[tuple[int, str], dict[int, int]](dict)
    for place, device in enumerate(topology.devices):
        name = device.name.rpartition(".")[2]
        stem = name.rstrip("0123456789")
        if stem != name:
            rows[device.node, stem][int(name[len(stem) :])] = place
    ranks = set(topology.member_places.tolist())
    numbers = sorted({number for row in rows.values() for number, place in row.items() if place in ranks})
    found: list[Ints] = []
    leaders: list[int] = []
    tried = 0
    for number in numbers:
        for leader in leaders:
            tried += 1
            if tried > _MOST_TRIED:
                return found
            goes = np.arange(len(topology.devices))
            for row in rows.values():
                a, b = row.get(leader), row.get(number)
                if a is not None and b is not None:
                    goes[[a, b]] = b, a
            if holds(goes):
                found.append(goes)
                break
        else:
            leaders.append(number)
    return found
