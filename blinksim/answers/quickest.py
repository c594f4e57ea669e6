"""The quickest algorithm at a size, including schedules made for it, and the time of a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from time import monotonic
from typing import Any

from blinksim.algorithms.registry import REGISTRY
from blinksim.answers.project import contest
from blinksim.bounds.bound_result import Bound
from blinksim.budget import asked_to_stop, stoppable, within
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.results import keyed
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import Schedule
from blinksim.schedule.symmetric import SymmetricSchedule
from blinksim.timing.contest import Contest, with_least_time
from blinksim.timing.model_registry import schedule_model
from blinksim.timing.projection_result import OF_RUNS, Projection
from blinksim.timing.simulation_options import MessagesName, ServiceName
from blinksim.timing.simulator import simulate
from blinksim.topology.graph import Topology
from blinksim.units import format_size, format_time

LEAST_SEARCH_S = 0.3
"""Seconds that a search gets however long the algorithms before it took."""
# Sends up to which the schedule that is answered is simulated, and those of all of its rivals, and events of
# one run: some seconds of work. How many rivals are simulated, and how many times as long as the best one may
# take by the sums of alpha and beta, which are hardly ever more than twice the simulated time.
MOST_SIMULATED, _MOST_IN_ALL, _MOST_EVENTS, _MOST_RIVALS, _TOO_LONG = 40_000, 25_000, 150_000, 8, 2.0
# The part of a time limit that the algorithms without a search may be simulated in, and the one reserved for
# what follows; and seconds before that limit at which no schedule is simulated any more, as it is still to be
# verified. A search that has less left does not begin: its solver takes as long to load.
_FOR_RIVALS, _RESERVED, _MOST_RESERVED_S, _PROOF_S = 0.4, 0.15, 2.0, 1.0
# Sends up to which a schedule is written out, verified and saved in some seconds.
_MOST_WRITTEN = 2_500_000


@dataclass(frozen=True)
class AtSize:
    """How long a schedule takes at a size.

    Attributes
    ----------
    projection : Projection
        The time, its terms, and what timed it: where the model in force counts the links alone, ``simulate``,
        message by message, unless the schedule has too many sends for that. Its details then have the order in which
        links serve (``service``), the kind of message, and the time by sums of alpha and beta (``alpha_beta_s``).
    least_s : float
        No schedule is quicker; where the model counts more than links, the bytes alone at the rate of the
        bound.
    alternatives : tuple of Projection
        Of the other algorithms that were considered, quickest first.
    too_long : dict
        The number of sends, by algorithm, of the alternatives that are quicker and have too many to be
        written out.
    """

    projection: Projection
    least_s: float
    alternatives: tuple[Projection, ...]
    too_long: dict[str, int] = field(default_factory=dict)

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
        """The keys of the size for ``synth --json``."""
        found, details = self.projection, self.projection.details
        run = {"simulated_s": self.time_s} | {key: details.get(key) for key in ("service", "messages", "alpha_beta_s")}
        return {
            **keyed(self, "size_bytes=size time_s least_time_s=least_s time_gap=gap"),
            **(run if "service" in details else {}),
            **keyed(found, "model terms", terms=[keyed(term, "name time_s limit") for term in found.terms]),
            **({"executor": found.executor} if found.executor else {}),
            **{key: details[key] for key in OF_RUNS if key in details},
            "alternatives": [keyed(one, "algorithm time_s model") for one in self.alternatives],
            **({"too_long": self.too_long} if self.too_long else {}),
        }


@dataclass(frozen=True)
class Candidates:
    """Candidates of `blinksim.project` at a size (bytes), built and timed by the model in force.

    projections: quickest first; where the links alone count, simulated where that takes no longer than some
    seconds. messages: what is one in these simulations (`blinksim.timing.simulation_options.Options`).
    interrupted: True if Ctrl-C ended a search for the size early.
    """

    contest: Contest
    size: int
    projections: tuple[Projection, ...]
    messages: MessagesName = "joined"
    interrupted: bool = False

    def quickest(self) -> tuple[Projection, Schedule | SymmetricSchedule]:
        """The schedule that takes the least time, of those that are not too long to write out, and its projection.

        A large symmetric set of trees is returned as base trees and a group. Raises `InfeasibleError` if all
        are too long.
        """
        built = self.contest.at(self.size).candidates
        for projection in self.projections:
            candidate = built[projection.algorithm]
            # Many trees that symmetries map to each other are answered as one of each sort.
            if candidate.by_symmetry and candidate.sends > MOST_SIMULATED:
                return projection, candidate.whole
            if candidate.sends <= _MOST_WRITTEN:
                return projection, candidate.schedule
        raise InfeasibleError(
            f"every schedule for a size has more than {_MOST_WRITTEN:,} sends, and no symmetry says one in few; take "
            "fewer ranks, or leave out the size"
        )

    def timed(self, schedule: Schedule | SymmetricSchedule, bound: Bound, own: Projection | None = None) -> AtSize:
        """The time of a schedule of the same question; own: its projection, if that is known.

        Raises `InfeasibleError` if the model in force cannot time it.
        """
        name = schedule.algorithm
        if own is None:
            candidate = Candidate(schedule)
            self.contest.model.check_schedule(candidate)
            [own] = self.contest.among({name: candidate}).answers(self.size)
            if own.least is not None and candidate.sends <= MOST_SIMULATED:
                own = _simulated(self.contest.topology, own, candidate.schedule, self.messages)
        least = own.least.time_s if own.least else self.size / float(bound.rate)
        others = tuple(one for one in self.projections if one.algorithm != name)
        quicker = [one.algorithm for one in self.projections if one.time_s < own.time_s]
        faster = {name: self.contest.candidates[name] for name in quicker if name in self.contest.candidates}
        long = {name: one.sends for name, one in faster.items() if one.sends > _MOST_WRITTEN and not one.by_symmetry}
        return AtSize(own, least, others, long)


def candidates(
    part: Topology,
    collective: Collective,
    size: int,
    *,
    search: bool = False,
    seconds: float | None = None,
    messages: MessagesName = "joined",
    report: Callable[[str], None] | None = None,
) -> Candidates:
    """The algorithms that are considered on a selected topology; raises as `blinksim.contest` does.

    Where the model in force counts the links alone, the quickest of them by that model are simulated.

    search: True for those too that search for the size, in that case. seconds: how long all of this may take.
    messages: what is one in a simulation of steps. report: called with the best time so far. Ctrl-C ends the
    search with the best so far. Raises `InputError` for single messages where the model in force counts more
    than links.
    """
    start = monotonic()
    rivals = contest(part, collective, sizes=[size])
    answers = rivals.answers(size)
    if messages != "joined":
        rivals.check_on_links(f"messages={messages!r}")
    if not rivals.on_links:
        return Candidates(rivals, size, tuple(answers))
    given = inf if seconds is None else seconds
    with stoppable():
        simulated = of_the_quickest(rivals, answers, _MOST_IN_ALL, start + _FOR_RIVALS * given, messages)
        left = given - min(_MOST_RESERVED_S, _RESERVED * given) - (monotonic() - start)
        if search and left > _PROOF_S:
            best = min((*answers, *simulated), key=lambda one: one.time_s)
            limit = {} if seconds is None else {"time_limit": left}
            say = _so_far(simulated[0] if simulated else best, report) if report else None
            made = rivals.among(dict(searches(part, collective, size, {"report": say, **limit})))
            rivals.candidates |= made.candidates
            searched = made.answers(size)
            answers += searched
            simulated += of_the_quickest(made, searched, MOST_SIMULATED, start + given - _PROOF_S, messages)
        interrupted = asked_to_stop()
    # In steps, the sums of alpha and beta join what a connection sends.
    others = () if messages == "single" and simulated else answers
    timed = {one.algorithm: one for one in (*others, *simulated)}
    ordered = sorted(timed.values(), key=lambda one: one.time_s)
    return Candidates(rivals, size, tuple(ordered), messages, interrupted)


def of_the_quickest(
    rivals: Contest, answers: Sequence[Projection], sends: int, end: float = inf, messages: MessagesName = "joined"
) -> list[Projection]:
    """The same projections by simulation, quickest first: of those that are quick by alpha and beta, and not too long.

    sends: of all of them together. end: of the time for it, by `monotonic`. messages: what is one.
    """
    found = list[Projection]()
    thinned = rivals.at(answers[0].size).candidates if answers else {}
    for one in sorted(answers, key=lambda one: one.time_s)[:_MOST_RIVALS]:
        whole, left = rivals.candidates[one.algorithm], end - monotonic()
        if left <= 0 or one.time_s > _TOO_LONG * min((other.time_s for other in found), default=inf):
            break
        if whole.sends <= sends:
            sends -= whole.sends
            with suppress(InfeasibleError):
                # Sums of alpha and beta do not see how messages of several trees overlap.
                tried = dict.fromkeys((thinned[one.algorithm], whole))
                every = (_simulated(rivals.topology, one, candidate.schedule, messages) for candidate in tried)
                limit = None if left == inf else left
                timed = within(limit, "simulation", partial(list[Projection], every), spare=False)
                rivals.whole |= {one.algorithm} if timed[-1].time_s < timed[0].time_s else set()
                found.append(min(timed, key=lambda one: one.time_s))
    return sorted(found, key=lambda one: one.time_s)


def _simulated(part: Topology, projection: Projection, schedule: Schedule, messages: MessagesName) -> Projection:
    """A projection of a schedule on the links with the time that it takes in a simulation.

    Links serve in the order of steps, or of arrival, whichever is better.
    """
    services: tuple[ServiceName, ...] = ("fifo", "ordered") if schedule.form == "steps" else ("fifo",)
    run = partial(simulate, schedule, projection.size, most_events=_MOST_EVENTS, messages=messages)
    ran = min((run(service=service) for service in services), key=lambda ran: ran.time_s)
    options = {"service": ran.service, "messages": ran.options.sent(schedule.form)}
    details = {**ran.facts, **options, "alpha_beta_s": projection.time_s}
    found = replace(projection, model="simulate", terms=ran.terms, bottleneck=ran.uses[0].resource, details=details)
    return with_least_time(part, found)


def searches(
    part: Topology, collective: Collective, size: int, options: dict[str, Any]
) -> Iterator[tuple[str, Candidate]]:
    """The schedules that are made for a size; one that is not found within the time limit of `options` is left out."""
    for entry in REGISTRY.values():
        if entry.supports(collective.name) and "size" in entry.options():
            given = {key: value for key, value in options.items() if key in entry.options()}
            build = partial(entry.parallel, part, collective, size=size, **given)
            with suppress(InfeasibleError):
                yield entry.name, within(options.get("time_limit"), "schedule", build)


def _so_far(first: Projection, report: Callable[[str], None]) -> Callable[[float], None]:
    """A reporter of the best time so far, in seconds, and of the bound."""
    bound = f", at least {format_time(first.least.time_s)}" if first.least else ""
    best = first.time_s

    def say(seconds: float) -> None:
        nonlocal best
        best = min(best, seconds)
        report(f"{format_time(best)} so far{bound}")

    say(best)
    return say


def by_simulation(rivals: Contest) -> Contest:
    """The same schedules timed in a simulation, as those that are made for a size; refuses those that are too long.

    Raises `InfeasibleError` if all are too long.
    """
    found = replace(rivals, model=schedule_model("simulate"), candidates={}, refused=dict(rivals.refused))
    for name, candidate in rivals.candidates.items():
        try:
            found.model.check_schedule(candidate)
            found.candidates[name] = candidate
        except InfeasibleError as error:
            found.refused[name] = str(error)
    if not found.candidates:
        reasons = [found.refused[name] for name in rivals.candidates]
        raise InfeasibleError(reasons[0] if reasons else "no schedule can be simulated")
    return found


def made_for(
    rivals: Contest, sizes: Sequence[int], seconds: float, report: Callable[[str], None] | None = None
) -> dict[int, Projection]:
    """Projections of schedules that are made for one size, by size in bytes, searched for so many seconds each.

    Message by message on the links; nothing where another model than that of links is in force. report:
    called with a progress message. Ctrl-C ends the searches with those that are found.
    """
    found = dict[int, Projection]()
    with stoppable():
        for size in sizes if rivals.on_links else ():
            if report is not None:
                report(f"a schedule for {format_size(size)}")
            searched = searches(rivals.topology, rivals.collective, size, {"time_limit": seconds})
            made = rivals.among(dict(searched))
            if quickest := of_the_quickest(made, made.answers(size), MOST_SIMULATED):
                found[size] = quickest[0]
            if asked_to_stop():
                break
    return found
