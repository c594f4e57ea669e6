"""Sensitivity of a bound: the bound with one link lost, or with one lane or NIC more.

A bound's certificate answers half of it without computing: widening a link that it does not count leaves it
valid, so only the links in the certificate can help (shadow prices: Koopmans and Dantzig, in Dantzig 1963).
Losses are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from blinksim.bounds.certificates import Certificate, Cut, Partition, Phases
from blinksim.bounds.compute import bound
from blinksim.bounds.lengths import Lengths
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.topology.graph import Link, Topology
from blinksim.topology.selection import unserved
from blinksim.topology.symmetry import link_orbits
from blinksim.units import exact_GBps


@dataclass(frozen=True)
class Change:
    """The bound before and after one what-if, as `losses` and `gains` find it.

    Attributes
    ----------
    what : str
        The what-if, in words.
    pairs : tuple of str
        The joined pairs that it may be done to, all alike; it was computed for one.
    before, after : Fraction
        algbw of the headline, bytes/s; after is 0 if the members are no longer connected.
    bottleneck : str
        The headline's certificate afterwards, in words.

    Examples
    --------
    >>> import blinksim as bs
    >>> worst = bs.losses("dgx1-v100", "allreduce")[0]
    >>> worst.what, len(worst.pairs), round(worst.ratio, 3)
    ('gpu0-gpu3 (nvlink) lost', 1, 0.917)
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
        return {
            "change": self.what,
            "links": list(self.pairs),
            "rate_exact": exact_GBps(self.after),
            "algbw_GBps": float(self.after) / 1e9,
            "before_exact": exact_GBps(self.before),
            "ratio": self.ratio,
            "bottleneck": self.bottleneck,
        }


def counted_links(certificate: Certificate) -> frozenset[str]:
    """Names of the links whose bandwidth a certificate counts."""
    match certificate:
        case Cut() | Partition():
            return frozenset(certificate.links)
        case Phases():
            return frozenset().union(*(counted_links(proof) for _, proof in certificate.phases))
        case Lengths():
            return frozenset(name for name, _ in certificate.lengths)
        case _:
            raise TypeError(f"unknown certificate {certificate!r}")


def joined_pairs(topology: Topology, collective: Collective) -> list[list[list[Link]]]:
    """Pairs of links (both directions of one class; one where the other is missing), those that are alike together.

    A symmetry that maps a link onto another maps their partners too, so the orbits of links are those of pairs. A root
    stays where it is: only symmetries that leave it count.
    """
    fixed: Sequence[int] = ()
    if collective.rooted:
        fixed = [topology.index[topology.members[collective.root]]]
    if collective.traffic is not None:
        # No two ranks need be alike.
        fixed = topology.member_places.tolist()
    number = {link.key: place for place, link in enumerate(topology.links)}
    orbit = {link: place for place, group in enumerate(link_orbits(topology, fixed)) for link in group}
    groups: dict[frozenset[int], list[list[Link]]] = {}
    for place, link in enumerate(topology.links):
        other = number.get((link.dst, link.src, link.kind))
        if other is None or place < other:
            pair = [place] if other is None else [place, other]
            groups.setdefault(frozenset(orbit[one] for one in pair), []).append([topology.links[one] for one in pair])
    return list(groups.values())


def _named(pair: list[Link]) -> str:
    arrow = "-" if len(pair) == 2 else "->"
    return f"{pair[0].src}{arrow}{pair[0].dst} ({pair[0].kind})"


def _answer(topology: Topology, collective: Collective) -> tuple[Fraction, str]:
    if unserved(topology, collective):
        groups = topology.components()
        return Fraction(0), "not connected: " + " | ".join(" ".join(group[:4]) for group in groups[:4])
    try:
        result = bound(topology, collective)
    except InfeasibleError as error:
        return Fraction(0), str(error)
    return result.rate, result.headline.certificate.words(topology)


def _changed(topology: Topology, pair: Iterable[Link], lanes: int) -> Topology:
    """`topology` with `lanes` more (or fewer) on the links of a pair; without them if none is left."""
    keys = {link.key for link in pair}
    links = []
    for link in topology.links:
        if link.key not in keys:
            links.append(link)
        elif link.lanes + lanes > 0:
            links.append(replace(link, lanes=link.lanes + lanes))
    return replace(topology, links=tuple(links), symmetries=())


def link_losses(topology: Topology, collective: Collective, *, one_lane: bool = False) -> list[Change]:
    """The headline bound after each single loss of a joined pair, worst first.

    one_lane: lose one lane instead of the whole pair. Pairs that a symmetry maps onto each other are one row.
    """
    before = bound(topology, collective).rate
    rows = []
    for alike in joined_pairs(topology, collective):
        lanes = alike[0][0].lanes
        lost = 1 if one_lane else max(link.lanes for link in alike[0])
        after, words = _answer(_changed(topology, alike[0], -lost), collective)
        what = f"{_named(alike[0])} {'loses one of ' + str(lanes) + ' lanes' if one_lane and lanes > 1 else 'lost'}"
        rows.append(Change(what, tuple(map(_named, alike)), before, after, words))
    return sorted(rows, key=lambda row: row.after)


def lane_gains(topology: Topology, collective: Collective) -> list[Change]:
    """The headline bound with one lane more on each joined pair, best first."""
    result = bound(topology, collective)
    counted = counted_links(result.headline.certificate)
    same = result.headline.certificate.words(topology)
    rows = []
    for alike in joined_pairs(topology, collective):
        # The certificate of a symmetric machine names one of several equal bottlenecks, so all equivalent pairs are
        # tried.
        helping = [pair for pair in alike if any(link.name in counted for link in pair)]
        after, words = result.rate, same
        if len(helping) == len(alike):
            after, words = _answer(_changed(topology, alike[0], 1), collective)
        rows.append(Change(f"{_named(alike[0])} gains a lane", tuple(map(_named, alike)), result.rate, after, words))
    return sorted(rows, key=lambda row: -row.after)


def nic_gain(topology: Topology, collective: Collective) -> Change | None:
    """The headline bound with one NIC more on every node: a copy of its first, links included. None without NICs."""
    first: dict[int, str] = {}
    for device in topology.devices:
        if device.kind == "nic":
            first.setdefault(device.node, device.name)
    if not first:
        return None
    name = {nic: f"{nic}.more" for nic in first.values()}
    devices = [*topology.devices, *(replace(topology.device(nic), name=more) for nic, more in name.items())]
    links = [*topology.links]
    for link in topology.links:
        if link.src in name or link.dst in name:
            bus = None if link.bus is None else f"{link.bus}.more"
            links.append(replace(link, src=name.get(link.src, link.src), dst=name.get(link.dst, link.dst), bus=bus))
    more = replace(topology, devices=tuple(devices), links=tuple(links), symmetries=())
    after, words = _answer(more, collective)
    return Change("one NIC more on every node", tuple(first.values()), bound(topology, collective).rate, after, words)
