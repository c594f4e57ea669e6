"""Certificates that anyone can check with the machine and a pocket calculator: sums only, no solver.

A cut: what must leave a set of devices cannot leave faster than the links out of it carry (max-flow min-cut duality,
Ford and Fulkerson 1956; for spanning trees Edmonds 1973). A partition: k parts that must all hear from each other need
2(k-1) messages across its boundaries (Nash-Williams and Tutte 1961 for trees; Harary and Schwenk 1974 for messages in
any order). `blinksim.bounds.certificates.lengths` has the third kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

from blinksim.bounds.certificates.crossing_sums import capacity, crossing_links, must_leave, tight_limits
from blinksim.bounds.certificates.wording import listed, part_of
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, InputError
from blinksim.topology.graph import Topology
from blinksim.units import exact_GBps, format_rate


class Certificate(Protocol):
    """What every certificate can do; `rate` is algbw in bytes/s."""

    @property
    def kind(self) -> str: ...

    @property
    def rate(self) -> Fraction: ...

    def check(self, topology: Topology, collective: Collective, rate: Fraction) -> list[str]: ...

    def words(self, topology: Topology) -> str: ...

    def to_dict(self) -> dict[str, Any]: ...


def _problems(topology: Topology, names: Iterable[str], shares: Sequence[int]) -> list[str]:
    listed_names = list(names)
    reasons = [f"{name} is no device of {topology.name}" for name in listed_names if name not in topology.index]
    if len(set(listed_names)) < len(listed_names):
        reasons.append("a device is listed twice")
    if shares and (len(shares) != topology.ranks or min(shares) < 0 or not sum(shares)):
        reasons.append(f"{len(shares)} shares for {topology.ranks} ranks")
    return reasons


def compare_rates(proved: Fraction, rate: Fraction) -> list[str]:
    """A reason if the rate that the sums give is not the rate claimed."""
    if proved == rate:
        return []
    return [f"the sums give {exact_GBps(proved)} GB/s, the claim is {exact_GBps(rate)} GB/s"]


def differing(mine: dict[str, Any], fresh: dict[str, Any]) -> list[str]:
    """A reason for every key that contradicts the machine; order of names does not matter."""
    reasons = []
    for key, value in fresh.items():
        found = mine.get(key)
        same = sorted(found or ()) == sorted(value) if key in ("links", "limits", "side") else found == value
        if not same:
            shown = f"{found} for {value}" if not isinstance(value, list) else "not those of this machine"
            reasons.append(f"{key}: {shown}")
    return reasons


# --- cut ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """What must leave `side` over what its outgoing links carry.

    side: every device inside. ranks_inside: members among them. capacity: bytes/s out of it. crossing: the part of the
    size that must leave. links: names of the links that leave. limits: see `capacity`. shares: see `must_leave`.
    """

    side: tuple[str, ...]
    ranks_inside: int
    capacity: Fraction
    crossing: Fraction
    links: tuple[str, ...]
    limits: tuple[str, ...] = ()
    shares: tuple[int, ...] = ()
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
        """The certificate of the devices `side`; raises `InputError` if nothing has to leave them."""
        inside = set(side)
        part = {device.name: int(device.name not in inside) for device in topology.devices}
        links = crossing_links(topology, part, leaving=0)
        crossing = must_leave(collective, topology, inside, shares)
        if not crossing:
            raise InputError(f"nothing has to leave these devices in {collective}")
        return cls(
            tuple(device.name for device in topology.devices if device.name in inside),
            sum(name in inside for name in topology.members),
            capacity(topology, links, limits),
            crossing,
            tuple(link.name for link in links),
            tuple(limits),
            tuple(shares),
        )

    @property
    def rate(self) -> Fraction:
        return self.capacity / self.crossing

    def check(self, topology: Topology, collective: Collective, rate: Fraction) -> list[str]:
        """Reasons why this does not prove that algbw is at most `rate` (bytes/s); empty if it does."""
        reasons = _problems(topology, self.side, self.shares)
        if reasons:
            return reasons
        try:
            fresh = Cut.of(topology, collective, self.side, self.limits, self.shares)
        except BlinksimError as error:
            return [str(error)]
        return differing(self.to_dict(), fresh.to_dict()) + compare_rates(fresh.rate, rate)

    def words(self, topology: Topology) -> str:
        """One sentence, such as ``GPUs 0-6 can send out at most 150 GB/s; 7 of 8 shards must cross``."""
        inside = [name for name in topology.members if name in self.side] or list(self.side)
        limit = f"{listed(inside)} can send out at most {format_rate(self.capacity)}"
        return f"{limit}; {part_of(self.crossing, topology.ranks, bool(self.shares))} must cross"

    def to_dict(self) -> dict[str, Any]:
        """JSON: capacities and the ratio (the bound) in GB/s as exact fractions."""
        entry: dict[str, Any] = {
            "kind": self.kind,
            "side": list(self.side),
            "ranks_inside": self.ranks_inside,
            "capacity_exact": exact_GBps(self.capacity),
            "crossing_exact": str(self.crossing),
            "ratio_exact": exact_GBps(self.rate),
            "links": list(self.links),
        }
        return entry | {k: list(v) for k, v in (("limits", self.limits), ("shares", self.shares)) if v}


# --- partition ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Partition:
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
        """The certificate of `parts`. Raises `InputError` unless they hold every device once and a member each."""
        groups = [tuple(group) for group in parts]
        part = {name: number for number, group in enumerate(groups) for name in group}
        if len(part) != sum(map(len, groups)) or set(part) != set(topology.index):
            raise InputError("the parts do not hold every device exactly once")
        if len(groups) < 2 or {part[name] for name in topology.members} != set(range(len(groups))):
            raise InputError("there must be two parts or more, with a member in each")
        factor = {"allreduce": 2, "allgather": 1, "reducescatter": 1, "broadcast": 1, "reduce": 1}
        if collective.name not in factor:
            raise InputError(f"a partition says nothing about {collective.name}")
        links = crossing_links(topology, part)
        chosen = tight_limits(topology, links, part) if limits is None else tuple(limits)
        return cls(
            tuple(groups),
            capacity(topology, links, chosen),
            factor[collective.name] * (len(groups) - 1),
            tuple(link.name for link in links),
            chosen,
        )

    @property
    def rate(self) -> Fraction:
        return self.capacity / self.messages

    def check(self, topology: Topology, collective: Collective, rate: Fraction) -> list[str]:
        """Reasons why this does not prove that algbw is at most `rate` (bytes/s); empty if it does."""
        reasons = _problems(topology, (name for group in self.parts for name in group), ())
        if reasons:
            return reasons
        try:
            fresh = Partition.of(topology, collective, self.parts, self.limits)
        except BlinksimError as error:
            return [str(error)]
        return differing(self.to_dict(), fresh.to_dict()) + compare_rates(fresh.rate, rate)

    def words(self, topology: Topology) -> str:
        """One sentence that names the parts and what crosses between them."""
        members = set(topology.members)
        if len(self.parts) == topology.ranks:
            which = f"all {topology.ranks} ranks apart"
        else:
            which = " | ".join(listed([name for name in group if name in members]) for group in self.parts)
        carried = f"between them the links carry {format_rate(self.capacity)}"
        return f"{which}: {carried}, and {self.messages} times the data must cross"

    def to_dict(self) -> dict[str, Any]:
        """JSON: the capacity and the ratio (the bound) in GB/s as exact fractions."""
        entry: dict[str, Any] = {
            "kind": self.kind,
            "parts": [list(group) for group in self.parts],
            "capacity_exact": exact_GBps(self.capacity),
            "messages": self.messages,
            "ratio_exact": exact_GBps(self.rate),
            "links": list(self.links),
        }
        return entry | ({"limits": list(self.limits)} if self.limits else {})


# --- one after the other --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Phases:
    """Collectives one after the other on the same size: their times add."""

    phases: tuple[tuple[str, Cut], ...]
    kind = "phases"

    @property
    def rate(self) -> Fraction:
        return 1 / sum((1 / cut.rate for _, cut in self.phases), Fraction(0))

    def check(self, topology: Topology, collective: Collective, rate: Fraction) -> list[str]:
        """Reasons why this does not prove that reduce-scatter then allgather reaches at most `rate` (bytes/s)."""
        names = [name for name, _ in self.phases]
        if collective.name != "allreduce" or names != ["reducescatter", "allgather"]:
            return [f"{' then '.join(names)} is not {collective.name}"]
        reasons = [
            f"{name}: {reason}"
            for name, cut in self.phases
            for reason in cut.check(topology, Collective(name), cut.rate)
        ]
        return reasons or compare_rates(self.rate, rate)

    def words(self, topology: Topology) -> str:
        """One sentence per phase."""
        return "; then ".join(f"{name}: {cut.words(topology)}" for name, cut in self.phases)

    def to_dict(self) -> dict[str, Any]:
        """JSON: the cut of each phase."""
        phases = [{"collective": name, **cut.to_dict()} for name, cut in self.phases]
        return {"kind": self.kind, "phases": phases, "ratio_exact": exact_GBps(self.rate)}
