"""The certificate of lengths that are 1 on some links and 0 on all others, for machines of any size, in arrays.

`Lengths.of` proves the same with whole numbers and names, link by link, which takes seconds for hundreds of thousands
of links; tests hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from blinksim.bounds.certificates.lengths import EvenUse, Lengths, checked_grants, even_words, more_than_forwards
from blinksim.structures.arrays import distinct
from blinksim.structures.union_find import joined_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from blinksim.collective import Collective
    from blinksim.topology.graph import Topology

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]


def even_lengths(
    topology: Topology, collective: Collective, chosen: Bools, grants: Sequence[str] = ()
) -> Lengths | None:
    """What lengths of 1 on the chosen links prove; None for what only `Lengths.of` can say.

    grants: what switches may do, of what they can. That makes no difference where each of them has a member beside it
    that no chosen link separates: what branches there may as well do so at the member.

    None for collectives without trees, relays that do more than forward, links that share a bus, links that have none
    back, and links that prove nothing.
    """
    columns = topology.link_columns
    if collective.personalized or not columns.goes_back or bool((columns.bus[chosen] >= 0).any()):
        return None
    if grants and not _beside_members(topology, chosen, grants):
        return None
    least = least_even_tree(topology, chosen)
    if not least or more_than_forwards(topology):
        return None
    distance = Fraction(least * (2 if collective.name == "allreduce" else 1))
    carried, one = columns.capacity(chosen), Fraction(1)
    names = sorted(topology.links[number].name for number in np.flatnonzero(chosen).tolist())
    lengths, use = tuple((name, one) for name in names), _use(topology, chosen, distance, carried)
    return Lengths(lengths, carried, distance, grants=checked_grants(topology, grants), even=use)


def _beside_members(topology: Topology, chosen: Bools, grants: Sequence[str]) -> bool:
    """True if no chosen link separates any switch that can do what is granted from all members."""
    columns = topology.link_columns
    point = joined_labels(len(topology.devices), columns.src[~chosen], columns.dst[~chosen])
    able = [place for place, device in enumerate(topology.devices) if not device.can.isdisjoint(grants)]
    return bool(np.isin(point[able], point[topology.member_places]).all())


def least_even_tree(topology: Topology, chosen: Bools) -> int | None:
    """How many of the chosen links the least tree over all members has; None if it does not reach them.

    Every link must have one that goes back, chosen as well if it is. As in `Metric.least_tree`: what no chosen link
    separates is one point, every point goes to the nearest member, and links between the regions of two are candidates
    for a least spanning tree (K. Mehlhorn, Information Processing Letters 1988, section 2). Lengths are small whole
    numbers, so Kruskal's algorithm joins all candidates of one length at once.
    """
    columns, count = topology.link_columns, len(topology.devices)
    joined = joined_labels(count, columns.src[~chosen], columns.dst[~chosen])
    points, point = np.unique(joined, return_inverse=True)
    a, b = point[columns.src[chosen]], point[columns.dst[chosen]]
    a, b = np.divmod(distinct((a * len(points) + b)[a != b]), max(1, len(points)))
    ends = distinct(point[topology.member_places])
    far, nearest = np.full(len(points), -1), np.arange(len(points))
    far[ends] = hops = 0
    while True:
        step = (far[a] == hops) & (far[b] < 0)
        if not step.any():
            break
        nearest[b[step]] = nearest[a[step]]
        hops += 1
        far[b[step]] = hops
    across = (far[a] >= 0) & (far[b] >= 0) & (nearest[a] != nearest[b])
    a, b = a[across], b[across]
    length = far[a] + 1 + far[b]
    total, left = 0, len(ends)
    for one in distinct(length).tolist():
        label = joined_labels(len(points), nearest[a[length <= one]], nearest[b[length <= one]])
        now = len(distinct(label[ends]))
        total, left = total + one * (left - now), now
    return total if left == 1 else None


def _use(topology: Topology, chosen: Bools, distance: Fraction, carried: Fraction) -> EvenUse | None:
    """What `even_use` says of links that are not just those of the members; None where it must look at them."""
    columns = topology.link_columns
    held = np.zeros(len(topology.devices), dtype=np.bool_)
    held[topology.member_places] = True
    if np.array_equal(held[columns.src] | held[columns.dst], chosen):
        return None
    node = topology.device_nodes
    between = bool((node[columns.src[chosen]] != node[columns.dst[chosen]]).all())
    return EvenUse(even_words(int(chosen.sum()), between=between), None, distance, carried)
