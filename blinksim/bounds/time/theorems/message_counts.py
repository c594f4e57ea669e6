"""Theorems that count overheads against bytes: the second message on a link, and blocks that take two hops."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from blinksim.bounds.time.delays import Delays, delays
from blinksim.bounds.time.theorems.theorem import Theorem, block, only_ranks_hold, units
from blinksim.bounds.time.time_certificate import amount, in_words
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Topology

Place = Iterable[Iterable[str]]
Places = list[tuple[tuple[str, ...], ...]]


def direct(facts: Delays) -> bool:
    """True if all devices are ranks."""
    return len(facts.topology.devices) == facts.topology.ranks


class SecondMessage(Theorem):
    """What a link carries in one message is one block at most, unless that message comes late; in two, it pays twice.

    Allgather: what a rank sends before anything came is its own block. Reducescatter is the same backwards: what it
    gets and has no time to send on is for its own block. Bytes that pass through a rank count at their first link.
    """

    kind = "second-message"

    def __init__(self, facts: Delays, size: int) -> None:
        n = facts.topology.ranks
        self.facts, self.block, self.bytes = facts, block(facts, size), Fraction(size, n)
        self.links: list[tuple[int, int, int]] = []
        backwards = facts.collective.name == "reducescatter"
        for link, rate in enumerate(facts.rate):
            idle = facts.overhead[link] + (facts.closes(link) or 0)
            late = self._onward(facts.dst[link]) if backwards else facts.passing[facts.src[link]]
            again = facts.overhead[link] if late is None else min(facts.overhead[link], late)
            self.links.append((rate * n, idle, again))

    def _onward(self, device: int) -> int | None:
        """The least time of a message from a device."""
        facts = self.facts
        return min((facts.overhead[e] + (facts.closes(e) or 0) for e in facts.first_hops(device)), default=None)

    @classmethod
    def stated(cls, topology: Topology, collective: Collective, size: int, where: Place) -> SecondMessage:
        """where: nothing, it is about all links."""
        facts = delays(topology, collective)
        if [*where] or not cls.places(topology, collective):
            raise InputError(f"second-message says nothing about {collective} on {topology.name}")
        return cls(facts, size)

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> Places:
        named = collective.name in ("allgather", "reducescatter")
        return [()] if named and direct(delays(topology, collective)) else []

    def there(self, time: int) -> int:
        return sum(
            max(min(self.block, rate * max(0, time - idle)), rate * max(0, time - idle - again))
            for rate, idle, again in self.links
        )

    def needed(self, time: int) -> int:
        n = self.facts.topology.ranks
        return n * (n - 1) * self.block

    def unit(self) -> int:
        return units(self.facts)

    def words(self, time: int) -> str:
        n = self.facts.topology.ranks
        return (
            f"{n} ranks must get {n - 1} blocks of {amount(self.bytes)} each; a link carries more than one of them "
            f"only with a second message, and all links together do not carry them within {in_words(time)}"
        )


class ServedTwice(Theorem):
    """Alltoall: a block goes straight to its rank in a message for that rank, or it is sent twice.

    A rank that sends k messages serves k others directly. The k overheads and the bytes that are sent must fit on the
    links out of the ranks.
    """

    kind = "served-twice"

    def __init__(self, facts: Delays, size: int) -> None:
        n = facts.topology.ranks
        self.facts, self.bytes = facts, Fraction(size, n)
        self.links: list[tuple[int, int]] = []
        self.total = 0
        one = block(facts, size)
        for device in facts.ranks:
            links = facts.first_hops(device)
            self.links += [(facts.rate[e] * n, facts.closes(e) or 0) for e in links]
            least = min(facts.overhead[e] * facts.rate[e] * n for e in links)
            # The sum is linear in k, so the least is at one end.
            self.total += min(k * least + (2 * (n - 1) - k) * one for k in (1, n - 1))

    @classmethod
    def stated(cls, topology: Topology, collective: Collective, size: int, where: Place) -> ServedTwice:
        """where: nothing, it is about all ranks."""
        if [*where] or not cls.places(topology, collective):
            raise InputError(f"served-twice says nothing about {collective} on {topology.name}")
        return cls(delays(topology, collective), size)

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> Places:
        applies = collective.name == "alltoall" and only_ranks_hold(delays(topology, collective))
        return [()] if applies else []

    def there(self, time: int) -> int:
        return sum(rate * max(0, time - idle) for rate, idle in self.links)

    def needed(self, time: int) -> int:
        return self.total

    def unit(self) -> int:
        return units(self.facts)

    def words(self, time: int) -> str:
        n = self.facts.topology.ranks
        return (
            f"every rank sends {n - 1} blocks of {amount(self.bytes)}, each in a message of its own or twice; "
            f"overheads and bytes do not fit on the links out of the ranks within {in_words(time)}"
        )
