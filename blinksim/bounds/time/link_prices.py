"""Theorems that price link time: all links up to a time are worth less than all bytes need.

Any prices are sound, as any lengths of links are for a rate. Each theorem has a family of them with a few
free numbers and tries some choices: a coarse sum finds the time and the choice, a fine one proves it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from math import ceil, exp, log
from typing import Any, ClassVar

import numpy as np

from blinksim.bounds.time.certificates import Place, Theorem, in_words, last_short, microseconds
from blinksim.bounds.time.delays import SECOND, Delays
from blinksim.bounds.time.message_counts import spreading
from blinksim.graphs.arrays import Floats

Choice = tuple[float, ...]
# Ranks up to which the sums are done: with more, other theorems say more.
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
# How often another choice is taken when the last one has led further than this part of the time, by shifts.
_AGAIN, _NEAR, _LATER = 3, 3, 10
# More bytes times femtoseconds than ever are.
_ENDLESS = 1e300
# For what a byte costs on ports: the steps that a time is cut into, and the part at which the search for it stops.
_PORT_STEPS, _PORT_CLOSE = 192, 11


def _pays_overheads(facts: Delays) -> bool:
    """True if ranks alone hold data, and pay an overhead on every link."""
    return facts.only_ranks_hold and all(facts.overhead[e] for rank in facts.ranks for e in facts.first_hops(rank))


class Searched(Theorem):
    """What links can bring by a time of the data that some ranks have for all others, by one of some choices.

    Attributes
    ----------
    kinds : tuple of str
        The collectives that it speaks of.
    choices : tuple of tuple of float
        What is tried.
    coarse, fine : int
        Steps that the time is cut into, for the search and for the proof.
    """

    kinds: ClassVar[tuple[str, ...]] = ("broadcast", "allreduce")
    choices: ClassVar[tuple[Choice, ...]]
    coarse: ClassVar[int]
    fine: ClassVar[int]

    def prepare(self, facts: Delays) -> None:
        # By which power what is brought has grown with the time of late.
        self._rises = _RISES
        self._ordered, self._most = cache(self.in_order), cache(self.brought)

    @classmethod
    def applies(cls, facts: Delays) -> bool:
        spoken = facts.collective.name in cls.kinds and 2 < facts.topology.ranks <= _MOST_RANKS
        return spoken and all(map(facts.first_hops, facts.ranks)) and _pays_overheads(facts)

    @classmethod
    def places(cls, facts: Delays) -> list[Place]:
        """The root, or the rank with the least bandwidth out of it."""
        rates = [sum(facts.rate[e] for e in facts.first_hops(rank)) for rank in facts.ranks]
        rank = facts.collective.root if facts.collective.name == "broadcast" else rates.index(min(rates))
        return [((facts.topology.members[rank],),)]

    @abstractmethod
    def brings(self, time: int, choices: Sequence[Choice], steps: int) -> list[float]:
        """What links bring by a time, by each choice; in units of its own."""

    def there(self, time: int) -> int:
        return self._proof(time)[0]

    def best(self, time: int) -> Choice:
        """The choice that proves the time, if one does."""
        return self._proof(time)[1]

    def _proof(self, time: int) -> tuple[int, Choice]:
        """What links bring by a time, by the first choice that proves it.

        Those that say least by a coarse sum are first, but of some nearly as good, any may prove it.
        """
        if time < 1:
            return 0, self.choices[0]
        tried = list[tuple[int, Choice]]()
        for choice in self._ordered(time):
            tried.append((self._most(time, choice, self.fine), choice))
            if tried[-1][0] < self.all:
                break
        return min(tried)

    def in_order(self, time: int) -> list[Choice]:
        """The choices, those first that say the least by a coarse sum."""
        if time > _LATEST:
            return list(self.choices)
        brought = self.brings(time, self.choices, self.coarse)
        return [self.choices[place] for place in sorted(range(len(brought)), key=brought.__getitem__)]

    def brought(self, time: int, choice: Choice, steps: int) -> int:
        """What links bring by a time, rounded up; all of it by a time that is too late to say."""
        if time > _LATEST:
            return self.all
        (brought,) = self.brings(time, [choice], steps)
        return ceil(brought * (1 + _SAFE))

    def proves(self, time: int) -> bool:
        """True if less can be brought by `time` than must be: then nothing ends by then, or sooner."""
        return self.short(time)

    def latest(self, low: int = 0) -> int:
        """The latest time before which nothing ends, but for some parts in a thousand; 0 if none is after `low`."""
        time = low - low % _STEP + _STEP
        choice = self._ordered(time)[0]
        # A coarse sum may be too high, by more where few of its steps make a message.
        if all(self._most(time, choice, steps) > self.all for steps in (self.coarse, self.fine)):
            return 0
        for _ in range(_AGAIN):
            start, time = time, self._last(time, choice, self.coarse, _ROUGH)
            if time - start < start >> _NEAR:
                break
            # Far from where it was chosen, another choice may be better.
            choice = self._ordered(time)[0]
        for _ in range(_AGAIN):
            time, last = self._last(time, choice, self.fine, _CLOSE), choice
            # One that proves a later time, if there is any.
            choice = self._proof(time + (time >> _LATER))[1]
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


# --- prices on either side of a clock ---------------------------------------------------------------------------


class RandomClock(Searched):
    """Broadcast: many short pieces pay many overheads, a few long ones come late to whoever passes them on.

    All ranks but the root share a clock, drawn at random. A byte of a message from the root that arrives
    before the clock is worth n - 1, and 1 later; a byte that another rank sends is worth 1 if it starts after
    the clock, and nothing before. Whatever the clock shows, every byte collects n - 1: if none of its
    messages from the root is early, all others start after the clock too, and each rank is reached by one
    message. So the mean over all clocks is n - 1 at least, and no link earns more than the best sequence of
    messages on it.
    """

    kind = "random-clock"
    # Between which parts of the time the clock may be: what was best on machines of 3 to 16 ranks.
    since = (0, 0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.5, 0.5, 0.9)
    until = (0.85, 1, 0.9, 1, 0.8, 0.9, 0.7, 0.8, 0.6, 0.8, 1)
    choices = tuple(zip(since, until, strict=True))
    coarse, fine = 40, 160

    @classmethod
    def applies(cls, facts: Delays) -> bool:
        return facts.collective.name == "broadcast" and facts.topology.ranks > 2 and _pays_overheads(facts)

    @cached_property
    def ways(self) -> tuple[int, int, int, int]:
        """Rates of the root and of all others, and the least overhead and latency."""
        facts, (root,) = self.facts, self.part
        own = facts.first_hops(root)
        # What is sent towards the root only goes on through the root's links, where it counts.
        others = [e for rank in facts.ranks if rank != root for e in facts.first_hops(rank) if facts.dst[e] != root]
        overhead = min(facts.overhead[e] for e in (*own, *others))
        latency = min(facts.closes(e) or 0 for e in (*own, *others))
        rates = [sum(facts.rate[e] for e in links) * self.n for links in (own, others)]
        return rates[0], rates[1], overhead, latency

    def brings(self, time: int, choices: Sequence[Choice], steps: int) -> list[float]:
        """What all links earn by a time at the most, over what a byte needs."""
        from_root, from_others, overhead, latency = self.ways
        times = np.full(len(choices), float(time))
        clocks = np.array(choices) * times[:, None]
        root, others = _best_sequences(times, self.n, float(overhead), float(latency), clocks, steps)
        return [float(one) for one in (from_root * root + from_others * others) / (self.n - 1)]

    def table(self, time: int) -> dict[str, Any]:
        return {"clock_us": [microseconds(int(part * time)) for part in self.best(time)], "steps": self.fine}

    def words(self, time: int) -> str:
        brings = f"within {in_words(time)} all messages together bring the data to fewer than {self.n - 1} other ranks"
        return f"short pieces pay overheads and long ones come late: {brings}"


def _best_sequences(
    time: Floats, n: int, overhead: float, latency: float, clocks: Floats, steps: int
) -> tuple[Floats, Floats]:
    """What a link of the root and another link earn at the most with each clock, in times of a byte; rounded up.

    time: (C,), the end. clocks: (C, 2), from when to when. The worth of a message is taken at the better end
    of the step in which it ends (root) or starts (others). With that fixed, earnings are linear in the times
    between messages: the root's are best at the end of their step, as an earlier one is worth more, and the
    others' at its beginning.
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


