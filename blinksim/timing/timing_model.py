"""Timing models: the interface, with a name, the algorithms that can be timed, and their projections."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, ClassVar

from blinksim import plugins
from blinksim.algorithms.registry import candidates
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.machines import Question
from blinksim.results import Term
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.loads import Outline
from blinksim.schedule.model import Schedule, abilities_used
from blinksim.timing.contest import CandidatesLike, Contest, Say, ceiling_of, enter_best, enter_named
from blinksim.timing.projection_result import Projection, of_part
from blinksim.topology.graph import Topology

# Bytes of a large collective.
LARGE = 2**30


class TimingModel(ABC):
    """A way to say how long a collective takes on a machine.

    name: as questions give it. rates: the name of the rate table that the model wants, None for any.
    pins_rates: it accepts no other table. best: the algorithm that ``best`` stands for, None for the
    quickest.
    """

    name: str
    best: tuple[str, ...] | None = None
    rates: str | None = None
    pins_rates: bool = False

    @abstractmethod
    def at(self, question: Question) -> tuple[TimingModel, Topology]:
        """The model set up for a question, and the topology that its `times` takes. Raises as the question does."""

    def at_its_rates(self, question: Question) -> Question:
        """The question at the rates that the model wants, unless it names others, or its machine has none such.

        Raises `InputError` if the model accepts no others. A machine by name must have rates that it pins.
        """
        if self.pins_rates and question.rates not in (None, self.rates):
            raise InputError(f"model={self.name} pins the rates {self.rates!r}; leave rates={question.rates} out")
        strictly = self.pins_rates and not isinstance(question.machine, Topology)
        return replace(question, rates=self.rates) if strictly else question.preferring_known(self.rates)

    def check(self, question: Question) -> None:  # noqa: B027 - most models take everything into account
        """Raises `InputError` if the question says something that the model does not take into account."""

    def algorithms(self, topology: Topology, collective: Collective) -> tuple[str, ...]:
        """The names of the algorithms that the model can time there; each is a name that `times` takes."""
        return self.best or ()

    @abstractmethod
    def times(
        self, topology: Topology, collective: Collective, sizes: Iterable[int], algorithms: Sequence[str] | None = None
    ) -> list[Projection]:
        """The projections for all `sizes` (bytes), in the order of the sizes, quickest first for each.

        topology: what `Topology.select` returns, unless the model says that it needs more. algorithms:
        default, all that the model can time there. Raises `InputError` for unknown names and
        `InfeasibleError` where the model does not cover the case.
        """


@dataclass(frozen=True)
class Breakdown:
    """The time of one schedule at one size as a model breaks it down.

    Parameters
    ----------
    terms : tuple of Term
        They add up to the time.
    bottleneck : str
        What sets it.
    details : mapping
        Further figures, by name.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.Breakdown((bs.Term("launch", 5e-6), bs.Term("links", 20e-6)), "nvlink").bottleneck
    'nvlink'
    """

    terms: tuple[Term, ...]
    bottleneck: str
    details: Mapping[str, Any] = field(default_factory=dict)


class ScheduleModel(TimingModel):
    """A model that times schedules, whatever algorithm built them; a subclass has a ``name`` and a ``breakdown``.

    ``crossover_precision``: crossovers are searched to one part in this many; None means to the byte.

    Parameters
    ----------
    gamma : float
        Seconds per byte that a rank reduces.

    Examples
    --------
    >>> import blinksim as bs
    >>> class Steps(bs.ScheduleModel):
    ...     name = "steps"
    ...
    ...     def breakdown(self, schedule, size, gamma):
    ...         return bs.Breakdown((bs.Term("steps", 1e-3 * schedule.steps),), "the clock")
    >>> bs.compare("ring:4", "allreduce", ["1KiB"], ["ring"], model=Steps()).projections[0][0].time_s
    0.006
    """

    crossover_precision: ClassVar[int | None] = None

    def __init__(self, gamma: float = 0.0) -> None:
        self.gamma = gamma

    @abstractmethod
    def breakdown(self, schedule: Schedule, size: int, gamma: float) -> Breakdown:
        """The terms of one schedule for `size` bytes."""

    def breakdown_of(self, candidate: Candidate, size: int, gamma: float) -> Breakdown:
        """The terms of a schedule whose sends are already divided among parallel routes."""
        return self.breakdown(candidate.schedule, size, gamma)

    def at(self, question: Question) -> tuple[ScheduleModel, Topology]:
        """The model for the selected part of the machine, and that part."""
        part = question.part()
        return self.on(part), part

    def on(self, part: Topology) -> ScheduleModel:
        """The model for schedules on a selected topology: itself, unless it stands for several models."""
        return self

    def projection(self, **given: Any) -> Projection:
        """A projection from its attributes by name; models with further results return a subclass."""
        return Projection(**given)

    def check_schedule(self, candidate: Candidate) -> None:
        """Raises `InfeasibleError` if the model cannot time the schedule in seconds."""

    def algorithms(self, topology: Topology, collective: Collective) -> tuple[str, ...]:
        """The algorithms for the collective that need no solver; `times` takes the others by name."""
        return tuple(entry.name for entry in candidates(collective.name))

    def contest(
        self,
        part: Topology,
        collective: Collective,
        names: CandidatesLike | None = None,
        report: Say | None = None,
        sizes: Collection[int] = (LARGE,),
        *,
        only_best: bool = False,
    ) -> Contest:
        """The named algorithms, or all that `blinksim.timing.contest` considers, built to be timed by this model.

        names: of algorithms and of files of schedules, or schedules. One that cannot run raises; of those
        that are not named the reason is kept. Raises `InfeasibleError` if none is left. sizes: for how many
        bytes they are to be the best. only_best: only the quickest is asked for.
        """
        collective.check_ranks(part.ranks)
        model, say = self.on(part), report or (lambda _: None)
        found = Contest(part, collective, model, ceiling_of(part, collective), only_best=only_best)
        if names is None:
            enter_best(found, sizes, say)
        else:
            enter_named(found, names, sizes, say)
        return found

    def rank(self, contest: Contest, size: int) -> list[Projection]:
        """The projections of all schedules for `size` bytes, quickest first."""
        part, what, found = contest.topology, contest.collective, list[Projection]()
        for name, candidate in contest.candidates.items():
            cost = self._checked(candidate, size, self.gamma)
            # What switches can do beside forwarding, if the schedule has them do some of it, raises the
            # ceiling.
            forwards = isinstance(candidate.timed, Outline) or what.personalized
            grants = () if forwards or not abilities_used(candidate.compact) else part.in_network
            bound = ceiling_of(part, what, grants) if grants else contest.bound
            asked = of_part(part, collective=what, size=size, model=self.name, algorithm=name)
            asked |= {"terms": cost.terms, "bottleneck": cost.bottleneck, "details": cost.details}
            found.append(self.projection(**asked, bound=bound, grants=grants))
        return sorted(found, key=lambda projection: projection.time_s)

    def rank_best(self, contest: Contest, size: int) -> list[Projection]:
        """As `rank`, if only the quickest matters: the others may be timed by a cheaper model."""
        return self.rank(contest, size)

    def _checked(self, candidate: Candidate, size: int, gamma: float) -> Breakdown:
        """The breakdown, checked if the model is from outside the package: that one may say what is no time."""
        own = type(self)
        if own.__module__.partition(".")[0] == "blinksim":
            return self.breakdown_of(candidate, size, gamma)
        file, line = plugins.source_of(own.breakdown)
        with plugins.blamed(f"timing model {self.name!r}", file, line):
            found = self.breakdown_of(candidate, size, gamma)
            if not isinstance(found, Breakdown):
                raise InputError(f"returned {found!r:.40}; return a Breakdown of terms")
            for term in found.terms:
                if not (isinstance(term, Term) and isfinite(term.time_s) and term.time_s >= 0):
                    raise InputError(f"{term!r:.80} is not a term of at least 0 seconds")
            if not sum(term.time_s for term in found.terms) > 0:
                raise InputError("the terms add up to 0 seconds; a collective takes time")
        return found

    def times(
        self, topology: Topology, collective: Collective, sizes: Iterable[int], algorithms: Sequence[str] | None = None
    ) -> list[Projection]:
        """As `TimingModel.times`; a whole machine takes part with its default members and links."""
        sizes = list(sizes)
        contest = self.contest(topology.selected(), collective, algorithms, None, sizes)
        return [found for size in sizes for found in contest.projections(size, best=algorithms is None)]
