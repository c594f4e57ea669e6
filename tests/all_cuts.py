"""The cut bound by brute force: the least of all sets of devices."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from blinksim.collective import Collective
from blinksim.topology.graph import Topology


def leaving(topology: Topology, side: set[str]) -> Fraction:
    """Bytes/s out of a side, a bus (one pair here) counted once."""
    return sum((x.bandwidth for x in topology.links if x.src in side and x.dst not in side), Fraction(0))


def sides(topology: Topology) -> Iterator[set[str]]:
    names = [device.name for device in topology.devices]
    for mask in range(1, 2 ** len(names) - 1):
        yield {name for bit, name in enumerate(names) if mask >> bit & 1}


def best_cut(topology: Topology, collective: Collective) -> Fraction:
    """The least algbw that any cut allows, by looking at all of them."""
    ranks, root = set(topology.members), topology.members[collective.root]
    count = len(ranks)
    best = Fraction(10**30)
    for side in sides(topology):
        inside = len(ranks & side)
        crossing = {
            "allgather": Fraction(inside, count) if inside < count else Fraction(0),
            "reducescatter": Fraction(count - inside, count) if inside else Fraction(0),
            "broadcast": Fraction(root in side and inside < count),
            "reduce": Fraction(root not in side and inside > 0),
            "gather": Fraction(inside, count) if root not in side else Fraction(0),
            "scatter": Fraction(count - inside, count) if root in side else Fraction(0),
            "allreduce": Fraction(0 < inside < count),
            "alltoall": Fraction(inside * (count - inside), count),
        }[collective.name]
        if crossing:
            best = min(best, leaving(topology, side) / crossing)
    return best
