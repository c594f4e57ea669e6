"""What is sent in which round, for one part of the data: the cheapest at given prices of links and rounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from blinksim.packing.rounds.clique_exchanges import Clique, Partition, sequences, small_cliques
from blinksim.packing.rounds.growth import Growth
from blinksim.packing.rounds.wires import FAR, Floats, Ints, Wires

# Of the ways to do an allreduce that are worth it, so many join the program at once.
_AT_ONCE = 24


@dataclass(frozen=True)
class Column:
    """A way to do one item. sends: (round, wire, does the receiver add it up)."""

    item: int
    sends: tuple[tuple[int, int, bool], ...]

    @property
    def loads(self) -> tuple[tuple[int, int, float], ...]:
        """(round, wire, what it carries of the item)."""
        return tuple((now, wire, 1.0) for now, wire, _ in self.sends)


class Pricing(ABC):
    """The items of a collective, and the cheapest ways to do each.

    Attributes
    ----------
    shares : array (I)
        The part of the size that each item is.
    labels : tuple of (int, int)
        The ranks that an item starts at and ends at, -1 for all of them.
    """

    shares: Floats
    labels: tuple[tuple[int, int], ...]

    @abstractmethod
    def cheapest(self, pair: Floats, which: Ints, most: Floats) -> Iterator[Column]:
        """Ways that cost less than `most` (I) at these prices (`Wires.between`)."""


class Trees(Pricing):
    """An item for every rank in `roots`, which all other ranks must get."""

    def __init__(self, wires: Wires, roots: list[int], share: float) -> None:
        self.shares, self.labels = np.full(len(roots), share), tuple((root, -1) for root in roots)

    def cheapest(self, pair: Floats, which: Ints, most: Floats) -> Iterator[Column]:
        growth = Growth(pair, which)
        # A single item gains few ways at a time, so those that begin later join as well.
        starts = range(len(pair)) if len(self.labels) == 1 else range(1)
        for item, (root, _) in enumerate(self.labels):
            for start in starts:
                if growth.left[start, 1 << root] < min(most[item], FAR):
                    yield Column(item, tuple((now, wire, False) for now, wire in growth.sends(1 << root, start)))


class Paths(Pricing):
    """An item for every pair of ranks, which goes from one to the other."""

    def __init__(self, wires: Wires, pairs: list[tuple[int, int]], share: float) -> None:
        self.shares, self.labels = np.full(len(pairs), share), tuple(pairs)

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

    Trees gather it in a rank or a clique, whose ranks exchange what they have in one round, and trees spread it; or
    there are rounds of exchanges only.
    """

    def __init__(self, wires: Wires) -> None:
        self.shares, self.labels = np.ones(1), ((-1, -1),)
        self.cliques, self.sequences = small_cliques(wires), sequences(wires)
        self.partitions = list(dict.fromkeys(part for sequence in self.sequences for part in sequence))
        number = {partition: place for place, partition in enumerate(self.partitions)}
        self.by_length: dict[int, tuple[list[tuple[Partition, ...]], Ints]] = {}
        for length in {len(sequence) for sequence in self.sequences}:
            chosen = [sequence for sequence in self.sequences if len(sequence) == length]
            self.by_length[length] = chosen, np.array([[number[part] for part in one] for one in chosen])

    def cheapest(self, pair: Floats, which: Ints, most: Floats) -> Iterator[Column]:
        found = [*self._by_trees(pair, which), *self._by_exchanges(pair, which)]
        limit = min(float(most[0]), FAR)
        for _, sends in sorted((entry for entry in found if entry[0] < limit), key=lambda entry: entry[0])[:_AT_ONCE]:
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
                sends += [] if single else _sends_of(clique, at, which)
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
                    sends = [
                        send
                        for now, part in zip(when, chosen[place], strict=True)
                        for group in part
                        for send in _sends_of(group, now, which)
                    ]
                    yield float(costs[place]), sends


def _exchange(pair: Floats, group: Clique) -> float:
    inside = pair[np.ix_(group, group)]
    return float(inside.sum() - np.trace(inside))


def _sends_of(group: Clique, now: int, which: Ints) -> list[tuple[int, int, bool]]:
    return [(now, int(which[now, a, b]), True) for a in group for b in group if a != b]
