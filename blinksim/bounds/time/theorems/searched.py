"""Theorems about the data of some ranks in which numbers are free: the best of a few choices proves the time.

Every choice is sound by itself. A coarse sum finds the time and the choice, a fine one proves it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from math import ceil
from typing import ClassVar

from blinksim.bounds.time.delays import Delays, delays
from blinksim.bounds.time.theorems.theorem import Theorem, block, only_ranks_hold, units
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Topology

Choice = tuple[float, ...]
# Ranks up to which the sums are done.
_MOST_RANKS = 16
# Sums of floats are off by far less than this part, and the searches for a time stop at the others.
_SAFE, _ROUGH, _CLOSE = 2.0**-30, 5, 9
# How often another choice is taken where the last one has led.
_AGAIN = 3


class Searched(Theorem):
    """What links can bring by a time of the data that some ranks have for all others, by one of some choices.

    Attributes
    ----------
    choices : tuple of tuple of float
        What is tried.
    coarse, fine : int
        Steps that the time is cut into, for the search and for the proof.
    """

    choices: ClassVar[tuple[Choice, ...]]
    coarse: ClassVar[int]
    fine: ClassVar[int]

    def __init__(self, facts: Delays, size: int, part: Sequence[str]) -> None:
        self.facts, self.size, self.n = facts, size, facts.topology.ranks
        self.all = block(facts, size) * self.n
        self._proofs = dict[int, tuple[int, Choice]]()

    @classmethod
    def stated(cls, topology: Topology, collective: Collective, size: int, where: Iterable[Iterable[str]]) -> Searched:
        """where: the ranks whose data must get to all others."""
        place = tuple(tuple(names) for names in where)
        if place not in cls.places(topology, collective):
            raise InputError(f"{cls.kind} says nothing about {collective} on {topology.name}")
        return cls(delays(topology, collective), size, place[0])

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> list[tuple[tuple[str, ...], ...]]:
        """The root, or the rank with the least bandwidth out of it."""
        if collective.name not in ("broadcast", "allreduce") or not 2 < topology.ranks <= _MOST_RANKS:
            return []
        facts = delays(topology, collective)
        links = {rank: facts.first_hops(rank) for rank in facts.ranks}
        paid = all(facts.overhead[e] for rank in facts.ranks for e in links[rank])
        if not paid or not only_ranks_hold(facts) or not all(links.values()):
            return []
        rates = [sum(facts.rate[e] for e in links[rank]) for rank in facts.ranks]
        rank = collective.root if collective.name == "broadcast" else rates.index(min(rates))
        return [((topology.members[rank],),)]

    @abstractmethod
    def brings(self, time: int, choices: Sequence[Choice], steps: int) -> list[float]:
        """What links bring by a time, by each choice; in units of its own."""

    def there(self, time: int) -> int:
        return self._proof(time)[0]

    def needed(self, time: int) -> int:
        return self.all

    def unit(self) -> int:
        return units(self.facts)

    def best(self, time: int) -> Choice:
        """The choice that proves the time, if one does."""
        return self._proof(time)[1]

    def _proof(self, time: int) -> tuple[int, Choice]:
        """What links bring by a time, by the better of the two choices that say the least by a coarse sum."""
        if time not in self._proofs:
            self._proofs[time] = min((self._most(time, [choice], self.fine), choice) for choice in self._least(time, 2))
        return self._proofs[time]

    def _least(self, time: int, count: int = 1) -> list[Choice]:
        """The choices that say the least by a coarse sum."""
        brought = self.brings(time, self.choices, self.coarse)
        return [self.choices[place] for place in sorted(range(len(brought)), key=brought.__getitem__)[:count]]

    def proves(self, time: int) -> bool:
        """True if less can be brought by `time` than must be: then nothing ends by then, or sooner."""
        return self.short(time)

    def _most(self, time: int, choices: Sequence[Choice], steps: int) -> int:
        """What links bring by a time with the best of the choices; rounded up."""
        return ceil(min(self.brings(time, choices, steps)) * (1 + _SAFE))

    def latest(self, low: int = 0) -> int:
        """The latest time before which nothing ends, but for some parts in a thousand; 0 if none is after `low`."""
        good, choices = low + 1, self._least(low + 1)
        if self._most(good, choices, self.coarse) >= self.all:
            return 0
        for _ in range(_AGAIN):
            good = self._last(good, choices, self.coarse, _ROUGH)
            tried, choices = choices, self._least(good)
            if tried == choices:
                break
        good = self._last(good, choices, self.fine, _CLOSE)
        rounded = good - good % 10**6
        return next((time for time in (rounded, good) if time > low and self.proves(time)), 0)

    def _last(self, good: int, choices: Sequence[Choice], steps: int, close: int) -> int:
        """The last time by which too little is brought, but for a part in 2**close; `good` if that is none."""
        bad, lacks, more = good, 0, 0
        step = max(good >> (close // 2), 10**6)
        while (brought := self._most(bad, choices, steps)) < self.all:
            good, lacks, bad, step = bad, self.all - brought, bad + step, 4 * step
        more = brought - self.all
        while bad - good > good >> close:
            # Where a line says that it is enough, on either side of it by turns.
            guess = good + (bad - good) * lacks // (lacks + more) if lacks else (good + bad) // 2
            least = max(1, good >> (close + 1))
            middle = min(max(guess + (least if guess - good > bad - guess else -least), good + least), bad - least)
            brought = self._most(middle, choices, steps)
            if brought < self.all:
                good, lacks = middle, self.all - brought
            else:
                bad, more = middle, brought - self.all
        return good
