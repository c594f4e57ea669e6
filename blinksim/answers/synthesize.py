"""From a question to a verified schedule, its gap to the bound and, with a size, the quickest one there.

That one is looked for among the algorithms of a ranking and those that make a schedule for the size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from math import inf
from time import monotonic
from typing import Any

import numpy as np

from blinksim.algorithms.building.plan import claim
from blinksim.algorithms.building.polish import Point, polish
from blinksim.algorithms.building.symmetric_trees import FEW_SENDS, symmetric_packed
from blinksim.algorithms.registry import REGISTRY, AlgorithmName, algorithm as registered
from blinksim.answers.project import contest
from blinksim.bounds.bound_result import Bound, BoundResult
from blinksim.bounds.compute import bound
from blinksim.budget import asked_to_stop, stop, stoppable, within
from blinksim.collective import Collective, CollectiveLike, busbw_factor
from blinksim.errors import InfeasibleError, InputError, each_of
from blinksim.machines import MachineLike, Question, as_topology
from blinksim.results import Rates, Result, keyed
from blinksim.schedule.candidate import Candidate, SymmetricSchedule
from blinksim.schedule.loads import Paths, rate
from blinksim.schedule.model import COPY, REDUCE, Schedule, abilities_used, as_schedule
from blinksim.schedule.verify import Verdict, verify
from blinksim.timing.contest import Contest, said_once, with_least_time
from blinksim.timing.model_registry import schedule_model
from blinksim.timing.projection_result import OF_RUNS, Projection
from blinksim.timing.simulation_options import MessagesName
from blinksim.timing.simulator import simulate
from blinksim.topology.graph import Topology
from blinksim.topology.selection import require_served
from blinksim.units import exact_GBps, format_size, format_time, size_of

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
# Times are sums of many floats: those that differ by less are equal.
_ROUNDING = 1e-7
# Sends up to which a schedule is written out, verified and saved in some seconds.
_MOST_WRITTEN = 2_500_000


@dataclass(frozen=True)
class AtSize:
    """How long a schedule takes at a size.

    Attributes
    ----------
    projection : Projection
        The time, its terms, and what timed it: where the model in force counts the links alone, ``simulate``,
        message by message, unless the schedule has too many sends for that. Its details then have ``service``, the
        order in which links serve, the kind of message, and ``alpha_beta_s``, the time by sums of alpha and beta.
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
        longer = self.time_s / self.least_s - 1
        return longer if abs(longer) > _ROUNDING else 0.0

    @property
    def quickest(self) -> bool:
        """True if none of the alternatives takes less."""
        return all(self.time_s <= (1 + _ROUNDING) * other.time_s for other in self.alternatives)

    def to_dict(self) -> dict[str, Any]:
        """The keys of the size for ``synth --json``."""
        found, run = self.projection, self.projection.details
        terms = [keyed(term, "name time_s limit") for term in found.terms]
        own = keyed(self, "size_bytes=size time_s least_time_s=least_s time_gap=gap")
        if "service" in run:
            own |= {"simulated_s": self.time_s} | keyed(run, "service messages alpha_beta_s")
        own |= keyed(found, "model terms executor?", terms=terms) | keyed(run, OF_RUNS)
        own["alternatives"] = [keyed(one, "algorithm time_s model") for one in self.alternatives]
        return own | ({"too_long": self.too_long} if self.too_long else {})


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
            if candidate.by_symmetry is not None and candidate.sends > MOST_SIMULATED:
                return projection, candidate.by_symmetry
            if candidate.sends <= _MOST_WRITTEN:
                return projection, candidate.schedule
        many = f"every schedule for a size has more than {_MOST_WRITTEN:,} sends"
        raise InfeasibleError(f"{many}, and no symmetry says one in few; take fewer ranks, or leave out the size")

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
    # Times of a search that nothing can beat, which ended it.
    proved = list[float]()
    with stoppable():
        simulated = of_the_quickest(rivals, answers, _MOST_IN_ALL, start + _FOR_RIVALS * given, messages)
        left = given - min(_MOST_RESERVED_S, _RESERVED * given) - (monotonic() - start)
        best = min(simulated or answers, key=lambda one: one.time_s)
        if search and left > _PROOF_S and not _proven(best, best.time_s):
            say = _so_far(best, report, proved)
            # A search that does not end by itself is ended this much later.
            limit = {} if seconds is None else {"time_limit": max(LEAST_SEARCH_S, left - _PROOF_S)}
            made = rivals.among(dict(searches(part, collective, size, {"report": say, **limit})))
            rivals.candidates |= made.candidates
            searched = made.answers(size)
            answers += searched
            simulated += of_the_quickest(made, searched, MOST_SIMULATED, start + given - _PROOF_S, messages)
        interrupted = asked_to_stop() and not proved
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
        # With fewer pieces than the sums take, a simulation says too much.
        if whole.sends <= min(sends, _MOST_EVENTS // one.details.get("pieces", 1)):
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
    """A projection of a schedule on the links with the time that it takes in a simulation."""
    ran = simulate(schedule, projection.size, most_events=_MOST_EVENTS, messages=messages)
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


def _proven(found: Projection, seconds: float) -> bool:
    """True if no schedule for this question takes less than these seconds."""
    return found.least is not None and seconds <= (1 + _ROUNDING) * found.least.time_s


def _so_far(first: Projection, report: Callable[[str], None] | None, proved: list[float]) -> Callable[[float], None]:
    """A reporter of the best time so far, in seconds, and of the bound; at that it stops the search and is `proved`."""
    bound = f", at least {format_time(first.least.time_s)}" if first.least else ""
    best = first.time_s

    def say(seconds: float) -> None:
        nonlocal best
        best = min(best, seconds)
        if report:
            report(f"{format_time(best)} so far{bound}")
        if _proven(first, best):
            proved.append(best)
            stop()

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


@dataclass(frozen=True, repr=False)
class Synthesis(Rates, Result):
    """A schedule, its proof and its bounds.

    Attributes
    ----------
    compact : Schedule or SymmetricSchedule
        What was built; on thousands of GPUs that are alike, one tree of each sort and the symmetries that
        turn it.
    schedule : Schedule
        The same with every send; raises `InfeasibleError` if these are too many.
    verdict : Verdict
        Whether it does what the collective promises.
    bounds : BoundResult
        The best that is possible, also where switches do all that they can.
    seconds : float
        What building took, without the bounds and the proof.
    front : tuple of Point
        With polishing, the compromises between rate, height and number of trees.
    interrupted : bool
        Ctrl-C ended the polishing, or the search for a size, early.
    at : AtSize, optional
        How long it takes at the size that was asked for, and how long others do.

    Examples
    --------
    >>> import blinksim as bs
    >>> made = bs.synthesize("dgx1-v100", "allreduce", "chain")
    >>> made.verdict.ok, made.gap
    (True, Fraction(5, 12))
    """

    compact: Schedule | SymmetricSchedule
    verdict: Verdict
    bounds: BoundResult
    seconds: float
    front: tuple[Point, ...] = ()
    interrupted: bool = False
    at: AtSize | None = None

    @property
    def schedule(self) -> Schedule:
        """The schedule, with every send written out."""
        return as_schedule(self.compact)

    @property
    def base(self) -> Schedule:
        """The base chunks with their sends: all chunks, unless symmetries map them to more."""
        return self.compact.base if isinstance(self.compact, SymmetricSchedule) else self.compact

    @property
    def rate(self) -> Fraction:
        """The exact algbw in bytes/s that the loads allow."""
        found = self.compact.rate if isinstance(self.compact, SymmetricSchedule) else rate(self.compact)
        return found or Fraction(0)

    algbw = rate

    @property
    def busbw(self) -> Fraction:
        return self.rate * busbw_factor(self.base.collective.name, self.base.topology.ranks)

    @property
    def gap(self) -> Fraction:
        """1 - rate / bound, exact; 0 if no schedule that meets the bound's assumptions is better."""
        return 1 - self.rate / self.bound.rate

    @property
    def bound(self) -> Bound:
        """The bound for comparison, which grants the switches all that the schedule has them do."""
        return self.bounds.holding(abilities_used(self.base))

    @property
    def height(self) -> int:
        """The most sends in a row from the start of a chunk (or its completion) to where it is needed."""
        paths = Paths(self.base)
        # On the way together (reductions) or apart (copies), whichever is more.
        return int(max(paths.longest((self.base.op == op)[paths.order] * 1.0) for op in (REDUCE, COPY)))

    @property
    def hops(self) -> int:
        """Links on the longest route of a single send."""
        return int(np.diff(self.base.route_start).max(initial=0))

    def to_dict(self) -> dict[str, Any]:
        """The keys of ``bound --json``, and those of the schedule."""
        own = keyed(self, "@Synthesis", gap_exact=str(self.gap)) | (self.at.to_dict() if self.at else {})
        front = {"front": [keyed(point, "@Synthesis.front") for point in self.front]} if self.front else {}
        return {**self.bounds.to_dict(), **own, **front}

    def rows(self) -> list[dict[str, Any]]:
        """One row: the figures of `to_dict`."""
        return [{key: value for key, value in self.to_dict().items() if not isinstance(value, list)}]

    def __repr__(self) -> str:
        known = f"gap {self.gap}, verified {self.verdict.ok}"
        return f"<Synthesis {exact_GBps(self.rate)} GB/s, {known}\n  {self.compact!r}>"


# It attains the best rate; without a size nothing else counts.
_USUAL = "packed"
# Options that leave it the same trees.
_HARMLESS = {"bound", "time_limit", "progress"}
_ELSEWHERE = "(nodes, edits and members are the machine's: blinksim.load('hgx-h100', nodes=2).select('0-7'))"


def synthesize(
    machine: Question | MachineLike,
    collective: CollectiveLike,
    algorithm: AlgorithmName | str | None = None,
    *,
    size: int | float | str | None = None,
    messages: MessagesName = "joined",
    polish_seconds: float | None = None,
    report: Callable[[str], None] | None = None,
    **options: Any,
) -> Synthesis:
    """Build a verified schedule with its bounds.

    Parameters
    ----------
    machine : str, path, Topology or Question
        A name of the catalogue, a machine file, a topology, or the part of a question. Of a whole
        machine the default members take part.
    collective : str or Collective
        Such as ``"allreduce"``.
    algorithm : str, optional
        A name of the registry. Default: ``packed``, which attains the best rate; with a size, the algorithm
        that is quickest there among those that `blinksim.project` considers, by the model that it would take;
        where that counts the links alone, the quickest of them by simulation.
    size : int or str, optional
        Bytes, or text such as ``"1MiB"``, for which the schedule is to be quick. The answer then has its
        time.
    messages : {"joined", "single"}
        With a size, what is a message where only links count: all chunks that a connection carries in a step,
        as in plans of MSCCL++, or each of them, as in programs of MSCCL and on emulated lanes.
    polish_seconds : float, optional
        How long to search for lower and fewer trees among equally good ones
        (`blinksim.algorithms.building.polish`).
    report : callable, optional
        Called with a progress message: in a search for a size, the best time so far and the bound. Ctrl-C
        then ends the search with the best so far.
    options
        What the algorithm's ``build`` takes beyond machine and collective: time_limit, seed, bound … The time
        limit, in seconds, holds for everything, with a tenth and at least a second for the proof.

    Returns
    -------
    Synthesis
        The schedule, the verdict, the gap to the bound, and with a size the time.

    Raises
    ------
    InputError
        For unknown names, also of options.
    InfeasibleError
        If the algorithm has no such schedule here, or finds none in time, or if nothing says how long it
        takes.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.synthesize("dgx1-v100", "allreduce").gap
    Fraction(0, 1)
    >>> small = bs.synthesize("hgx-h100", "allreduce", size="16KiB")
    >>> small.schedule.algorithm, round(1e6 * small.at.time_s, 1), round(1e6 * small.at.least_s, 1)
    ('few_rounds', 5.8, 5.7)
    """
    if size is None and messages != "joined":
        raise InputError(f"messages={messages!r} is about a time, and there is no size; give one, or leave it out")
    bytes_, limit = None if size is None else size_of(size), options.get("time_limit")

    def build() -> Synthesis:
        part, wanted = as_topology(machine).selected(), Collective.of(collective)
        wanted.check_ranks(part.ranks)
        require_served(part, wanted)
        start = monotonic()
        rivals, own, known = None, None, None
        if bytes_ is not None:
            search = algorithm is None
            rivals = candidates(part, wanted, bytes_, search=search, seconds=limit, messages=messages, report=report)
        if rivals is None or algorithm is not None:
            chosen, given = algorithm or _USUAL, dict(options)
            if rivals is not None and "size" in registered(chosen).options():
                # The limit on the time is for all of the work.
                left = {} if limit is None else {"time_limit": max(LEAST_SEARCH_S, limit - monotonic() + start)}
                given = {"size": rivals.size, **options, **left}
            schedule, known = _named(part, wanted, chosen, given, symmetric=size is None and polish_seconds is None)
        else:
            if odd := sorted(options.keys() - {"time_limit"}):
                what = "is what a certain algorithm takes; name the algorithm, or leave it out"
                raise InputError(f"{', '.join(odd)} {what}")
            own, schedule = rivals.quickest()
        front: tuple[Point, ...] = ()
        interrupted = rivals is not None and rivals.interrupted
        if polish_seconds is not None and not interrupted and isinstance(schedule, Schedule):
            try:
                front = polish(schedule, seconds=polish_seconds, seed=options.get("seed", 0), bound=known)
                # Of equally fast ones the first is the lowest.
                schedule, own = max(front, key=lambda point: point.rate).schedule, None
            except KeyboardInterrupt:
                # The schedule before polishing attains the same rate.
                interrupted = True
        seconds = monotonic() - start
        bounds = options.get("bound") or bound(part, wanted, in_network=True)
        if isinstance(schedule, SymmetricSchedule) or not schedule.bound:
            schedule = schedule.with_bound(claim(schedule, bounds))
        made = Synthesis(schedule, verify(schedule), bounds, seconds, front, interrupted)
        return made if rivals is None else replace(made, at=rivals.timed(made.compact, made.bound, own))

    return within(None if limit is None else limit + (polish_seconds or 0), "schedule", build)


def _named(
    part: Topology, wanted: Collective, algorithm: AlgorithmName | str, options: dict[str, Any], *, symmetric: bool
) -> tuple[Schedule | SymmetricSchedule, BoundResult | None]:
    """The schedule of an algorithm, and the bounds, if they are known.

    symmetric: one that is said once for all that symmetries make of it will do.
    """
    entry = registered(algorithm)
    if entry.fill is None:
        each_of(f"option of {entry.name}", options, (*entry.options(), "bound"), hint=_ELSEWHERE)
    known: BoundResult | None = options.pop("bound", None)
    takes = {"bound"} & {*entry.options()}
    if (takes or entry.solver) and known is None and entry.supports(wanted.name):
        # The answer needs it anyway, and what has none is not searched for.
        known = bound(part, wanted, in_network=entry.in_network)
    options |= dict.fromkeys(takes, known)
    if symmetric:
        if entry.name == _USUAL and not options.keys() - _HARMLESS and known is not None:
            if (found := symmetric_packed(part, wanted, known)) is not None:
                return found, known
            exchange = said_once(REGISTRY["rail_aligned"], part, wanted, FEW_SENDS)
            if exchange is not None and exchange.by_symmetry is not None and exchange.rate == known.rate:
                # An alltoall of very many blocks from what one node sends attains the bound.
                return exchange.by_symmetry.named(_USUAL), known
        if wanted.exchanges and not wanted.traffic:
            compact = said_once(entry, part, wanted, FEW_SENDS)
            if compact is not None and compact.by_symmetry is not None:
                return compact.by_symmetry, known
    return entry.build(part, wanted, **options), known
