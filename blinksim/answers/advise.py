"""Advice on what to load: the bound, NCCL's own choice, the best schedule, and the best that NCCL can load.

Where constants were measured, those of programs time the schedules and those of NCCL its choice: what both
really take. Elsewhere schedules are timed by alpha and beta at the rates that NCCL computes with, so that
NCCL's own prediction and theirs speak of the same links; then large sizes count, where the links decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from blinksim import exports
from blinksim.algorithms.registry import algorithm
from blinksim.answers.logs.expectation import Expectation, Expected, part_and_whole
from blinksim.answers.quickest import best_made
from blinksim.answers.ranking import contest
from blinksim.bounds.bound_result import Bound
from blinksim.collective import Collective, CollectiveLike, busbw_factor
from blinksim.errors import BlinksimError, InfeasibleError
from blinksim.machines import MachineLike, as_topology
from blinksim.question import Question, preferring
from blinksim.results import Result, keyed
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.loads import MOST_SENDS, rate
from blinksim.schedule.verify import verify
from blinksim.timing.contest import ON_LINKS, with_least_time
from blinksim.timing.measured_constants import NVLS
from blinksim.timing.model_registry import DEFAULT, ScheduleModelName, schedule_model
from blinksim.timing.nccl_model import weakest
from blinksim.timing.projection_result import OF_RUNS
from blinksim.topology.cluster import nodes_of
from blinksim.units import exact_GBps, format_rate, format_size, format_time, in_GBps, size_of

if TYPE_CHECKING:
    from blinksim.schedule.model import Schedule
    from blinksim.textio.whole_files import Exported
    from blinksim.timing.contest import Contest
    from blinksim.timing.projection_result import Projection
    from blinksim.topology.graph import Topology

SIZE = 256 * 2**20
# NCCL's search tries bandwidths in steps of about a tenth, and its file is for experiments: less is not worth
# it.
WORTH = 1.1
# Seconds of search for a schedule that is made for the size, which is of use up to this many bytes and ranks.
_SEARCH_S, _MOST_BYTES, _MOST_RANKS = 2.0, 2**26, 16
# Rates that go with constants that were measured.
_MEASURED = "measured"
# Solvers run up to this many ranks; beyond, only algorithms that need none.
MOST_RANKS = 64
# MSCCL's chunks are equal: shares in finer parts than this exceed what its runtimes hold.
MOST_CHUNKS = 2000
_FOR_NCCL = ("ring", "rings", "chains", "chain_tree")
# Sizes at which it is asked for what NCCL takes.
_SIZES = tuple(2**power for power in range(10, 35))


@dataclass(frozen=True)
class Option:
    """A schedule that could run. exported: what a runtime would read, if any.

    time_s: seconds by the model in force; for what NCCL would load on several nodes not less than its own
    model says, and by NCCL's constants where those were measured. projection: what the model in force says of
    the schedule.
    """

    schedule: Schedule
    time_s: float
    projection: Projection
    format: str = ""
    exported: Exported | None = None

    @property
    def algorithm(self) -> str:
        return self.schedule.algorithm


def options_of(rivals: Contest, expectation: Expectation, size: int, within_s: float) -> list[Option]:
    """Verified schedules: the quickest that needs no solver, the packed one, and those that NCCL might read.

    within_s: seconds; of schedules that need no solver and take longer nothing would be loaded into NCCL. If
    it is infinite, times of schedules that are clearly not the quickest may be estimates.
    """
    part, collective = expectation.part, expectation.collective
    # Where any time will do to be looked at, only the quickest must be timed exactly.
    best = math.isinf(within_s)
    candidates, timed = rivals.candidates, rivals.projections(size, best)
    # One that has too many sends to be written out cannot be loaded: the next quickest stands for it.
    ranked = [name for p in timed if candidates[name := p.algorithm].sends <= MOST_SENDS]
    if not ranked:
        raise InfeasibleError(
            f"{part.name}: every schedule has more than {MOST_SENDS:,} sends on {part.ranks} ranks; take fewer"
        )
    worth = {p.algorithm for p in timed if p.time_s <= within_s}
    wanted = dict.fromkeys((ranked[0], *(name for name in _FOR_NCCL if name in worth)))
    plans = {name: candidates[name].schedule for name in wanted if name in ranked}
    # Between nodes NCCL keeps to shapes of its own, which the solvers' schedules do not have.
    solved = ("packed", "rings", "chains") if len(nodes_of(part, part.members)) == 1 else ("packed",)
    for name in solved if part.ranks <= MOST_RANKS else ():
        try:
            plans[name] = algorithm(name).build(part, collective, bound=expectation.bounds)
            rivals.model.check_schedule(Candidate(plans[name]))
        except BlinksimError:
            # There is no such schedule for this collective or machine, or nothing that says how long it
            # takes.
            plans.pop(name, None)
    timed = rivals.among({name: Candidate(plan) for name, plan in plans.items()}).answers(size, best)
    by_name = {projection.algorithm: projection for projection in timed}
    return [Option(plan, by_name[name].time_s, by_name[name]) for name, plan in plans.items() if verify(plan).ok]


def for_nccl(option: Option, expectation: Expectation, size: int, *, measured: bool) -> Option | None:
    """The option as a graph file; None if the format cannot hold it.

    On one node the links' own arithmetic counts: NCCL's model halves every tree, while chains of Blink+ got
    all of their lanes (58.9 GB/s of allreduce over three, Blink+ report, section 4.2). Between nodes, where
    NCCL decides how the channels go on, its model counts too: the longer of the two times is taken. measured:
    NCCL's own choice is timed by constants that were measured, and so is the file, as far as they know what
    it makes NCCL do.
    """
    from blinksim.nccl.files import graph_file

    found = _exported(option, "nccl-graph") if option.algorithm in _FOR_NCCL and expectation.runs else None
    if found is None or found.exported is None:
        return None
    kind = "tree" if "tree" in found.exported.environment.get("NCCL_ALGO", "") else "ring"
    if measured:
        time_s = expectation.measured_as(kind, size)
        return None if time_s is None else replace(found, time_s=time_s)
    if len(nodes_of(option.schedule.topology, option.schedule.topology.members)) == 1:
        return found
    file = graph_file.read_text(found.exported.files[""], "graph.xml")
    time_s = expectation.with_file(file, size, kind)
    return found if time_s is None else replace(found, time_s=max(time_s, option.time_s))


def _exported(option: Option, name: str) -> Option | None:
    """The option with what a runtime reads; None if the format cannot hold it."""
    try:
        return replace(option, format=name, exported=exports.find(name).export(option.schedule))
    except BlinksimError:
        return None


@dataclass(frozen=True)
class NvlsGain:
    """A collective of `size` bytes with NVLS and without.

    Attributes
    ----------
    collective : str
        Its name.
    size : int
        Bytes.
    enabled : bool
        True if NVLS is on in the answer that this stands beside.
    on, off : Expected
        NCCL's choice, and its time: both by measured constants, or both by NCCL's own model.
    at_most : float
        By how much the bounds for switches that add exceed those for switches that only forward.
    least : int, optional
        The first power of two from 1 KiB on at which NCCL takes NVLS; None if it never does.
    """

    collective: str
    size: int
    enabled: bool
    on: Expected
    off: Expected
    at_most: float
    least: int | None

    @property
    def taken(self) -> bool:
        """True if NCCL takes NVLS at this size where it may."""
        return self.on.choice.startswith(NVLS)

    @property
    def ratio(self) -> float:
        """How many times as long the collective takes without NVLS."""
        return self.off.time_s / self.on.time_s

    def sentence(self) -> str:
        """Its worth, in words."""
        if not self.taken and self.at_most <= 1:
            article = "an" if self.collective[0] in "aeiou" else "a"
            why = f"nothing to gain for {article} {self.collective}, whose busier direction of a port carries as much"
            return f"{why} with it; NCCL takes {self.on.choice}"
        if not self.taken:
            first = f"; it takes NVLS from {format_size(self.least)} on" if self.least is not None else ""
            return f"no effect here: NCCL takes {self.on.choice} either way{first}"
        most = f"; at best NVLS is {self.at_most:.3g} times as fast" if self.at_most > 1 else ""
        on, off = (f"{one.choice}: {format_time(one.time_s)}" for one in (self.on, self.off))
        ratio = f"{self.ratio:.3g}"
        times = "about as" if ratio == "1" else f"{ratio} times as"
        if not self.enabled:
            return f"off; with it NCCL takes {on}, {times} fast{most}"
        length = f"{times} long" if self.ratio >= 1 else f"only {ratio} of the time"
        return f"on; without it (NCCL_NVLS_ENABLE=0) NCCL takes {off}, {length}{most}"

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""

        def shown(one: Expected) -> dict[str, Any]:
            return {"choice": one.choice, "time_s": one.time_s, "algbw_GBps": in_GBps(self.size / one.time_s)}

        return keyed(
            self, "enabled taken on off ratio at_most from_bytes=least", on=shown(self.on), off=shown(self.off)
        )


def nvls_gain(expectation: Expectation, size: int, *, real: bool) -> NvlsGain | None:
    """The worth of NVLS for `size` bytes; None where NCCL cannot use it.

    real: by measured constants, where there are any of both choices; else by NCCL's own model.
    """
    enabled = expectation.multicast
    other = replace(expectation, multicast=not enabled)
    on, off = (expectation, other) if enabled else (other, expectation)
    if not on.adds_in_switches:
        return None
    measured_on, measured_off = on.measured(size) if real else None, off.measured(size) if real else None
    if measured_on is None or measured_off is None:
        measured_on, measured_off = on.at(size), off.at(size)
    found, name = on.bounds, expectation.collective.name
    wider = found.in_network.rate / found.rate if found.in_network is not None else 1
    least = next((least for least in _SIZES if on.at(least).choice.startswith(NVLS)), None)
    return NvlsGain(name, size, enabled, measured_on, measured_off, float(wider), least)


@dataclass(frozen=True)
class Advice(Result):
    """Advice on what to load into NCCL (`load`) or another runtime (`alternative`), if anything pays.

    Attributes
    ----------
    part : Topology
        The part of the machine that takes part.
    collective : Collective
        What runs.
    size : int
        Bytes.
    expectation : Expectation
        NCCL's own model.
    expected : Expected
        What NCCL would run, and how long it takes: by constants that were measured where there are any
        (`origin`).
    bound : Bound
        It holds for what NCCL does and for the schedules.
    best : Option
        The quickest schedule found, also among those that are made for the size.
    loadable : Option, optional
        The quickest that NCCL reads from a graph file, among those that might be worth it.
    other : Option, optional
        `best` for MSCCL or RCCL (`runtime`), where it is quicker than what NCCL does.
    model : str
        What timed the schedules: ``execution`` or ``alpha-beta``.
    nvls : NvlsGain, optional
        What switches that add are worth; None where NCCL cannot use any.
    weakest : str
        What has less bandwidth than most of its sort, in words; empty if nothing has.

    Examples
    --------
    >>> import blinksim as bs
    >>> machine = bs.load("dgx1-v100", rates="nccl")
    >>> found = bs.advise(machine.select([1, 4, 5, 7]), machine=machine)
    >>> found.expected.choice, found.load.format
    ('ring Simple', 'nccl-graph')
    """

    part: Topology
    collective: Collective
    size: int
    expectation: Expectation
    expected: Expected
    bound: Bound
    best: Option
    loadable: Option | None
    other: Option | None
    model: str
    nvls: NvlsGain | None = None
    weakest: str = ""

    def algbw(self, time_s: float) -> float:
        """Bytes/s."""
        return self.size / time_s

    @cached_property
    def least_s(self) -> float | None:
        """Lower bound in seconds on any schedule at this size; None if more than the links is timed.

        At large sizes that is the bytes at the rate of `bound`.
        """
        least = with_least_time(self.part, self.best.projection).least
        return None if least is None else least.time_s

    def share(self, time_s: float) -> float:
        """The share of a time that any schedule needs at this size, by the bounds on rate and time."""
        # Where the bound is about switches that add, the one on times, for switches that only forward, says
        # nothing.
        least = 0.0 if self.bound.grants else self.least_s or 0.0
        return max(least, self.size / float(self.bound.rate)) / time_s

    @property
    def basis(self) -> str:
        """What says how long NCCL takes: measured constants, or its own model."""
        own, origin = self.expectation, self.expected.origin
        alone = f"{own.name} says {format_time(own.at(self.size).time_s)}"
        words = f"by constants {origin}; {alone}" if origin else own.name
        return f"{words}, raised to the bound" if self.share(self.expected.time_s) >= 1 else words

    @property
    def large(self) -> bool:
        """True if bandwidth decides at this size; if latency does, times of two models are not comparable."""
        return self.expected.latency_s < 0.5 * self.expected.time_s

    @property
    def real(self) -> bool:
        """True if NCCL's time and those of schedules as programs were both measured."""
        return self.model == "execution" and bool(self.expected.origin)

    @property
    def load(self) -> Option | None:
        """The schedule to load into NCCL; None if none pays."""
        found, compares = self.loadable, self.large or self.real
        return found if found and compares and found.time_s * WORTH <= self.expected.time_s else None

    @property
    def alternative(self) -> Option | None:
        """The schedule to run with another runtime; None if none pays."""
        found, reached = self.other, (self.load.time_s if self.load else self.expected.time_s)
        return found if found and self.large and found.time_s * WORTH <= reached else None

    @property
    def runtime(self) -> str:
        """The runtime that reads MSCCL programs on these GPUs."""
        return "MSCCL" if self.expectation.library == "NCCL" else self.expectation.library

    def sentence(self) -> str:
        """The advice in one line."""
        what = f"{self.collective} of {format_size(self.size)} on {self.part.ranks} GPUs of {self.part.name}"
        own, library, best = self.expected.time_s, self.expectation.library, self.best
        reached = format_rate(self.algbw(own))
        for option, runtime in ((self.load, library), (self.alternative, self.runtime)):
            if option is not None:
                return (
                    f"{what}: load {option.algorithm} into {runtime}: {format_rate(self.algbw(option.time_s))} algbw "
                    f"in place of {reached}, {own / option.time_s:.2g} times as fast"
                )
        better = best.time_s * WORTH <= own
        if not self.expectation.runs:
            silent = "NCCL does not run here" if library == "NCCL" else "RCCL between nodes is not modelled"
            if not better:
                return f"{what}: {silent}; rings reach {reached} algbw, and nothing much more"
            best_rate = format_rate(self.algbw(best.time_s))
            return f"{what}: {silent}; {best.algorithm} reaches {best_rate} algbw, rings {reached}"
        share, possible = (f"{100 * self.share(time_s):.0f} %" for time_s in (own, best.time_s))
        what = f"{what}: nothing worth loading"
        if not self.large and not self.real:
            took = f"takes {format_time(best.time_s)}, {possible} of the bound"
            return f"{what}: latency decides at this size; on links alone {best.algorithm} {took}"
        if not self.large:
            program = f"a program of {best.algorithm} {format_time(best.time_s)}"
            return f"{what}, latency decides: {library}'s own choice takes {format_time(own)}, {program}"
        words = f"{what}: {library}'s own choice reaches {share} of the bound"
        if not better:
            return words
        runtimes = " or ".join(dict.fromkeys((library, self.runtime)))
        return f"{words}, and no file makes {runtimes} reach the {possible} of {best.algorithm}"

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""

        def shown(option: Option | None) -> dict[str, Any] | None:
            if option is None:
                return None
            reached = rate(option.schedule)
            executor = "projection.executor" if option is self.best and self.real else ""
            return keyed(
                option,
                f"algorithm time_s {executor and f'executor={executor}'} algbw_GBps rate_exact format environment",
                algbw_GBps=in_GBps(self.algbw(option.time_s)),
                rate_exact=exact_GBps(reached) if reached else None,
                format=option.format or None,
                environment=dict(option.exported.environment) if option.exported else {},
            )

        timed, own, proof = self.best.projection.details, self.expected, self.bound.certificate
        busbw = self.algbw(own.time_s) * float(busbw_factor(self.collective.name, self.part.ranks))
        nccl = {"model": self.expectation.name, "choice": own.choice, "time_s": own.time_s}
        nccl |= {"measured_on": own.origin} if own.origin else {}
        nccl |= {"algbw_GBps": in_GBps(self.algbw(own.time_s)), "busbw_GBps": in_GBps(busbw)}
        return {
            **keyed(self, "collective=collective.name size_bytes=size model"),
            **{key: timed[key] for key in OF_RUNS if key in timed},
            **keyed(self, "bound_exact=bound.rate bound_scope=bound.scope"),
            "bound_words": proof.words(self.part),
            "certificate": proof.to_dict(),
            **({"least_time_s": self.least_s} if self.least_s is not None else {}),
            "library": self.expectation.library.lower(),
            "nccl": nccl,
            "nvls": self.nvls.to_dict() if self.nvls else None,
            **({"weakest": self.weakest} if self.weakest else {}),
            **{key: shown(getattr(self, key)) for key in ("best", "load", "alternative")},
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row each for NCCL's own choice, the best schedule, and the schedule to load.

        use: ``nccl``, ``best``, ``load`` or ``alternative``. of_bound: algbw as a share of the bound.
        of_least_time: the least time of any schedule at this size as a share of the time.
        """
        options = {"best": self.best, "load": self.load, "alternative": self.alternative}
        timed = [("nccl", self.expected.choice, "", self.expected.time_s)]
        timed += [(use, o.algorithm, o.format, o.time_s) for use, o in options.items() if o is not None]
        rows = []
        for use, name, kind, time_s in timed:
            algbw, share = self.algbw(time_s), self.share(time_s)
            figures = {"algbw_GBps": in_GBps(algbw), "of_bound": algbw / float(self.bound.rate), "of_least_time": share}
            rows.append({"use": use, "algorithm": name, "format": kind or None, "time_s": time_s, **figures})
        return rows

    def __repr__(self) -> str:
        own = f"{self.expectation.library}: {self.expected.choice}"
        return f"<Advice {self.sentence()}\n  bound: {format_rate(self.bound.rate)}; {own}>"


def advise(
    part: MachineLike | Question,
    collective: CollectiveLike = "allreduce",
    size: int | float | str = SIZE,
    *,
    machine: MachineLike | None = None,
    multicast: bool = True,
    rates: str | None = None,
    model: ScheduleModelName | str = DEFAULT,
) -> Advice:
    """Advise what to load into NCCL or another runtime, if anything beats NCCL's own choice.

    Parameters
    ----------
    part : str, path, Topology or Question
        The part of the machine that the collective runs on, or a whole machine.
    collective : str or Collective
        Such as ``"allreduce"``.
    size : int or str
        Bytes, or text such as ``"256MiB"``.
    machine : str, path or Topology, optional
        The machine that `part` was selected from.
    multicast : bool
        True if NCCL may use NVLS.
    rates : str, optional
        The table of rates for bound, NCCL and schedules alike. Default: those that `part` was loaded or asked
        at by name, else ``measured`` where the constants of NCCL and of programs are known, else ``nccl``,
        where the machine has them. With measured constants NCCL chooses at the rates that it computes with,
        whatever is measured.
    model : str
        What times the schedules, such as ``alpha-beta``. Default: what `blinksim.project` would take at these
        rates.

    Returns
    -------
    Advice
        NCCL's own choice, the best schedule, and what is worth loading.

    Raises
    ------
    InputError
        For unknown names.
    InfeasibleError
        If the links do not connect the members.

    Examples
    --------
    >>> import blinksim as bs
    >>> machine = bs.load("dgx1-v100")
    >>> bs.advise(machine.select([1, 4, 5, 7]), machine=machine).load.algorithm
    'chains'
    """
    wanted, size = Collective.of(collective), size_of(size)
    expectation = _in_force(part, machine, rates, wanted, size, multicast)
    chosen = expectation.part
    # By the model in force: where programs were measured, what they take, else what the links allow.
    rivals = contest(chosen, wanted, sizes=[size], model=model)
    real = expectation.measured(size) if rivals.model.name == "execution" else None
    expected = real or expectation.at(size)
    # By measured constants a graph file is timed as what NCCL makes of it, whatever its schedule takes.
    options = options_of(rivals, expectation, size, math.inf if real else expected.time_s)
    usual = schedule_model(DEFAULT).on(chosen)
    if size <= _MOST_BYTES and chosen.ranks <= _MOST_RANKS and rivals.on_links and usual.name in ON_LINKS:
        made = best_made(replace(rivals, model=usual), size, _SEARCH_S)
        options += [Option(made[1], made[0].time_s, made[0])] if made and verify(made[1]).ok else []
    best = min(options, key=lambda option: option.time_s)
    other = None
    if best.time_s * WORTH <= expected.time_s and expectation.runs and best.schedule.share_den <= MOST_CHUNKS:
        other = _exported(best, "msccl-xml")
    loadable = [found for option in options if (found := for_nccl(option, expectation, size, measured=bool(real)))]
    held = expectation.bound(size / expected.time_s, size)[0]
    quickest = min(loadable, key=lambda option: option.time_s, default=None)
    nvls, timed_by = nvls_gain(expectation, size, real=bool(real)), rivals.model.name
    lost = weakest(replace(expectation.machine, members=chosen.members, relays=()))
    own = expectation, expected
    advice = Advice(chosen, wanted, size, *own, held, best, quickest, other, timed_by, nvls, lost)
    # What NCCL takes, by its own model or as measured, is no less than any schedule takes at these rates.
    return replace(advice, expected=replace(expected, time_s=max(expected.time_s, advice.share(1.0))))


def _in_force(
    part: MachineLike | Question,
    machine: MachineLike | None,
    rates: str | None,
    collective: Collective,
    size: int,
    multicast: bool,
) -> Expectation:
    """The expectation of NCCL, on the part at the rates at which the schedules are timed."""

    def times_programs(part: Topology) -> bool:
        """True if constants of running programs that were measured on such GPUs are in force on a selected part."""
        known = part.execution is not None and part.execution.measured.band is None
        return known and schedule_model(DEFAULT).on(part).name == "execution"

    chosen, whole = part_and_whole(part, machine, rates)
    found = Expectation(chosen, whole, collective, multicast)
    if rates is not None or (isinstance(part, Question) and part.rates is not None):
        if not times_programs(chosen):
            return found
        # Whatever is measured, NCCL computes with figures of its own.
        asked = replace(part, rates=None) if isinstance(part, Question) else part
        return replace(found, machine=part_and_whole(asked, machine)[1])
    if isinstance(part, Question):
        measured = part.preferring_known(_MEASURED)
        real = None if measured is part else measured.part(collective=collective)
    else:
        topology = as_topology(part)
        real = preferring(topology, _MEASURED).selected()
        real = None if real.rates == topology.rates else real
    if real is None or not times_programs(real):
        return found
    known = replace(found, part=real)
    return known if known.measured(size) else found
