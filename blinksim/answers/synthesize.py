"""From a question to a verified schedule and its gap to the bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from blinksim.algorithms.building.claims import with_gap
from blinksim.algorithms.building.symmetric_trees import FEW_SENDS, symmetric_packed
from blinksim.algorithms.rail_aligned import large
from blinksim.algorithms.registry import Algorithm, AlgorithmName, algorithm as registered
from blinksim.answers.quickest import LEAST_SEARCH_S, AtSize, candidates
from blinksim.bounds import bound
from blinksim.budget import within
from blinksim.collective import Collective, CollectiveLike, busbw_factor
from blinksim.errors import InputError, unknown
from blinksim.machines import MachineLike, as_topology
from blinksim.results import Rates, Result, keyed
from blinksim.schedule.loads import rate
from blinksim.schedule.model import Schedule, as_schedule
from blinksim.schedule.switch_work import abilities_used
from blinksim.schedule.symmetric import SymmetricSchedule
from blinksim.schedule.verify import Verdict, verify
from blinksim.timing.contest import said_once
from blinksim.timing.simulation_options import MessagesName
from blinksim.topology.selection import require_served
from blinksim.units import exact_GBps, size_of

if TYPE_CHECKING:
    from blinksim.algorithms.building.polish import Point
    from blinksim.bounds.bound_result import Bound, BoundResult
    from blinksim.topology.graph import Topology


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

    @property
    def algbw(self) -> Fraction:
        return self.rate

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
        return max(depth(self.base), default=0)

    @property
    def hops(self) -> int:
        """Links on the longest route of a single send."""
        return int(np.diff(self.base.route_start).max(initial=0))

    def to_dict(self) -> dict[str, Any]:
        """The keys of ``bound --json``, and those of the schedule."""
        keys = "bound_exact=bound.rate rate_exact=rate algbw_GBps=algbw busbw_GBps=busbw algorithm=compact.algorithm"
        keys += " trees=compact.chunks height hops steps=compact.steps sends=compact.sends gap_exact"
        keys += " synthesis_s=seconds verified=verdict.ok"
        own = keyed(self, keys, gap_exact=str(self.gap)) | (self.at.to_dict() if self.at else {})
        keys = "rate_exact=rate algbw_GBps=rate height trees least_trees of_all_trees"
        front = {"front": [keyed(point, keys) for point in self.front]} if self.front else {}
        return {**self.bounds.to_dict(), **own, **front}

    def rows(self) -> list[dict[str, Any]]:
        """One row: the figures of `to_dict`."""
        return [{key: value for key, value in self.to_dict().items() if not isinstance(value, list)}]

    def __repr__(self) -> str:
        known = f"gap {self.gap}, verified {self.verdict.ok}"
        return f"<Synthesis {exact_GBps(self.rate)} GB/s, {known}\n  {self.compact!r}>"


def depth(schedule: Schedule) -> list[int]:
    """For each chunk the most sends in a row, on its way together (reductions) or apart (copies), whichever is more."""
    devices = len(schedule.topology.devices)
    deepest = np.zeros(schedule.chunks, dtype=np.int64)
    for op in (0, 1):
        chosen = np.flatnonzero(schedule.op == op)
        keys = schedule.chunk[chosen].astype(np.int64) * devices
        # A place for every chunk at every device that has it: most chunks are at few devices.
        ends = np.concatenate([keys + schedule.src[chosen], keys + schedule.dst[chosen]])
        stops, place = np.unique(ends, return_inverse=True)
        reached, (src, dst) = np.zeros(len(stops), dtype=np.int64), place.reshape(2, -1)
        bounds = np.append(np.flatnonzero(np.diff(schedule.step[chosen], prepend=-1)), len(chosen))
        for first, end in pairwise(bounds):
            now = slice(int(first), int(end))
            long = reached[src[now]] + 1
            np.maximum.at(reached, dst[now], long)
            np.maximum.at(deepest, schedule.chunk[chosen[now]], long)
    return [int(value) for value in deepest]


# It attains the best rate; without a size nothing else counts.
_USUAL = "packed"
# Options that leave it the same trees.
_HARMLESS = {"bound", "time_limit", "progress"}
_ELSEWHERE = "(nodes, edits and members are the machine's: blinksim.load('hgx-h100', nodes=2).select('0-7'))"


def synthesize(
    machine: MachineLike,
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
    machine : str, path or Topology
        A name of the catalogue, a machine file, or a topology. Of a whole machine the default members take
        part.
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
        start = perf_counter()
        rivals, own, known = None, None, None
        if bytes_ is not None:
            search = algorithm is None
            rivals = candidates(part, wanted, bytes_, search=search, seconds=limit, messages=messages, report=report)
        if rivals is None or algorithm is not None:
            chosen, given = algorithm or _USUAL, dict(options)
            if rivals is not None and "size" in registered(chosen).options():
                # The limit on the time is for all of the work.
                left = {} if limit is None else {"time_limit": max(LEAST_SEARCH_S, limit - perf_counter() + start)}
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
            from blinksim.algorithms.building.polish import polish

            try:
                polished = polish(schedule, seconds=polish_seconds, seed=options.get("seed", 0), bound=known)
                schedule, front, own = polished.best.schedule, polished.points, None
            except KeyboardInterrupt:
                # The schedule before polishing attains the same rate.
                interrupted = True
        seconds = perf_counter() - start
        bounds = options.get("bound") or bound(part, wanted, in_network=True)
        if isinstance(schedule, SymmetricSchedule):
            schedule = with_gap(schedule, bounds)
        elif not schedule.bound:
            schedule = with_gap(schedule, bounds, divided=False)
        made = Synthesis(schedule, verify(schedule), bounds, seconds, front, interrupted)
        return made if rivals is None else replace(made, at=rivals.timed(made.compact, made.bound, own))

    return within(None if limit is None else limit + (polish_seconds or 0), "schedule", build)


def _named(
    part: Topology, wanted: Collective, algorithm: AlgorithmName | str, options: dict[str, Any], *, symmetric: bool
) -> tuple[Schedule | SymmetricSchedule, BoundResult | None]:
    """The schedule of an algorithm, and the bounds, if it took them. symmetric: one by symmetry will do."""
    entry = registered(algorithm)
    if entry.fill is None:
        for name in options:
            if name not in entry.options():
                raise unknown(f"option of {entry.name}", name, entry.options(), hint=_ELSEWHERE)
    known: BoundResult | None = options.get("bound")
    if known is None and entry.supports(wanted.name) and "bound" in entry.options():
        # Such an algorithm takes the bound, which the answer needs anyway.
        known = options["bound"] = bound(part, wanted, in_network=entry.in_network)
    usual = entry.name == _USUAL and not options.keys() - _HARMLESS
    said = _by_symmetry(part, wanted, entry, known if usual else None) if symmetric else None
    return (entry.build(part, wanted, **options) if said is None else said), known


def _by_symmetry(
    part: Topology, wanted: Collective, entry: Algorithm, known: BoundResult | None
) -> SymmetricSchedule | None:
    """A schedule that is said once for all that symmetries make of it. known: the bound, where packed trees will do."""
    if known is not None:
        if (found := symmetric_packed(part, wanted, known)) is not None:
            return found
        exchange = large(part, wanted)
        if exchange is not None and exchange.rate == known.rate:
            # An alltoall of very many blocks from what one node sends attains the bound.
            return exchange.named(_USUAL)
    if wanted.exchanges and not wanted.traffic:
        compact = said_once(entry, part, wanted, FEW_SENDS)
        if compact is not None and compact.by_symmetry:
            return compact.whole
    return None
