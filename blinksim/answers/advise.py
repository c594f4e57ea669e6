"""What to load: the bound, NCCL's own choice, the best schedule, and the best that a file makes NCCL run.

Schedules are timed by alpha and beta at the rates that NCCL computes with, so that NCCL's own prediction and theirs
speak of the same links; large sizes count, where the links decide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from blinksim import exports
from blinksim.algorithms.registry import algorithm
from blinksim.answers.logs.expectation import Expectation, Expected, part_and_whole
from blinksim.answers.project import contest
from blinksim.bounds.bound_result import Bound
from blinksim.collective import Collective, CollectiveName, busbw_factor
from blinksim.cost.alpha_beta import cost
from blinksim.errors import BlinksimError, InfeasibleError
from blinksim.machines import MachineLike
from blinksim.results import Result
from blinksim.schedule.loads import rate
from blinksim.schedule.verify import verify
from blinksim.schedule.ways import MOST_SENDS
from blinksim.topology.cluster import nodes_of
from blinksim.units import exact_GBps, format_rate, format_size, in_GBps, size_of

if TYPE_CHECKING:
    from blinksim.question import Question
    from blinksim.schedule.model import Schedule
    from blinksim.textio.exported import Exported
    from blinksim.topology.graph import Topology

SIZE = 256 * 2**20
# NCCL's search tries bandwidths in steps of about a tenth, and its file is for experiments: less is not worth it.
WORTH = 1.1
# Solvers run up to this many ranks; beyond, only algorithms that need none.
MOST_RANKS = 64
# MSCCL's chunks are equal: shares in finer parts than this exceed what its runtimes hold.
MOST_CHUNKS = 2000
_FOR_NCCL = ("ring", "rings", "chains", "chain_tree")


@dataclass(frozen=True)
class Option:
    """A schedule that could run. exported: what a runtime would read, if any.

    time_s: seconds by alpha and beta; for what NCCL would load on several nodes not less than its own model says.
    """

    schedule: Schedule
    time_s: float
    format: str = ""
    exported: Exported | None = None

    @property
    def algorithm(self) -> str:
        return self.schedule.algorithm


@dataclass(frozen=True)
class Advice(Result):
    """What is worth loading into NCCL (`load`) or another runtime (`alternative`), if anything is.

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
        What NCCL would run, and how long it takes.
    bound : Bound
        It holds for what NCCL does and for the schedules.
    best : Option
        The quickest schedule found.
    loadable : Option, optional
        The quickest that NCCL reads from a graph file.
    other : Option, optional
        `best` for RCCL or MSCCL, where it is quicker than what NCCL does.

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

    def algbw(self, time_s: float) -> float:
        """Bytes/s."""
        return self.size / time_s

    @property
    def large(self) -> bool:
        """True if bandwidth decides at this size; where latency does, the times of two models do not compare."""
        return self.expected.latency_s < 0.5 * self.expected.time_s

    @property
    def load(self) -> Option | None:
        """What is worth loading into NCCL; None if nothing is."""
        found = self.loadable
        return found if found and self.large and found.time_s * WORTH <= self.expected.time_s else None

    @property
    def alternative(self) -> Option | None:
        """What is worth another runtime; None if nothing is."""
        found, reached = self.other, (self.load.time_s if self.load else self.expected.time_s)
        return found if found and self.large and found.time_s * WORTH <= reached else None

    def sentence(self) -> str:
        """The advice in one line."""
        what = f"{self.collective} of {format_size(self.size)} on {self.part.ranks} GPUs of {self.part.name}"
        own = self.expected.time_s
        for option, how in ((self.load, "load {} into NCCL"), (self.alternative, "{} is worth RCCL or MSCCL")):
            if option is not None:
                return (
                    f"{what}: {how.format(option.algorithm)}: {format_rate(self.algbw(option.time_s))} algbw in place "
                    f"of {format_rate(self.algbw(own))}, {own / option.time_s:.2g} times as fast"
                )
        if not self.expectation.runs:
            return (
                f"{what}: NCCL does not run here; {self.best.algorithm} reaches "
                f"{format_rate(self.algbw(self.best.time_s))} algbw, rings {format_rate(self.algbw(own))}"
            )
        if not self.large:
            return f"{what}: nothing worth loading: latency decides at this size"
        reached, possible = (100 * self.algbw(time_s) / float(self.bound.rate) for time_s in (own, self.best.time_s))
        words = f"{what}: nothing worth loading: NCCL's own choice reaches {reached:.0f} % of the bound"
        if self.best.time_s * WORTH > own:
            return words
        return f"{words}, and no file makes NCCL or MSCCL reach the {possible:.0f} % of {self.best.algorithm}"

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""

        def shown(option: Option | None) -> dict[str, Any] | None:
            if option is None:
                return None
            reached = rate(option.schedule)
            return {
                "algorithm": option.algorithm,
                "time_s": option.time_s,
                "algbw_GBps": in_GBps(self.algbw(option.time_s)),
                "rate_exact": exact_GBps(reached) if reached else None,
                "format": option.format or None,
                "environment": dict(option.exported.environment) if option.exported else {},
            }

        factor = float(busbw_factor(self.collective.name, self.part.ranks))
        return {
            "collective": self.collective.name,
            "size_bytes": self.size,
            "bound_exact": exact_GBps(self.bound.rate),
            "bound_scope": self.bound.scope,
            "bound_words": self.bound.certificate.words(self.part),
            "certificate": self.bound.certificate.to_dict(),
            "nccl": {
                "model": self.expectation.name,
                "choice": self.expected.choice,
                "time_s": self.expected.time_s,
                "algbw_GBps": in_GBps(self.algbw(self.expected.time_s)),
                "busbw_GBps": in_GBps(self.algbw(self.expected.time_s) * factor),
            },
            "best": shown(self.best),
            "load": shown(self.load),
            "alternative": shown(self.alternative),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row each for NCCL's own choice, the best schedule, and what is worth loading.

        use: ``nccl``, ``best``, ``load`` or ``alternative``. of_bound: algbw as a share of the bound.
        """
        options = {"best": self.best, "load": self.load, "alternative": self.alternative}
        timed = [("nccl", self.expected.choice, "", self.expected.time_s)]
        timed += [(use, o.algorithm, o.format, o.time_s) for use, o in options.items() if o is not None]
        return [
            {
                "use": use,
                "algorithm": name,
                "format": format_ or None,
                "time_s": time_s,
                "algbw_GBps": in_GBps(self.algbw(time_s)),
                "of_bound": self.algbw(time_s) / float(self.bound.rate),
            }
            for use, name, format_, time_s in timed
        ]

    def __repr__(self) -> str:
        return f"<Advice {self.sentence()}\n  bound: {format_rate(self.bound.rate)}; NCCL: {self.expected.choice}>"


def advise(
    part: MachineLike | Question,
    collective: Collective | CollectiveName | str = "allreduce",
    size: int | float | str = SIZE,
    *,
    machine: MachineLike | None = None,
    multicast: bool = True,
    rates: str | None = None,
) -> Advice:
    """What to load into NCCL or another runtime, if anything is better than what NCCL does.

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
        The table of rates for bound, NCCL and schedules alike. Default: those that `part` was loaded or asked at by
        name, else ``nccl``, where the machine has them.

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
    chosen, whole = part_and_whole(part, machine, rates)
    expectation = Expectation(chosen, whole, wanted, multicast)
    expected = expectation.at(size)
    options = _options(expectation, size)
    best = min(options, key=lambda option: option.time_s)
    loadable = [found for option in options if (found := _for_nccl(option, expectation, size))]
    return Advice(
        part=chosen,
        collective=wanted,
        size=size,
        expectation=expectation,
        expected=expected,
        bound=expectation.bound(size / expected.time_s)[0],
        best=best,
        loadable=min(loadable, key=lambda option: option.time_s, default=None),
        other=_for_msccl(best, expectation) if best.time_s * WORTH <= expected.time_s else None,
    )


def _options(expectation: Expectation, size: int) -> list[Option]:
    """Verified schedules: the quickest that needs no solver, the packed one, and those that NCCL might read."""
    part, collective = expectation.part, expectation.collective
    # By what the links allow: runtimes that load a schedule have programs of their own.
    field = contest(part, collective, sizes=[size], model="alpha-beta")
    entrants = field.field.entrants
    # One that has too many sends to be written out cannot be loaded: the next quickest stands for it.
    ranked = [name for p in field.projections(size) if entrants[name := p.algorithm].sends <= MOST_SENDS]
    if not ranked:
        raise InfeasibleError(
            f"{part.name}: every schedule has more than {MOST_SENDS:,} sends on {part.ranks} ranks; take fewer nodes"
        )
    wanted = dict.fromkeys((ranked[0], *_FOR_NCCL))
    plans = {name: entrants[name].schedule for name in wanted if name in ranked}
    # Between nodes NCCL keeps to shapes of its own, which the solvers' schedules do not have.
    solved = ("packed", "rings", "chains") if len(nodes_of(part, part.members)) == 1 else ("packed",)
    for name in solved if part.ranks <= MOST_RANKS else ():
        try:
            plans[name] = algorithm(name).build(part, collective, bound=expectation.bounds)
        except BlinksimError:
            # There is no such schedule for this collective or machine.
            continue
    return [Option(plan, cost(plan, size).time_s) for plan in plans.values() if verify(plan).ok]


def _for_nccl(option: Option, expectation: Expectation, size: int) -> Option | None:
    """The option as a graph file; None if the format cannot hold it.

    On one node the links' own arithmetic counts: NCCL's model halves every tree, while chains of Blink+ got all of
    their lanes (58.9 GB/s of allreduce over three, Blink+ report, section 4.2). Between nodes, where NCCL decides how
    the channels go on, its model counts too: the longer of the two times is taken.
    """
    from blinksim.nccl.files import graph_file

    if option.algorithm not in _FOR_NCCL or not expectation.runs:
        return None
    found = _exported(option, "nccl-graph")
    if found is None or found.exported is None:
        return None
    if len(nodes_of(option.schedule.topology, option.schedule.topology.members)) == 1:
        return found
    file = graph_file.read_text(found.exported.files[""], "graph.xml")
    kind = "tree" if "tree" in found.exported.environment.get("NCCL_ALGO", "") else "ring"
    time_s = expectation.with_file(file, size, kind)
    return found if time_s is None else replace(found, time_s=max(time_s, option.time_s))


def _exported(option: Option, name: str) -> Option | None:
    """The option with what a runtime reads; None if the format cannot hold it."""
    try:
        found = exports.find(name).export(option.schedule)
    except BlinksimError:
        return None
    return replace(option, format=name, exported=found)


def _for_msccl(option: Option, expectation: Expectation) -> Option | None:
    """The option as an MSCCL algorithm, if such a runtime runs here and the format's equal chunks are not too many."""
    if not expectation.runs or option.schedule.share_den > MOST_CHUNKS:
        return None
    return _exported(option, "msccl-xml")
