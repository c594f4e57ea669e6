"""What the steps of a schedule have in common: who sends how much to whom in each, but not which chunks these are.

A ring of 32,768 ranks has a billion sends, in 32,767 steps that are alike: in each, every rank sends one shard to the
next. Its time in steps follows from that much. An algorithm that builds its schedule chunk by chunk also tells such an
outline, for machines on which the schedule has too many sends to write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.schedule.loads import Resources, resources
from blinksim.schedule.model import Schedule
from blinksim.schedule.outlines.link_uses import LinkUse, every_pair_is_quick, uses_of_every_pair, uses_of_messages
from blinksim.schedule.ways import Parallel, Spread
from blinksim.topology.graph import Topology

Ints = npt.NDArray[np.int64]
Whole = npt.NDArray[np.integer[Any]]
# Sends from which on the time of steps is found without writing them.
_MANY_SENDS = 250_000


@dataclass(frozen=True, eq=False)
class Exchange:
    """Messages that run together: from ranks src (M) to ranks dst (M); None if every rank sends to every other."""

    src: Whole | None = None
    dst: Whole | None = None

    def messages(self, ranks: int) -> int:
        """How many there are."""
        return ranks * (ranks - 1) if self.src is None else len(self.src)

    def most_into_one(self, ranks: int) -> int:
        """The most messages that a rank receives."""
        return ranks - 1 if self.dst is None else int(np.bincount(self.dst).max(initial=0))


@dataclass(frozen=True, eq=False)
class Round:
    """Steps that are alike, one after another: `times` of them.

    share: of the size, of a chunk. chunks: how many go with each message. op: ``COPY`` or ``REDUCE``. channels: into
    how many parts the messages fall that do not wait for each other, such as rings.
    """

    exchange: Exchange
    share: Fraction
    op: int
    times: int = 1
    chunks: int = 1
    channels: int = 1

    @property
    def message(self) -> Fraction:
        """The share of the size that a message carries."""
        return self.share * self.chunks


@dataclass(frozen=True, eq=False)
class Outline:
    """The rounds of an algorithm in steps form.

    Raises `InputError` if shares get too long to add up.
    """

    topology: Topology
    collective: Collective
    algorithm: str
    rounds: tuple[Round, ...]

    @property
    def steps(self) -> int:
        """Steps one after another."""
        return sum(one.times for one in self.rounds)

    @property
    def sends(self) -> int:
        """Sends of the schedule, before any is divided among parallel ways."""
        ranks = self.topology.ranks
        return sum(one.times * one.chunks * one.exchange.messages(ranks) for one in self.rounds)

    @cached_property
    def shared(self) -> Resources:
        """What messages share."""
        return resources(self.topology)

    @cached_property
    def uses(self) -> tuple[LinkUse, ...]:
        """What every round puts on links: on all equal ways, if the loads then allow at least the rate of one way."""
        found: dict[Exchange, tuple[LinkUse, LinkUse]] = {}
        for one in self.rounds:
            if one.exchange not in found:
                found[one.exchange] = self._uses(one.exchange)
        every, single = (tuple(found[one.exchange][place] for one in self.rounds) for place in (0, 1))
        if every == single or self._busiest(every) <= self._busiest(single):
            return every
        return single

    def _uses(self, exchange: Exchange) -> tuple[LinkUse, LinkUse]:
        topology = self.topology
        if exchange.src is None or exchange.dst is None:
            return uses_of_every_pair(topology)
        devices = topology.member_places
        return uses_of_messages(topology, devices[exchange.src], devices[exchange.dst])

    def loads(self, uses: Sequence[LinkUse]) -> tuple[Ints, int]:
        """What passes each resource in all rounds together, and what stands for the whole size."""
        whole = lcm(*(one.message.denominator * use.parts for one, use in zip(self.rounds, uses, strict=True)))
        total = np.zeros(len(self.shared.names), dtype=np.int64)
        for one, use in zip(self.rounds, uses, strict=True):
            factor = one.times * one.message * Fraction(whole, use.parts)
            if int(use.units.max(initial=0)) * int(factor) >= 2**60:
                raise InputError(f"{self.algorithm}: loads with the denominator {whole} exceed 63 bits")
            total += self.shared.of_links(use.units) * int(factor)
        return total, whole

    def messages(self, use: LinkUse) -> Ints:
        """How many messages start on every link: a chunk is divided into as many parts as its most divided way needs.

        Chunks of an alltoall go one way only, all others go every sort of way.
        """
        if self.collective.name == "alltoall":
            return use.started
        return use.pieces * (lcm(*(one.parts for one in self.uses)) // use.parts)

    def _busiest(self, uses: Sequence[LinkUse]) -> Fraction:
        total, whole = self.loads(uses)
        return self.shared.longest(total) / whole

    @property
    def rate(self) -> Fraction | None:
        """algbw in bytes/s that the loads allow; None if nothing is sent."""
        busiest = self._busiest(self.uses)
        return 1 / busiest if busiest else None


class Outlined(Parallel):
    """An outline among the schedules that are timed; what needs the sends has `build` write them."""

    outline: Outline
    _build: Callable[[], Parallel]

    def __init__(self, outline: Outline, build: Callable[[], Parallel]) -> None:
        object.__setattr__(self, "outline", outline)
        object.__setattr__(self, "_build", build)

    @cached_property
    def _built(self) -> Parallel:
        return self._build()

    @property
    def compact(self) -> Schedule:
        return self._built.compact

    @property
    def spread(self) -> Spread | None:
        return self._built.spread

    @property
    def collective(self) -> Collective:
        return self.outline.collective

    @property
    def steps(self) -> int:
        return self.outline.steps

    @property
    def rate(self) -> Fraction | None:
        return self.outline.rate

    @property
    def sends(self) -> int:
        return self.outline.sends

    @property
    def held(self) -> int:
        ranks = self.outline.topology.ranks
        return sum(one.exchange.messages(ranks) for one in self.outline.rounds if one.exchange.src is not None)

    @cached_property
    def schedule(self) -> Schedule:
        return self._built.schedule


def worth_it(topology: Topology, collective: Collective, sends: int, every_pair: bool) -> bool:
    """Whether a schedule has many sends, and its rounds few routes. every_pair: each rank sends to every other."""
    if collective.traffic is not None or sends <= _MANY_SENDS:
        return False
    return not every_pair or every_pair_is_quick(topology)
