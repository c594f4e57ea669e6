"""A schedule by symmetry among those that are timed."""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property

from blinksim.schedule.model import Schedule
from blinksim.schedule.turned.symmetric import SymmetricSchedule
from blinksim.schedule.ways import Parallel


class Turned(Parallel):
    """One whose `compact` is a chunk of each sort; `schedule` writes it out, where that is not too much."""

    def __init__(self, whole: SymmetricSchedule) -> None:
        super().__init__(whole.base)
        self.__dict__["whole"] = whole

    @property
    def whole(self) -> SymmetricSchedule:
        """The schedule by symmetry."""
        found: SymmetricSchedule = self.__dict__["whole"]
        return found

    @property
    def rate(self) -> Fraction | None:
        """algbw in bytes/s that the loads allow; None if nothing is sent."""
        return self.whole.rate

    @property
    def sends(self) -> int:
        """How many sends `schedule` has."""
        return self.whole.sends

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule with every image written out; raises `InfeasibleError` if that is too much."""
        return self.whole.schedule
