"""Rounds of hypercube exchanges: every rank sends to the rank whose number differs from its own in one bit.

What a collective of 2^k ranks takes then is that of one rank: its links, and the bits in whose order data
doubles or halves. An allgather takes every bit once; an allreduce halves along some bits, exchanges what is
left along the others and doubles back (Thakur, Rabenseifner and Gropp, IJHPCA 2005). A linear program divides
the data among many orders, so that all links are busy, and one part's latency hides behind another one's
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import islice, permutations

import numpy as np

from blinksim.graphs.arrays import Bools, Floats, Ints
from blinksim.graphs.connectivity import grouped, joined
from blinksim.packing.rounds import Column, Pricing
from blinksim.packing.wires import Use, Wires

# Columns that are given to the program at the most.
_MOST_COLUMNS = 4000
HALVE, EXCHANGE, DOUBLE = "halve", "exchange", "double"


@dataclass(frozen=True)
class Event:
    """In a round all ranks send along a bit.

    kind: whether data doubles, halves or is exchanged. holders: when it doubles, who sends the data of rank
    0; the data of another rank goes to the numbers that differ from the rank's in the same bits.
    """

    now: int
    bit: int
    kind: str
    holders: tuple[int, ...] = ()


@dataclass(frozen=True)
class CubeColumn(Column):
    """An exchange along the bits. events: in order, by which all ranks send at once."""

    events: tuple[Event, ...] = ()
    sizes: tuple[float, ...] = ()

    @classmethod
    def of(cls, events: tuple[Event, ...], bits: int) -> CubeColumn:
        """Of these events on a cube of so many bits. sizes: what a rank sends at each, as a part of the size."""
        sends = tuple((event.now, event.bit, event.kind != DOUBLE) for event in events)
        if events[0].holders:
            return cls(0, sends, events, tuple(len(event.holders) / 2**bits for event in events))
        sizes, left = list[float](), 1.0
        for event in events:
            left /= 2 if event.kind == HALVE else 1
            sizes.append(left)
            left *= 2 if event.kind == DOUBLE else 1
        return cls(0, sends, events, tuple(sizes))

    @property
    def loads(self) -> tuple[tuple[int, int, float], ...]:
        """What a rank sends of the size, for each event."""
        return tuple((event.now, event.bit, size) for event, size in zip(self.events, self.sizes, strict=True))


def cube(wires: Wires, numbers: list[int]) -> tuple[Wires, list[list[int]]] | None:
    """One rank of a machine on which all send alike: a wire for each bit, and which bits share a link, in groups.

    The slowest of the wires along a bit stands for all; None if some link would carry two of them at once.
    numbers: of the ranks, whose bits count. Links that several bits use in rotation make them a group.
    """
    ranks, bits = wires.ranks, wires.ranks.bit_length() - 1
    ends = [*enumerate(zip(wires.src.tolist(), wires.dst.tolist(), strict=True))]
    wire_of = {(numbers[a], numbers[b]): number for number, (a, b) in reversed(ends)}
    chosen = [[wire_of.get((rank, rank ^ 1 << bit), -1) for rank in range(ranks)] for bit in range(bits)]
    slowest, shared = list[list[Use]](), list[tuple[int, int]]()
    for along in chosen:
        used = [wires.uses[wire] for wire in along]
        if -1 in along or len(set(map(len, used))) > 1:
            return None
        slowest.append([])
        for at_place in zip(*used, strict=True):
            links, *most = zip(*map(astuple, at_place), strict=True)
            if len({*links}) < ranks:
                return None
            shared += ((links[0], link) for link in links[1:])
            slowest[-1].append(Use(links[0], *map(max, most)))
    first = joined(range(1 + max(use.link for uses in wires.uses for use in uses)), shared)
    uses = [tuple(replace(use, link=first[use.link]) for use in along) for along in slowest]
    groups = grouped((along[0].link, bit) for bit, along in enumerate(uses))
    same = np.zeros(bits, dtype=np.int64)
    delays = (times[np.array(chosen)].max(axis=1) for times in (wires.overhead, wires.latency, wires.whole))
    quotient = Wires(1, tuple((bit,) for bit in range(bits)), tuple(uses), same, same, *delays)
    return quotient, [*groups.values()]


def labels(neighbours: list[set[int]]) -> list[int]:
    """Numbers of ranks by which neighbours differ in one bit, if they form a cube; else those that they have."""
    n = len(neighbours)
    label, queue = {0: 0}, [0]
    for rank in queue:
        for other in sorted(neighbours[rank] - label.keys()):
            below = [label[peer] for peer in neighbours[other] if peer in label and label[peer].bit_count() < n]
            near = [number for number in below if number.bit_count() == label[rank].bit_count()]
            # A neighbour of the first rank has a bit of its own; others have the bits of all that lead to
            # them.
            number = 1 << len(queue) - 1 if rank == 0 else int(np.bitwise_or.reduce(near))
            label[other] = number
            queue.append(other)
    numbers = [label.get(rank, -1) for rank in range(n)]
    joined = [{rank for rank in range(n) if (numbers[rank] ^ numbers[peer]).bit_count() == 1} for peer in range(n)]
    return numbers if sorted(numbers) == [*range(n)] and joined == neighbours else [*range(n)]


class Cubes(Pricing):
    """All orders of a collective along the bits within some rounds.

    seen (K, bits): the round from which on what a message brings may go on.
    """

    def __init__(self, name: str, allowed: Bools, seen: Ints) -> None:
        super().__init__([(-1, -1)], 1.0)
        self.allowed, self.seen = allowed, seen
        # Rounds that a sequence may skip in all: few where there are many rounds.
        self.slack = max(0, 8 - len(allowed))
        self._left = islice(self._doublings() if name == "allgather" else self._halvings(), _MOST_COLUMNS)

    def cheapest(self, pair: Floats, which: Ints, most: Floats) -> Iterator[Column]:
        """All of them, the first time."""
        yield from (CubeColumn.of(events, self.allowed.shape[1]) for events in self._left)

    def _doublings(self) -> Iterator[tuple[Event, ...]]:
        """One bit after another; and the last one beside others, which both halves then pass on their own."""
        bits = self.allowed.shape[1]
        for order in permutations(range(bits)):
            for when in self._placed(order, 0):
                yield doubled(when, order, (0,))
        *near, far = range(bits)
        for order in permutations(near):
            for own in self._placed(order, 0):
                # Along `far` when some of the other bits are done, while the rest of them follows at once.
                first = doubled(own, order, (0,))
                for before in range(len(order)):
                    done = first[before].holders
                    beyond = tuple(rank | 1 << far for rank in done)
                    start = int(self.seen[own[before - 1], order[before - 1]]) if before else 0
                    for now in (start + np.flatnonzero(self.allowed[start:, far])).tolist():
                        there = Event(now, far, DOUBLE, done)
                        for rest in permutations(order[before:]):
                            for when in self._placed(rest, int(self.seen[now, far])):
                                yield (*first, there, *doubled(when, rest, beyond))

    def _halvings(self) -> Iterator[tuple[Event, ...]]:
        bits = self.allowed.shape[1]
        alternating = not (self.allowed[:, :-1].sum(axis=1) > 1).any()
        for order in permutations(range(bits)):
            for halvings in range(bits + 1):
                # Where several bits share one round, doubling back in the reverse order is enough.
                for back in permutations(order[:halvings]) if alternating else [order[:halvings][::-1]]:
                    sequence = (*order, *back)
                    for when in self._placed(sequence, 0):
                        yield halved(when, sequence, halvings)

    def _placed(self, order: tuple[int, ...], start: int, slack: int | None = None) -> Iterator[tuple[int, ...]]:
        """The rounds from `start` on at which these bits can follow one another, without long waits."""
        if not order:
            yield ()
            return
        free = np.flatnonzero(self.allowed[start:, order[0]]).tolist()
        for place, later in enumerate(free[: len(free) if slack is None else 1 + slack]):
            now = start + later
            left = self.slack if slack is None else slack - place
            for others in self._placed(order[1:], int(self.seen[now, order[0]]), left):
                yield (now, *others)


def doubled(when: tuple[int, ...], order: tuple[int, ...], holders: tuple[int, ...]) -> tuple[Event, ...]:
    """One bit after another, in these rounds. holders: who has the data of rank 0 before."""
    events = []
    for now, bit in zip(when, order, strict=True):
        events.append(Event(now, bit, DOUBLE, holders))
        holders += tuple(rank ^ 1 << bit for rank in holders)
    return tuple(events)


def halved(when: Sequence[int], order: Sequence[int], halvings: int) -> tuple[Event, ...]:
    """The bits of `order` in these rounds: data halves so often, doubles at the end as often, and else is exchanged."""
    kinds = [HALVE] * halvings + [EXCHANGE] * (len(order) - 2 * halvings) + [DOUBLE] * halvings
    return tuple(Event(now, bit, kind) for now, bit, kind in zip(when, order, kinds, strict=True))
