"""Turns of the nodes of a cluster that are alike, where one of the others was changed or is out of order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from blinksim.topology.graph import Topology

    Ints = NDArray[np.int64]


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
