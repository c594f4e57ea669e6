"""What messages are worth to ranks that still wait, by how late it is and how far they are.

A broadcast, the data of some ranks in an allreduce, or a block of an allgather must get to all others.
Every rank has a potential for every destination, which only grows with time: 1 at the source, 0 at the destination, and
between them the closer to 1 the later it is. A byte in a message from u at time s that arrives at w at time y is worth
what the potential falls by, added up over all destinations where it falls. On its way to a destination a byte goes
through messages of which each one starts after the last one arrived; so they are worth 1 together. And no link earns
more than the best sequence of messages on it. This is the dual of a flow over time (Ford and Fulkerson 1958), with
messages that go whole and pay overheads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.bounds.time.delays import FAR, Delays, delays
from blinksim.bounds.time.theorems.message_counts import direct
from blinksim.bounds.time.theorems.searched import Choice, Searched
from blinksim.bounds.time.theorems.theorem import block
from blinksim.bounds.time.time_certificate import in_words
from blinksim.collective import Collective
from blinksim.topology.graph import Topology

Floats = npt.NDArray[np.float64]
# Distances that are told apart: the least one from rank to rank, the next one, all others.
_CLASSES = 3
# With more ranks on the same links, distances differ less, and other theorems say more.
_MOST_RANKS = 6
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
        if not cls.speaks(facts, _KINDS) or not direct(facts) or topology.ranks > _MOST_RANKS:
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
