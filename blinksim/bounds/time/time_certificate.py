"""What every certificate of a time says: nothing ends sooner, because less fits into that time than must be carried.

The method ``of`` of each kind is its theorem. It takes the witness and the time that is claimed, adds up, and raises
`InputError` if the sums do not prove it. docs/certificates.md states the theorems with worked numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from blinksim.bounds.certificates.stated import differing, shown
from blinksim.bounds.time.delays import SECOND
from blinksim.collective import Collective
from blinksim.errors import BlinksimError, InputError
from blinksim.topology.graph import Topology
from blinksim.units import format_size_about, format_time

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

    def witness(self) -> dict[str, Any]:
        """JSON of what the proof starts from, and of its sums."""
        raise NotImplementedError

    @property
    def seconds(self) -> Fraction:
        return Fraction(self.time, SECOND)

    def to_dict(self) -> dict[str, Any]:
        """JSON: the time in microseconds as an exact fraction, the witness and its sums."""
        return {"kind": self.kind, "time_us": microseconds(self.time), **self.witness()}

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


def latest(
    short: Callable[[int], bool], low: int, high: int | None = None, may_end: Callable[[int], bool] | None = None
) -> int:
    """The latest time before which nothing ends, in femtoseconds, with few digits where that costs nothing.

    short: True as long as less can be done than must be; True at `low`. high: a time when it is False, if one is known.
    may_end: True of a time when just enough can be done; default, as `short`.
    """
    if high is None:
        high = max(2 * low, 10**6)
        while short(high):
            low, high = high, 2 * high
    # The last digits of a float are beyond what anybody reads: 1 in 10**12.
    while high - low > max(1, low >> 40):
        middle = (low + high) // 2
        if short(middle):
            low = middle
        else:
            high = middle
    for step in _STEPS:
        rounded = -(-low // step) * step
        if before(rounded) <= low and (may_end or short)(rounded):
            return rounded
    return low


def carried(rates: Sequence[int], idle: Sequence[int], time: int) -> int:
    """What fits: the sum of rate times the part of the time that is not idle."""
    return sum(rate * (time - lost) for rate, lost in zip(rates, idle, strict=True) if time > lost)
