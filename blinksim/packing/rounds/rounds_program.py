"""The times of rounds: every wire sends one message a round, when all that its source got in earlier rounds is there.

A linear program sets when messages start, how long they are and which ways (`Column`) share the data; further ways come
by their prices. Messages that nothing uses cost an overhead all the same, so they are dropped, and it starts again.

A message may be cut into equal pieces, each with an overhead of its own, which go on one by one. When they start is
convex in their number, so that what follows waits for the first and the last one only. Without overheads any number of
pieces costs nothing, and messages flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf

import numpy as np
import numpy.typing as npt

from blinksim.graphs.linear import Growing
from blinksim.packing.rounds.columns import Column, Pricing
from blinksim.packing.rounds.wires import FAR, Floats, Ints, Use, Wires

Bools = npt.NDArray[np.bool_]
# A round, and a wire.
Message = tuple[int, int]
# A load below this part of the size is none, and a way is better if it is so by this part of its price.
_NOTHING, _BETTER = 1e-9, 1e-7
_MOST_LOOPS = 80
# Shares of the size are multiples of one in about this many.
_PARTS = 2**24


@dataclass(frozen=True)
class Search:
    """over: True when it must end with what it has. report: is told the seconds of the best so far.

    pieces: of every message; None for as many as are best.
    """

    over: Callable[[], bool]
    report: Callable[[float], None]
    pieces: int | None = None


@dataclass(frozen=True)
class Wait:
    """A message that must wait for another one, or the end (None).

    It starts no sooner than `fixed` microseconds after the start of the other one, and `whole` for the part of the size
    that the other one carries; less `lag` for what it carries itself, as it comes to the shared link later. after_end,
    to_end: True if that is said of when the link has sent all of the other one, or of it.
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


def exact_shares(solved: Solved, dues: Sequence[float]) -> list[tuple[Column, Fraction]]:
    """The ways with shares of the size that add up exactly to what is due of each item."""
    found = []
    for item, due in enumerate(dues):
        left = Fraction(due).limit_denominator(2**12)
        parts = max(1, _PARTS // left.denominator) * left.denominator
        mine = sorted((share, place) for place, (one, share) in enumerate(solved.columns) if one.item == item)
        for share, place in mine[:-1]:
            part = min(left, Fraction(round(share * parts), parts))
            left -= part
            found += [(solved.columns[place][0], part)] if part else []
        found.append((solved.columns[mine[-1][1]][0], left))
    return found


class Rounds:
    """Rounds on given wires."""

    def __init__(
        self,
        wires: Wires,
        pricing: Pricing,
        allowed: Bools,
        over: Callable[[], bool],
        seen: Ints | None = None,
        pieces: int | None = None,
    ) -> None:
        """allowed: (K, E), which wires may send in which round; of those that share a link, one a round.

        seen: (K, E), from which round on what they bring may go on; default, from the next one. pieces: of every
        message; default, one, and as many as one likes where they cost nothing.
        """
        self.pieces = pieces or (1 if wires.overhead.any() else inf)
        self.wires, self.pricing, self.rounds, self.over = wires, pricing, len(allowed), over
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

        known: ways to start with. At first a message waits for all that earlier rounds bring, so that any way may join;
        at last only for what it passes on.
        """
        best = self._joined(known)
        return best and self.alone(best)

    def alone(self, best: Solved) -> Solved:
        """The same ways, with other shares if that is better, where no message waits for what others pass on."""
        while True:
            self.columns = [column for column, _ in best.columns]
            self.used[:] = False
            self.passed = set()
            for column in self.columns:
                sends = [(now, wire) for now, wire, _ in column.sends]
                for now, wire in sends:
                    self.used[now, wire] = True
                    self.passed |= {((now, wire), then) for then in sends if self.seen[now, wire] <= then[0]}
            found = self._master()[0]
            if found.microseconds >= best.microseconds * (1 - _BETTER):
                return best
            best = found

    def _joined(self, known: Sequence[Column]) -> Solved | None:
        self.columns = [*known]
        start = np.broadcast_to(self.wires.whole[None, :] / self.unit + 1.0, self.used.shape)
        self._price(start, np.full(len(self.pricing.shares), FAR))
        if len({one.item for one in self.columns}) < len(self.pricing.shares):
            return None
        best: Solved | None = None
        while True:
            found, loads = self._generated()
            if best is None or found.microseconds < best.microseconds:
                best = found
            drop = self.used & (loads < _NOTHING)
            if self.over() or not drop.any():
                return best
            self.used &= ~drop
            self.columns = [one for one in self.columns if all(self.used[now, wire] for now, wire, _ in one.sends)]

    def _generated(self) -> tuple[Solved, Floats]:
        """Ways join until none is better."""
        for _ in range(_MOST_LOOPS):
            found, loads, prices, worth = self._master()
            if self.over() or not self._price(prices, worth * (1 - _BETTER)):
                break
        return found, loads

    def _price(self, prices: Floats, most: Floats) -> bool:
        """Adds ways that cost less than `most`; False if there are none."""
        pair, which = self.wires.between(np.where(self.used, prices, FAR))
        known = {*self.columns}
        cheap = dict.fromkeys(self.pricing.cheapest(pair, which, most))
        new = [column for column in cheap if column not in known]
        self.columns += new
        return bool(new)

    def _master(self) -> tuple[Solved, Floats, Floats, Floats]:
        """Time and shares; loads (K, E); prices (K, E) of a share of the size; what a share of each item is worth."""
        if self._program is None or not self._program.serves(self):
            self._program = _Master(self)
        return self._program.solved(self.columns)

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
                    yield self._sent((now, wire))
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
                    last = next(passing, None)
                    if last is not None:
                        yield from self._arrivals(last, then)
        for wire in np.flatnonzero(self.used.any(axis=0)).tolist():
            yield from self._arrivals((int(np.flatnonzero(self.used[:, wire])[-1]), wire), None)

    def _sent(self, message: Message) -> Wait:
        """The link has sent all pieces."""
        overhead = float(self.wires.overhead[message[1]])
        fixed = overhead * self.pieces if overhead else 0.0
        return Wait(message, message, fixed, float(self.wires.whole[message[1]]), to_end=True)

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
    """The linear program over messages that are used, which further ways may join."""

    def __init__(self, rounds: Rounds) -> None:
        self.used, self.passed, self.unit = rounds.used.copy(), rounds.passed, rounds.unit
        self.columns: list[Column] = []
        program = self.program = Growing()
        places = [(now, wire) for now, wire in np.argwhere(self.used).tolist()]
        starts = {place: program.variable() for place in places}
        ends = {place: program.variable() for place in places} if rounds.pieces > 1 else {}
        self.loads = {place: program.variable() for place in places}
        # A way adds what it carries to the rows of its messages, and its share to that of its item.
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

    def serves(self, rounds: Rounds) -> bool:
        """Whether it is for these messages, and some of these ways."""
        same = self.passed is rounds.passed and bool((self.used == rounds.used).all())
        return same and self.columns == rounds.columns[: len(self.columns)]

    def solved(self, columns: Sequence[Column]) -> tuple[Solved, Floats, Floats, Floats]:
        """As `Rounds` wants it."""
        for column in columns[len(self.columns) :]:
            carried: dict[int, float] = {}
            for now, wire, part in column.loads:
                row = self.carried[now, wire]
                carried[row] = carried.get(row, 0.0) - part
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
        found = Solved(float(values[0]) * self.unit, tuple(entry for entry in chosen if entry[1] > _NOTHING))
        return found, sent, np.maximum(prices, 0.0), worth
