"""Link lengths as certificates: every schedule uses at least a certain length for each byte.

Linear-programming duality (shortest paths for alltoall: Shahrokhi and Matula 1990; least-cost arborescences for trees:
Edmonds 1967, Chu and Liu 1965): give every link a length; carrying one byte of every rank's result costs at least
`distance` of length, and the machine offers `price` (sum of capacity times length) per second. Checked by shortest
paths and spanning trees in whole numbers; any lengths give a valid bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from blinksim.bounds.certificates.certificate import compare_rates, differing
from blinksim.bounds.certificates.least_length import least_length
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, InputError
from blinksim.topology.graph import Topology
from blinksim.units import exact_GBps, format_rate


def price(topology: Topology, lengths: Mapping[str, Fraction]) -> Fraction:
    """Capacity times length, summed over links, buses (their most expensive link) and device capacities."""
    total, buses = Fraction(0), dict[str, Fraction]()
    for link in topology.links:
        length = lengths.get(link.name)
        if not length:
            continue
        if link.bus is None:
            total += length * link.bandwidth
        else:
            buses[link.bus] = max(buses.get(link.bus, Fraction(0)), length * link.bandwidth)
    for device in topology.devices:
        for way in ("in", "out"):
            length = lengths.get(f"{device.name} {way}")
            if length:
                if device.capacity is None:
                    raise InputError(f"{device.name} has no capacity of its own to give a length to")
                total += length * device.capacity
    return total + sum(buses.values())


@dataclass(frozen=True)
class Lengths:
    """Lengths by link name (and ``gpu0 in`` / ``gpu0 out`` for device capacities); others are 0.

    price: capacity times length in bytes/s. distance: what `least_length` gives.
    """

    lengths: tuple[tuple[str, Fraction], ...]
    price: Fraction
    distance: Fraction
    shares: tuple[int, ...] = ()
    kind = "lengths"

    @classmethod
    def of(
        cls, topology: Topology, collective: Collective, lengths: Mapping[str, Fraction], shares: Sequence[int] = ()
    ) -> Lengths:
        """The certificate of `lengths`; raises `InputError` for unknown links, or lengths that prove nothing."""
        known = {link.name for link in topology.links}
        for name, length in lengths.items():
            if name not in known and name.rpartition(" ")[0] not in topology.index:
                raise InputError(f"{name!r} is no link of {topology.name}")
            if length < 0:
                raise InputError(f"the length of {name} is negative")
        kept = {name: Fraction(length) for name, length in lengths.items() if length}
        distance = least_length(topology, collective, kept, shares)
        if distance <= 0:
            raise InputError("these lengths prove nothing: some schedule uses none of them")
        return cls(tuple(sorted(kept.items())), price(topology, kept), distance, tuple(shares))

    @property
    def rate(self) -> Fraction:
        return self.price / self.distance

    def check(self, topology: Topology, collective: Collective, rate: Fraction) -> list[str]:
        """Reasons why this does not prove that algbw is at most `rate` (bytes/s); empty if it does."""
        if self.shares and len(self.shares) != topology.ranks:
            return [f"{len(self.shares)} shares for {topology.ranks} ranks"]
        if len(dict(self.lengths)) < len(self.lengths):
            return ["a length is given twice"]
        able = more_than_forwards(topology)
        if able and not collective.personalized:
            return [f"{able[0]} can multicast or reduce, and these lengths assume that it only forwards"]
        try:
            fresh = Lengths.of(topology, collective, dict(self.lengths), self.shares)
        except BlinksimError as error:
            return [str(error)]
        return differing(self.to_dict(), fresh.to_dict()) + compare_rates(fresh.rate, rate)

    def words(self, topology: Topology) -> str:
        """One sentence: how many links count, what they supply, what a byte needs."""
        offers = f"{len(self.lengths)} lengths, sum of bandwidth times length {format_rate(self.price)}"
        return f"{offers}; every byte of the size needs {self.distance} of length"

    def to_dict(self) -> dict[str, Any]:
        """JSON: lengths as exact fractions, the price and the ratio (the bound) in GB/s."""
        entry: dict[str, Any] = {
            "kind": self.kind,
            "lengths": {name: str(length) for name, length in self.lengths},
            "price_exact": exact_GBps(self.price),
            "distance_exact": str(self.distance),
            "ratio_exact": exact_GBps(self.rate),
        }
        return entry | ({"shares": list(self.shares)} if self.shares else {})


def more_than_forwards(topology: Topology) -> list[str]:
    """Devices without a rank that can do more than forward: multicast or reduce."""
    members = set(topology.members)
    return [d.name for d in topology.devices if d.name not in members and d.can & {"multicast", "reduce"}]
