"""What a timing model is: a name, the algorithms that it can time, and their times as projections."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from blinksim.algorithms.registry import Algorithm, algorithm, candidates
from blinksim.bounds.quick import quick_bound
from blinksim.cost.terms import Term
from blinksim.errors import BlinksimError, InfeasibleError, InputError
from blinksim.timing.projection_result import Ceiling, Projection

if TYPE_CHECKING:
    from blinksim.collective import Collective
    from blinksim.question import Question
    from blinksim.schedule.model import Schedule
    from blinksim.topology.graph import Topology

Report = Callable[[str], None]


class TimingModel(ABC):
    """A way to say how long a collective takes on a machine.

    name: as questions give it. rates: the name of the rate table that the model wants, None for any. pins_rates: it
    accepts no other table. best: the algorithm that ``best`` stands for, None for the quickest.
    """

    name: str
    best: tuple[str, ...] | None = None
    rates: str | None = None
    pins_rates: bool = False

    @abstractmethod
    def at(self, question: Question) -> tuple[TimingModel, Topology]:
        """The model set up for a question, and the topology that its `times` takes. Raises as the question does."""

    def check(self, question: Question) -> None:  # noqa: B027 - most models take everything into account
        """Raises `InputError` if the question says something that the model does not take into account."""

    @abstractmethod
    def algorithms(self, topology: Topology, collective: Collective) -> tuple[str, ...]:
        """The names of the algorithms that the model can time there; each is a name that `times` takes."""

    @abstractmethod
    def times(
        self,
        topology: Topology,
        collective: Collective,
        sizes: Iterable[int],
        algorithms: Sequence[str] | None = None,
        report: Report | None = None,
    ) -> list[Projection]:
        """The projections for all `sizes` (bytes), in the order of the sizes, quickest first for each.

        topology: what `Topology.select` returns, unless the model says that it needs more. algorithms: default, all
        that the model can time there. report: called with a progress message. Raises `InputError` for unknown names
        and `InfeasibleError` where the model does not cover the case.
        """


@dataclass(frozen=True)
class Breakdown:
    """What a model says of one schedule at one size: terms in seconds that add up, what sets them, further details."""

    terms: tuple[Term, ...]
    bottleneck: str
    details: Mapping[str, Any] = field(default_factory=dict)


class ScheduleModel(TimingModel):
    """A model that times schedules, whatever algorithm built them.

    gamma: seconds per byte that a rank reduces. crossover_precision: crossovers are searched to one part in this many;
    None means to the byte.
    """

    crossover_precision: ClassVar[int | None] = None

    def __init__(self, gamma: float = 0.0) -> None:
        self.gamma = gamma

    @abstractmethod
    def breakdown(self, schedule: Schedule, size: int, gamma: float) -> Breakdown:
        """The terms of one schedule for `size` bytes."""

    def at(self, question: Question) -> tuple[ScheduleModel, Topology]:
        """The model itself, and the part of the machine that takes part."""
        return self, question.part()

    def check_schedule(self, schedule: Schedule) -> Schedule:
        """The schedule, if the model can time it in seconds; raises `InfeasibleError` otherwise."""
        return schedule

    def algorithms(self, topology: Topology, collective: Collective) -> tuple[str, ...]:
        """The algorithms that have the collective and need no solver; `times` takes the others by name."""
        return tuple(entry.name for entry in candidates(collective.name))

    def schedules(
        self,
        part: Topology,
        collective: Collective,
        names: Iterable[str] | None = None,
        report: Report | None = None,
    ) -> tuple[dict[str, Schedule], dict[str, str]]:
        """The schedules of the named algorithms (default: `algorithms`) by name, and the reasons of those refused.

        A named algorithm that cannot run raises; of the default ones the reason is kept. Raises `InfeasibleError` if
        none is left.
        """
        collective.check_ranks(part.ranks)
        if part.ranks < 2:
            raise InputError(f"{part.name}: a collective needs at least two ranks; name two members or more")
        say = report or _silent
        schedules: dict[str, Schedule] = {}
        if names is not None:
            for name in names:
                entry = algorithm(name.strip())
                say(f"building {entry.name}")
                schedules[entry.name] = self._built(part, collective, entry)
            return schedules, {}
        refused: dict[str, str] = {}
        entries = candidates(collective.name)
        for number, entry in enumerate(entries, start=1):
            say(f"building {entry.name}, {number} of {len(entries)}")
            try:
                schedules[entry.name] = self._built(part, collective, entry)
            except BlinksimError as error:
                refused[entry.name] = str(error)
        if not schedules:
            raise InfeasibleError(f"no algorithm runs {collective} on {part.name}: {'; '.join(refused.values())}")
        return schedules, refused

    def _built(self, part: Topology, collective: Collective, entry: Algorithm) -> Schedule:
        return self.check_schedule(entry.build(part, collective))

    def rank(
        self, part: Topology, schedules: Mapping[str, Schedule], size: int, ceiling: Ceiling, gamma: float = 0.0
    ) -> list[Projection]:
        """The projections of schedules on `part` for `size` bytes, quickest first.

        schedules: by the name that the answer gives them. gamma: seconds per byte reduced, on top of the model's.
        """
        found = []
        for name, schedule in schedules.items():
            cost = self.breakdown(schedule, size, self.gamma + gamma)
            found.append(
                Projection(
                    machine=part.name,
                    collective=schedule.collective,
                    members=part.members,
                    relays=part.relays,
                    links=part.link_classes,
                    rates=part.rates,
                    size=size,
                    model=self.name,
                    algorithm=name,
                    terms=cost.terms,
                    bottleneck=cost.bottleneck,
                    details=cost.details,
                    bound=ceiling,
                )
            )
        return sorted(found, key=lambda projection: projection.time_s)

    def times(
        self,
        topology: Topology,
        collective: Collective,
        sizes: Iterable[int],
        algorithms: Sequence[str] | None = None,
        report: Report | None = None,
    ) -> list[Projection]:
        """As `TimingModel.times`; of a whole machine the default members and links take part."""
        part = topology.selected()
        schedules, _ = self.schedules(part, collective, algorithms, report)
        ceiling = ceiling_of(part, collective)
        return [found for size in sizes for found in self.rank(part, schedules, size, ceiling)]


def ceiling_of(part: Topology, collective: Collective) -> Ceiling:
    """What no algorithm exceeds on a selected topology."""
    certificate = quick_bound(part, collective)
    return Ceiling(certificate.rate, certificate.words(part))


def _silent(message: str) -> None:
    pass
