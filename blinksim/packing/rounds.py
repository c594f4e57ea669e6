"""Rounds of messages on given links, and the linear program that sets their times and shares.

In a round every wire sends at most one message, when all that its source got in earlier rounds is there;
where wires share links, a rank sends to one rank a round and gets from one. The program sets when messages
start, how long they are and which trees or paths (`Column`) share the data; further columns are priced by the
cheapest use of links and rounds. Unused messages still cost an overhead, so they are dropped, and it starts
again.

A message may be cut into equal pieces, each with an overhead of its own, which go on one by one. Their start
times are convex in their number, so what follows waits for the first and the last one only. Without overheads
any number of pieces costs nothing, and messages flow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf

import numpy as np

from blinksim.graphs.arrays import Bools, Floats, Ints
from blinksim.graphs.connectivity import summed
from blinksim.graphs.programs import Growing
from blinksim.packing.wires import FAR, MOST_IN_CLIQUE, Clique, Growth, Partition, Use, Wires, cliques, sequences

# Of the columns of an allreduce that are worth it, so many join the program at once.
_AT_ONCE = 24


@dataclass(frozen=True)
class Column:
    """The sends of one item. sends: (round, wire, does the receiver add it up)."""

    item: int
    sends: tuple[tuple[int, int, bool], ...]

    @property
    def loads(self) -> tuple[tuple[int, int, float], ...]:
        """(round, wire, what it carries of the item)."""
        return tuple((now, wire, 1.0) for now, wire, _ in self.sends)


class Pricing(ABC):
    """The items of a collective, and the cheapest columns of each.

    Attributes
    ----------
    shares : array (I)
        The part of the size that each item is.
    labels : tuple of (int, int)
        The ranks that an item starts at and ends at, -1 for all of them.
    """

    def __init__(self, labels: Sequence[tuple[int, int]], share: float) -> None:
        self.shares, self.labels = np.full(len(labels), share), tuple(labels)

    @abstractmethod
    def cheapest(self, pair: Floats, which: Ints, most: Floats) -> Iterator[Column]:
        """Columns that cost less than `most` (I) at these prices (`Wires.between`)."""


class Trees(Pricing):
    """An item for every rank that is a root, which all other ranks must get."""

    def cheapest(self, pair: Floats, which: Ints, most: Floats) -> Iterator[Column]:
        growth = Growth(pair, which)
        # A single item gains few columns at a time, so those that begin later join as well.
        starts = range(len(pair)) if len(self.labels) == 1 else range(1)
        for item, (root, _) in enumerate(self.labels):
            for start in starts:
                if growth.left[start, 1 << root] < min(most[item], FAR):
                    yield Column(item, tuple((now, wire, False) for now, wire in growth.sends(1 << root, start)))


class Paths(Pricing):
    """An item for every pair of ranks, which goes from one to the other."""

    def cheapest(self, pair: Floats, which: Ints, most: Floats) -> Iterator[Column]:
        rounds, n, _ = pair.shape
        # reached[now, s, v]: the least price from s to v by the start of round `now`.
        reached = np.full((rounds + 1, n, n), FAR)
        reached[0][np.diag_indices(n)] = 0.0
        for now in range(rounds):
            reached[now + 1] = np.minimum(reached[now], (reached[now][:, :, None] + pair[now]).min(axis=1))
        for item, (source, sink) in enumerate(self.labels):
            if reached[rounds, source, sink] >= min(most[item], FAR):
                continue
            sends, here = list[tuple[int, int, bool]](), sink
            for now in range(rounds - 1, -1, -1):
                if reached[now + 1, source, here] < reached[now, source, here]:
                    before = int(np.argmin(reached[now, source] + pair[now, :, here]))
                    sends.append((now, int(which[now, before, here]), False))
                    here = before
            yield Column(item, tuple(sends[::-1]))


class Sums(Pricing):
    """One item, which all ranks add up and get.

    Trees gather it in a rank or a clique, whose ranks exchange what they have in one round, and trees spread
    it; or there are rounds of exchanges only.
    """

    def __init__(self, wires: Wires) -> None:
        super().__init__([(-1, -1)], 1.0)
        self.cliques, self.sequences = cliques(wires, MOST_IN_CLIQUE), sequences(wires)
        self.partitions = list(dict.fromkeys(part for sequence in self.sequences for part in sequence))
        number = {partition: place for place, partition in enumerate(self.partitions)}
        self.by_length: dict[int, tuple[list[tuple[Partition, ...]], Ints]] = {}
        for length in {len(sequence) for sequence in self.sequences}:
            chosen = [sequence for sequence in self.sequences if len(sequence) == length]
            self.by_length[length] = chosen, np.array([[number[part] for part in one] for one in chosen])

    def cheapest(self, pair: Floats, which: Ints, most: Floats) -> Iterator[Column]:
        priced = [*self._by_trees(pair, which), *self._by_exchanges(pair, which)]
        limit = min(float(most[0]), FAR)
        for _, sends in sorted((entry for entry in priced if entry[0] < limit), key=lambda entry: entry[0])[:_AT_ONCE]:
            yield Column(0, tuple(sends))

    def _by_trees(self, pair: Floats, which: Ints) -> Iterator[tuple[float, list[tuple[int, int, bool]]]]:
        rounds = len(pair)
        spread = Growth(pair, which)
        gather = Growth(pair[::-1].transpose(0, 2, 1), which[::-1].transpose(0, 2, 1))
        for clique in self.cliques:
            have, single = sum(1 << rank for rank in clique), len(clique) == 1
            best, at = FAR, 0
            for now in range(rounds):
                cost = gather.left[rounds - now, have] + spread.left[now + (not single), have]
                cost += 0.0 if single else _exchange(pair[now], clique)
                if cost < best:
                    best, at = float(cost), now
            if best < FAR:
                sends = [(rounds - 1 - now, wire, True) for now, wire in gather.sends(have, rounds - at)]
                sends += _sends_of(clique, at, which)
                sends += [(now, wire, False) for now, wire in spread.sends(have, at + (not single))]
                yield best, sends

    def _by_exchanges(self, pair: Floats, which: Ints) -> Iterator[tuple[float, list[tuple[int, int, bool]]]]:
        rounds = len(pair)
        price = np.array(
            [[sum(_exchange(pair[now], group) for group in part) for now in range(rounds)] for part in self.partitions]
        ).reshape(len(self.partitions), rounds)
        for length, (chosen, places) in self.by_length.items():
            for when in combinations(range(rounds), length):
                costs = price[places, np.array(when)].sum(axis=1)
                for place in np.argsort(costs, kind="stable")[:3].tolist():
                    rounds_of = zip(when, chosen[place], strict=True)
                    groups = ((group, now) for now, part in rounds_of for group in part)
                    sends = [send for group, now in groups for send in _sends_of(group, now, which)]
                    yield float(costs[place]), sends


def _exchange(pair: Floats, group: Clique) -> float:
    inside = pair[np.ix_(group, group)]
    return float(inside.sum() - np.trace(inside))


def _sends_of(group: Clique, now: int, which: Ints) -> list[tuple[int, int, bool]]:
    return [(now, int(which[now, a, b]), True) for a in group for b in group if a != b]


# A round, and a wire.
Message = tuple[int, int]
# A load below this part of the size is none, and a column is better if it is so by this part of its price.
_NOTHING, _BETTER = 1e-9, 1e-7
_MOST_LOOPS = 80


@dataclass(frozen=True)
class Search:
    """over: True when it must end with what it has. report: is given the seconds of the best so far.

    pieces: of every message; None for as many as are best.
    """

    over: Callable[[], bool]
    report: Callable[[float], None]
    pieces: int | None = None


@dataclass(frozen=True)
class Wait:
    """A message that must wait for another one, or the end (None).

    It starts no sooner than `fixed` microseconds after the start of the other one, and `whole` for the part
    of the size that the other one carries; less `lag` for what it carries itself, as it comes to the shared
    link later. after_end, to_end: True if that is said of when the link has sent all of the other one, or of
    it.
    """

    message: Message
    then: Message | None
    fixed: float
    whole: float
    lag: float = 0.0
    after_end: bool = False
    to_end: bool = False


@dataclass(frozen=True)
class Solved:
    """microseconds, by the program. columns with their shares of the size, each at least `_NOTHING`."""

    microseconds: float
    columns: tuple[tuple[Column, float], ...]


class Rounds:
    """Rounds on given wires."""

    def __init__(
        self, wires: Wires, pricing: Pricing, allowed: Bools, search: Search, seen: Ints | None = None
    ) -> None:
        """allowed: (K, E), which wires may send in which round; of those that share a link, one a round.

        seen: (K, E), from which round on what they bring may go on; default, from the next one. pieces: of
        every message; default, one, and as many as one likes where they cost nothing.
        """
        self.pieces = search.pieces or (1 if wires.overhead.any() else inf)
        self.wires, self.pricing, self.rounds, self.over = wires, pricing, len(allowed), search.over
        # Microseconds of the program's unit of time, in which no number is far from 1.
        self.unit = float(wires.overhead.mean() + wires.latency.mean() + wires.whole.mean() / wires.ranks)
        self.used = allowed.copy()
        self.seen = np.arange(1, self.rounds + 1)[:, None].repeat(len(wires.src), axis=1) if seen is None else seen
        self.columns: list[Column] = []
        # Which message brings what which other one passes on; None if any may.
        self.passed: set[tuple[Message, Message]] | None = None
        self._program: _Master | None = None

    def solve(self, known: Sequence[Column] = ()) -> Solved | None:
        """The best that is found until it is over; None if there is nothing in so few rounds.

        known: columns to start with. At first a message waits for all that earlier rounds bring, so that any
        may join; at last only for what it passes on.
        """
        self.columns = [*known]
        start = np.broadcast_to(self.wires.whole[None, :] / self.unit + 1.0, self.used.shape)
        self._price(start, np.full(len(self.pricing.shares), FAR))
        if len({column.item for column in self.columns}) < len(self.pricing.shares):
            return None
        best: Solved | None = None
        while True:
            # Columns join until none is better.
            for _ in range(_MOST_LOOPS):
                solved, loads, prices, worth = self._master()
                if self.over() or not self._price(prices, worth * (1 - _BETTER)):
                    break
            if best is None or solved.microseconds < best.microseconds:
                best = solved
            drop = self.used & (loads < _NOTHING)
            if self.over() or not drop.any():
                return self.alone(best)
            self.used &= ~drop
            self.columns = [c for c in self.columns if all(self.used[now, wire] for now, wire, _ in c.sends)]

    def alone(self, best: Solved) -> Solved:
        """The same columns, with other shares if that is better, where no message waits for what others pass on."""
        while True:
            self.columns = [column for column, _ in best.columns]
            self.used[:] = False
            self.passed = set()
            for column in self.columns:
                sends = [(now, wire) for now, wire, _ in column.sends]
                for now, wire in sends:
                    self.used[now, wire] = True
                    self.passed |= {((now, wire), then) for then in sends if self.seen[now, wire] <= then[0]}
            solved = self._master()[0]
            if solved.microseconds >= best.microseconds * (1 - _BETTER):
                return best
            best = solved

    def _price(self, prices: Floats, most: Floats) -> bool:
        """Adds columns that cost less than `most`; False if there are none."""
        pair, which = self.wires.between(np.where(self.used, prices, FAR))
        known = len(self.columns)
        self.columns = list(dict.fromkeys((*self.columns, *self.pricing.cheapest(pair, which, most))))
        return len(self.columns) > known

    def _master(self) -> tuple[Solved, Floats, Floats, Floats]:
        """Time and shares; loads (K, E); prices (K, E) of a share of the size; what a share of each item is worth."""
        program = self._program
        same = program is not None and program.passed is self.passed and bool((program.used == self.used).all())
        if program is None or not same or program.columns != self.columns[: len(program.columns)]:
            program = self._program = _Master(self)
        return program.solved(self.columns)

    def waits(self) -> Iterator[Wait]:
        """What each message waits for: those before it on its links, and those that bring what it passes on."""
        wires, flows = self.wires, self.pieces > 1
        into = [np.flatnonzero(wires.dst == rank).tolist() for rank in range(wires.ranks)]
        # The messages of each wire whose data may go on by now, the last one first.
        there: list[list[Message]] = [[] for _ in wires.src]
        busy: dict[int, tuple[Message, Use]] = {}
        for now in range(self.rounds):
            for earlier, wire in np.argwhere(self.used & (self.seen == now)).tolist():
                there[wire] = sorted([(earlier, wire), *there[wire]], reverse=True)
            for wire in np.flatnonzero(self.used[now]).tolist():
                if flows:
                    # The link has sent all pieces.
                    overhead = float(wires.overhead[wire])
                    fixed = overhead * self.pieces if overhead else 0.0
                    yield Wait((now, wire), (now, wire), fixed, float(wires.whole[wire]), to_end=True)
                for use in wires.uses[wire]:
                    if use.link in busy:
                        before, other = busy[use.link]
                        fixed = other.offset + other.hold - use.offset
                        if flows:
                            fixed -= float(wires.overhead[before[1]])
                            yield Wait(before, (now, wire), fixed, 0.0, after_end=True)
                        else:
                            yield Wait(before, (now, wire), fixed, other.lag + other.whole, use.lag)
                    busy[use.link] = (now, wire), use
                for brings in into[int(wires.src[wire])]:
                    then = now, wire
                    passing = (one for one in there[brings] if self.passed is None or (one, then) in self.passed)
                    if (last := next(passing, None)) is not None:
                        yield from self._arrivals(last, then)
        for wire in np.flatnonzero(self.used.any(axis=0)).tolist():
            yield from self._arrivals((int(np.flatnonzero(self.used[:, wire])[-1]), wire), None)

    def _arrivals(self, message: Message, then: Message | None) -> Iterator[Wait]:
        """What passes a message on waits for its first piece, and sends its own last one when the last one is there."""
        wires, wire = self.wires, message[1]
        overhead, latency, whole = (float(times[wire]) for times in (wires.overhead, wires.latency, wires.whole))
        if self.pieces == 1:
            yield Wait(message, then, overhead + latency, whole)
        elif then is None:
            yield Wait(message, None, latency, 0.0, after_end=True)
        else:
            last = float(wires.overhead[then[1]]), float(wires.whole[then[1]]) / self.pieces
            yield Wait(message, then, overhead + latency, whole / self.pieces)
            yield Wait(message, then, latency + last[0], 0.0, -last[1], after_end=True, to_end=True)


class _Master:
    """The linear program over messages that are used, which further columns may join."""

    def __init__(self, rounds: Rounds) -> None:
        self.used, self.passed, self.unit = rounds.used.copy(), rounds.passed, rounds.unit
        self.columns: list[Column] = []
        program = self.program = Growing()
        places = [(now, wire) for now, wire in np.argwhere(self.used).tolist()]
        starts = {place: program.variable() for place in places}
        ends = {place: program.variable() for place in places} if rounds.pieces > 1 else {}
        self.loads = {place: program.variable() for place in places}
        # A column adds what it carries to the rows of its messages, and its share to that of its item.
        self.carried = {
            place: program.row([(load, 1.0)], at_least=0.0, at_most=0.0) for place, load in self.loads.items()
        }
        self.items = [program.row([], at_least=due) for due in rounds.pricing.shares.tolist()]
        self.shares: list[int] = []
        self.rows: list[tuple[int, Wait]] = []
        for wait in rounds.waits():
            then = 0 if wait.then is None else (ends if wait.to_end else starts)[wait.then]
            terms = [(then, 1.0), ((ends if wait.after_end else starts)[wait.message], -1.0)]
            terms.append((self.loads[wait.message], -wait.whole / self.unit))
            if wait.then is not None and wait.lag:
                terms.append((self.loads[wait.then], wait.lag / self.unit))
            self.rows.append((program.row(terms, at_least=wait.fixed / self.unit), wait))

    def solved(self, columns: Sequence[Column]) -> tuple[Solved, Floats, Floats, Floats]:
        """As `Rounds` wants it."""
        for column in columns[len(self.columns) :]:
            carried = summed((self.carried[now, wire], -part) for now, wire, part in column.loads)
            self.shares.append(self.program.variable([(self.items[column.item], 1.0), *carried.items()]))
            self.columns.append(column)
        values, duals = self.program.solve()
        # What more load on a message costs: all that waits for it starts later.
        prices, sent = np.zeros(self.used.shape), np.zeros(self.used.shape)
        for row, wait in self.rows:
            dual = max(0.0, float(duals[row])) / self.unit
            prices[wait.message] += dual * wait.whole
            if wait.then is not None and wait.lag:
                prices[wait.then] -= dual * wait.lag
        for message, load in self.loads.items():
            sent[message] = values[load]
        chosen = [(one, float(values[share])) for one, share in zip(self.columns, self.shares, strict=True)]
        worth = np.maximum(duals[self.items], 0.0)
        solved = Solved(float(values[0]) * self.unit, tuple(entry for entry in chosen if entry[1] > _NOTHING))
        return solved, sent, np.maximum(prices, 0.0), worth


def round_robin(wires: Wires, every: bool, rounds: int) -> Bools:
    """(K, E). Ranks exchange along the bits of their numbers, the highest first, or send to the next 2^i-th one.

    every: True for all other distances as well, after these.
    """
    n = wires.ranks
    away = [1 << bit for bit in range((n - 1).bit_length())][::-1]
    if every:
        away += [stride for stride in range(1, n) if stride not in away]
    allowed = np.zeros((rounds, len(wires.src)), dtype=bool)
    for now in range(rounds):
        stride = away[now % len(away)]
        allowed[now] = wires.dst == (wires.src ^ stride if n & (n - 1) == 0 else (wires.src + stride) % n)
    return allowed
