"""A bound on the rate, with what links cannot do: at first data is not there yet, at last it would come too late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

from blinksim.bounds.assumptions import assumed_by
from blinksim.bounds.certificates.certificate import Certificate, Cut, Partition
from blinksim.bounds.certificates.lengths import Lengths
from blinksim.bounds.time.delays import SECOND, delays
from blinksim.bounds.time.time_certificate import TimeCertificate, before, carried, in_words, latest, microseconds
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Link, Topology
from blinksim.units import exact_GBps


@dataclass(frozen=True)
class Windows(TimeCertificate):
    """Every link is idle at first and at last; what is left of the time does not suffice for the rate's certificate.

    Attributes
    ----------
    size, time : int
        Bytes; femtoseconds.
    proof : Certificate
        Of a rate: prices of links, and what every byte costs at least.
    idle : tuple of (int, Fraction)
        Femtoseconds, and the price in bytes/s of all links that are idle for as long.
    carried, needed : Fraction
        What the windows are worth, and what the size costs; both in priced bytes.
    """

    size: int
    time: int
    proof: Certificate
    assumes: str
    idle: tuple[tuple[int, Fraction], ...]
    carried: Fraction
    needed: Fraction
    kind = "windows"

    @classmethod
    def of(
        cls, topology: Topology, collective: Collective, size: int, proof: Certificate, time: int | None = None
    ) -> Windows:
        """Theorem: nothing ends before `time` if the windows of all priced links are worth no more than what the size
        costs, and just before it less.

        With prices as in a certificate of a rate, a byte costs at least price of all links / rate. A link is idle until
        a byte can be on it, and from when a byte on it could not reach a rank by the end; `Delays.idle` adds up both.
        Default: the latest such time. Raises `InputError` for another time that is not proved, and for a certificate
        whose prices are not of links.
        """
        facts = delays(topology, collective)
        groups = defaultdict[int, Fraction](Fraction)
        total = Fraction(0)
        for price, links in priced(topology, proof):
            total += price
            carrying = [link for link in links if facts.idle(link) is not None]
            if carrying:
                # A bus starts with one of its links and may end with another.
                opens = min(facts.opens(link) or 0 for link in carrying)
                closes = min(facts.closes(link) or 0 for link in carrying)
                groups[opens + closes] += price
        # Every byte costs at least this much: total / rate is what one byte's worth of the size takes.
        needed = total / proof.rate * size
        idle = tuple(sorted(groups.items()))
        scale = lcm(needed.denominator, *(price.denominator for _, price in idle))
        rates, idles = [int(price * scale) for _, price in idle], [one for one, _ in idle]
        most = int(needed * scale) * SECOND

        def short(then: int) -> bool:
            return carried(rates, idles, then) < most

        def proves(then: int) -> bool:
            return short(before(then)) and carried(rates, idles, then) <= most

        if time is None:
            time = latest(short, 1, None, proves)
        elif not proves(time):
            raise InputError(f"windows: what the links can do within {in_words(time)} may suffice")
        passes = Fraction(carried(rates, idles, time), scale * SECOND)
        return cls(size, time, proof, assumed_by(proof, collective), idle, passes, needed)

    def again(self, topology: Topology, collective: Collective, size: int) -> Windows:
        """What the windows of the same links prove about another problem."""
        return Windows.of(topology, collective, size, self.proof.again(topology, collective), self.time)

    def words(self, topology: Topology) -> str:
        """The sentence of the rate's certificate, and how long its links are idle."""
        least, most = self.idle[0][0], self.idle[-1][0]
        span = in_words(least) if least == most else f"{in_words(least)} to {in_words(most)}"
        return f"{self.proof.words(topology)}; for {span} data cannot be there yet, or would come too late"

    def witness(self) -> dict[str, Any]:
        """JSON: the certificate of the rate, and the price of what is idle for how long."""
        return {
            "proof": self.proof.to_dict(),
            "idle": [{"idle_us": microseconds(one), "price_exact": exact_GBps(price)} for one, price in self.idle],
            "carried_exact": str(self.carried),
            "needed_exact": str(self.needed),
        }


def priced(topology: Topology, proof: Certificate) -> Iterator[tuple[Fraction, list[int]]]:
    """What a certificate of a rate adds up: prices in bytes/s, and the links that each is of.

    A bus is priced as its most expensive link, and the capacity of a device with all links that it limits. Raises
    `InputError` for a certificate of two phases.
    """
    limits: tuple[str, ...] = ()
    if isinstance(proof, Lengths):
        lengths = dict(proof.lengths)
    elif isinstance(proof, Cut | Partition):
        lengths, limits = dict.fromkeys(proof.links, Fraction(1)), proof.limits
    else:
        raise InputError(f"windows: a certificate of kind {proof.kind} has no prices of links")
    out = {limit.removesuffix(" out") for limit in limits if limit.endswith(" out")}
    into = {limit.removesuffix(" in") for limit in limits if limit.endswith(" in")}
    buses = defaultdict[str, list[tuple[Fraction, int]]](list)
    for number, link in enumerate(topology.links):
        length = lengths.get(link.name)
        if not length or link.src in out or link.dst in into:
            continue
        if link.bus is None:
            yield length * link.bandwidth, [number]
        else:
            buses[link.bus].append((length * link.bandwidth, number))
    for entries in buses.values():
        yield max(price for price, _ in entries), [number for _, number in entries]
    for device in topology.devices:
        for way, chosen in (("out", out), ("in", into)):
            length = Fraction(1) if device.name in chosen else lengths.get(f"{device.name} {way}")
            if length and device.capacity is not None:
                yield length * device.capacity, _limited(topology.links, device.name, way)


def _limited(links: tuple[Link, ...], device: str, way: str) -> list[int]:
    return [number for number, link in enumerate(links) if (link.src if way == "out" else link.dst) == device]
