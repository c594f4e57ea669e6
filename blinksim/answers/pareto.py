"""Pareto front of latency and bandwidth: the schedules that are the quickest at some size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import compress
from time import monotonic
from typing import Any

import numpy as np

from blinksim.answers.compare import Comparison, compared
from blinksim.budget import asked_to_stop, stoppable
from blinksim.collective import ON_TREES, Collective, CollectiveLike
from blinksim.errors import BlinksimError, InputError
from blinksim.machines import MachineLike, as_topology
from blinksim.results import Result, count, keyed, names, refused_words, table
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.model import Schedule
from blinksim.timing.alpha_beta import GAINS, cost
from blinksim.timing.alpha_beta_model import AlphaBeta
from blinksim.timing.contest import CandidateLike, named
from blinksim.timing.projection_result import Ceiling, labelled, left_out_words, links_at
from blinksim.topology.graph import Topology
from blinksim.units import SIZES, Sizes, format_rate, format_size, format_size_about, format_time, size_of, sizes_of

# How long to search for schedules of few steps, about.
SECONDS = 20.0
# Bytes for which time is nothing but latency, and nothing but bandwidth.
_SMALL, _LARGE = 1, 2**40
# Bytes for which the table has a time.
_SHOWN = (2**16, 2**20, 2**24)
# Ranks up to which searches for further candidates take seconds.
MOST_RANKS = 16
# Chunks per rank (of the whole vector, for broadcast and reduce), and steps more than the fewest, that are
# tried.
_CHUNKS = (1, 2, 3, 4, 6, 8)
_MORE_STEPS = 2
# Bytes for which few rounds are searched for.
_SIZES = (2**12, 2**16, 2**20, 2**24)
# Seconds of one search, and of looking for fewer trees.
_EACH = 3.0
_POLISH = 0.5


@dataclass(frozen=True, repr=False)
class Tradeoff:
    """One schedule of a front.

    Attributes
    ----------
    name : str
        The algorithm, with its parameters.
    candidate : Candidate
        The schedule, and the parallel routes that its sends are divided among.
    latency_s : float
        Seconds for a message of next to no bytes.
    bandwidth : float
        algbw in bytes/s for large messages.
    quickest : tuple of (int, int or None)
        From which bytes up to which it is the quickest point, once for each range; None goes on for ever.

    Examples
    --------
    >>> import blinksim as bs
    >>> point = bs.pareto("ring:4@25GB/s", "allreduce", seconds=1).points[0]
    >>> bs.verify(point.schedule).ok
    True
    """

    name: str
    candidate: Candidate
    latency_s: float
    bandwidth: float
    quickest: tuple[tuple[int, int | None], ...] = ()

    @property
    def schedule(self) -> Schedule:
        """The schedule, to be verified, written, simulated and run."""
        return self.candidate.schedule

    def time_s(self, size: int | float | str) -> float:
        """The alpha-beta time for a size."""
        return cost(self.candidate, size_of(size)).time_s

    def row(self) -> dict[str, Any]:
        """The point as a row of the table."""
        (start, end), slow = (self.quickest or ((None, None),))[0], 1e12 / self.bandwidth
        return keyed(self, "@Tradeoff.row", us_per_MB=slow, quickest_from_bytes=start, quickest_to_bytes=end)

    def __repr__(self) -> str:
        return f"<Tradeoff {self.name}: {format_time(self.latency_s)}, {format_rate(self.bandwidth)}>"


@dataclass(frozen=True, repr=False)
class Pareto(Result):
    """The schedules that are the quickest at some size, least latency first.

    Attributes
    ----------
    topology : Topology
        The part that takes part.
    collective : Collective
        What runs.
    points : tuple of Tradeoff
        Least latency first.
    comparison : Comparison
        The times of the points at all sizes: their lower envelope is `Comparison.best`.
    dominated : tuple of str
        The candidates that are the quickest at no size: at each some point betters or equals them.
    left_out : dict
        The reason, by algorithm, for those that were not tried or cannot run.
    interrupted : bool
        Ctrl-C ended the search early.

    Examples
    --------
    >>> import blinksim as bs
    >>> front = bs.pareto("ring:4@25GB/s", "allreduce", seconds=1)
    >>> front.points[0].latency_s < front.points[-1].latency_s
    True
    >>> front.points[0].bandwidth < front.points[-1].bandwidth
    True
    """

    topology: Topology
    collective: Collective
    points: tuple[Tradeoff, ...]
    comparison: Comparison
    dominated: tuple[str, ...]
    left_out: dict[str, str]
    interrupted: bool = False

    @property
    def bound(self) -> Ceiling:
        """The bound on the rate of any algorithm."""
        found = self.comparison.projections[0][0].bound
        assert found is not None
        return found

    def rows(self) -> list[dict[str, Any]]:
        """One row per point, least latency first, with units in the keys."""
        return [point.row() for point in self.points]

    def to_dict(self) -> dict[str, Any]:
        """The rows, and the other schedules that were considered."""
        return keyed(self, "collective=collective.name rows dominated left_out", rows=self.rows())

    def sentence(self) -> str:
        """The answer in one line."""
        first, last = self.points[0], max(self.points, key=lambda point: float(f"{point.bandwidth:.9g}"))
        ends = format_time(first.latency_s), format_rate(last.bandwidth)
        span = f" from {ends[0]} ({first.name}) to {ends[1]} ({last.name})"
        if first is last:
            span = f", {ends[0]} and {ends[1]} at once ({first.name})"
        return f"{self.collective} on {self.topology.title}: {count(len(self.points), 'schedule')}{span}"

    def text(self) -> str:
        """The sentence, and the points as a table with their times for some sizes, the least ones marked."""
        times = [[point.time_s(size) for size in _SHOWN] for point in self.points]
        least = [min(column) for column in zip(*times, strict=True)]
        cells = []
        for number, (point, row) in enumerate(zip(self.points, times, strict=True), start=1):
            spans = []
            for start, end in point.quickest:
                words = [f"from {format_size_about(start)}"] * (start > _SMALL)
                spans.append(" ".join([*words, *([f"to {format_size_about(end)}"] if end else [])]) or "everywhere")
            rate, span = f"{point.bandwidth / 1e9:.4g}", ", ".join(spans)
            marked = [f"{'*' * (time == best)}{format_time(time)}" for time, best in zip(row, least, strict=True)]
            cells.append([str(number), point.name, format_time(point.latency_s), rate, *marked, span])
        header = ("", "schedule", "latency", "GB/s", *map(format_size, _SHOWN), "the quickest")
        lines = [self.sentence(), "", table(header, cells, left=(1, len(header) - 1)), ""]
        if any(point.candidate.compact.form == "forest" for point in self.points):
            lines.append("  packed trees and chains: the latency of one piece, and the rate of many")
        facts = [
            ("at most", f"{format_rate(self.bound.rate)} algbw: {self.bound.words}"),
            ("ranks", f"{self.topology.ranks}: {names(self.topology.members)}"),
            ("links", links_at(self.topology)),
            ("times", "by the sums of alpha and beta; a simulation may rank close ones otherwise"),
            *([("bettered", names(self.dominated, "; "))] if self.dominated else []),
            *(("left out", words) for words in left_out_words(self.left_out)),
            *([("stopped", "before the search was done; these are the best so far")] if self.interrupted else []),
        ]
        return "\n".join([*lines, *labelled(facts)])


def pareto(
    machine: MachineLike,
    collective: CollectiveLike,
    *,
    seconds: float = SECONDS,
    seed: int = 0,
    sizes: Sizes | None = None,
    more: Sequence[CandidateLike] = (),
    report: Callable[[str], None] | None = None,
) -> Pareto:
    """The front of latency and bandwidth among schedules of one collective.

    Candidates are the algorithms that are found quickly, the best packings of trees of each height, schedules
    of few steps with several numbers of chunks and steps, and the quickest few rounds for four sizes. A
    candidate is left out unless it is the quickest at some size, by alpha and beta.

    Parameters
    ----------
    machine : str, path or Topology
        A name of the catalogue, a machine file, or a topology. Of a whole machine the default members take
        part.
    collective : str or Collective
        Such as ``"allreduce"``.
    seconds : float
        How long to search for schedules of few steps, about.
    seed : int
        Of the searches.
    sizes : iterable of int or str, or str, optional
        Bytes at which candidates are compared. Default: 1 KiB to 1 GiB, doubling.
    more : sequence of str, path or Schedule
        Further candidates: names, schedules and files of schedules.
    report : callable, optional
        Called with a progress message: what is built, and what the best so far reach. Ctrl-C then ends the
        search with these.

    Returns
    -------
    Pareto
        The points, least latency first, and the sizes at which each is the quickest.

    Raises
    ------
    InputError
        For unknown names, sizes that are no whole number of bytes, and less than two members.
    InfeasibleError
        If a further candidate cannot run here.

    Examples
    --------
    >>> import blinksim as bs
    >>> front = bs.pareto("ring:4@25GB/s", "allreduce", seconds=1)
    >>> front.points[0].latency_s <= front.points[-1].latency_s
    True
    """
    if not seconds > 0:
        raise InputError(f"{seconds} seconds of search; give more than 0")
    part, wanted = as_topology(machine).selected(), Collective.of(collective)
    ordered, say = sizes_of(SIZES if sizes is None else sizes), report or (lambda _: None)
    contest = AlphaBeta().contest(part, wanted, None, say, ordered)
    candidates, known = dict(contest.candidates), dict[str, tuple[float, float]]()

    def so_far(message: str) -> None:
        """Tells with what is done which latency and which bandwidth the candidates reach, and what is the bound."""
        known.update({name: _terms(one) for name, one in candidates.items() if name not in known})
        latency, bandwidth = min(one for one, _ in known.values()), max(one for _, one in known.values())
        reached = f"{format_time(latency)} and {format_rate(bandwidth)} of at most {format_rate(contest.bound.rate)}"
        say(f"{message}; {count(len(known), 'schedule')} so far, {reached}")

    with stoppable():
        for name, found in tradeoffs(part, wanted, seconds, seed, so_far):
            candidates[name] = Candidate(found)
            if asked_to_stop():
                break
        interrupted = asked_to_stop()
    for given in more:
        name, build = named(given, part, wanted)
        candidates[name] = build()
    say("comparing")
    every = (_SMALL, *ordered, _LARGE)
    chosen, dominated = _front(candidates, every)
    leading = ranges({name: candidates[name] for name in chosen}, every)
    front = {name: candidates[name] for name in leading}
    comparison = compared(contest.among(front), ordered)
    points = [Tradeoff(name, one, *_terms(one), leading[name]) for name, one in front.items()]
    points.sort(key=lambda point: (point.latency_s, -point.bandwidth))
    dominated += [name for name in chosen if name not in front]
    built = {candidate.compact.algorithm for candidate in candidates.values()}
    refused = {name: refused_words({name: why})[0].removeprefix(f"{name} ") for name, why in contest.refused.items()}
    missing = {name: why for name, why in {**refused, **contest.left_out}.items() if name not in built}
    return Pareto(part, wanted, tuple(points), comparison, tuple(dominated), missing, interrupted)


def _terms(candidate: Candidate) -> tuple[float, float]:
    """Seconds of latency alone, and bytes/s where bandwidth alone counts."""
    small, large = cost(candidate, _SMALL), cost(candidate, _LARGE)
    latency = sum(term.time_s for term in small.terms if term.limit == "alpha")
    return latency, _LARGE / sum(term.time_s for term in large.terms if term.name.startswith("bandwidth"))


def _front(candidates: dict[str, Candidate], sizes: Sequence[int]) -> tuple[list[str], list[str]]:
    """Those of which each gains on every other one somewhere, and the others; of equals the first stays.

    Times that differ by less than a gain are equal: as many pieces as are best are not known more closely.
    """
    times = {name: [cost(one, size).time_s for size in sizes] for name, one in candidates.items()}
    names = sorted(times, key=times.__getitem__)
    rows = np.array([times[name] for name in names])
    # Row k reaches row n. Nearly equal ones may reach each other in a circle, so that they go one by one.
    reaches = np.all(rows[:, np.newaxis] * GAINS <= rows, axis=2) & ~np.eye(len(names), dtype=bool)
    stays = np.ones(len(names), dtype=bool)
    for place in reversed(range(len(names))):
        stays[place] = not reaches[stays, place].any()
    return [*compress(names, stays)], [*compress(names, ~stays)]


def ranges(front: dict[str, Candidate], sizes: Sequence[int]) -> dict[str, tuple[tuple[int, int | None], ...]]:
    """From which size up to which each candidate is the quickest, to the byte; of equals to nine digits the first."""
    quickest = cache(lambda at: min(front, key=lambda name: float(f"{cost(front[name], at).time_s:.9g}")))
    starts, ahead = [sizes[0]], [*sizes]
    while len(ahead) > 1:
        low, high = ahead[:2]
        changes = quickest(low) != quickest(high)
        if changes and high - low > 1:
            ahead.insert(1, (low + high) // 2)
        else:
            starts += [high] * changes
            del ahead[0]
    found = defaultdict[str, tuple[tuple[int, int | None], ...]](tuple)
    for start, end in zip(starts, (*starts[1:], None), strict=True):
        found[quickest(start)] += ((start, end),)
    return found


def tradeoffs(
    topology: Topology, collective: Collective, seconds: float, seed: int, say: Callable[[str], None]
) -> Iterator[tuple[str, Schedule]]:
    """Schedules between the least latency and the best bandwidth, by name, as far as they are found in about `seconds`.

    The candidates of a front in the sense of SCCL (Cai et al., PPoPP 2021): steps cost latency, rounds for a
    number of chunks cost bandwidth. None on more than `MOST_RANKS` ranks. say: called with a progress
    message.
    """
    from blinksim.algorithms import few_rounds, few_steps
    from blinksim.algorithms.building.polish import polish

    if topology.ranks > MOST_RANKS:
        return
    end = monotonic() + seconds
    if collective.name in ON_TREES:
        # The best mixture of all trees of each height, up to the height that attains the bound.
        say("packing low trees")
        with suppress(BlinksimError):  # too many trees to compare
            for point in polish(topology, collective, seconds=_POLISH, seed=seed):
                yield f"packed of height {point.height}", point.schedule
    for size in _SIZES:
        say(f"few rounds for {format_size(size)}")
        try:
            # A front counts steps that follow each other, and so whole messages.
            found = few_rounds.build(topology, collective, size=size, time_limit=min(_EACH, seconds / 12), pieces=1)
        except BlinksimError:
            break
        yield f"few_rounds for {format_size(size)}", found
    per_rank = topology.ranks if collective.name == "alltoall" else 1
    for chunks in (per_rank * number for number in _CHUNKS):
        steps: int | None = None
        for _ in range(_MORE_STEPS + 1):
            left = min(end - monotonic(), _EACH)
            if left <= 0 or asked_to_stop():
                return
            say(f"few steps with {count(chunks, 'chunk')}")
            try:
                given: Any = {"chunks": chunks, "steps": steps, "time_limit": left, "seed": seed}
                found, rounds, attained = few_steps.find(topology, collective, **given)
            except BlinksimError:
                break
            steps, parts = len(rounds), count(chunks, "chunk")
            yield f"few_steps of {parts}, {count(steps, 'step')}, {count(sum(rounds), 'round')}", found
            if attained:
                break
            steps += collective.phases
