"""Certificates of lower bounds on time: less fits into that time than must be carried.

The method ``of`` of each kind is its theorem. It takes the witness and the time that is claimed, adds up, and
raises `InputError` if the sums do not prove it. docs/bounds.md states the theorems with worked numbers.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any, ClassVar, Self

from blinksim.bounds.bound_result import assumed_by
from blinksim.bounds.certificates import Certificate, Phases, differing, shown
from blinksim.bounds.lengths import added, counted, more_than_forwards, priced
from blinksim.bounds.time.delays import FAR, SECOND, Delays, delays
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, InputError
from blinksim.topology.graph import Topology
from blinksim.units import exact_GBps, format_size_about, format_time

MICROSECOND = 10**9
# A picosecond and coarser: times are printed with as few digits as prove them.
_STEPS = (10**6, 10**3, 1)
_DECIMAL = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?")


class TimeCertificate:
    """What every kind can do. time: femtoseconds before which nothing ends. size: bytes."""

    kind: str
    assumes: str
    time: int
    size: int

    def again(self, topology: Topology, collective: Collective, size: int) -> TimeCertificate:
        """What the witness proves about another problem; raises `InputError` if not the same time."""
        raise NotImplementedError

    def words(self, topology: Topology) -> str:
        """The proof in one sentence."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """JSON: the time in microseconds as an exact fraction; every kind adds its witness and its sums."""
        return {"kind": self.kind, "time_us": microseconds(self.time)}

    def check(self, topology: Topology, collective: Collective, size: int) -> list[str]:
        """Reasons why this does not prove its time; empty if it does."""
        try:
            return differing(self.to_dict(), self.again(topology, collective, size).to_dict())
        except BlinksimError as error:
            return [str(error)]


def microseconds(time: int) -> str:
    """Femtoseconds as an exact decimal number of microseconds.

    >>> microseconds(9_317_000_000)
    '9.317'
    """
    whole, rest = divmod(time, MICROSECOND)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")


def from_microseconds(text: object, what: str) -> int:
    """Femtoseconds of such a text; raises `InputError` for anything else."""
    found = _DECIMAL.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InputError(f"certificate: {what} is {shown(text)}, not microseconds such as '9.317'")
    return int(found[1]) * MICROSECOND + int((found[2] or "").ljust(9, "0"))


def in_words(time: int) -> str:
    """Femtoseconds for people.

    >>> in_words(9_317_000_000)
    '9.317 us'
    """
    return format_time(time / SECOND)


def amount(size: Fraction) -> str:
    """Bytes for people."""
    return format_size_about(round(size))


def before(time: int) -> int:
    """A time just before, by a part in 10**9: what is known of it holds for all that is earlier.

    >>> before(10**10) < 10**10
    True
    """
    return time - (time >> 30) - 1


def last_short(short: Callable[[int], bool], low: int, high: int | None = None, close: int = 40) -> int:
    """About the last time at which less can be done than must be, in femtoseconds.

    short: True as long as it is so; True at `low`. high: a time when it is False, if one is known. close:
    stops at a part of 2 to the power of minus this; the last digits of a float are beyond what anybody reads.
    """
    if high is None:
        high = max(2 * low, 10**6)
        while short(high):
            low, high = high, 2 * high
    while high - low > max(1, low >> close):
        middle = (low + high) // 2
        low, high = (middle, high) if short(middle) else (low, middle)
    return low


def latest(short: Callable[[int], bool], low: int, high: int | None, may_end: Callable[[int], bool]) -> int:
    """The latest time before which nothing ends, with few digits where that costs nothing; as `last_short`.

    may_end: True of a time when just enough can be done.
    """
    low = last_short(short, low, high)
    rounded = (-(-low // step) * step for step in _STEPS)
    return next((time for time in rounded if before(time) <= low and may_end(time)), low)


def carried(rates: Sequence[int], idle: Sequence[int], time: int) -> int:
    """What fits: the sum of rate times the part of the time that is not idle."""
    return sum(rate * (time - lost) for rate, lost in zip(rates, idle, strict=True) if time > lost)


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
        if id(proof) not in facts.idle_for:  # it serves all sizes
            if isinstance(proof, Phases):
                raise InputError(f"windows: a certificate of kind {proof.kind} has no prices of links")
            prices = defaultdict[int, list[Fraction]](list)
            for price, links in priced(topology, counted(proof, topology)):
                carrying = [link for link in links if FAR not in (facts.opens[link], facts.closing[link])]
                # A bus starts with one of its links and may end with another.
                ends = (min(map(side.__getitem__, carrying), default=FAR) for side in (facts.opens, facts.closing))
                prices[sum(ends)].append(price)
            groups = {idle_for: added(alike) for idle_for, alike in prices.items()}
            total = added(groups.values())
            groups.pop(2 * FAR, None)
            facts.idle_for[id(proof)] = proof, total, tuple(sorted(groups.items()))
        _, total, idle = facts.idle_for[id(proof)]
        # Every byte costs at least this much: total / rate is what one byte's worth of the size takes.
        needed = total / proof.rate * size
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
        return f"{self.proof.words(topology)}; filling and draining the pipeline takes {span}"

    def to_dict(self) -> dict[str, Any]:
        """JSON: also the certificate of the rate, and the price of what is idle for how long."""
        idle = [{"idle_us": microseconds(one), "price_exact": exact_GBps(price)} for one, price in self.idle]
        sums = {"carried_exact": str(self.carried), "needed_exact": str(self.needed)}
        return super().to_dict() | {"proof": self.proof.to_dict(), "idle": idle, **sums}


MESSAGES = "whole messages from rank to rank, ordinary sends and sums, and switches that only forward"
Place = tuple[tuple[str, ...], ...]
"""Lists of devices."""


class Theorem(ABC):
    """What it takes to finish a collective of one size, and what is there: two functions of the time.

    What can be done grows with the time and what must be done does not, so one time at which it falls short
    rules out every earlier one. The witness says where to look.

    Attributes
    ----------
    kind : str
        Its name in JSON.
    anywhere : bool
        It may be about other parts of the machine than those of `places`.
    most : int or None
        It speaks of times up to this one only, femtoseconds.
    facts, size, n : Delays, int, int
        The problem, with the number of ranks.
    part : frozenset of int
        The devices that it is about; mostly none, as it is about all.
    all : int
        The bytes of the size, in the units of `Delays`.
    must : int
        What must be done at any time, if that does not depend on the time; by default `all`.
    unit : int
        How many of its units a number in the certificate has.
    """

    kind: ClassVar[str]
    anywhere: ClassVar[bool] = False
    most: int | None = None

    def __init__(self, facts: Delays, size: int, part: frozenset[int]) -> None:
        """Raises `InputError` where it says nothing."""
        self.facts, self.size, self.part, self.n = facts, size, part, facts.topology.ranks
        self.block = facts.block(size)
        self.all = self.block * self.n
        self.must, self.unit = self.all, facts.block(1) * self.n
        self.prepare(facts)

    def prepare(self, facts: Delays) -> None:  # noqa: B027 - few theorems have nothing to prepare
        """Works out what does not depend on the time."""

    @classmethod
    def stated(cls, topology: Topology, collective: Collective, size: int, place: Place) -> Self:
        """The theorem at a place. Raises `InputError` where it says nothing."""
        facts, names = delays(topology, collective), [name for part in place for name in part]
        if not cls.speaks(facts) or not (cls.anywhere or place in cls.places(facts)):
            raise InputError(f"{cls.kind} says nothing about {collective} on {topology.name}")
        if any(name not in topology.index for name in names) or len({*names}) != len(names):
            raise InputError(f"{cls.kind}: the part is no list of devices of {topology.name}")
        return cls(facts, size, frozenset(topology.index[name] for name in names))

    @classmethod
    def speaks(cls, facts: Delays) -> bool:
        """As `applies`; where relays add or multicast, messages are no longer from rank to rank."""
        return not more_than_forwards(facts.topology) and cls.applies(facts)

    @classmethod
    @abstractmethod
    def applies(cls, facts: Delays) -> bool:
        """True if it says something about the collective on the machine."""

    @classmethod
    def places(cls, facts: Delays) -> list[Place]:
        """Where it is worth trying, if it applies."""
        return [()]

    @abstractmethod
    def there(self, time: int) -> int:
        """What can be done by a time, in units of its own; grows with the time."""

    def needed(self, time: int) -> Fraction | int:
        """What must be done, in the same units; does not grow with the time."""
        return self.must

    @abstractmethod
    def words(self, time: int) -> str:
        """Why nothing ends before `time`, in one sentence."""

    def table(self, time: int) -> dict[str, Any]:
        """What helps a reader to add up, for the certificate."""
        return {}

    def short(self, time: int) -> bool:
        """True if less can be done by `time` than must be."""
        return self.there(time) < self.needed(time)

    def proves(self, time: int) -> bool:
        """True if nothing ends before `time`: just before, it is less, and then no more."""
        speaks = self.most is None or time <= self.most
        return speaks and self.short(before(time)) and self.there(time) <= self.needed(time)

    def latest(self, low: int = 0) -> int:
        """The latest time before which nothing ends; 0 if there is none later than `low`."""
        most = self.most
        if not self.short(low + 1) or (most is not None and most <= low):
            return 0
        return most if most is not None and self.proves(most) else latest(self.short, low + 1, most, self.proves)


@dataclass(frozen=True)
class Stated(TimeCertificate):
    """A theorem at a place, and the time that it rules out.

    Attributes
    ----------
    theorem : type
        Which one.
    where : tuple of tuple of str
        The devices that it is about.
    there, needed : Fraction
        What can be done by `time`, and what must be.
    """

    theorem: type[Theorem]
    size: int
    time: int
    where: Place
    there: Fraction
    needed: Fraction
    sentence: str
    table: dict[str, Any]
    assumes = MESSAGES

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self.theorem.kind

    @classmethod
    def of(
        cls, theorem: type[Theorem], topology: Topology, collective: Collective, size: int, place: Place, time: int
    ) -> Stated:
        """Raises `InputError` where the theorem says nothing there, or does not rule out all that ends before."""
        found = theorem.stated(topology, collective, size, place)
        if not found.proves(time):
            raise InputError(f"{theorem.kind}: what is needed may be done by then")
        there, needed = Fraction(found.there(time), found.unit), Fraction(found.needed(time)) / found.unit
        return cls(theorem, size, time, place, there, needed, found.words(time), found.table(time))

    def again(self, topology: Topology, collective: Collective, size: int) -> Stated:
        """What the theorem proves at the same place of another problem."""
        return Stated.of(self.theorem, topology, collective, size, self.where, self.time)

    def words(self, topology: Topology) -> str:
        return self.sentence

    def to_dict(self) -> dict[str, Any]:
        """JSON: also the place, and what can be done and must be done by the time."""
        sums = {"there_exact": str(self.there), "needed_exact": str(self.needed)}
        return super().to_dict() | {"where": [list(names) for names in self.where], **self.table, **sums}
