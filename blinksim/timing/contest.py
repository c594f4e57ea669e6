"""Candidate schedules of one question, timed by one model, and an upper bound for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from blinksim.bounds.best_known import best_known
from blinksim.bounds.bound_result import NOTHING, assumed_by, granted_to_switches, granting
from blinksim.errors import InputError
from blinksim.results import Tabular, Term
from blinksim.timing.projection_result import Ceiling, LeastTime, Projection
from blinksim.topology.elements import BRANCHING

if TYPE_CHECKING:
    from blinksim.collective import Collective
    from blinksim.schedule.candidate import Candidate
    from blinksim.schedule.model import Schedule
    from blinksim.timing.timing_model import ScheduleModel
    from blinksim.topology.graph import Topology

Answer = Callable[[int], Projection]
"""Projection of a size by a model without schedules."""
# The models whose times are those of links with latency, overhead and bandwidth.
ON_LINKS = ("alpha-beta", "simulate")
# Ranks up to which the bound on the time is a matter of a second.
_MOST_RANKS = 4096
_WAITS = "waits that these sums leave out"


@dataclass(repr=False)
class Contest(Tabular):
    """All algorithms that can run a collective on a machine, built once and timed for any size.

    Attributes
    ----------
    topology : Topology
        The part that takes part.
    collective : Collective
        What runs.
    model : ScheduleModel
        What times the schedules.
    bound : Ceiling
        What no algorithm exceeds here.
    candidates : dict
        The schedules by the name that the answer gives them, with the parallel routes that their sends are
        divided among.
    refused, left_out : dict
        The reasons of those that cannot run here, and of those that were not tried.
    slower : list of str
        Those that are slower than others for sure, and have no schedule therefore.
    others : dict
        What models without a schedule answer for a size, by name.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.contest("dgx1-v100", "allreduce")
    >>> for size in (2**10, 2**30):
    ...     print(found.projections(size)[0].algorithm)
    recursive_doubling
    ring
    """

    topology: Topology
    collective: Collective
    model: ScheduleModel
    bound: Ceiling
    candidates: dict[str, Candidate] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    slower: list[str] = field(default_factory=list)
    others: dict[str, Answer] = field(default_factory=dict)

    @cached_property
    def schedules(self) -> dict[str, Schedule]:
        """The schedules by name, their sends divided among parallel routes."""
        return {name: candidate.schedule for name, candidate in self.candidates.items()}

    @property
    def on_links(self) -> bool:
        """True if times count links alone: latency, overhead and bandwidth."""
        return self.model.name in ON_LINKS

    def check_on_links(self, option: str) -> None:
        """Raise `InputError` naming an option for links alone if the model in force counts more."""
        if not self.on_links:
            raise InputError(f"{option} is for the links alone, and {self.model.name} counts more; leave it out")

    def among(self, candidates: dict[str, Candidate]) -> Contest:
        """The same contest among other schedules."""
        return Contest(self.topology, self.collective, self.model, self.bound, candidates)

    def only(self, *names: str) -> Contest:
        """The same contest among the algorithms named."""
        found = self.among({name: candidate for name, candidate in self.candidates.items() if name in names})
        found.others |= {name: answer for name, answer in self.others.items() if name in names}
        return found

    def projections(self, size: int, best: bool = False) -> list[Projection]:
        """One projection per schedule and other model for `size` bytes, quickest first.

        best: only the first one counts; the others may be by a quicker model.
        """
        timed = self.model.rank_best(self, size) if best else self.model.rank(self, size)
        timed += [answer(size) for answer in self.others.values()]
        return sorted(timed, key=lambda projection: projection.time_s)

    def answers(self, size: int, best: bool = False) -> list[Projection]:
        """As `projections`, with a lower bound on the time if the model counts the links alone.

        The sums of alpha-beta leave out that messages wait for each other. Where that makes a time less than
        any schedule takes, the rest is added as a term of its own, so that no answer is below a proved bound.
        """
        found = (with_least_time(self.topology, projection) for projection in self.projections(size, best))
        return sorted(found, key=lambda projection: projection.time_s)

    def rows(self) -> list[dict[str, Any]]:
        """One row per schedule, and one per refused algorithm with the reason."""
        rows: list[dict[str, Any]] = [
            {"algorithm": name, "sends": candidate.sends, "steps": candidate.steps, "refused": ""}
            for name, candidate in self.candidates.items()
        ]
        none = {"sends": None, "steps": None}
        return [*rows, *({"algorithm": name, **none, "refused": why} for name, why in self.refused.items())]

    def __repr__(self) -> str:
        names = ", ".join((*self.candidates, *self.others))
        refused = f"; refused: {', '.join(self.refused)}" if self.refused else ""
        return f"<Contest for {self.collective} on {self.topology.name} by {self.model.name}: {names}{refused}>"


def with_least_time(part: Topology, projection: Projection) -> Projection:
    """A projection on `part` with the bound on its time, and raised to it; one of another model as it is."""
    if projection.model not in ON_LINKS or part.ranks > _MOST_RANKS or projection.size < 1 or projection.bound is None:
        return projection
    least = least_time_of(part, projection.collective, projection.size, projection.bound, projection.grants)
    missing = max(0.0, least.time_s - projection.time_s)
    terms = [*projection.terms, Term(_WAITS, missing, "alpha")]
    if missing < 1e-9 * least.time_s:  # but rounding
        terms[-2:] = [replace(terms[-2], time_s=terms[-2].time_s + missing)]
    return replace(projection, least=least, terms=tuple(terms))


def least_time_of(
    part: Topology, collective: Collective, size: int, bound: Ceiling, grants: tuple[str, ...] = ()
) -> LeastTime:
    """What no schedule falls below for `size` bytes on the links; on thousands of ranks by the bound on the rate alone.

    grants: what switches may do, as in the bound.
    """
    if part.ranks > _MOST_RANKS or size < 1:
        return LeastTime(size / float(bound.rate), bound.words, bound.assumes, bound.scope)
    from blinksim.bounds.time.delays import SECOND
    from blinksim.bounds.time.time_bound import least_time

    best = least_time(part, collective, size, grants)
    assumes = "" if best.assumes == NOTHING else best.assumes
    return LeastTime(best.time / SECOND, best.words(part), assumes, best.kind)


def ceiling_of(
    part: Topology, collective: Collective, granted: Sequence[str] = (), grants: Sequence[str] = ()
) -> Ceiling:
    """The upper bound for all algorithms on a selected topology.

    granted: what the topology may do beyond the description of its machine, in words for the answer. grants:
    what its switches may do, of what they can.
    """
    known = best_known(part, collective, tuple(grants))
    certificate = known.certificate
    assumes = granting(assumed_by(certificate, collective), *granted)
    scope = type(certificate).__name__.lower()
    more = None
    if part.in_network and not grants and not collective.personalized:
        every = able_of(part)
        rate = best_known(part, collective, every).rate
        more = (rate, granted_to_switches(every)) if rate > certificate.rate else None
    words = certificate.words(part)
    shown = "" if assumes == NOTHING else assumes
    return Ceiling(certificate.rate, words, shown, scope, tuple(granted), more, known.searched)


def able_of(part: Topology) -> tuple[str, ...]:
    """Abilities of a machine's switches beside forwarding."""
    return tuple(ability for ability in BRANCHING if ability in part.in_network)
