"""Theorems with prices of link time: the best of a few choices of prices proves the time.

Every choice is sound by itself. A coarse sum finds the time and the choice, a fine one proves it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import combinations, pairwise
from math import ceil, exp, log
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from blinksim.bounds.time.certificates import Theorem, block, in_words, microseconds, only_ranks_hold, units
from blinksim.bounds.time.counted import direct
from blinksim.bounds.time.delays import FAR, SECOND, Delays, delays
from blinksim.bounds.time.spreading import Spreading
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


Floats = npt.NDArray[np.float64]
# Distances that are told apart: the least one from rank to rank, the next one, all others.
_CLASSES = 3
# With more ranks on the same links, distances differ less, and other theorems say more.
_MOST_POTENTIALS = 6
_KINDS = ("broadcast", "allreduce", "allgather")


@dataclass(frozen=True)
class Port:
    """Links out of ranks that are of use to the same ranks.

    Attributes
    ----------
    count : int
        How many there are.
    rate, overhead : int
        Of each of them, as in `Delays`.
    heard : tuple of int
        When the sender can first have heard from each rank of the part.
    rows : tuple
        For every rank that a message may be for: the latency to it, and how many destinations are so far (0: no way,
        as it is the source or the destination, else the class and 1) from the sender and from it, by their class of
        distances from the source.
    """

    count: int
    rate: int
    overhead: int
    heard: tuple[int, ...]
    rows: tuple[tuple[int, tuple[tuple[tuple[int, int], tuple[int, ...]], ...]], ...]


class Potentials(Searched):
    """All links together earn less than all bytes need."""

    kind = "potentials"
    # From which to which part of the time the potential rises, for each class of distances, then the weights of
    # destinations by their distance from the source.
    # Of 25 that a search found at single points, those of which one is within 2 % of the best on parts of a DGX-1.
    choices = (
        (0.73, 1.37, 0.66, 1.48, 0.53, 1.5, 0.9, 2.1, 2.6),
        (0.35, 1.0, 0.36, 0.77, 0.56, 0.97, 1.6, 2.1, 0.8),
        (0.58, 1.08, 0.5, 1.02, 1.1, 1.15, 0.1, 0.2, 0.6),
        (0.46, 0.58, 0.52, 0.68, 0.98, 1.15, 0.9, 1.1, 1.0),
        (0.5, 0.76, 0.38, 0.59, 0.84, 0.92, 0.8, 1.7, 0.6),
        (0.45, 1.1, 0.42, 1.0, 0.95, 1.1, 1.4, 1.9, 0.7),
    )
    coarse, fine = 32, 96

    def __init__(self, facts: Delays, size: int, part: Sequence[str]) -> None:
        super().__init__(facts, size, part)
        self.part = frozenset(facts.topology.members.index(name) for name in part)
        # Of an allreduce a byte in a message is a sum of what some ranks contribute, of others it is of one of them.
        self.summed = facts.collective.name == "allreduce"
        if facts.collective.name == "allgather":
            self.all = block(facts, size) * len(part)

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> list[tuple[tuple[str, ...], ...]]:
        """The root or a rank, or for sums parts with the least bandwidth out of them."""
        facts = delays(topology, collective)
        if not cls.speaks(facts, _KINDS) or not direct(facts) or topology.ranks > _MOST_POTENTIALS:
            return []
        return _narrow(facts) if collective.name == "allreduce" else cls.ranks(facts)

    @cached_property
    def ports(self) -> tuple[Port, ...]:
        return _ports(self.facts, self.part)

    def brings(self, time: int, choices: Sequence[Choice], steps: int) -> list[float]:
        """What the best sequences of messages on all links are worth, over what one byte needs.

        Potentials are constant within a step. With the steps fixed in which messages start and end, the sum is linear
        in the times, and the limits on them are differences of marks, so it is largest with all times at marks: a start
        then belongs to the step after it, an end to the one before.
        """
        step, ports = -(-time // steps), self.ports
        distances, numbers = _distances(self.facts, self.part), np.array(choices)[:, :, None, None]
        risen, weights = _Risen(step, steps, distances.away, numbers[:, :, 0]), numbers[:, 2 * _CLASSES :]
        rate, overhead = (np.array([float(getattr(port, name)) for port in ports]) for name in ("rate", "overhead"))
        # How many steps a message can take; one of more than all data is of no more use.
        longest = -(-(self.all / (self.n * rate) + overhead) // step)
        least, most = int(overhead.min() // step) + 1, min(int(longest.max()), steps)
        if least > most:
            return [0.0] * len(choices)
        lengths = np.arange(least, most + 1)
        # For each link and choice, by the steps of start and length.
        worth = np.zeros((len(ports), len(choices), steps, len(lengths)))
        for port, one in zip(ports, worth, strict=True):
            for late, pairs in port.rows:
                rows = (risen.falls(pair, late, lengths) * _weighed(counts, weights) for pair, counts in pairs)
                np.maximum(one, sum(rows), out=one)
            heard = np.searchsorted(np.array(port.heard), np.arange(1, steps + 1) * step)[:, None]
            one *= heard if self.summed else heard > 0
        worth *= np.maximum(0.0, np.minimum(lengths, longest[:, None]) * step - overhead[:, None])[:, None, None]
        earned = np.zeros((len(ports), len(choices), steps + most + 1))
        for begin in range(steps - 1, -1, -1):
            later = worth[:, :, begin] + earned[:, :, begin + least : begin + most + 1]
            np.maximum(later.max(axis=2), earned[:, :, begin + 1], out=earned[:, :, begin])
        total = (rate * np.array([port.count for port in ports])) @ earned[:, :, 0] * self.n
        return [
            float(one)
            for one in total / ((len(self.part) if self.summed else 1) * _weighed(distances.far, weights)[:, 0, 0])
        ]

    def table(self, time: int) -> dict[str, Any]:
        choice = self.best(time)
        rises = [list(choice[place : place + 2]) for place in range(0, 2 * _CLASSES, 2)]
        return {"rises": rises, "weights": list(choice[2 * _CLASSES :]), "steps": self.fine}

    def words(self, time: int) -> str:
        return (
            f"by how late it is and how many of {self.n - 1} ranks still wait for it, what messages on all links carry "
            f"within {in_words(time)} is worth less than what all bytes need"
        )


def _weighed(counts: Sequence[int], weights: Floats) -> Floats:
    """(choices, 1, 1): destinations by their weights."""
    return np.asarray(sum(count * weights[:, place] for place, count in enumerate(counts) if count))


class _Risen:
    """The potentials in each step, for each class of distances and each choice."""

    def __init__(self, step: int, steps: int, away: tuple[int, ...], numbers: Floats) -> None:
        self.step, self.steps = step, steps
        middle = np.arange(2 * steps + 1) + 0.5
        over = middle > steps
        self.risen = [over.astype(np.float64)[None, :]]
        for kind, time in enumerate(away):
            begin, end = numbers[:, 2 * kind], numbers[:, 2 * kind + 1]
            line = np.clip((middle / steps - begin) / (end - begin), 0.0, 1.0)
            # 1 when no message comes in time.
            self.risen.append(np.where(middle + time / step > steps, 1.0, line))
        self.fallen = dict[tuple[tuple[int, int], int], Floats]()

    def falls(self, pair: tuple[int, int], late: int, lengths: npt.NDArray[np.int64]) -> Floats:
        """(choices, steps, lengths): what the potential falls by from each start on, with the end so many steps later.

        pair: classes of distances from sender and receiver; 0 for the source and the destination.
        """
        if (pair, late) not in self.fallen:
            own, its = pair
            start = self.risen[own][:, : self.steps, None] if own else 1.0
            # The end is in the step before its mark.
            ends = np.minimum(np.arange(self.steps)[:, None] + lengths - 1 + late // self.step, 2 * self.steps)
            self.fallen[pair, late] = np.maximum(0.0, start - self.risen[its][:, ends])
        return self.fallen[pair, late]


@dataclass(frozen=True, eq=False)
class _Distances:
    """Classes of distances between ranks: the least time, the next one, and all others.

    away: the least time of each class, femtoseconds. kinds (n, n): the class and 1, from rank to rank; 0 from one to
    itself. far (3,): how many ranks are so far from the source.
    """

    away: tuple[int, ...]
    kinds: npt.NDArray[np.int64]
    far: tuple[int, ...]


@lru_cache(maxsize=64)
def _narrow(facts: Delays) -> list[tuple[tuple[str, ...], ...]]:
    """Of each number of ranks, a part with the least bandwidth out of it; those with the least of all."""
    ranks, found = facts.ranks, dict[int, tuple[int, tuple[str, ...]]]()
    for count in range(1, len(ranks) // 2 + 1):
        for part in combinations(range(len(ranks)), count):
            inside = {ranks[rank] for rank in part}
            out = sum(
                rate
                for rate, src, dst in zip(facts.rate, facts.src, facts.dst, strict=True)
                if src in inside and dst not in inside
            )
            if count not in found or out < found[count][0]:
                found[count] = out, tuple(facts.topology.members[rank] for rank in part)
    least = min(out for out, _ in found.values())
    return [(part,) for out, part in found.values() if out == least]


@lru_cache(maxsize=64)
def _distances(facts: Delays, part: frozenset[int]) -> _Distances:
    n = len(facts.ranks)
    apart = [[facts.apart[a][b] for b in facts.ranks] for a in range(n)]
    outside = [rank for rank in range(n) if rank not in part]
    known = sorted({apart[a][b] for a in range(n) for b in outside if a != b})
    kinds = np.zeros((n, n), dtype=np.int64)
    for a, b in ((a, b) for a in range(n) for b in outside if a != b):
        kinds[a, b] = min(known.index(apart[a][b]), _CLASSES - 1) + 1
    away = tuple(known[min(place, len(known) - 1)] for place in range(_CLASSES))
    near = [min(int(kinds[a, b]) for a in part) for b in outside]
    return _Distances(away, kinds, tuple(near.count(kind + 1) for kind in range(_CLASSES)))


@lru_cache(maxsize=64)
def _ports(facts: Delays, part: frozenset[int]) -> tuple[Port, ...]:
    ranks, kinds = facts.ranks, _distances(facts, part).kinds
    alike = Counter[tuple[object, ...]]()
    for sender, device in enumerate(ranks):
        heard = tuple(sorted(0 if a == sender else facts.apart[a][device] for a in part))
        for link in facts.first_hops(device):
            reached, rows = facts.beyond(link), set[object]()
            for receiver, other in enumerate(ranks):
                if receiver not in part and receiver != sender and reached[other] < FAR:
                    rows.add((facts.latency[link] + reached[other], _waiting(kinds, part, sender, receiver)))
            if rows:
                alike[facts.rate[link], facts.overhead[link], heard, tuple(sorted(rows))] += 1  # type: ignore[type-var]
    return tuple(Port(count, *port) for port, count in alike.items())  # type: ignore[arg-type]


def _waiting(
    kinds: npt.NDArray[np.int64], part: frozenset[int], sender: int, receiver: int
) -> tuple[tuple[tuple[int, int], tuple[int, ...]], ...]:
    """Destinations by their distances from sender and receiver, and how many of them are so far from the part."""
    found = dict[tuple[int, int], list[int]]()
    for other in range(len(kinds)):
        if other not in part and other != sender:
            pair = 0 if sender in part else int(kinds[sender, other]), int(kinds[receiver, other])
            near = min(int(kinds[a, other]) for a in part)
            found.setdefault(pair, [0] * _CLASSES)[near - 1] += 1
    return tuple(sorted((pair, tuple(counts)) for pair, counts in found.items()))


class RandomClock(Searched):
    """All links together earn less than n - 1 for every byte."""

    kind = "random-clock"
    # Between which parts of the time the clock may be: what was best on machines of 3 to 16 ranks.
    choices = (
        (0.0, 0.85),
        (0.0, 1.0),
        (0.1, 0.9),
        (0.1, 1.0),
        (0.2, 0.8),
        (0.2, 0.9),
        (0.3, 0.7),
        (0.3, 0.8),
        (0.5, 0.6),
        (0.5, 0.8),
        (0.9, 1.0),
    )
    coarse, fine = 40, 160

    def __init__(self, facts: Delays, size: int, part: Sequence[str]) -> None:
        super().__init__(facts, size, part)
        (root,) = (facts.topology.index[name] for name in part)
        own = facts.first_hops(root)
        # What is sent towards the root only goes on through the root's links, where it counts.
        others = [e for rank in facts.ranks if rank != root for e in facts.first_hops(rank) if facts.dst[e] != root]
        self.from_root = sum(facts.rate[e] for e in own) * self.n
        self.from_others = sum(facts.rate[e] for e in others) * self.n
        self.overhead = min(facts.overhead[e] for e in (*own, *others))
        self.latency = min(facts.closes(e) or 0 for e in (*own, *others))

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> list[tuple[tuple[str, ...], ...]]:
        if collective.name != "broadcast" or topology.ranks < 3:
            return []
        facts = delays(topology, collective)
        paid = all(facts.overhead[e] for rank in facts.ranks for e in facts.first_hops(rank))
        return [((topology.members[collective.root],),)] if paid and only_ranks_hold(facts) else []

    def brings(self, time: int, choices: Sequence[Choice], steps: int) -> list[float]:
        """What all links earn by a time at the most, over what a byte needs."""
        root, others = _best_of(time, self.n, float(self.overhead), float(self.latency), tuple(choices), steps)
        return [float(one) for one in (self.from_root * root + self.from_others * others) / (self.n - 1)]

    def table(self, time: int) -> dict[str, Any]:
        return {"clock_us": [microseconds(int(part * time)) for part in self.best(time)], "steps": self.fine}

    def words(self, time: int) -> str:
        return (
            f"pieces that are short pay overheads and pieces that are long come late: within {in_words(time)} messages "
            f"on all links together bring the data to fewer than {self.n - 1} other ranks"
        )


def _best_of(
    time: int, n: int, overhead: float, latency: float, clocks: tuple[Choice, ...], steps: int
) -> tuple[Floats, Floats]:
    """`_best_sequences` of one time."""
    times = np.full(len(clocks), float(time))
    return _best_sequences(times, n, overhead, latency, np.array(clocks) * times[:, None], steps)


def _best_sequences(
    time: Floats, n: int, overhead: float, latency: float, clocks: Floats, steps: int
) -> tuple[Floats, Floats]:
    """What a link of the root and another link earn at the most with each clock, in times of a byte; rounded up.

    time: (C,), the end. clocks: (C, 2), from when to when. The worth of a message is taken at the better end of the
    step in which it ends (root) or starts (others). With that fixed, earnings are linear in the times between messages:
    the root's are best at the end of their step, as an earlier one is worth more, and the others' at its beginning.
    """
    step, last = time[:, None] / steps, time[:, None] - latency
    grid = np.arange(steps + 1) * step
    # passed (C, steps + 1): how likely the clock is over by then.
    passed = np.clip((grid - clocks[:, :1]) / (clocks[:, 1:] - clocks[:, :1]), 0.0, 1.0)
    arrives = np.minimum((grid + latency) // step, steps).astype(np.int64)
    early = 1.0 + (n - 2) * (1.0 - np.take_along_axis(passed, arrives, axis=1))
    ends = np.minimum(grid, last) - overhead
    root, other = np.zeros((2, len(clocks), steps + 1))
    for begin in range(steps - 1, -1, -1):
        # Nothing is sent, but what comes from others may pass through the root.
        other[:, begin] = other[:, begin + 1]
        root[:, begin] = root[:, begin + 1] + step[:, 0] * passed[:, begin + 1]
        data = np.maximum(ends[:, begin + 1 :] - grid[:, [begin]], 0.0)
        # A message of no bytes is as good as none.
        mine = data * early[:, begin:-1] + root[:, begin + 1 :]
        theirs = data * passed[:, [begin + 1]] + other[:, begin + 1 :]
        root[:, begin] = np.maximum(root[:, begin], mine.max(axis=1))
        other[:, begin] = np.maximum(other[:, begin], theirs.max(axis=1))
    return root[:, 0], other[:, 0]


# More bytes times femtoseconds than ever are.
_ENDLESS = 1e300


class TimedPrices(Searched):
    """All links are worth less than what the cheapest trees of all bytes cost.

    A message that keeps its first link busy from s to x carries what takes x - s - o, so a byte in it costs the price's
    integral from s to x over that. A rank that has a byte sends it in one message after another on every link.
    """

    kind = "timed-prices"
    # By which part the root's price has fallen at the end; from which part of the time on others cost anything, and
    # what at the end. Of 90 such triples, those of which one is within 2 % of the best on links and switches of 4 to 16
    # ranks.
    choices = (
        (0.9, 0.2, 0.1),
        (0.8, 0.4, 0.15),
        (1.0, 0.2, 0.1),
        (1.0, 0.4, 0.05),
        (1.0, 0.1, 0.06),
        (0.8, 0.1, 0.1),
        (0.9, 0.4, 0.15),
        (1.0, 0.4, 0.15),
    )
    coarse, fine = 48, 208

    def __init__(self, facts: Delays, size: int, part: Sequence[str]) -> None:
        super().__init__(facts, size, part)
        (source,) = (facts.topology.index[name] for name in part)
        spreading = Spreading.among(facts)
        assert spreading is not None
        self.spreading = spreading
        firsts = [(rank, e) for rank in facts.ranks for e in facts.first_hops(rank)]
        self.rates = tuple(
            sum(facts.rate[e] * self.n for rank, e in firsts if (rank == source) == own) for own in (True, False)
        )
        # No message with more than `size` bytes is of use, and the link is busy so long for one of them.
        self.longest = max(facts.overhead[e] + -(-size * facts.scale * SECOND // facts.rate[e]) for _, e in firsts)

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> list[tuple[tuple[str, ...], ...]]:
        return super().places(topology, collective) if Spreading.among(delays(topology, collective)) else []

    def brings(self, time: int, choices: Sequence[Choice], steps: int) -> list[float]:
        """What all links are worth by a time over what a byte costs."""
        one = self.spreading
        late = one.message - one.spacing
        return _worth(self.n, one.ports, time, (one.spacing, late, self.longest), self.rates, tuple(choices), steps)

    def table(self, time: int) -> dict[str, Any]:
        root, since, others = self.best(time)
        return {"root_falls_by": root, "others_rise_from": since, "others_rise_to": others, "steps": self.fine}

    def words(self, time: int) -> str:
        return (
            f"with prices for time on links that fall for those of the root and rise for others, what all links are "
            f"worth within {in_words(time)} does not pay for trees that bring all bytes to {self.n} ranks"
        )


def _worth(
    n: int,
    ports: int,
    time: int,
    message: tuple[int, int, int],
    rates: tuple[int, ...],
    prices: tuple[Choice, ...],
    steps: int,
) -> list[float]:
    """Bytes times femtoseconds per rate: what links are worth over the cost of a byte, for each of the prices.

    message: the overhead and the latency of one, and how long it keeps a link busy at the most.
    """
    step = -(-time // steps)
    root, other = _priced(time - message[1], step, prices, steps)
    worth = (rates[0] * root.sum(axis=1) + rates[1] * other.sum(axis=1)) * step
    cost = _least(n, ports, root, other, step, message)
    # At prices by which some tree is free, everything may be brought.
    return [float(one) for one in np.divide(worth, cost, out=np.full(len(cost), _ENDLESS), where=cost > 0)]


def _priced(end: int, step: int, prices: tuple[Choice, ...], steps: int) -> tuple[Floats, Floats]:
    """(prices, steps): what a femtosecond of a link of the root costs in every step, and of another link.

    end: nothing that is still on its first link then arrives in time.
    """
    fall, since, top = (np.array(column)[:, None] for column in zip(*prices, strict=True))
    end = max(1, end)
    middle = (np.arange(steps) + 0.5) * step
    used = np.arange(steps) * step < end
    root = np.maximum(0.0, 1.0 - fall * middle / end) * used
    return root, top * np.clip((middle - since * end) / (end - since * end), 0.0, 1.0) * used


def _least(n: int, ports: int, root: Floats, other: Floats, step: int, message: tuple[int, int, int]) -> Floats:
    """(prices,): the least cost of a byte that the root brings to all others, in femtoseconds."""
    overhead, longest, late = message[0], message[2], message[1] // step
    paid = _trees(n, ports, _cells(other, step, overhead, longest), late)
    return _trees(n, ports, _cells(root, step, overhead, longest), late, paid)[:, n - 1, 0]


def _cells(price: Floats, step: int, overhead: int, longest: int) -> Floats:
    """(prices, steps, steps): the least cost of a byte in a message that starts in one step and ends in another.

    longest: it takes no longer than that. The price is constant in a step, so cost is a quotient of linear functions of
    start and end: least at a corner.
    """
    spent = np.concatenate((np.zeros((len(price), 1)), np.cumsum(price, axis=1)), axis=1) * step
    marks = np.arange(spent.shape[1])
    data = (marks - marks[:, None]) * float(step) - overhead
    carries = data > 0
    corner = np.full((len(price), *data.shape), np.inf)
    np.divide(spent[:, None, :] - spent[:, :, None], data, out=corner, where=carries)
    cells = np.minimum(
        np.minimum(corner[:, :-1, :-1], corner[:, 1:, :-1]), np.minimum(corner[:, :-1, 1:], corner[:, 1:, 1:])
    )
    # From the end of the step in which it starts to the beginning of the one in which it ends.
    cells[:, (marks[:-1] - marks[:-1, None] - 1) * float(step) > longest] = np.inf
    return cells


def _trees(n: int, ports: int, cells: Floats, late: int, others: Floats | None = None) -> Floats:
    """(prices, n, steps + 1): the least cost for a rank to serve so many others from a time on.

    others: the same for whoever gets a message, if that has other prices.
    """
    count, steps, _ = cells.shape
    # served[p]: through p + 1 links at most.
    served: Floats = np.full((min(ports, n - 1), count, n, steps + 1), np.inf)
    served[:, :, 0] = 0.0
    port, total = served[0], served[-1]
    theirs = total if others is None else others
    ends = steps - late
    for r in range(1, n if ends > 0 else 1):
        both = np.full((count, steps), np.inf)
        # Whoever gets the message serves j - 1 others, the sender goes on with r - j.
        both[:, :ends] = (theirs[:, :r, late:steps] + port[:, r - 1 :: -1, :ends][:, :r]).min(axis=1)
        port[:, r, :steps] = (cells + both[:, None, :]).min(axis=2)
        port[:, r] = np.minimum.accumulate(port[:, r, ::-1], axis=1)[:, ::-1]
        for fewer, more in pairwise(served):
            more[:, r] = (fewer[:, r::-1][:, : r + 1] + port[:, : r + 1]).min(axis=1)
    return np.asarray(total)


Place = Iterable[Iterable[str]]
# Ranks up to which the recursion is done, and the steps that a time is cut into.
_STEPS = 192
# Sums of floats are off by far less than this part, and the search for a time stops at the other one.
_CLOSE_COSTS = 11
_GATHERED = ("allgather", "allreduce")


class TreeCost(Theorem):
    """All ports together have no more time than what the messages of all bytes cost.

    Allreduce: what one rank contributes must reach all, and the other messages, of 2(n - 1) or more (Harary and
    Schwenk 1974), cost something too; a byte has one message on each port at a time, so not all of them can be long.
    And take the rank that is last to have a message with what it contributes out: all n first such messages are short
    where this one is out early, and all else that tells others of that rank starts later.
    """

    kind = "tree-cost"

    def __init__(self, facts: Delays, size: int) -> None:
        topology = facts.topology
        self.facts, self.n, self.name = facts, topology.ranks, facts.collective.name
        spreading = Spreading.among(facts)
        assert spreading is not None
        self.overhead, self.latency = spreading.spacing, spreading.message - spreading.spacing
        self.rates = {rank: sum(facts.rate[e] for e in facts.first_hops(rank)) for rank in facts.ranks}
        self.all = block(facts, size) * self.n

    @classmethod
    def stated(cls, topology: Topology, collective: Collective, size: int, where: Place) -> TreeCost:
        """where: nothing, it is about all ranks."""
        if [*where] or not cls.places(topology, collective):
            raise InputError(f"tree-cost says nothing about {collective} on {topology.name}")
        return cls(delays(topology, collective), size)

    @classmethod
    def places(cls, topology: Topology, collective: Collective) -> list[tuple[tuple[str, ...], ...]]:
        facts = delays(topology, collective)
        if collective.name not in _GATHERED or not 2 < topology.ranks <= _MOST_RANKS or not only_ranks_hold(facts):
            return []
        spreading = Spreading.among(facts)
        ports = all(sum(src == rank for src in facts.src) == 1 for rank in facts.ranks)
        return [()] if ports and spreading is not None and spreading.spacing else []

    def there(self, time: int) -> int:
        return sum(self.rates.values()) * self.n * max(0, time - self.latency)

    def needed(self, time: int) -> Fraction:
        return self.all * self._cost(time)

    def _cost(self, time: int) -> Fraction:
        """Byte times of ports that a byte of the size needs, as if all of `there` were as good; rounded down."""
        step = max(1, -(-time // _STEPS))
        trees = _tree_costs(self.n, time, step, self.overhead, self.latency)
        cost = float(trees[self.n, -1])
        if self.name == "allreduce":
            cost = max(self._twice(time, cost), self._in_turn(time, step, trees))
        return _down(cost)

    def _in_turn(self, time: int, step: int, trees: Any) -> float:
        """The least cost of n first messages and of what tells of the last one's rank, whenever that one arrives."""
        import numpy as np

        n, late = self.n, min(-(-self.latency // step), _STEPS)
        # Within i steps after that message arrives: of its receiver, and of the rank itself, which is free earlier.
        own = np.concatenate((trees[:, late:], np.repeat(trees[:, -1:], late, axis=1)), axis=1)
        rest = (trees[1:n] + own[n - 1 : 0 : -1]).min(axis=0)
        # It arrives after more than a - 1 steps and within a, so that at most steps - a + 1 are left.
        first = np.array([_stretch(a * step - self.latency, self.overhead) for a in range(1, _STEPS + 1)])
        return float((n * first + rest[_STEPS:0:-1]).min())

    def _twice(self, time: int, cost: float) -> float:
        left = time - self.latency
        n, best = self.n, float("inf")
        for messages in range(2 * n - 2, n * n):
            short = _stretch(n * left / messages, self.overhead)
            best = min(best, max(messages * short, cost + (messages - n + 1) * _stretch(left, self.overhead)))
        return best

    def latest(self, low: int = 0) -> int:
        """The latest time before which nothing ends, but for a part in some thousands; 0 if none is after `low`."""
        if not self.short(low + 1):
            return 0
        good, bad = low + 1, max(2 * low, 10**6)
        while self.short(bad):
            good, bad = bad, 2 * bad
        while bad - good > good >> _CLOSE_COSTS:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if self.short(middle) else (good, middle)
        rounded = good - good % 10**6
        return next((time for time in (rounded, good) if time > low and self.proves(time)), 0)

    def unit(self) -> int:
        return units(self.facts)

    def table(self, time: int) -> dict[str, Any]:
        return {"byte_times_exact": str(self._cost(time))}

    def words(self, time: int) -> str:
        return (
            f"within {in_words(time)} the messages that bring a byte to {self.n} ranks take "
            f"{float(self._cost(time)):.4g} times its time on a port, with their overheads"
        )


def _down(cost: float) -> Fraction:
    """As an exact number, rounded down."""
    return Fraction(int(cost * (1 - _SAFE) * 2**30), 2**30) if cost < 2**30 else Fraction(2**30)


def _stretch(busy: float, overhead: int) -> float:
    """Port time of a message over the time of its bytes."""
    return busy / (busy - overhead) if busy > overhead else float("inf")


@lru_cache(maxsize=8)
def _tree_costs(n: int, time: int, step: int, overhead: int, latency: int) -> Any:
    """C (n + 1, steps + 1): the least cost from one rank to k within i steps of time, rounded down.

    The first message keeps the port busy for more than a - 1 steps and up to a.
    """
    import numpy as np

    late = min(latency // step, _STEPS + 1)
    stretch = np.array([_stretch(a * step, overhead) for a in range(1, _STEPS + 1)])
    cost, theirs = np.full((2, n + 1, _STEPS + 1), np.inf)
    padded = np.full(2 * _STEPS + 1, np.inf)
    # With i steps and a message of a steps, i - a + 1 are left.
    left = np.lib.stride_tricks.sliding_window_view(padded, _STEPS)[1:, ::-1]
    cost[1] = 0.0
    for k in range(2, n + 1):
        theirs[k - 1, late:] = cost[k - 1, : _STEPS + 1 - late]
        # What both cost with m steps left for the sender, and as many less the latency for the other one.
        padded[_STEPS:] = (cost[k - 1 : 0 : -1] + theirs[1:k]).min(axis=0)
        cost[k] = (left + stretch).min(axis=1)
    return cost
