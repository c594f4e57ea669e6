"""Certificates that anyone can check with the machine and a pocket calculator: sums only, no solver.

A certificate is a witness (devices, parts of them, lengths of links) and what follows from it. The method
``of`` of each kind is its theorem: it takes the witness and the problem, and computes the rate that no
schedule exceeds. Checking is to compute it again and to compare; docs/bounds.md states the theorems with
worked numbers. `blinksim.bounds.lengths` has the fourth kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from math import gcd, isfinite
from typing import Any

from blinksim.collective import COLLECTIVES, EVERY, OWN, ROOT, Collective
from blinksim.errors import BlinksimError, InputError
from blinksim.graphs.connectivity import grouped
from blinksim.results import count, keyed
from blinksim.topology.elements import ON_NODE
from blinksim.topology.graph import Link, Topology
from blinksim.units import exact_GBps, format_rate, parse_exact

# Collectives with a block of every rank on one side; the blocks may be unequal.
_WITH_SHARES = sorted(name for name in COLLECTIVES if Collective(name).block_sides == 1)
# Links from which on arrays are quicker; a certificate of fewer is checked without NumPy.
_MANY_LINKS = 2000


def known_devices(topology: Topology, names: Iterable[str]) -> set[str]:
    """`names` as a set; raises `InputError` for one that is no device, and for one that stands there twice."""
    found = set[str]()
    for name in names:
        if name not in topology.index:
            raise InputError(f"{name} is no device of {topology.name}")
        if name in found:
            raise InputError(f"{name} is listed twice")
        found.add(name)
    return found


def check_shares(collective: Collective, ranks: int, shares: Sequence[int]) -> tuple[int, ...]:
    """The weights of the ranks' blocks in lowest terms, empty where they are equal.

    Raises `InputError` for weights that do not fit the ranks, that leave all blocks but one empty, or for a
    collective without blocks.
    """
    if not shares:
        return ()
    if collective.name not in _WITH_SHARES:
        raise InputError(f"{collective.name} has no shares; they are for {', '.join(_WITH_SHARES)}")
    if len(shares) != ranks or min(shares) < 0 or not any(shares):
        raise InputError(f"shares: give {ranks} whole numbers, none negative and not all 0")
    if max(shares) == sum(shares):
        raise InputError("shares: one rank has everything; that is a broadcast or a reduce")
    common = gcd(*shares)
    return () if len(set(shares)) == 1 else tuple(share // common for share in shares)


def crossing_links(topology: Topology, part: Mapping[str, int], *, leaving: int | None = None) -> list[Link]:
    """The links between different parts; with `leaving`, only those out of that part. part: its number by device."""
    if len(topology.links) < _MANY_LINKS:
        crossing = (link for link in topology.links if part[link.src] != part[link.dst])
        return [link for link in crossing if leaving is None or part[link.src] == leaving]
    number = [part[device.name] for device in topology.devices]
    return [topology.links[link] for link in topology.link_columns.crossing(number, leaving)]


def capacity(topology: Topology, links: Iterable[Link], limits: Iterable[str] = ()) -> Fraction:
    """Bytes/s that `links` carry together: a shared bus counts once.

    limits: device capacities that count instead of the links they limit, as ``gpu0 out`` (what leaves gpu0)
    or ``gpu0 in``. Raises `InputError` for a device without a capacity.
    """
    total, covered = Fraction(0), set[str]()
    for limit in limits:
        name, _, way = limit.rpartition(" ")
        own = topology.device(name).capacity
        if own is None or way not in ("in", "out"):
            raise InputError(f"{limit!r} names no device capacity")
        if limit in covered:
            raise InputError(f"{limit!r} is counted twice")
        covered.add(limit)
        total += own
    # Sums of whole numbers are far quicker than sums of fractions, and most bandwidths are whole.
    buses: dict[str, Fraction] = {}
    whole = 0
    for link in links:
        if covered and not covered.isdisjoint((f"{link.src} out", f"{link.dst} in")):
            continue
        lane = link.lane_bandwidth
        if link.bus is not None:
            buses[link.bus] = max(buses.get(link.bus, Fraction(0)), link.bandwidth)
        elif lane.denominator == 1:
            whole += lane.numerator * link.lanes
        else:
            total += link.bandwidth
    return total + whole + sum(buses.values())


def tight_limits(topology: Topology, links: Sequence[Link]) -> tuple[str, ...]:
    """Device capacities that bind on the crossing `links`; any choice is valid, this one is greedy."""
    chosen: list[str] = []
    rest = list(links)
    for device in topology.devices:
        if device.capacity is None:
            continue
        for way in ("out", "in"):
            own = [link for link in rest if (link.src if way == "out" else link.dst) == device.name]
            if not own or capacity(topology, own) <= device.capacity:
                continue
            others = [link for link in rest if link not in own]
            # A bus that other links use as well counts anyway: the limit does not save it.
            paid = {link.bus for link in others}
            if capacity(topology, [link for link in own if link.bus is None or link.bus not in paid]) > device.capacity:
                chosen.append(f"{device.name} {way}")
                rest = others
    return tuple(chosen)


def must_leave(collective: Collective, topology: Topology, inside: set[str], shares: Sequence[int] = ()) -> Fraction:
    """The part of the size that has to leave the devices `inside`; 0 if nothing has to.

    shares: weights of the ranks' parts where they are unequal (allgather, reducescatter, gather, scatter).
    """
    members = topology.members
    within = [name in inside for name in members]
    if not shares:
        sources = [rank for rank, here in enumerate(within) if here]
        return collective.between(sources, [rank for rank, here in enumerate(within) if not here], len(members))
    held, total = sum(weight for weight, here in zip(shares, within, strict=True) if here), sum(shares)
    root = within[collective.root] if collective.rooted else False
    inner = {EVERY: Fraction(any(within)), ROOT: Fraction(root), OWN: Fraction(held, total)}
    outer = {EVERY: Fraction(not all(within)), ROOT: Fraction(not root), OWN: Fraction(total - held, total)}
    return inner[collective.starts] * outer[collective.ends]


# What every part must send or receive in a collective, in vectors of `size` for each of the parts but one.
_MESSAGES = {(EVERY, EVERY): 2, (OWN, EVERY): 1, (EVERY, OWN): 1, (ROOT, EVERY): 1, (EVERY, ROOT): 1}


class Certificate:
    """What every certificate can do; `rate` is algbw in bytes/s."""

    kind = ""

    @property
    def rate(self) -> Fraction:
        """What it proves: no schedule of its scope has a higher algbw."""
        raise NotImplementedError

    def again(self, topology: Topology, collective: Collective, shares: Sequence[int] = ()) -> Certificate:
        """What the witness proves about another problem; raises `InputError` if that is nothing."""
        raise NotImplementedError

    def words(self, topology: Topology) -> str:
        """The proof in one sentence."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """JSON: the witness, its sums and ``ratio_exact``, the rate in GB/s."""
        raise NotImplementedError

    def check(
        self, topology: Topology, collective: Collective, rate: Fraction, shares: Sequence[int] = ()
    ) -> list[str]:
        """Reasons why this does not prove that algbw is at most `rate` (bytes/s); empty if it does.

        shares: weights of the ranks' blocks in the problem, empty where they are equal; a certificate for
        other blocks proves another problem.
        """
        try:
            fresh = self.again(topology, collective, shares)
        except BlinksimError as error:
            return [str(error)]
        reasons = differing(self.to_dict(), fresh.to_dict())
        if fresh.rate != rate:
            reasons.append(f"the sums give {exact_GBps(fresh.rate)} GB/s, the claim is {exact_GBps(rate)} GB/s")
        return reasons


# --- cut ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut(Certificate):
    """What must leave `side` over what its outgoing links carry.

    side: every device inside. ranks_inside: members among them. capacity: bytes/s out of it. crossing: the
    part of the size that must leave. links: names of the links that leave. limits: see `capacity`. shares:
    see `must_leave`. traffic: it is about a matrix or a routing, which tell ranks apart.
    """

    side: tuple[str, ...]
    ranks_inside: int
    capacity: Fraction
    crossing: Fraction
    links: tuple[str, ...]
    limits: tuple[str, ...] = ()
    shares: tuple[int, ...] = ()
    traffic: bool = False
    kind = "cut"

    @classmethod
    def of(
        cls,
        topology: Topology,
        collective: Collective,
        side: Iterable[str],
        limits: Sequence[str] = (),
        shares: Sequence[int] = (),
    ) -> Cut:
        """Theorem: algbw is at most (what the links out of `side` carry) / (the part of the size that must leave it).

        What must leave is known inside and must be known outside, and nothing leaves but over those links; so
        it takes at least size * crossing / capacity seconds, however it is coded (the easy half of max-flow
        min-cut: Ford and Fulkerson 1956). Raises `InputError` for unknown devices, and if nothing has to
        leave them.
        """
        inside = known_devices(topology, side)
        weights = check_shares(collective, topology.ranks, shares)
        part = {device.name: int(device.name not in inside) for device in topology.devices}
        links = crossing_links(topology, part, leaving=0)
        crossing = must_leave(collective, topology, inside, weights)
        if not crossing:
            raise InputError(f"nothing has to leave these devices in {collective}")
        names = tuple(device.name for device in topology.devices if device.name in inside)
        ranks, held = sum(name in inside for name in topology.members), capacity(topology, links, limits)
        crossed, traffic = tuple(link.name for link in links), collective.data is not None
        return cls(names, ranks, held, crossing, crossed, tuple(limits), weights, traffic)

    def again(self, topology: Topology, collective: Collective, shares: Sequence[int] = ()) -> Cut:
        """What the same side proves about another problem."""
        return Cut.of(topology, collective, self.side, self.limits, shares)

    @property
    def rate(self) -> Fraction:
        return self.capacity / self.crossing

    def words(self, topology: Topology) -> str:
        """One sentence, such as ``GPU 7 can receive at most 150 GB/s and must receive 7 of 8 shards``."""
        side = frozenset(self.side)
        inside, outside = ([name for name in topology.members if (name in side) == here] for here in (True, False))
        much = part_of(self.crossing, topology.ranks, bool(self.shares))
        if self.traffic:
            much = f"{float(self.crossing):.4g} times the largest buffer of any rank"
        # From the side with fewer ranks: what many send to one is less than each of them could.
        names, do = (inside or self.side, "send") if len(inside) <= len(outside) else (outside, "receive")
        return f"{listed(names)} can {do} at most {format_rate(self.capacity)} and must {do} {much}"

    def to_dict(self) -> dict[str, Any]:
        """JSON: capacities and the ratio (the bound) in GB/s as exact fractions."""
        entry = keyed(self, "@Cut", crossing_exact=str(self.crossing))
        return entry | {k: list(v) for k, v in (("limits", self.limits), ("shares", self.shares)) if v}


# --- partition ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Partition(Certificate):
    """k parts with a member each: `messages` of the whole size must cross, over what the links between parts carry.

    parts: every device, once. capacity: bytes/s of all links between parts, both ways, a shared bus once.
    messages: 2(k-1) for allreduce; k-1 for allgather, reducescatter, broadcast and reduce.
    """

    parts: tuple[tuple[str, ...], ...]
    capacity: Fraction
    messages: int
    links: tuple[str, ...]
    limits: tuple[str, ...] = ()
    kind = "partition"

    @classmethod
    def of(
        cls,
        topology: Topology,
        collective: Collective,
        parts: Iterable[Iterable[str]],
        limits: Sequence[str] | None = None,
    ) -> Partition:
        """Theorem: algbw is at most (what the links between k parts carry, both ways) / `messages`.

        Allreduce, without coding: every part must hear, directly or not, from every other about every
        element, and that takes 2(k-1) one-way messages in any order (gossip: Harary and Schwenk 1974).
        Allgather and broadcast: a part must receive what it does not hold, which is k-1 sizes for all parts
        together, coded or not; reducescatter and reduce are the same backwards. Raises `InputError` unless
        the parts hold every device once and a member each.
        """
        groups = [tuple(group) for group in parts]
        known_devices(topology, (name for group in groups for name in group))
        part = {name: number for number, group in enumerate(groups) for name in group}
        if set(part) != set(topology.index):
            raise InputError("the parts do not hold every device exactly once")
        if len(groups) < 2 or {part[name] for name in topology.members} != set(range(len(groups))):
            raise InputError("there must be two parts or more, with a member in each")
        each = _MESSAGES.get((collective.starts, collective.ends))
        if each is None:
            raise InputError(f"a partition says nothing about {collective.name}")
        links = crossing_links(topology, part)
        chosen = tight_limits(topology, links) if limits is None else tuple(limits)
        held, crossed = capacity(topology, links, chosen), tuple(link.name for link in links)
        return cls(tuple(groups), held, each * (len(groups) - 1), crossed, chosen)

    def again(self, topology: Topology, collective: Collective, shares: Sequence[int] = ()) -> Partition:
        """What the same parts prove about another problem; how large the ranks' blocks are makes no difference."""
        check_shares(collective, topology.ranks, shares)
        return Partition.of(topology, collective, self.parts, self.limits)

    @property
    def rate(self) -> Fraction:
        return self.capacity / self.messages

    def words(self, topology: Topology) -> str:
        """One sentence that names the parts and what crosses between them."""
        members = set(topology.members)
        parts = " | ".join(listed([name for name in group if name in members]) for group in self.parts)
        which = f"all {topology.ranks} ranks" if len(self.parts) == topology.ranks else parts
        copies = "one copy" if self.messages == 1 else f"{self.messages} copies"
        carry = f"which carry {format_rate(self.capacity)} together"
        return f"{copies} of the data must cross the links between {which}, {carry}"

    def to_dict(self) -> dict[str, Any]:
        """JSON: the capacity and the ratio (the bound) in GB/s as exact fractions."""
        entry = keyed(self, "@Partition", parts=[list(group) for group in self.parts])
        return entry | ({"limits": list(self.limits)} if self.limits else {})


