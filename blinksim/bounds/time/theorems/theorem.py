"""Certificates that are one comparison: by a time, less fits than is needed, and the witness says where to look.

A theorem is a class with two functions of the time: what can be done by then, and what must be done. The first one
grows with the time and the second one does not, so one time at which it falls short rules out every earlier one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

from blinksim.bounds.time.delays import SECOND, Delays
from blinksim.bounds.time.time_certificate import TimeCertificate, before, latest
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Topology

MESSAGES = "messages go whole from rank to rank, no coding, and switches only forward"


class Theorem(ABC):
    """What it takes to finish a collective of one size, and what is there.

    Attributes
    ----------
    kind : str
        Its name in JSON.
    most : int or None
        It speaks of times up to this one only, femtoseconds.
    """

    kind: ClassVar[str]
    most: int | None = None

    @classmethod
    @abstractmethod
    def stated(cls, topology: Topology, collective: Collective, size: int, where: Iterable[Iterable[str]]) -> Theorem:
        """The theorem at a place, which is lists of devices. Raises `InputError` where it says nothing."""

    @classmethod
    @abstractmethod
    def places(cls, topology: Topology, collective: Collective) -> list[tuple[tuple[str, ...], ...]]:
        """Where it is worth trying; nothing where it does not apply."""

    @abstractmethod
    def there(self, time: int) -> int:
        """What can be done by a time, in units of its own; grows with the time."""

    @abstractmethod
    def needed(self, time: int) -> Fraction | int:
        """What must be done, in the same units; does not grow with the time."""

    @abstractmethod
    def words(self, time: int) -> str:
        """Why nothing ends before `time`, in one sentence."""

    def unit(self) -> int:
        """How many of its units a number in the certificate has."""
        return 1

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
        if not self.short(low + 1) or (self.most is not None and self.most <= low):
            return 0
        if self.most is not None and self.proves(self.most):
            return self.most
        return latest(self.short, low + 1, self.most, self.proves)


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
    where: tuple[tuple[str, ...], ...]
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
        cls,
        theorem: type[Theorem],
        topology: Topology,
        collective: Collective,
        size: int,
        where: Iterable[Iterable[str]],
        time: int,
    ) -> Stated:
        """Raises `InputError` where the theorem says nothing there, or does not rule out all that ends before."""
        place = tuple(tuple(names) for names in where)
        found = theorem.stated(topology, collective, size, place)
        if not found.proves(time):
            raise InputError(f"{theorem.kind}: what is needed may be done by then")
        unit = found.unit()
        there, needed = Fraction(found.there(time), unit), Fraction(found.needed(time)) / unit
        return cls(theorem, size, time, place, there, needed, found.words(time), found.table(time))

    def again(self, topology: Topology, collective: Collective, size: int) -> Stated:
        """What the theorem proves at the same place of another problem."""
        return Stated.of(self.theorem, topology, collective, size, self.where, self.time)

    def words(self, topology: Topology) -> str:
        return self.sentence

    def witness(self) -> dict[str, Any]:
        """JSON: the place, and what can be done and must be done by the time."""
        return {
            "where": [list(names) for names in self.where],
            **self.table,
            "there_exact": str(self.there),
            "needed_exact": str(self.needed),
        }


def block(facts: Delays, size: int) -> int:
    """The bytes of one rank's block, in units of n * scale * bytes/s * fs; see `units`."""
    return size * facts.scale * SECOND


def units(facts: Delays) -> int:
    """How many units a byte has: rates of links times femtoseconds, for each of n ranks, so that blocks are whole."""
    return facts.topology.ranks * facts.scale * SECOND


def only_ranks_hold(facts: Delays) -> bool:
    """True if no relay can keep data and send it on."""
    members = set(facts.topology.members)
    return all(device.name in members for device in facts.topology.devices if device.holds)
