"""Link lengths as certificates: every schedule uses at least a certain length for each byte.

Linear-programming duality (shortest paths for alltoall: Shahrokhi and Matula 1990; least-cost arborescences for trees:
Edmonds 1967, Chu and Liu 1965): give every link a length; carrying one byte of every rank's result costs at least
`distance` of length, and the machine offers `price` (sum of capacity times length) per second. Checked by shortest
paths and spanning trees in whole numbers; any lengths give a valid bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from blinksim.bounds.branching import MOST_WORK, SUMS, least_branching
from blinksim.bounds.certificate_sums import capacity, check_shares, least_length
from blinksim.bounds.certificates import Certificate
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.topology.elements import BRANCHING, bandwidths
from blinksim.topology.graph import Topology
from blinksim.units import exact_GBps, format_rate


def price(topology: Topology, lengths: Mapping[str, Fraction]) -> Fraction:
    """Capacity times length, summed over links, buses (their most expensive link), device capacities and adders."""
    total, buses = Fraction(0), dict[str, Fraction]()
    # Thousands of links have the very same length and bandwidth: multiply these once.
    alike = Counter[tuple[int, int]]()
    product: dict[tuple[int, int], Fraction] = {}
    for link, rate in zip(topology.links, bandwidths(topology), strict=True):
        length = lengths.get(link.name)
        if not length:
            continue
        key = id(length), id(rate)
        if key not in product:
            product[key] = length * rate
        if link.bus is None:
            alike[key] += 1
        else:
            buses[link.bus] = max(buses.get(link.bus, product[key]), product[key])
    total += sum(product[key] * times for key, times in alike.items())
    for device in topology.devices:
        for way in ("in", "out"):
            length = lengths.get(f"{device.name} {way}")
            if length:
                if device.capacity is None:
                    raise InputError(f"{device.name} has no capacity of its own to give a length to")
                total += length * device.capacity
        length = lengths.get(f"{device.name} {SUMS}")
        if length:
            if device.reduction_rate is None:
                raise InputError(f"{device.name} has no adders of a known rate to give a length to")
            total += length * device.reduction_rate
    on_buses = Counter(buses.values())
    return total + sum(value * times for value, times in on_buses.items())


@dataclass(frozen=True)
class Lengths(Certificate):
    """Lengths by link name; others are 0.

    Device capacities have the names ``gpu0 in`` and ``gpu0 out``, and the adders of a switch ``nvswitch sums``.

    price: capacity times length in bytes/s. distance: what `least_length` gives. grants: what switches may do beside
    forwarding, of what the machine says that they can; nothing by default. even: what `even_use` says, where that is
    known.
    """

    lengths: tuple[tuple[str, Fraction], ...]
    price: Fraction
    distance: Fraction
    shares: tuple[int, ...] = ()
    grants: tuple[str, ...] = ()
    even: EvenUse | None = field(default=None, compare=False, repr=False)
    kind = "lengths"

    @classmethod
    def of(
        cls,
        topology: Topology,
        collective: Collective,
        lengths: Mapping[str, Fraction],
        shares: Sequence[int] = (),
        grants: Iterable[str] = (),
        most_work: int = MOST_WORK,
    ) -> Lengths:
        """Theorem: algbw is at most `price` (capacity times length, summed) / `distance` (length that a byte needs).

        Moving one byte uses at least `least_length`; per second the machine offers `price` of length. Weak duality of
        linear programs, true of any lengths. Raises `InputError` for unknown links, for lengths that prove nothing, and
        where a relay does more than forward: trees between members are then not the only way. Also for a grant of what
        no switch of the machine can, and if the least tree among switches that may branch takes more than `most_work`.
        """
        weights = check_shares(collective, topology.ranks, shares)
        granted = checked_grants(topology, grants)
        if granted and collective.personalized:
            raise InputError(f"switches that multicast or reduce make no difference to {collective.name} here")
        able = more_than_forwards(topology)
        if able and not collective.personalized:
            raise InputError(f"{able[0]} can multicast or reduce, and these lengths assume that it only forwards")
        known = {link.name for link in topology.links}
        ways = {f"{device.name} {way}" for device in topology.devices for way in ("in", "out", SUMS)}
        # Thousands of links have the very same length, and fractions are slow: look at each once.
        objects = {id(length): length for length in lengths.values()}
        exact = {key: Fraction(length) for key, length in objects.items()}
        negative = {key for key, length in exact.items() if length < 0}
        for name, length in lengths.items():
            if name not in known and name not in ways:
                raise InputError(f"{name!r} is no link of {topology.name}")
            if id(length) in negative:
                raise InputError(f"the length of {name} is negative")
        kept = {name: exact[id(length)] for name, length in lengths.items() if exact[id(length)]}
        if granted:
            distance = least_branching(topology, collective, kept, weights, granted, most_work)
        else:
            distance = least_length(topology, collective, kept, weights)
        if distance <= 0:
            raise InputError("these lengths prove nothing: some schedule uses none of them")
        return cls(tuple(sorted(kept.items())), price(topology, kept), distance, weights, granted)

    def again(self, topology: Topology, collective: Collective, shares: Sequence[int] = ()) -> Lengths:
        """What the same lengths prove about another problem."""
        return Lengths.of(topology, collective, dict(self.lengths), shares, self.grants)

    @property
    def rate(self) -> Fraction:
        return self.price / self.distance

    def words(self, topology: Topology) -> str:
        """One sentence that a reader can check: what must carry each byte how often, and what that allows."""
        allowed = format_rate(self.rate)
        even = self.even or even_use(topology, dict(self.lengths), self.distance)
        if even is None:
            adders = sum(name.endswith(f" {SUMS}") for name, _ in self.lengths)
            what = f"{len(self.lengths) - adders} links" + _adders(adders)
            return (
                f"weighed by the certificate's lengths, {what} carry {format_rate(self.price)} "
                f"together and every byte uses {self.distance}: {allowed}"
            )
        if even.port is None:
            return (
                f"every byte crosses {even.links} {even.times} times, and together they carry "
                f"{format_rate(even.capacity)}: {allowed}"
            )
        often = _times(even.times, topology.ranks)
        return (
            f"each GPU's {even.port} must carry every byte {often} each way, on average: "
            f"{format_rate(even.capacity)} allow {allowed}"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON: lengths as exact fractions, the price and the ratio (the bound) in GB/s."""
        entry: dict[str, Any] = {
            "kind": self.kind,
            "lengths": {name: str(length) for name, length in self.lengths},
            "price_exact": exact_GBps(self.price),
            "distance_exact": str(self.distance),
            "ratio_exact": exact_GBps(self.rate),
        }
        return entry | {key: list(value) for key, value in (("shares", self.shares), ("grants", self.grants)) if value}