# --- one after the other --------------------------------------------------------------------------------

PHASES = ("reducescatter", "allgather")


@dataclass(frozen=True)
class Phases(Certificate):
    """Collectives one after the other on the same size: their times add."""

    phases: tuple[tuple[str, Certificate], ...]
    kind = "phases"

    @classmethod
    def of(cls, topology: Topology, collective: Collective, proofs: Iterable[tuple[str, Certificate]]) -> Phases:
        """Theorem: a reducescatter of equal shards and then an allgather take at least the sum of their times.

        Each time is bounded by a certificate of its own collective: size / rate = size / (rate of the first)
        + size / (rate of the second). Raises `InputError` for other phases, and for a certificate that proves
        nothing about its phase.
        """
        given = tuple(proofs)
        names = tuple(name for name, _ in given)
        if collective.name != "allreduce" or names != PHASES:
            raise InputError(f"{' then '.join(names)} is not {collective.name}")
        return cls(tuple((name, proof.again(topology, Collective(name))) for name, proof in given))

    def again(self, topology: Topology, collective: Collective, shares: Sequence[int] = ()) -> Phases:
        """What the sides of both phases prove about another problem."""
        check_shares(collective, topology.ranks, shares)
        return Phases.of(topology, collective, self.phases)

    @property
    def rate(self) -> Fraction:
        if not all(proof.rate for _, proof in self.phases):
            return Fraction(0)
        return 1 / sum((1 / proof.rate for _, proof in self.phases), Fraction(0))

    def words(self, topology: Topology) -> str:
        """One sentence per phase."""
        return "; then ".join(f"{name}: {proof.words(topology)}" for name, proof in self.phases)

    def to_dict(self) -> dict[str, Any]:
        """JSON: the certificate of each phase."""
        phases = [{"collective": name, **proof.to_dict()} for name, proof in self.phases]
        return {"kind": self.kind, "phases": phases, "ratio_exact": exact_GBps(self.rate)}


