"""The times of rounds: every link sends one message a round, when all that its source got in earlier rounds is there.

A linear program sets when messages start, how long they are and which ways (`Column`) share the data; further ways come
by their prices. Messages that nothing uses cost an overhead all the same, so they are dropped, and it starts again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from blinksim.graphs.linear import Program
from blinksim.packing.rounds.columns import Column, Pricing
from blinksim.packing.rounds.wires import FAR, Floats, Wires

# A load below this part of the size is none, and a way is better if it is so by this part of its price.
_NOTHING, _BETTER = 1e-9, 1e-7
_MOST_LOOPS = 80


@dataclass(frozen=True)
class Solved:
    """microseconds, by the program. columns with their shares of the size, each at least `_NOTHING`."""

    microseconds: float
    columns: tuple[tuple[Column, float], ...]


class Rounds:
    """A number of rounds on given links."""

    def __init__(self, wires: Wires, pricing: Pricing, rounds: int, over: Callable[[], bool]) -> None:
        self.wires, self.pricing, self.rounds, self.over = wires, pricing, rounds, over
        # Microseconds of the program's unit of time, in which no number is far from 1.
        self.unit = float(wires.overhead.mean() + wires.latency.mean() + wires.whole.mean() / wires.ranks)
        self.used = np.ones((rounds, len(wires.src)), dtype=bool)
        self.columns: list[Column] = []

    def solve(self) -> Solved | None:
        """The best that is found until it is over; None if there is nothing in so few rounds."""
        start = np.broadcast_to(self.wires.whole[None, :] / self.unit + 1.0, self.used.shape)
        if not self._price(start, np.full(len(self.pricing.shares), FAR)):
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
        """Adds ways that cost less than `most`; False if there are none, or some item has none at all."""
        pair, which = self.wires.between(np.where(self.used, prices, FAR))
        known = {*self.columns}
        new = [column for column in self.pricing.cheapest(pair, which, most) if column not in known]
        self.columns += new
        return len({one.item for one in self.columns}) == len(self.pricing.shares) and bool(new)

    def _master(self) -> tuple[Solved, Floats, Floats, Floats]:
        """Time and shares; loads (K, E); prices (K, E) of a share of the size; what a share of each item is worth."""
        wires, program = self.wires, Program()
        places = [(now, wire) for now, wire in np.argwhere(self.used).tolist()]
        (end,) = program.variables(1)
        starts = dict(zip(places, program.variables(len(places)), strict=True))
        loads = dict(zip(places, program.variables(len(places)), strict=True))
        shares = program.variables(len(self.columns))
        carried: dict[tuple[int, int], list[tuple[int, float]]] = {place: [] for place in starts}
        for share, column in zip(shares, self.columns, strict=True):
            for now, wire, _ in column.sends:
                carried[now, wire].append((share, -1.0))
        for place, terms in carried.items():
            program.row([(loads[place], 1.0), *terms], at_least=0.0, at_most=0.0)
        items = []
        for item, due in enumerate(self.pricing.shares.tolist()):
            terms = [(share, 1.0) for share, one in zip(shares, self.columns, strict=True) if one.item == item]
            items.append(program.row(terms, at_least=due, at_most=np.inf))
        waits = []
        for before, after, wait in self._order():
            then = end if after is None else starts[after]
            terms = [(then, 1.0), (starts[before], -1.0), (loads[before], -float(wires.whole[before[1]]) / self.unit)]
            waits.append((before, program.row(terms, at_least=wait / self.unit, at_most=np.inf)))
        program.solve([(end, -1.0)])
        # What more load on a message costs: all that waits for it starts later.
        prices, sent = np.zeros(self.used.shape), np.zeros(self.used.shape)
        for before, row in waits:
            prices[before] += max(0.0, -program.duals[row]) * wires.whole[before[1]] / self.unit
        for message, load in loads.items():
            sent[message] = program.values[load]
        chosen = [(one, float(program.values[share])) for one, share in zip(self.columns, shares, strict=True)]
        worth = np.array([max(0.0, -program.duals[row]) for row in items])
        time = float(program.values[end]) * self.unit
        return Solved(time, tuple(entry for entry in chosen if entry[1] > _NOTHING)), sent, prices, worth

    def _order(self) -> list[tuple[tuple[int, int], tuple[int, int] | None, float]]:
        """(message, the one that waits for it or None for the end, microseconds beside its bytes)."""
        wires, found = self.wires, list[tuple[tuple[int, int], tuple[int, int] | None, float]]()
        into = [np.flatnonzero(wires.dst == rank).tolist() for rank in range(wires.ranks)]
        last = np.full(len(wires.src), -1)
        for now in range(self.rounds):
            for wire in np.flatnonzero(self.used[now]).tolist():
                if last[wire] >= 0:
                    found.append(((int(last[wire]), wire), (now, wire), float(wires.overhead[wire])))
                for other in into[int(wires.src[wire])]:
                    if last[other] >= 0:
                        wait = float(wires.overhead[other] + wires.latency[other])
                        found.append(((int(last[other]), other), (now, wire), wait))
            last[self.used[now]] = now
        for wire in np.flatnonzero(last >= 0).tolist():
            found.append(((int(last[wire]), wire), None, float(wires.overhead[wire] + wires.latency[wire])))
        return found
