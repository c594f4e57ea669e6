"""A schedule by symmetry among those that are timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from blinksim.collective import Collective
from blinksim.schedule.model import Schedule
from blinksim.schedule.turned.step_messages import Messages
from blinksim.schedule.turned.symmetric import SymmetricSchedule
from blinksim.schedule.ways import Parallel, Unwritten


@dataclass(frozen=True, eq=False)
class Turned(Parallel):
    """One whose `compact` is a chunk of each sort; `schedule` writes it out, where that is not too much.

    whole: the schedule by symmetry.
    """

    whole: SymmetricSchedule = field(kw_only=True)

    @classmethod
    def of_images(cls, whole: SymmetricSchedule) -> Turned:
        return cls(whole.base, whole=whole)

    @property
    def rate(self) -> Fraction | None:
        """algbw in bytes/s that the loads allow; None if nothing is sent."""
        return self.whole.rate

    @property
    def sends(self) -> int:
        """How many sends `schedule` has."""
        return self.whole.sends

    @property
    def held(self) -> int:
        """How many sends `base` has."""
        return self.whole.base.sends

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule with every image written out; raises `InfeasibleError` if that is too much."""
        return self.whole.schedule


class TurnedSteps(Unwritten, Turned):
    """One in steps form that is timed by its messages; what needs its chunks has `build` write those of one sort.

    sends: how many it has once every chunk is written out.
    """

    messages: Messages
    _build: Callable[[], SymmetricSchedule]

    def __init__(
        self, collective: Collective, messages: Messages, sends: int, build: Callable[[], SymmetricSchedule]
    ) -> None:
        super().__init__(collective, sends, messages=messages, _build=build)

    @cached_property
    def whole(self) -> SymmetricSchedule:
        return self._build()

    @property
    def compact(self) -> Schedule:
        return self.whole.base

    @property
    def steps(self) -> int:
        return self.messages.steps

    @property
    def rate(self) -> Fraction | None:
        return self.messages.rate

    @property
    def held(self) -> int:
        return len(self.messages.step)