# Sets of names; the order of all other lists counts.
_UNORDERED = ("links", "limits", "side")
# Floats are given for people, with the exact value beside them.
_ROUNDING = Fraction(1, 10**9)
# What the rest was derived from. Any lengths are valid ones, also 0 and fractions that are not in lowest
# terms.
_WITNESS = ("lengths",)
_LONGEST = 60


def differing(stated: Mapping[str, Any], derived: Mapping[str, Any], place: str = "") -> list[str]:
    """A reason for every key of either that the other lacks or that has another value, with its place."""
    reasons = []
    for key in {**derived, **stated}:
        where = f"{place}{key}"
        if key not in stated:
            reasons.append(f"{where} is missing")
        elif key not in derived:
            reasons.append(f"{where}: {shown(stated[key])} is no part of this")
        else:
            reasons += contradiction(key, stated[key], derived[key], where)
    return reasons


def contradiction(key: str, stated: Any, derived: Any, where: str = "") -> list[str]:
    """Reasons why `stated` is not the value `derived` of `key`; empty if it is."""
    where = where or key
    if key in _WITNESS:
        return []
    if isinstance(derived, Mapping) and isinstance(stated, Mapping):
        return differing(stated, derived, f"{where}.")
    if isinstance(derived, list) and isinstance(stated, list):
        if derived and isinstance(derived[0], Mapping) and len(stated) == len(derived):
            pairs = enumerate(zip(stated, derived, strict=True))
            return [text for n, (a, b) in pairs for text in contradiction(key, a, b, f"{where}[{n}]")]
        same = stated == derived or (key in _UNORDERED and sorted(map(repr, stated)) == sorted(map(repr, derived)))
        # True == 1 and 1.0 == 1, but neither is what was written.
        if same and all(type(a) is type(b) for a, b in zip(stated, derived, strict=True)):
            return []
        return [f"{where}: not those of this machine"]
    if _equal(key, stated, derived):
        return []
    return [f"{where} is {shown(stated)}, and must be {shown(derived)}"]


