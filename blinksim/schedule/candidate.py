"""Candidate schedules, each in the form that its time follows from, and a cache of the latest.

A topology never changes, and an edited one is another key, so what is cached never grows stale.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from threading import Lock

import numpy as np

from blinksim.errors import InfeasibleError
from blinksim.schedule.loads import MOST_SENDS, Spread, chunk_parts, divided, equal_routes, rate
from blinksim.schedule.model import Schedule
from blinksim.schedule.step_loads import Outline, StepLoads
from blinksim.schedule.symmetric import SymmetricSchedule


@dataclass(frozen=True, eq=False)
class Candidate:
    """A schedule in the form that its time follows from; what needs its sends has them written.

    timed: with all sends, by symmetry, or the loads of its steps. parallel: the routes that the sends of a
    `Schedule` are divided among, None if every send takes the one route that it has. build: what writes the
    sends that loads leave out.
    """

    timed: Schedule | SymmetricSchedule | Outline | StepLoads
    parallel: Spread | None = None
    build: Callable[[], Candidate] | None = None

    @classmethod
    def of(cls, schedule: Schedule) -> Candidate:
        """With all equal routes, if the loads then allow at least the rate that they allow without."""
        spread = equal_routes(schedule)
        if spread is not None and (rate(schedule, spread) or 0) < (rate(schedule) or 0):
            spread = None
        return cls(schedule, spread)

    @cached_property
    def _written(self) -> Candidate:
        return self if self.build is None else self.build()

    @property
    def by_symmetry(self) -> SymmetricSchedule | None:
        """The schedule by symmetry, if it is one."""
        return self.timed if isinstance(self.timed, SymmetricSchedule) else None

    @property
    def compact(self) -> Schedule:
        """As an algorithm builds it: before sends are divided among parallel routes, or one chunk of each sort."""
        found = self._written.timed
        if isinstance(found, SymmetricSchedule):
            return found.base
        assert isinstance(found, Schedule)
        return found

    @property
    def spread(self) -> Spread | None:
        """The parallel routes that the sends of `compact` are divided among."""
        return self._written.parallel

    @property
    def steps(self) -> int:
        """Dependent sends on the longest path."""
        return self.timed.steps

    # Each new candidate of the cache asks all that are in it.
    @cached_property
    def held(self) -> int:
        """How many sends, or loads, it holds in memory."""
        match self.timed:
            case Schedule():
                return self.sends
            case SymmetricSchedule():
                return self.timed.base.sends
            case Outline():
                return sum(len(one.exchange.src) for one in self.timed.rounds if one.exchange.src is not None)
        return int(np.count_nonzero(self.timed.load))

    @property
    def rate(self) -> Fraction | None:
        """algbw in bytes/s that the loads allow; None if nothing is sent."""
        return rate(self.timed, self.parallel) if isinstance(self.timed, Schedule) else self.timed.rate

    @cached_property
    def sends(self) -> int:
        """How many sends `schedule` has."""
        if not isinstance(self.timed, Schedule) or self.parallel is None:
            return self.timed.sends
        return int(chunk_parts(self.timed, self.parallel)[self.timed.chunk].sum())

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule with every send written out: what is verified, simulated, run and exported.

        Raises `InfeasibleError` if that are too many sends.
        """
        found = self._written
        if found is not self:
            return found.schedule
        if isinstance(self.timed, SymmetricSchedule):
            return self.timed.schedule
        if self.parallel is None:
            return self.compact
        if self.sends > MOST_SENDS:
            who = f"{self.compact.algorithm} on {self.compact.topology.ranks} ranks has {self.sends:,} sends"
            once = f"once its data is divided among parallel routes, more than {MOST_SENDS:,}"
            raise InfeasibleError(f"{who} {once}; take packed, or fewer ranks")
        return divided(self.compact, self.parallel)


# Sends of all cached schedules together: some 30 bytes each.
MOST_CACHED = 4_000_000
# By the hash of the key, which takes milliseconds for a large topology.
_cache: OrderedDict[int, tuple[Hashable, Candidate]] = OrderedDict()
_lock = Lock()


def cached(key: Hashable, build: Callable[[], Candidate]) -> Candidate:
    """The candidate that `build` gives, or gave for an equal key; the least recently used make room."""
    place = hash(key)
    before, candidate = _cache.get(place, (None, None))
    if candidate is None or before != key:
        before, candidate = None, build()
        if candidate.held > MOST_CACHED:
            return candidate
    with _lock:
        _cache[place] = key, candidate
        _cache.move_to_end(place)
        while before is None and sum(other.held for _, other in _cache.values()) > MOST_CACHED:
            _cache.popitem(last=False)
    return candidate


def forget() -> None:
    """Empties the cache."""
    _cache.clear()
