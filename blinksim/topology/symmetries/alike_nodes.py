"""Turns of the nodes of a cluster that are alike, where one of the others was changed or is out of order."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from blinksim.topology.graph import Topology

    Ints = NDArray[np.int64]


def turns_of_alike_nodes(topology: Topology, device: Ints, link: Ints) -> list[Ints]:
    """For each set of nodes with equal devices and links, to the same switches, the turn by one and the first exchange.

    device, link: a number for each, equal for equal ones. No turn moves a switch between nodes. Users check them.
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
    found = []
    for several in alike.values():
        if len(several) > 1:
            table = np.stack(several)
            turn, swap = np.arange(count), np.arange(count)
            turn[table] = np.roll(table, -1, axis=0)
            swap[table[:2]] = table[1::-1]
            found += [turn, swap]
    return found
