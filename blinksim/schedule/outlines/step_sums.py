"""What each step puts on the resources of a machine, where that is all that is known of it: enough for its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from blinksim.collective import Collective
from blinksim.schedule.model import Schedule
from blinksim.schedule.ways import Unwritten

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StepSums:
    """Steps that copy, S of them, on K resources.

    names, kinds, rates (K): of the resources, bytes/s. load (S, K): the share of the size that passes. alpha (S, K):
    seconds of the slowest message across it. each, longest (S, K): seconds of overhead of all messages that start
    there, and of the longest of these.
    """

    names: Sequence[str]
    kinds: Sequence[str]
    rates: Floats
    load: Floats
    alpha: Floats
    each: Floats
    longest: Floats


class Summed(Unwritten):
    """A schedule by its sums among those that are timed; what needs its sends has `build` write them."""

    sums: StepSums
    _build: Callable[[], Schedule]

    def __init__(self, collective: Collective, sums: StepSums, sends: int, build: Callable[[], Schedule]) -> None:
        super().__init__(collective, sends, sums=sums, _build=build)

    @cached_property
    def compact(self) -> Schedule:
        return self._build()

    @property
    def steps(self) -> int:
        return len(self.sums.load)

    @property
    def rate(self) -> Fraction | None:
        """algbw in bytes/s that the loads allow, in machine precision."""
        return 1 / Fraction(float((self.sums.load.sum(axis=0) / self.sums.rates).max()))

    @property
    def held(self) -> int:
        return int(np.count_nonzero(self.sums.load))
