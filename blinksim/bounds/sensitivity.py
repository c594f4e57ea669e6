"""Sensitivity of a bound: what each level of a machine allows alone, and the bound after a loss or gain.

A level divides the machine into parts: its GPUs, its nodes, the nodes below each level of switches. What must
leave or enter a part, over what the links around it carry, bounds every schedule: a cut around one part, or,
for trees, a length of 1 on all links between parts. The level with the least rate limits; what the others
allow says how far they are.

A bound's certificate answers half of it without computing: widening a link that it does not count leaves it
valid, so only the links in the certificate can help (shadow prices: Koopmans and Dantzig, in Dantzig 1963).
Losses are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from time import monotonic
from typing import Any

import numpy as np

from blinksim.bounds.bound_result import Bound, BoundResult
from blinksim.bounds.certificates import Certificate, Cut, Phases
from blinksim.bounds.compute import bound
from blinksim.bounds.groups import Grouping, crossing_sums, cut_around, groupings, traffic_cuts, whole_widths
from blinksim.bounds.lengths import counted
from blinksim.bounds.quick import unit_lengths
from blinksim.budget import words
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.graphs.arrays import distinct, scattered
from blinksim.graphs.connectivity import grouped
from blinksim.graphs.network import whole
from blinksim.results import keyed
from blinksim.topology.graph import Link, Topology
from blinksim.topology.selection import unserved
from blinksim.topology.symmetry import link_orbits, searched

# What is computed for each link is refused where it would take longer than about this.
_MOST_SECONDS = 180


@dataclass(frozen=True)
class Change:
    """The bound before and after one what-if, as `losses` and `gains` find it.

    Attributes
    ----------
    what : str
        The what-if, in words.
    pairs : tuple of str
        The joined pairs that it may be done to, with the same bound; it was computed for one of each sort.
    before, after : Fraction
        algbw of the headline, bytes/s; after is 0 if the members are no longer connected.
    bottleneck : str
        The headline's certificate afterwards, in words.

    Examples
    --------
    >>> import blinksim as bs
    >>> worst = bs.losses("dgx1-v100", "allreduce")[0]
    >>> worst.what, len(worst.pairs), round(worst.ratio, 3)
    ('gpu0-gpu3 (nvlink) lost', 8, 0.917)
    """

    what: str
    pairs: tuple[str, ...]
    before: Fraction
    after: Fraction
    bottleneck: str

    @property
    def ratio(self) -> float:
        """after / before."""
        return float(self.after / self.before)

    def to_dict(self) -> dict[str, Any]:
        """JSON; rates in GB/s."""
        return keyed(self, "@Change")


def counted_links(certificate: Certificate, topology: Topology) -> set[str]:
    """Names of the links whose bandwidth a certificate counts."""
    proofs = [proof for _, proof in certificate.phases] if isinstance(certificate, Phases) else [certificate]
    return {name for proof in proofs for name in counted(proof, topology)}


def joined_pairs(topology: Topology, collective: Collective) -> list[list[list[Link]]]:
    """Pairs of links (both directions of one class; one where the other is missing), those that are alike together.

    A symmetry that maps a link onto another maps their partners too, so the orbits of links are those of
    pairs. A root stays where it is: only symmetries that leave it count.
    """
    topology = replace(topology, symmetries=tuple(tuple(perm.tolist()) for perm in searched(topology)))
    fixed = [topology.index[topology.members[collective.root]]] if collective.rooted else []
    if collective.data is not None:
        # No two ranks need be alike.
        fixed = topology.member_places.tolist()
    number = {link.key: place for place, link in enumerate(topology.links)}
    orbit = {link: place for place, group in enumerate(link_orbits(topology, fixed)) for link in group}
    ends = ((place, number.get((link.dst, link.src, link.kind))) for place, link in enumerate(topology.links))
    pairs = [[one] if other is None else [one, other] for one, other in ends if other is None or one < other]
    kinds = (frozenset(orbit[one] for one in pair) for pair in pairs)
    return list(grouped(zip(kinds, ([topology.links[one] for one in pair] for pair in pairs), strict=True)).values())


def _named(pair: list[Link]) -> str:
    return f"{pair[0].src}{'-' if len(pair) == 2 else '->'}{pair[0].dst} ({pair[0].kind})"


def _answer(topology: Topology, collective: Collective) -> tuple[Fraction, str]:
    if unserved(topology, collective):
        groups = topology.components()
        return Fraction(0), "not connected: " + " | ".join(" ".join(group[:4]) for group in groups[:4])
    result = bound(topology, collective)
    return result.rate, result.headline.certificate.words(topology)


def _changed(topology: Topology, pair: Iterable[Link], lanes: int) -> Topology:
    """`topology` with `lanes` more (or fewer) on the links of a pair; without them if none is left."""
    keys = {link.key for link in pair}
    left = [link for link in topology.links if link.key not in keys or link.lanes + lanes > 0]
    links = tuple(replace(link, lanes=link.lanes + lanes) if link.key in keys else link for link in left)
    return replace(topology, links=links, symmetries=())


def link_changes(topology: Topology, collective: Collective, lanes: int | None) -> list[Change]:
    """The headline bound after each single loss of a joined pair, worst first, or gain, best first.

    lanes: what is gained, or lost if it is negative; None loses all. Pairs of a class with the same bound are
    one row. Raises `InfeasibleError` if the bounds would take minutes.
    """
    result, start, kinds = bound(topology, collective), monotonic(), joined_pairs(topology, collective)
    used, same = counted_links(result.headline.certificate, topology), result.headline.certificate.words(topology)
    rows: dict[tuple[str, str, Fraction], Change] = {}
    for done, alike in enumerate(kinds):
        seconds = (monotonic() - start) / max(1, done) * len(kinds)
        if done and seconds > _MOST_SECONDS:
            limit = f"the bounds without each would take about {words(seconds)}"
            cure = f"ask for one of them, as in edits='without {_named(alike[0]).partition(' ')[0]}'"
            raise InfeasibleError(f"{len(kinds)} links of {topology.name} differ, and {limit}; {cure}")
        first, most = alike[0], max(link.lanes for link in alike[0])
        fewer, after, proof = lanes is None or lanes < 0, result.rate, same
        # The certificate of a symmetric machine names one of several equal bottlenecks: a lane more helps
        # where all links that are alike are counted.
        if fewer or all(any(link.name in used for link in pair) for pair in alike):
            changed = _answer(_changed(topology, first, -most if lanes is None else lanes), collective)
            # What holds for more links holds for fewer.
            after, proof = min(changed, (after, proof)) if fewer else changed
        lost = "lost" if lanes is None or most == 1 else f"loses one of {most} lanes"
        what = lost if fewer else "gains a lane"
        key = what, first[0].kind, after
        row = rows.get(key, Change(f"{_named(first)} {what}", (), result.rate, after, proof))
        rows[key] = replace(row, pairs=(*row.pairs, *map(_named, alike)))
    return sorted(rows.values(), key=lambda row: row.after, reverse=lanes is not None and lanes > 0)


def nic_gain(topology: Topology, collective: Collective) -> Change | None:
    """The headline bound with one NIC more on every node: a copy of its first, links included. None without NICs."""
    nics = grouped((device.node, device.name) for device in topology.devices if device.kind == "nic")
    if not nics:
        return None
    name = {names[0]: f"{names[0]}.more" for names in nics.values()}
    devices = [*topology.devices, *(replace(topology.device(nic), name=more) for nic, more in name.items())]
    links = [*topology.links]
    for link in topology.links:
        if link.src in name or link.dst in name:
            bus = None if link.bus is None else f"{link.bus}.more"
            links.append(replace(link, src=name.get(link.src, link.src), dst=name.get(link.dst, link.dst), bus=bus))
    more = replace(topology, devices=tuple(devices), links=tuple(links), symmetries=())
    after, words = _answer(more, collective)
    return Change("one NIC more on every node", tuple(name), bound(topology, collective).rate, after, words)


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
        Bytes/s, exact: what the links out of a part carry, or those into it; on average where it is about all
        parts.
    crosses : Fraction
        What a part must at least send, or take in, over them, as a multiple of the size.
    bound : Bound
        ``capacity / crosses`` with its certificate.
    limits : bool
        True if no tighter bound is known: this level is what limits.
    carried : Fraction, optional
        What the part that sends or takes in most by a schedule does so over these links, as a multiple of the
        size.

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
        crosses = {"crosses_exact": str(self.crosses), "carried_exact": str(self.carried)}
        carried = "" if self.carried is None else "carried_exact"
        proof = {"words": self.bound.certificate.words(topology), "certificate": self.bound.certificate.to_dict()}
        return keyed(self, f"@LevelBound {carried} assumes=bound.assumes words certificate", **crosses, **proof)


def level_bounds(found: BoundResult, loads: Sequence[Fraction] | None = None) -> list[LevelBound]:
    """What every level of the machine allows, from the GPUs up to the highest level of switches that has parts.

    loads (link): what a schedule has every link carry, as multiples of the size.
    """
    topology, collective, least = found.topology, found.collective, found.rate
    rows: dict[str, LevelBound] = {}
    for name, parts in levels(topology):
        count, groups = len(distinct(parts.label[topology.member_places])), len(parts.keys)
        tried = list[LevelBound]()
        cut = min(_cuts(parts, topology, collective), key=lambda cut: cut.rate, default=None)
        if cut is not None:
            made = Bound.of(cut, collective)
            tried.append(LevelBound(name, count, cut.capacity, cut.crossing, made, cut.rate == least))
        # Every link around a part has a length of 1: what all trees together must cross, for a part and a
        # direction.
        a, b = (parts.label[ends] for ends in topology.ends)
        # A cut is all that is known where nothing must cross, or a relay does more than forward.
        with suppress(InputError):
            proof = None if collective.personalized else unit_lengths(topology, collective, a != b)
            if proof is not None:
                # A link between two parts leaves one and enters another; one to a switch above touches one
                # part only.
                ends = int((a[a != b] < groups).sum() + (b[a != b] < groups).sum())
                each, made = Fraction(ends, len(proof.lengths) * 2 * count), Bound.of(proof, collective)
                capacity, crosses = proof.price * each, proof.distance * each
                tried.append(LevelBound(name, count, capacity, crosses, made, proof.rate == least))
        tightest = min(tried, key=lambda row: row.bound.rate, default=None)
        if tightest is not None and (name not in rows or tightest.bound.rate < rows[name].bound.rate):
            rows[name] = tightest
            if loads is not None:
                # Whole numbers add up at a tenth of the cost.
                values, unit = whole([(value, 1) for value in loads])
                both = crossing_sums(topology, parts.label, np.array(values, dtype=object))
                most = max((total for way in both for total in way[:groups]), default=0)
                rows[name] = replace(tightest, carried=most * unit)
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
            place = scattered(held, np.arange(len(held)), len(found.keys) + 1, len(held))
            base = int(node.max()) + 2
            widest = int(np.bincount(distinct(number * base + node[members] + 1) // base).max())
            name = "node" if widest == 1 else f"{widest} nodes"
            yield name, Grouping(found.sort, place[found.label], [found.keys[group] for group in held.tolist()])


def _cuts(parts: Grouping, topology: Topology, collective: Collective) -> Iterator[Cut]:
    """Around single parts, and around all but one; of many parts, those with the least out and the least in."""
    if collective.data is not None:
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
