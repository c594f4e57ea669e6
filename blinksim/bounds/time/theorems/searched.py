"""Theorems about the data of some ranks in which numbers are free: the best of a few choices proves the time.

Every choice is sound by itself. A coarse sum finds the time and the choice, a fine one proves it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from math import ceil, exp, log
from typing import ClassVar

from blinksim.bounds.time.delays import Delays, delays
from blinksim.bounds.time.theorems.theorem import Theorem, block, only_ranks_hold, units
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.topology.graph import Topology

Choice = tuple[float, ...]
# Ranks up to which the sums are done.
_MOST_RANKS = 16
# Sums of floats are off by far less than this part, and the searches for a time stop at the others, of what is needed.
_SAFE, _ROUGH, _CLOSE = 2.0**-30, 2.0**-5, 2.0**-8
# Times that are tried: whole nanoseconds, so many of them, at first as if what is brought grew by this power, and no
# farther apart than by this factor.
_STEP, _TRIES, _RISES, _FARTHEST = 10**6, 12, 2.0, 8.0
# Minutes: later ones in steps are too large for numbers of 64 bits.
_LATEST = 2**58
# What is brought by a time that is far too short, as a part.
_LEAST = 2.0**-8
# By which factor a coarse sum may be higher than a fine one, at most, where a later time is looked for at all.
_COARSE = 1.2
# How often another choice is taken when the last one has led further than this part of the time, by shifts.
_AGAIN, _NEAR = 3, 3


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
        self.message = min(facts.overhead[e] + facts.latency[e] for rank in facts.ranks for e in facts.first_hops(rank))
        # By which power what is brought has grown with the time of late.
        self._rises = _RISES
        self._orders = dict[int, list[Choice]]()
        self._sums = dict[tuple[int, Choice, int], int]()

    @classmethod
    def stated(cls, topology: Topology, collective: Collective, size: int, where: Iterable[Iterable[str]]) -> Searched:
        """where: the ranks whose data must get to all others."""
        place = tuple(tuple(names) for names in where)
        if place not in cls.places(topology, collective):
            raise InputError(f"{cls.kind} says nothing about {collective} on {topology.name}")
        return cls(delays(topology, collective), size, place[0])

    @classmethod
    def speaks(cls, facts: Delays, kinds: Sequence[str] = ("broadcast", "allreduce")) -> bool:
        """True if the collective is one of `kinds`, of ranks that alone hold data and pay an overhead on every link."""
        topology = facts.topology
        if facts.collective.name not in kinds or not 2 < topology.ranks <= _MOST_RANKS or not only_ranks_hold(facts):
            return False
        links = [facts.first_hops(rank) for rank in facts.ranks]
        return all(links) and all(facts.overhead[e] for firsts in links for e in firsts)

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> list[tuple[tuple[str, ...], ...]]:
        facts = delays(topology, collective)
        return cls.ranks(facts) if cls.speaks(facts) else []

    @classmethod
    def ranks(cls, facts: Delays) -> list[tuple[tuple[str, ...], ...]]:
        """The root, or the rank with the least bandwidth out of it."""
        rates = [sum(facts.rate[e] for e in facts.first_hops(rank)) for rank in facts.ranks]
        rank = facts.collective.root if facts.collective.name == "broadcast" else rates.index(min(rates))
        return [((facts.topology.members[rank],),)]

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
        """What links bring by a time, by the first choice that proves it of the two that say least by a coarse sum."""
        if time < 1:
            return 0, self.choices[0]
        tried = list[tuple[int, Choice]]()
        for choice in self._ordered(time)[:2]:
            tried.append((self._most(time, choice, self.fine), choice))
            if tried[-1][0] < self.all:
                break
        return min(tried)

    def _ordered(self, time: int) -> list[Choice]:
        """The choices, those first that say the least by a coarse sum."""
        if time > _LATEST:
            return list(self.choices)
        if time not in self._orders:
            brought = self.brings(time, self.choices, self.coarse)
            self._orders[time] = [self.choices[place] for place in sorted(range(len(brought)), key=brought.__getitem__)]
        return self._orders[time]

    def proves(self, time: int) -> bool:
        """True if less can be brought by `time` than must be: then nothing ends by then, or sooner."""
        return self.short(time)

    def _most(self, time: int, choice: Choice, steps: int) -> int:
        """What links bring by a time, rounded up; all of it by a time that is too late to say."""
        if time > _LATEST:
            return self.all
        if (time, choice, steps) not in self._sums:
            (brought,) = self.brings(time, [choice], steps)
            self._sums[time, choice, steps] = ceil(brought * (1 + _SAFE))
        return self._sums[time, choice, steps]

    def latest(self, low: int = 0) -> int:
        """The latest time before which nothing ends, but for some parts in a thousand; 0 if none is after `low`."""
        time = low - low % _STEP + _STEP
        choice = self._ordered(time)[0]
        # A coarse sum may be too high by so much, about.
        high = 1 + (2 * self.message / time) ** 2
        if self._most(time, choice, self.coarse) > min(high, _COARSE) * self.all:
            return 0
        for _ in range(_AGAIN):
            start, time = time, self._last(time, choice, self.coarse, _ROUGH)
            if time - start < start >> _NEAR:
                break
            # Far from where it was chosen, another choice may be better.
            choice = self._ordered(time)[0]
        for _ in range(_AGAIN):
            time, last = self._last(time, choice, self.fine, _CLOSE), choice
            choice = self._ordered(time)[0]
            if choice == last:
                break
        return time if time > low and self.proves(time) else 0

    def _last(self, time: int, choice: Choice, steps: int, close: float) -> int:
        """The last time found by which too little is brought, but for this part; the first one if that is enough."""
        # Times by which too little and enough is brought, and how far that is from almost enough, in logarithms.
        good, bad, lacks, spare, aim = 0, 0, 0.0, 0.0, log(1 - close / 2)
        for _ in range(_TRIES):
            part = self._most(time, choice, steps) / self.all
            off = log(max(part, _LEAST)) - aim
            if part < 1:
                if good and not bad and time > good:
                    self._rises = min(max((lacks + off) / log(time / good), 0.8), 16.0)
                # With the same end twice, the other one counts for half (Illinois).
                good, lacks, spare = time, -off, spare / 2 if good and bad else spare
            elif good:
                bad, spare, lacks = time, off, lacks / 2 if bad else lacks
            else:
                return time
            if 1 - close <= part < 1 or 0 < bad - good < good * close:
                break
            if bad:
                self._rises = min(max((lacks + spare) / log(bad / good), 0.8), 16.0)
                time = good + int((bad - good) * min(max(lacks / (lacks + spare), 0.05), 0.95))
            else:
                time = int(time * min(exp(lacks / self._rises), _FARTHEST))
            time -= time % _STEP
        return good
