"""Which algorithm is quickest at a size, and how long a schedule takes there beside the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from blinksim.algorithms.registry import REGISTRY
from blinksim.answers.project import ON_LINKS, Contest, contest, with_least_time
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.limits.stopping import asked_to_stop, stoppable
from blinksim.schedule.ways import MOST_SENDS, Parallel
from blinksim.simulation.simulation_options import ServiceName
from blinksim.simulation.simulator import simulate
from blinksim.timing.model_registry import DEFAULT, schedule_model
from blinksim.timing.projection_result import OF_RUNS, Projection
from blinksim.topology.graph import Topology
from blinksim.units import format_time

if TYPE_CHECKING:
    from blinksim.bounds.bound_result import Bound
    from blinksim.schedule.model import Schedule


LEAST_SEARCH_S = 0.3
"""Seconds that a search gets however long the algorithms before it took."""
# Sizes that schedules are made for to stand beside a comparison, between these, and on how many ranks.
_MOST_MADE, _SMALLEST, _LARGEST, _MOST_MADE_RANKS = 6, 2**12, 2**26, 16
# Sends up to which a schedule is simulated in well under a second.
_MOST_SIMULATED = 10_000


@dataclass(frozen=True)
class AtSize:
    """How long a schedule takes at a size.

    Attributes
    ----------
    projection : Projection
        The time, its terms, and what timed it.
    least_s : float
        No schedule is quicker; where the model counts more than links, the bytes alone at the rate of the bound.
    alternatives : tuple of Projection
        Of the other algorithms that were considered, quickest first.
    simulated_s : float, optional
        Message by message on the links, which the least time is about, where that is the model in force; links serve in
        the order of steps or of arrival, whichever is better.
    """

    projection: Projection
    least_s: float
    alternatives: tuple[Projection, ...]
    simulated_s: float | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        return self.projection.size

    @property
    def time_s(self) -> float:
        """Seconds."""
        return self.projection.time_s

    @property
    def gap(self) -> float:
        """By which part of the least time it is longer than that: 0 where nothing is quicker."""
        return self.time_s / self.least_s - 1

    @property
    def quickest(self) -> bool:
        """True if none of the alternatives takes less."""
        return all(self.time_s <= other.time_s for other in self.alternatives)

    def to_dict(self) -> dict[str, Any]:
        """What ``synth --json`` says of the size."""
        found = self.projection
        return {
            "size_bytes": self.size,
            "time_s": self.time_s,
            "least_time_s": self.least_s,
            "time_gap": self.gap,
            **({} if self.simulated_s is None else {"simulated_s": self.simulated_s}),
            "model": found.model,
            "terms": [{"name": t.name, "time_s": t.time_s, "limit": t.limit} for t in found.terms],
            **({"executor": found.executor} if found.executor else {}),
            **{key: found.details[key] for key in OF_RUNS if key in found.details},
            "alternatives": [{"algorithm": one.algorithm, "time_s": one.time_s} for one in self.alternatives],
        }


@dataclass(frozen=True)
class Candidates:
    """What `blinksim.project` considers at a size (bytes), built and timed by the model in force.

    interrupted: True if Ctrl-C ended a search for the size early.
    """

    field: Contest
    size: int
    projections: tuple[Projection, ...]
    interrupted: bool = False

    def quickest(self) -> Schedule:
        """The schedule that takes the least time, of those that are not too long to write out.

        Raises `InfeasibleError` if all are.
        """
        entrants = self.field.field.entrants
        for projection in self.projections:
            if entrants[projection.algorithm].sends <= MOST_SENDS:
                return entrants[projection.algorithm].schedule
        raise InfeasibleError(
            f"every schedule for a size has more than {MOST_SENDS:,} sends; take fewer nodes, or leave out the size: "
            "packed says alike trees once"
        )


def candidates(
    part: Topology,
    collective: Collective,
    size: int,
    *,
    search: bool = False,
    seconds: float | None = None,
    report: Callable[[str], None] | None = None,
) -> Candidates:
    """The algorithms that are considered on a selected topology; raises as `blinksim.contest` does.

    search: True for those too that search for the size, where the model in force counts the links alone. seconds: how
    long all of this may take. report: called with the best time so far. Ctrl-C ends the search with the best so far.
    """
    start = monotonic()
    rivals = contest(part, collective, sizes=[size])
    answers = tuple(rivals.answers(size))
    if not search or rivals.model.on(part).name not in ON_LINKS:
        return Candidates(rivals, size, answers)
    limit = {} if seconds is None else {"time_limit": max(LEAST_SEARCH_S, seconds - (monotonic() - start))}
    with stoppable():
        say = _so_far(answers[0], report) if report else None
        more = dict(_searched(part, collective, size, {"report": say, **limit}))
        interrupted = asked_to_stop()
    rivals = replace(rivals, field=replace(rivals.field, entrants={**rivals.field.entrants, **more}))
    return Candidates(rivals, size, tuple(rivals.answers(size)), interrupted)


def _searched(
    part: Topology, collective: Collective, size: int, options: dict[str, Any]
) -> Iterator[tuple[str, Parallel]]:
    for entry in REGISTRY.values():
        if entry.supports(collective.name) and "size" in entry.options():
            given = {key: value for key, value in options.items() if key in entry.options()}
            with suppress(InfeasibleError):
                yield entry.name, entry.parallel(part, collective, size=size, **given)


def _so_far(first: Projection, report: Callable[[str], None]) -> Callable[[float], None]:
    """What tells of the best time so far, in seconds, and of the bound."""
    bound = f", at least {format_time(first.least.time_s)}" if first.least else ""
    best = first.time_s

    def say(seconds: float) -> None:
        nonlocal best
        best = min(best, seconds)
        report(f"{format_time(best)} so far{bound}")

    say(best)
    return say


def timed(rivals: Candidates, schedule: Schedule, bound: Bound) -> AtSize:
    """What a schedule of the same question takes.

    Raises `InfeasibleError` if the model in force cannot time it.
    """
    field, entrant = rivals.field, Parallel(schedule)
    field.model.check_schedule(entrant)
    [own] = field.model.rank(field.topology, {schedule.algorithm: entrant}, rivals.size, field.bound)
    others = tuple(one for one in rivals.projections if one.algorithm != schedule.algorithm)
    own = with_least_time(field.topology, own)
    least = own.least.time_s if own.least else rivals.size / float(bound.rate)
    return AtSize(own, least, others, _simulated(schedule, rivals.size) if own.least else None)


def made_for(part: Topology, collective: Collective, sizes: Sequence[int], seconds: float) -> dict[int, float]:
    """Seconds of schedules that are made for one size, by size in bytes: for some of `sizes`, in `seconds` each.

    Message by message on the links; nothing where another model than that of links is in force.
    """
    if schedule_model(DEFAULT).on(part).name not in ON_LINKS or part.ranks > _MOST_MADE_RANKS:
        return {}
    inside = [size for size in sizes if _SMALLEST <= size <= _LARGEST]
    every = -(-len(inside) // _MOST_MADE) or 1
    found = dict[int, float]()
    for size in inside[::every]:
        for _, entrant in _searched(part, collective, size, {"time_limit": seconds}):
            time = _simulated(entrant.schedule, size)
            if time is not None:
                found[size] = min(time, found.get(size, time))
    return found


def _simulated(schedule: Schedule, size: int) -> float | None:
    """Seconds on the links alone; None for schedules that are too long to try."""
    if len(schedule.chunk) > _MOST_SIMULATED:
        return None
    services: tuple[ServiceName, ...] = ("fifo", "ordered") if schedule.form == "steps" else ("fifo",)
    return min(simulate(schedule, size, service=service).time_s for service in services)
