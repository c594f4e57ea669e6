"""Bounds of each level of a machine alone: its GPUs, its nodes, and the nodes below each level of switches.

A level divides the machine into parts. What must leave or enter a part, over what the links around it carry,
bounds every schedule: a cut around one part, or, for trees, a length of 1 on all links between parts (the
certificates of `blinksim.bounds.certificates`). The level with the least rate limits; what the others allow
says how far they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np

from blinksim.bounds.bound_result import Bound, BoundResult
from blinksim.bounds.certificates import Cut
from blinksim.bounds.exchange_cuts import traffic_cuts
from blinksim.bounds.groups import Grouping, crossing_sums, cut_around, groupings, whole_widths
from blinksim.bounds.quick import unit_lengths
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.graphs.arrays import distinct
from blinksim.topology.graph import Topology
from blinksim.units import exact_GBps, in_GBps

# Parts up to which a cut around each is tried; of more, around the one with the least bandwidth.
_EACH = 64


@dataclass(frozen=True)
class LevelBound:
    """What one level allows.

    Attributes
    ----------
    level : str
        Its parts: ``GPU``, ``node``, or how many nodes are in one, such as ``4 nodes``.
    parts : int
        How many there are.
    capacity : Fraction
        Bytes/s, exact: what the links out of a part carry, or those into it; on average where it is about all parts.
    crosses : Fraction
        What a part must at least send, or take in, over them, as a multiple of the size.
    bound : Bound
        ``capacity / crosses`` with its certificate.
    limits : bool
        True if no tighter bound is known: this level is what limits.
    carried : Fraction, optional
        What the part that sends or takes in most by a schedule does so over these links, as a multiple of the size.

    Examples
    --------
    >>> import blinksim as bs
    >>> [(row.level, row.parts, float(row.bound.rate / 10**9)) for row in bs.levels("rails:4x8@300GB/s,50GB/s")]
    [('GPU', 32, 175.0), ('node', 4, 266.66666666666663)]
    """

    level: str
    parts: int
    capacity: Fraction
    crosses: Fraction
    bound: Bound
    limits: bool
    carried: Fraction | None = None

    def to_dict(self, topology: Topology) -> dict[str, Any]:
        """JSON; rates in GB/s."""
        return {
            "level": self.level,
            "parts": self.parts,
            "capacity_exact": exact_GBps(self.capacity),
            "crosses_exact": str(self.crosses),
            "rate_exact": exact_GBps(self.bound.rate),
            "algbw_GBps": in_GBps(self.bound.rate),
            "limits": self.limits,
            **({} if self.carried is None else {"carried_exact": str(self.carried)}),
            "assumes": self.bound.assumes,
            "words": self.bound.certificate.words(topology),
            "certificate": self.bound.certificate.to_dict(),
        }


def level_bounds(found: BoundResult, loads: Sequence[Fraction] | None = None) -> list[LevelBound]:
    """What every level of the machine allows, from the GPUs up to the highest level of switches that has parts.

    loads (link): what a schedule has every link carry, as multiples of the size.
    """
    topology, collective = found.topology, found.collective
    rows: dict[str, LevelBound] = {}
    for name, parts in levels(topology):
        rates = _of_level(name, parts, topology, collective, found.rate)
        tightest = min(rates, key=lambda row: row.bound.rate, default=None)
        if tightest is not None and (name not in rows or tightest.bound.rate < rows[name].bound.rate):
            rows[name] = tightest if loads is None else replace(tightest, carried=_carried(parts, topology, loads))
    return list(rows.values())


def levels(topology: Topology) -> Iterator[tuple[str, Grouping]]:
    """(level, its parts); GPUs twice: alone, and with the adapters that are theirs."""
    members, node = topology.member_places, topology.device_nodes
    for found in groupings(topology):
        number = found.label[members]
        single = np.bincount(number, minlength=len(found.keys))
        if single.max() == 1:
            yield "GPU", found
        elif (held := np.flatnonzero(single)).size > 1:
            # Parts without members do not count.
            place = np.full(len(found.keys) + 1, len(held))
            place[held] = np.arange(len(held))
            base = int(node.max()) + 2
            widest = int(np.bincount(distinct(number * base + node[members] + 1) // base).max())
            name = "node" if widest == 1 else f"{widest} nodes"
            yield name, Grouping(found.sort, place[found.label], [found.keys[group] for group in held.tolist()])


def _carried(parts: Grouping, topology: Topology, loads: Sequence[Fraction]) -> Fraction:
    """The most that any part sends, or takes in, over the links around it."""
    # Whole numbers add up at a tenth of the cost, and thousands of links have the very same value.
    scale = lcm(*{value.denominator for value in {id(value): value for value in loads}.values()})
    whole = {id(value): int(value * scale) for value in loads}
    values = np.array([whole[id(value)] for value in loads], dtype=object)
    both = crossing_sums(topology, parts.label, values)
    return Fraction(max((int(total) for way in both for total in way[: len(parts.keys)]), default=0), scale)


def _of_level(
    name: str, parts: Grouping, topology: Topology, collective: Collective, least: Fraction
) -> Iterator[LevelBound]:
    count, groups = len(distinct(parts.label[topology.member_places])), len(parts.keys)
    cut = min(_cuts(parts, topology, collective), key=lambda cut: cut.rate, default=None)
    if cut is not None:
        yield LevelBound(name, count, cut.capacity, cut.crossing, Bound.of(cut, collective), cut.rate == least)
    if collective.personalized:
        return
    # Every link around a part has a length of 1: what all trees together must cross, for a part and a direction.
    a, b = (parts.label[ends] for ends in topology.ends)
    try:
        proof = unit_lengths(topology, collective, a != b)
    except InputError:
        # Nothing must cross, or a relay does more than forward: a cut is all that is known.
        return
    # A link between two parts leaves one and enters another; one to a switch above touches one part only.
    ends = int((a[a != b] < groups).sum() + (b[a != b] < groups).sum())
    each = Fraction(ends, len(proof.lengths) * 2 * count)
    made = Bound.of(proof, collective)
    yield LevelBound(name, count, proof.price * each, proof.distance * each, made, proof.rate == least)


def _cuts(parts: Grouping, topology: Topology, collective: Collective) -> Iterator[Cut]:
    """Around single parts, and around all but one; of many parts, those with the least out and the least in."""
    if collective.traffic is not None:
        yield from traffic_cuts(topology, collective, [parts])
        return
    tried: Sequence[int] = range(len(parts.keys))
    if len(tried) > _EACH:
        sums = crossing_sums(topology, parts.label, whole_widths(topology)[0])
        tried = list(dict.fromkeys(int(way[: len(parts.keys)].argmin()) for way in sums))
    for number in tried:
        group = parts.label == number
        for side in (group, ~group):
            within = side[topology.member_places]
            if collective.between(np.flatnonzero(within), np.flatnonzero(~within), topology.ranks):
                yield cut_around(topology, collective, side, limited=True)
