"""Lengths that are 1 on all links around groups of devices: bounds that need no solver."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import inf

import numpy as np
from numpy.typing import NDArray

from blinksim.bounds.certificates.lengths import Lengths
from blinksim.bounds.obvious.even_lengths import even_lengths
from blinksim.bounds.obvious.groups import groupings, nodes
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.structures.arrays import distinct
from blinksim.topology.graph import Topology

# Ranks up to which lengths around small groups are tried: where they need distances of all pairs, and where trees
# that arrays cannot tell. In arrays they take a second for a hundred thousand ranks.
_PAIRS, _TREES = 256, 5000
# Ranks up to which lengths of the links between nodes are tried where distances of all pairs are needed: a second.
_BETWEEN_NODES = 1024
# How far above the best so far lengths may be by an estimate, and are still worth their trees.
_NEAR = 1.25
# What choosing among switches that may branch may cost (`Branching.most_work`): a tenth of a second.
_WORK = 5 * 10**4


def guessed_lengths(topology: Topology, collective: Collective, grants: Sequence[str] = ()) -> Lengths | None:
    """The best of a few obvious sets of lengths: 1 on all links that leave or enter groups of devices.

    The groups are nodes, single ranks, ranks with what is private to them, and nodes below one switch. None if none
    proves anything. grants: what switches may do, of what they can.
    """
    pairs = bool(grants) or collective.personalized
    if collective.personalized and topology.ranks > _BETWEEN_NODES:
        return None
    trees = 2 if collective.name == "allreduce" else 1
    best: Lengths | None = None
    one = Fraction(1)
    for crossing, carried, hops in _boundaries(topology, pairs):
        if best is not None and not pairs and carried > _NEAR * trees * hops * float(best.rate):
            continue
        found = even_lengths(topology, collective, crossing, grants)
        if found is None and pairs and topology.ranks > _BETWEEN_NODES:
            continue
        try:
            if found is None:
                names = (topology.links[number].name for number in np.flatnonzero(crossing).tolist())
                found = Lengths.of(topology, collective, dict.fromkeys(names, one), (), grants, _WORK)
        except InputError:
            continue
        if best is None or found.rate < best.rate:
            best = found
    return best


def _boundaries(topology: Topology, pairs: bool) -> list[tuple[NDArray[np.bool_], float, int]]:
    """The links between groups that are worth lengths, what they carry, and about how many a tree over all groups uses.

    Of ways to group that leave the ranks in as many groups, the one whose links carry least. A tree uses one link from
    a group to the next, or two where a switch is between. pairs: distances of all pairs are needed, which are
    affordable on few ranks only, as are trees over links that share buses.
    """
    members = topology.member_places
    columns = topology.link_columns
    # In arrays, trees over a hundred thousand ranks take a second.
    quick = not pairs and columns.goes_back and not columns.shared
    few = quick or topology.ranks <= (_PAIRS if pairs else _TREES)
    least: dict[int, tuple[NDArray[np.bool_], float, int]] = {}
    hosts = nodes(topology)
    for found in (hosts, *(other for other in (groupings(topology) if few else ()) if other.sort != hosts.sort)):
        label = found.label
        held = np.zeros(int(label.max()) + 1, dtype=np.bool_)
        held[label[members]] = True
        a, b = label[columns.src], label[columns.dst]
        # Links of a node without members lead nowhere that a tree must go.
        idle = ~held
        idle[label[topology.device_nodes < 0]] = False
        crossing = (a != b) & ~(idle[a] & ~held[b] | idle[b] & ~held[a])
        carried = float(columns.capacity(crossing))
        direct = crossing & held[a] & held[b]
        count = int(held.sum())
        hops = 2 * count - len(distinct(a[direct]))
        if crossing.any() and carried < least.get(count, (None, inf, 0))[1]:
            least[count] = crossing, carried, hops
    return list(least.values())