# --- prices that pay for trees ----------------------------------------------------------------------------------


class TimedPrices(Searched):
    """Broadcast: what the trees of all bytes cost, with links of the root that cost most at first, others at last.

    In an allreduce the data of every rank is broadcast, with that of others in the same messages. What the
    root sends late reaches few others in time, and what others send early is little. With prices for the time
    on links, every byte's tree costs at least what the cheapest tree does, and all links together are worth
    so much. A message that keeps its first link busy from s to x carries what takes x - s - o, so a byte in
    it costs the price's integral from s to x over that. A rank that has a byte sends it in one message after
    another on every link.
    """

    kind = "timed-prices"
    # By which part the root's price has fallen at the end; from which part of the time on others cost anything, and
    # what at the end. Of 90 such triples, those of which one is within 2 % of the best on links and switches of 4 to 16
    # ranks.
    falls, since = (0.9, 0.8, 1, 1, 1, 0.8, 0.9, 1), (0.2, 0.4, 0.2, 0.4, 0.1, 0.1, 0.4, 0.4)
    choices = tuple(zip(falls, since, (0.1, 0.15, 0.1, 0.05, 0.06, 0.1, 0.15, 0.15), strict=True))
    coarse, fine = 48, 208

    @classmethod
    def applies(cls, facts: Delays) -> bool:
        return super().applies(facts) and spreading(facts) is not None

    def brings(self, time: int, choices: Sequence[Choice], steps: int) -> list[float]:
        """What all links are worth by a time over what a byte costs, in bytes times femtoseconds per rate."""
        facts, messages = self.facts, spreading(self.facts)
        assert messages is not None
        firsts = [(rank, e) for rank in facts.ranks for e in facts.first_hops(rank)]
        rates = [(rank in self.part, facts.rate[e] * self.n) for rank, e in firsts]
        own, others = (sum(rate for inside, rate in rates if inside == of_root) for of_root in (True, False))
        # No message with more than `size` bytes is of use, and the link is busy so long for one of them.
        scaled = self.size * facts.scale * SECOND
        longest = max(facts.overhead[e] + -(-scaled // facts.rate[e]) for _, e in firsts)
        late, step = messages.message - messages.spacing, -(-time // steps)
        root, other = _priced(time - late, step, tuple(choices), steps)
        worth = (own * root.sum(axis=1) + others * other.sum(axis=1)) * step
        cost = _least(self.n, messages.ports, root, other, step, (messages.spacing, late, longest))
        # At prices by which some tree is free, everything may be brought.
        return [float(one) for one in np.divide(worth, cost, out=np.full(len(cost), _ENDLESS), where=cost > 0)]

    def table(self, time: int) -> dict[str, Any]:
        root, since, others = self.best(time)
        return {"root_falls_by": root, "others_rise_from": since, "others_rise_to": others, "steps": self.fine}

    def words(self, time: int) -> str:
        worth = f"all links are worth less than trees cost that bring all bytes to {self.n} ranks"
        prices = "time on links is priced: the root's is dearest at first, that of others at last"
        return f"{prices}. Within {in_words(time)} {worth}"


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
    """(prices,): the least cost of a byte that the root brings to all others, in femtoseconds.

    message: the overhead and the latency of one, and how long it keeps a link busy at the most.
    """
    overhead, late, longest = message[0], message[1] // step, message[2]
    paid = _trees(n, ports, _cells(other, step, overhead, longest), late)
    return _trees(n, ports, _cells(root, step, overhead, longest), late, paid)[:, n - 1, 0]


def _cells(price: Floats, step: int, overhead: int, longest: int) -> Floats:
    """(prices, steps, steps): the least cost of a byte in a message that starts in one step and ends in another.

    longest: it takes no longer than that. The price is constant in a step, so cost is a quotient of linear
    functions of start and end: least at a corner.
    """
    spent = np.concatenate((np.zeros((len(price), 1)), np.cumsum(price, axis=1)), axis=1) * step
    marks = np.arange(spent.shape[1])
    data = (marks - marks[:, None]) * float(step) - overhead
    corner = np.full((len(price), *data.shape), np.inf)
    np.divide(spent[:, None, :] - spent[:, :, None], data, out=corner, where=data > 0)
    starts = np.minimum(corner[:, :-1], corner[:, 1:])
    cells = np.minimum(starts[:, :, :-1], starts[:, :, 1:])
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


class TreeCost(Theorem):
    """What it costs to bring a byte to all ranks where every rank sends over one port: many short messages or few long.

    Every port's time has the same price. A message that keeps a port busy for d carries what takes d - o: it
    costs d/(d - o) of the time of its bytes. A rank that has a byte sends it in one message after another. So
    the least cost within a time h, from one rank to k, is the least of d/(d - o) + C_j(h - d - L) + C_{k-j}(h
    - d) over d and j, and says how much time all ports need.

    Allreduce: what one rank contributes must reach all, and the other messages, of 2(n - 1) or more (Harary
    and Schwenk 1974), cost something too; a byte has one message on each port at a time, so not all of them
    can be long. And take the rank that is last to have a message with what it contributes out: all n first
    such messages are short where this one is out early, and all else that tells others of that rank starts
    later.
    """

    kind = "tree-cost"

    @classmethod
    def applies(cls, facts: Delays) -> bool:
        few = 2 < facts.topology.ranks <= _MOST_RANKS
        if facts.collective.name not in ("allgather", "allreduce") or not few or not facts.only_ranks_hold:
            return False
        messages = spreading(facts)
        single = all(facts.src.count(rank) == 1 for rank in facts.ranks)
        return single and messages is not None and messages.spacing > 0

    @cached_property
    def message(self) -> tuple[int, int]:
        """The overhead and the latency of one."""
        found = spreading(self.facts)
        assert found is not None
        return found.spacing, found.message - found.spacing

    def there(self, time: int) -> int:
        rate = sum(self.facts.rate[e] for rank in self.facts.ranks for e in self.facts.first_hops(rank))
        return rate * self.n * max(0, time - self.message[1])

    def needed(self, time: int) -> Fraction:
        return self.all * self._cost(time)

    def _cost(self, time: int) -> Fraction:
        """Byte times of ports that a byte of the size needs, as if all of `there` were as good; rounded down."""
        cost = _port_time(self.n, time, *self.message, self.facts.collective.name == "allreduce")
        return Fraction(int(cost * (1 - _SAFE) * 2**30), 2**30) if cost < 2**30 else Fraction(2**30)

    def latest(self, low: int = 0) -> int:
        """The latest time before which nothing ends, but for a part in some thousands; 0 if none is after `low`."""
        if not self.short(low + 1):
            return 0
        found = last_short(self.short, low + 1, close=_PORT_CLOSE)
        return next((time for time in (found - found % _STEP, found) if time > low and self.proves(time)), 0)

    def table(self, time: int) -> dict[str, Any]:
        return {"byte_times_exact": str(self._cost(time))}

    def words(self, time: int) -> str:
        busy = f"keep ports busy for {float(self._cost(time)):.4g} times its transfer time"
        return f"within {in_words(time)}, the messages that bring a byte to {self.n} ranks {busy}"


@lru_cache(maxsize=16)
def _port_time(n: int, time: int, overhead: int, latency: int, summed: bool) -> float:
    """The least time on ports that the messages of a byte take within a time, over the time of the byte."""
    steps, step = _PORT_STEPS, max(1, -(-time // _PORT_STEPS))

    def stretch(busy: float) -> float:
        """Port time of a message over the time of its bytes."""
        return busy / (busy - overhead) if busy > overhead else float("inf")

    # A message that keeps the port busy for more than a - 1 steps, and up to a, leaves one step more than the time
    # less a. trees (n, steps + 1): the cost to serve so many others within i steps.
    costs = np.array([float("inf"), *(stretch(a * step) for a in range(1, steps + 1)), float("inf")])
    marks = np.arange(steps + 1)
    cells = costs[np.maximum(marks - marks[:, None] + 1, 0)]
    late = min(latency // step, steps + 1)
    trees = _trees(n, 1, cells[None], late)[0, :, steps::-1]
    cost = float(trees[n - 1, -1])
    if not summed:
        return cost
    # All messages, of which not all can be long.
    left, twice = time - latency, float("inf")
    for messages in range(2 * n - 2, n * n):
        short = stretch(n * left / messages)
        twice = min(twice, max(messages * short, cost + (messages - n + 1) * stretch(left)))
    # n first messages and what tells of the last one's rank, whenever that one arrives: within i steps after that, of
    # its receiver, and of the rank itself, which is free earlier.
    late = min(-(-latency // step), steps)
    own = np.concatenate((trees[:, late:], np.repeat(trees[:, -1:], late, axis=1)), axis=1)
    rest = (trees[: n - 1] + own[n - 2 :: -1]).min(axis=0)
    # It arrives after more than a - 1 steps and within a, so that at most steps - a + 1 are left.
    first = np.array([stretch(a * step - latency) for a in range(1, steps + 1)])
    return max(twice, float((n * first + rest[steps:0:-1]).min()))


THEOREMS = (TreeCost, RandomClock, TimedPrices)