@dataclass(frozen=True, slots=True)
class EvenUse:
    """Lengths that are all alike, read as a count: how often every byte crosses the links that have one.

    port: what each GPU has of them, None if GPUs differ. times: per GPU and direction, else of all links together.
    capacity: bytes/s, of the same.
    """

    links: str
    port: str | None
    times: Fraction
    capacity: Fraction


def even_use(topology: Topology, lengths: Mapping[str, Fraction], distance: Fraction) -> EvenUse | None:
    """What lengths say where all links that have one have the same; None where they differ, or where buses share."""
    counted = [link for link in topology.links if link.name in lengths]
    different = set({id(length): length for length in lengths.values()}.values())
    if len(counted) < len(lengths) or len(different) > 1 or any(link.bus for link in counted):
        return None
    times = distance / next(iter(lengths.values()))
    total = capacity(topology, counted)
    members = set(topology.members)
    touching = [link for link in topology.links if link.src in members or link.dst in members]
    if len(touching) != len(counted) or not all(link.src in members or link.dst in members for link in counted):
        nodes = {device.name: device.node for device in topology.devices}
        between = all(nodes[link.src] != nodes[link.dst] for link in counted)
        return EvenUse(even_words(len(counted), between=between), None, times, total)
    leaving, entering = dict.fromkeys(members, Fraction(0)), dict.fromkeys(members, Fraction(0))
    for link in counted:
        if link.src in members:
            leaving[link.src] += link.bandwidth
        if link.dst in members:
            entering[link.dst] += link.bandwidth
    own = {*leaving.values(), *entering.values()}
    # A link between two GPUs is the way out of one and the way into the other, but has one length.
    inner = sum(link.src in members and link.dst in members for link in counted)
    if len(own) != 1 or inner not in (0, len(counted)):
        return EvenUse(f"the {len(counted)} links of GPUs", None, times, total)
    ways = 1 if inner else 2
    return EvenUse("", "links" if inner else "port", times / (ways * len(members)), own.pop())


def even_words(links: int, *, between: bool) -> str:
    """So many links in words; between: all of them join nodes."""
    return f"the {links} links between nodes" if between else f"{links} links"


def _adders(switches: int) -> str:
    if not switches:
        return ""
    return f" and the adders of {'a switch' if switches == 1 else f'{switches} switches'}"


def _times(times: Fraction, ranks: int) -> str:
    """How often, with the formula that a reader may know."""
    for formula, value in (("2(n-1)/n", Fraction(2 * (ranks - 1), ranks)), ("(n-1)/n", Fraction(ranks - 1, ranks))):
        if times == value:
            return f"{formula} times"
    return "once" if times == 1 else f"{times} times"


def more_than_forwards(topology: Topology) -> list[str]:
    """Relays that can do more than forward: multicast or reduce. Switches do so only where that is granted."""
    members, more = set(topology.members), frozenset(("multicast", "reduce"))
    return [
        d.name for d in topology.devices if not more.isdisjoint(d.can) and d.name not in members and not d.in_network
    ]


def checked_grants(topology: Topology, grants: Iterable[str]) -> tuple[str, ...]:
    """What is granted to switches, in order; raises `InputError` for what none of them can do."""
    wanted = set(grants)
    able = topology.in_network
    for grant in sorted(wanted - able):
        raise InputError(f"no switch of {topology.name} can {BRANCHING.get(grant, repr(grant))}, which is granted")
    return tuple(ability for ability in BRANCHING if ability in wanted)