def _equal(key: str, stated: Any, derived: Any) -> bool:
    if key.endswith("_exact") and isinstance(derived, str):
        try:
            # What was derived may be longer than what is read, and the same text is the same number.
            return stated == derived or parse_exact(stated) == Fraction(derived)
        except InputError:
            return False
    if isinstance(derived, float):
        if type(stated) not in (int, float) or not isfinite(stated if isinstance(stated, float) else 0):
            return False
        return abs(Fraction(stated) - Fraction(derived)) <= _ROUNDING * abs(Fraction(derived))
    return type(stated) is type(derived) and bool(stated == derived)


def shown(value: Any) -> str:
    """A value in a message, cut short; control characters as escapes."""
    try:
        text = repr(value)
    except ValueError:
        # Python writes no whole number of more than 4,300 digits.
        return "a number of very many digits"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


_NUMBERED = re.compile(r"(.*?)([0-9]+)")


def _runs(numbers: Sequence[int]) -> str:
    # What follows each other lies as far from its place.
    alike = groupby(enumerate(sorted(numbers)), key=lambda entry: entry[1] - entry[0])
    runs = ([number for _, number in run] for _, run in alike)
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _grouped(names: Sequence[str]) -> list[str]:
    groups: dict[str, list[int]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        stem, number = match.groups() if match else (name, "")
        groups.setdefault(stem, []).extend([int(number)] if number else [])
    if list(groups) == ["gpu"]:
        return [f"GPU{'s' * (len(names) > 1)} {_runs(groups['gpu'])}"]
    return [f"{stem}{_runs(numbers)}" for stem, numbers in groups.items()]


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names in short: ``GPUs 0-6``, ``card0.t0-1, card1.t0``, ``GPUs 0-7 of n1-3``.

    At most `most` groups are written out.
    """
    matches = ((ON_NODE.fullmatch(name), name) for name in names)
    nodes = grouped((match[1], match[2]) if match else ("", name) for match, name in matches)
    # Nodes that contribute the same devices are merged.
    alike = grouped((", ".join(_grouped(inner)), int(node)) for node, inner in nodes.items() if node)
    texts = [f"{inner} of n{_runs(numbers)}" for inner, numbers in alike.items()] + _grouped(nodes.get("", []))
    return ", ".join(texts[:most]) + (f" and {count(len(texts) - most, 'more group')}" if len(texts) > most else "")


def part_of(crossing: Fraction, ranks: int, weighted: bool = False) -> str:
    """The part of the data that must cross: in shards if it is a whole number of the ranks' equal shards."""
    if crossing == 1:
        return "all data"
    shards = crossing * ranks
    if weighted or shards.denominator != 1:
        return f"{crossing} of the data"
    return f"{shards} of {ranks} shards" if shards <= ranks else f"{crossing} times what a rank holds"
