"""What every level of a machine allows by itself: its GPUs, its nodes, and the nodes below each level of switches.

A level divides the machine into parts. What must leave or enter a part, over what the links around it carry, bounds
every schedule: a cut around one part, or, for trees, a length of 1 on all links between parts (the certificates of
`blinksim.bounds.certificates`). The level with the least rate limits; what the others allow says how far they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import Any

from blinksim.bounds.bound_result import Bound, BoundResult
from blinksim.bounds.certificate_sums import crossing_links, must_leave, tight_limits
from blinksim.bounds.certificates import Cut
from blinksim.bounds.exchange_cuts import traffic_cuts
from blinksim.bounds.groups import groups
from blinksim.bounds.lengths import Lengths
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.topology.elements import bandwidths
from blinksim.topology.graph import Topology
from blinksim.units import exact_GBps, in_GBps

# Parts up to which a cut around each is tried; of more, around the one with the least bandwidth.
_EACH = 64
Parts = Mapping[str, object]


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
        tightest = min(
            _of_level(name, parts, topology, collective, found.rate), key=lambda row: row.bound.rate, default=None
        )
        if tightest is not None and (name not in rows or tightest.bound.rate < rows[name].bound.rate):
            rows[name] = tightest if loads is None else replace(tightest, carried=_carried(parts, topology, loads))
    return list(rows.values())


def _around(parts: Parts, topology: Topology, of_link: Sequence[Fraction]) -> tuple[dict[object, Fraction], ...]:
    """What the links out of every part have together, and those into it. of_link: what each link of the machine has."""
    # Whole numbers add up at a tenth of the cost, and thousands of links have the very same value.
    distinct = {id(value): value for value in of_link}
    common = lcm(*{value.denominator for value in distinct.values()})
    whole = {key: int(value * common) for key, value in distinct.items()}
    out, into = dict.fromkeys(parts.values(), 0), dict.fromkeys(parts.values(), 0)
    for link, value in zip(topology.links, of_link, strict=True):
        a, b = parts.get(link.src), parts.get(link.dst)
        if a != b:
            if a is not None:
                out[a] += whole[id(value)]
            if b is not None:
                into[b] += whole[id(value)]
    return tuple({part: Fraction(total, common) for part, total in way.items()} for way in (out, into))


def _carried(parts: Parts, topology: Topology, loads: Sequence[Fraction]) -> Fraction:
    """The most that any part sends, or takes in, over the links around it."""
    return max((load for way in _around(parts, topology, loads) for load in way.values()), default=Fraction(0))


def levels(topology: Topology) -> Iterator[tuple[str, Parts]]:
    """(level, the part of every device that is in one); GPUs twice: alone, and with the adapters that are theirs."""
    node = {device.name: device.node for device in topology.devices}
    own = set(topology.members)
    for parts in groups(topology):
        held: dict[object, set[int]] = {}
        single = Counter[object]()
        for name, part in parts.items():
            if name in own:
                single[part] += 1
                held.setdefault(part, set()).add(node[name])
        widest = max(map(len, held.values()))
        if max(single.values()) == 1:
            yield "GPU", parts
        elif len(held) > 1:
            yield "node" if widest == 1 else f"{widest} nodes", {n: p for n, p in parts.items() if p in held}


def _of_level(
    name: str, parts: Parts, topology: Topology, collective: Collective, least: Fraction
) -> Iterator[LevelBound]:
    count = len({parts[member] for member in topology.members})
    cut = min(_cuts(parts, topology, collective), key=lambda cut: cut.rate, default=None)
    if cut is not None:
        made = Bound.of(cut, collective)
        yield LevelBound(name, count, cut.capacity, cut.crossing, made, cut.rate == least)
    if not collective.personalized:
        yield from _by_trees(name, parts, count, topology, collective, least)


def _cuts(parts: Parts, topology: Topology, collective: Collective) -> Iterator[Cut]:
    """Around single parts, and around all but one."""
    if collective.traffic is not None:
        yield from traffic_cuts(topology, collective, [parts])
        return
    names = [device.name for device in topology.devices]
    limited = any(device.capacity is not None for device in topology.devices)
    inside: dict[object, list[str]] = {}
    for name, part in parts.items():
        inside.setdefault(part, []).append(name)
    for part in _tightest(parts, list(inside), topology):
        group = set(inside[part])
        rest = [name for name in names if name not in group]
        for side in (inside[part], rest):
            if must_leave(collective, topology, set(side)):
                ends = dict.fromkeys(names, 1) | dict.fromkeys(side, 0)
                crossing = crossing_links(topology, ends, leaving=0) if limited else []
                yield Cut.of(topology, collective, side, tight_limits(topology, crossing, ends) if limited else ())


def _tightest(parts: Parts, all_parts: list[object], topology: Topology) -> list[object]:
    """The parts that are worth a cut: all, or of many the one with the least out and the one with the least in."""
    if len(all_parts) <= _EACH:
        return all_parts
    around = _around(parts, topology, bandwidths(topology))
    return list(dict.fromkeys(min(all_parts, key=way.__getitem__) for way in around))


def _by_trees(
    name: str, parts: Parts, count: int, topology: Topology, collective: Collective, least: Fraction
) -> Iterator[LevelBound]:
    """Every link around a part has a length of 1: what all trees together must cross, for a part and a direction."""
    between = [link for link in topology.links if parts.get(link.src) != parts.get(link.dst)]
    ends = sum((link.src in parts) + (link.dst in parts) for link in between)
    try:
        proof = Lengths.of(topology, collective, dict.fromkeys((link.name for link in between), Fraction(1)))
    except InputError:
        # Nothing must cross, or a relay does more than forward: a cut is all that is known.
        return
    # A link between two parts leaves one and enters another; one to a switch above touches one part only.
    each = Fraction(ends, len(between) * 2 * count)
    made = Bound.of(proof, collective)
    yield LevelBound(name, count, proof.price * each, proof.distance * each, made, proof.rate == least)
