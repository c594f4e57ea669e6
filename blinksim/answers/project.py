"""Projections: the time of a collective by one algorithm, and the ranking of all algorithms at a size."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from blinksim.algorithms.registry import AlgorithmName
from blinksim.collective import Collective, CollectiveLike
from blinksim.errors import BlinksimError, InputError
from blinksim.formats.shipped.machine_names import MEASURED, measured_rates
from blinksim.machines import MachineLike, as_topology
from blinksim.question import Question, preferring
from blinksim.results import Result
from blinksim.textio.text_table import refused_words, table
from blinksim.timing import model_registry as models
from blinksim.timing.candidates import CandidateLike
from blinksim.timing.contest import Contest, with_least_time
from blinksim.timing.measured.library_time import Interval, catalogued, over_links
from blinksim.timing.projection_result import Projection, labelled, left_out_words
from blinksim.timing.timing_model import LARGE, ScheduleModel, TimingModel
from blinksim.topology.graph import Topology
from blinksim.units import format_rate, format_time, size_of

ChoiceName = Literal["best", "nccl"]
"""Names that stand for a choice among algorithms: the quickest, or NCCL's own."""
BEST, ALL = "best", "all"
# The model that counts neither launches nor steps.
LINKS_ONLY = "alpha-beta"


def contest(
    machine: MachineLike,
    collective: CollectiveLike,
    names: Iterable[AlgorithmName | CandidateLike] | str | None = None,
    report: Callable[[str], None] | None = None,
    model: models.ScheduleModelName | str | ScheduleModel = models.DEFAULT,
    *,
    sizes: Collection[int] = (LARGE,),
    only_best: bool = False,
) -> Contest:
    """Build algorithms once, to be timed for any size.

    Parameters
    ----------
    machine : str, path or Topology
        As for `project`.
    collective : str or Collective
        Such as ``"allreduce"``.
    names : iterable of str, path or Schedule, or str, optional
        Algorithms by name, also as text such as ``"ring,chain"``, schedules, and files of schedules, own and
        of MSCCL. Default: all that have the collective and are quickly found (`blinksim.timing.candidates`).
    report : callable, optional
        Called with a progress message.
    model : str or ScheduleModel
        What times them: ``alpha-beta``, ``execution`` or ``simulate``; ``auto`` is ``execution`` where the
        machine's constants are known, else ``alpha-beta``.
    sizes : collection of int
        The default algorithms are to be the best for these sizes in bytes.
    only_best : bool
        Only the quickest at these sizes is asked for: on more than 4,096 ranks, algorithms that are slower
        for sure get no schedule; `slower` names them.

    Returns
    -------
    Contest
        The schedules; of the default algorithms that cannot run here, the reasons.

    Raises
    ------
    InputError
        For unknown names and fewer than two members.
    InfeasibleError
        If a named algorithm cannot run here, or none can.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.contest("dgx1-v100", "allreduce", ["ring", "chain"])
    >>> [projection.algorithm for projection in found.projections(2**30)]
    ['ring', 'chain']
    """
    part, wanted = as_topology(machine).selected(), Collective.of(collective)
    timing = models.schedule_model(model) if isinstance(model, str) else model
    return timing.contest(part, wanted, names, report, sizes, only_best=only_best)


def project(
    machine: MachineLike,
    collective: CollectiveLike,
    size: int | float | str | None = None,
    *,
    algorithm: AlgorithmName | ChoiceName | str = "best",
    model: models.ModelName | str | TimingModel = models.DEFAULT,
    gamma: float = 0.0,
) -> Projection:
    """Project the time of a collective.

    Parameters
    ----------
    machine : str, path or Topology
        A name of the catalogue, a machine file, or a topology. Of a whole machine the default members and
        links take part.
    collective : str or Collective
        Such as ``"allreduce"``.
    size : int or str
        Bytes, or text such as ``"256MiB"``. Default: that of the traffic matrix, where there is one.
    algorithm : str
        A name of the registry, the file of a schedule, ``best`` for the quickest of those that are found
        quickly, or ``nccl`` for what NCCL would choose (of a whole machine; at the rates ``nccl`` unless it
        was loaded at others).
    model : str or TimingModel
        A name of `blinksim.timing.model_registry`: ``alpha-beta``, ``execution``, ``simulate``,
        ``nccl-tuner``, ``projection`` or another preset in models/, at the rates that it pins. ``auto`` is
        ``execution`` where the machine's constants are known (such as ``hgx-h200`` at measured rates), else
        ``alpha-beta``. With settings of its own: `blinksim.model`.
    gamma : float
        Seconds per byte that a rank reduces, for models that time schedules.

    Returns
    -------
    Projection
        The time, the terms that add up to it, and what sets it.

    Raises
    ------
    InputError
        For unknown names, and for what the model does not take.
    InfeasibleError
        If the algorithm or the model does not cover the case.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.project("dgx1-v100", "allreduce", "256MiB")
    >>> found.algorithm, round(found.algbw_GBps, 1)
    ('ring', 84.7)
    """
    topology, wanted = as_topology(machine), Collective.of(collective)
    wanted.check_ranks(topology.ranks)
    if size is None and wanted.traffic is None:
        raise InputError(f"{wanted} has no size of its own; give size=, such as size='64MiB'")
    count = size_of(wanted.traffic.size if size is None and wanted.traffic else size or 0)
    if model == models.DEFAULT:
        model = models.chooser(algorithm) or model
    timing = models.model(model, **({"gamma": gamma} if gamma else {})) if isinstance(model, str) else model
    if gamma and timing is model:
        raise InputError("gamma is a setting of a model; give it to the one that you made")
    topology = preferring(topology, timing.rates) if timing.rates else topology
    found = timing.times(topology, wanted, [count], timing.best if algorithm == "best" else [algorithm])[0]
    return with_least_time(topology.selected(), found) if isinstance(timing, ScheduleModel) else found


@dataclass(frozen=True, repr=False)
class Ranking(Result):
    """Projections, quickest first.

    Attributes
    ----------
    projections : tuple of Projection
        One for each algorithm.
    asked : str
        ``best``, ``all``, or the names of algorithms.
    chosen : Projection, optional
        What a library would choose among its algorithms; None if the quickest counts.
    refused : mapping, optional
        The reason, by algorithm, for those that cannot run.
    edits : tuple of str
        Of the machine.
    left_out : mapping, optional
        The reason, by algorithm, for those that were not tried.
    beside : str
        What stands beside the time: that it counts the links alone, and what else is known of the machine.
    interval : Interval, optional
        Where measured times lie, as far as that is known.
    links_only : bool
        True if the time counts the links alone, although `beside` says what the program takes.
    slower : tuple of str
        Algorithms that were considered and are slower for sure: on thousands of ranks these get no
        projection.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.rank("dgx1-v100", "allreduce", "256MiB", algorithms="all")
    >>> [row["algorithm"] for row in found.rows()][:2]
    ['ring', 'mxnet']
    """

    projections: tuple[Projection, ...]
    asked: str
    chosen: Projection | None = None
    refused: Mapping[str, str] | None = None
    edits: tuple[str, ...] = ()
    left_out: Mapping[str, str] | None = None
    beside: str = ""
    interval: Interval | None = None
    links_only: bool = False
    slower: tuple[str, ...] = ()

    @property
    def best(self) -> Projection:
        """The projection that was chosen, or the quickest."""
        return self.chosen or self.projections[0]

    @property
    def shown(self) -> tuple[Projection, ...]:
        """All projections if all were asked for, else the quickest."""
        return self.projections if self.asked == ALL else self.projections[:1]

    def rows(self) -> list[dict[str, Any]]:
        """One row per projection that was asked for."""
        return [projection.row() for projection in self.shown]

    def to_dict(self) -> dict[str, Any]:
        """The keys of the best projection; ``rows`` and ``refused`` where several were asked for; ``considered`` and
        ``left_out`` where the algorithms were chosen here."""
        answer = self.best.to_dict()
        if self.asked == ALL if self.chosen else self.asked != BEST and len(self.projections) > 1:
            answer["rows"] = [projection.row() for projection in self.projections]
            answer |= {} if self.refused is None else {"refused": dict(self.refused)}
        if self.asked in (BEST, ALL) and self.left_out is not None:
            answer["considered"] = sorted((*(projection.algorithm for projection in self.projections), *self.slower))
            answer["left_out"] = dict(self.left_out)
        answer |= {"beside": self.beside} if self.beside else {}
        return answer | ({} if self.interval is None else self.interval.keys("interval"))

    def sentence(self) -> str:
        """The answer in one line."""
        # Where it is known what a program takes, nobody shall mistake one for the other.
        return self.best.sentence(" on links alone" if self.links_only else "")

    def text(self) -> str:
        """The sentence, the ranking if it was asked for, the terms of the quickest, and what else is known of it."""
        lines, best = [self.sentence(), *([f"  {self.beside}"] if self.beside else [])], self.best
        if self.interval is not None:
            known = f"time {format_time(best.time_s)}, within" if best.model != LINKS_ONLY else "libraries take"
            lines.append(f"  {known} {self.interval.words()}")
        lines.append("")
        if self.asked == ALL:
            width = 5 if self.chosen is None else 4
            cells = [
                [p.algorithm, format_time(p.time_s), format_rate(p.algbw), format_rate(p.busbw), p.bottleneck][:width]
                for p in self.projections
            ]
            lines.append(table(["algorithm", "time", "algbw", "busbw", "bottleneck"][:width], cells))
            lines += [f"  {words}" for words in refused_words(self.refused)]
            lines += [f"  left out: {words}" for words in left_out_words(self.left_out)]
            lines.append("")
        rivals = len(self.projections) + len(self.slower) if self.asked == BEST else None
        return "\n".join((*lines, best.terms_table(), "", *labelled(best.facts(self.edits, rivals, self.left_out))))

    def __repr__(self) -> str:
        return f"<Ranking {self.sentence()}; {len(self.projections)} projections>"


def rank(
    machine: Question | MachineLike,
    collective: CollectiveLike,
    size: int | float | str,
    model: models.ModelName | str | TimingModel = models.DEFAULT,
    algorithms: Literal["best", "all"] | AlgorithmName | str | Sequence[AlgorithmName | str] = BEST,
    report: Callable[[str], None] | None = None,
) -> Ranking:
    """Time several algorithms at one size, and rank them.

    Parameters
    ----------
    machine : Question, str, path or Topology
        Which part of which machine; of a whole machine the default members take part.
    collective : str or Collective
        Such as ``"allreduce"``.
    size : int or str
        Bytes, or text such as ``"256MiB"``.
    model : str or TimingModel
        What times them. A machine that is named is loaded at the rates that a named model wants.
    algorithms : str or sequence of str
        ``best`` or ``all`` of those that the model times, or names, as a list or separated by commas.
    report : callable, optional
        Called with a progress message.

    Returns
    -------
    Ranking
        The projections, quickest first, and the algorithms that cannot run.

    Raises
    ------
    InputError
        For unknown names, and for what the model does not take.
    InfeasibleError
        If a named algorithm cannot run here, or none can.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.rank("dgx1-v100", "allreduce", "256MiB", "nccl-tuner").best.algorithm
    'nccl'
    """
    question = machine if isinstance(machine, Question) else Question(machine)
    wanted, count = Collective.of(collective), size_of(size)
    if isinstance(model, str):
        model = models.model(model)
        model.check(question)
        if not isinstance(question.machine, Topology):
            question = model.at_its_rates(question)
        elif model.rates is not None:
            question = question.preferring_known(model.rates)
    algorithms = algorithms if isinstance(algorithms, str) else ",".join(algorithms)
    names = None if algorithms in (BEST, ALL) else algorithms.split(",")
    timing, topology = model.at(replace(question, collective=wanted))
    if isinstance(timing, ScheduleModel):
        rivals = timing.contest(topology, wanted, names, report, [count], only_best=algorithms == BEST)
        if report is not None:
            report(f"timing by {timing.name}")
        found = tuple(rivals.answers(count, best=algorithms == BEST))
        best, by_default = found[0], model.name == models.DEFAULT
        launched = _launched(rivals, best) if by_default and best.model == LINKS_ONLY else ""
        # The interval by the error of the model's constants, where it states one.
        p90 = best.details.get("error_p90")
        interval = None if p90 is None else Interval.within(best.time_s, p90)
        if by_default and timing.name == LINKS_ONLY:
            interval = over_links(topology, best)
        beside = _beside(topology, best, launched, by_default=by_default)
        refused, left_out, slower = rivals.refused, rivals.left_out, tuple(rivals.slower)
        links_only = bool(launched)
        return Ranking(found, algorithms, None, refused, question.edits, left_out, beside, interval, links_only, slower)
    asked = timing.best if algorithms == BEST else names
    found = tuple(timing.times(topology, wanted, [count], asked, report))
    chosen = None
    if timing.best is not None and (names is None or tuple(names) == timing.best):
        chosen = timing.times(topology, wanted, [count], timing.best)[0]
    return Ranking(found, algorithms, chosen, edits=question.edits)


def _launched(rivals: Contest, best: Projection) -> str:
    """How long the same schedule takes as a program; empty where nobody knows."""
    from blinksim.timing.measured_constants import uncovered

    part = rivals.topology
    if part.execution is None or uncovered(part):
        return ""
    from blinksim.timing.execution_model import Executed

    try:
        [found] = Executed().on(part).rank(rivals.only(best.algorithm), best.size)
    except BlinksimError:
        return ""
    library = found.details.get("library")
    how, origin = "as a program" if library is None else "run by NCCL", part.execution.measured
    known = f"by constants {found.details['constants']}"
    if library is None and origin.band is not None:
        known = f"{100 * origin.band:.0f} % more or less, as nobody measured {part.execution.hardware}"
    return f"; {how} about {format_time(found.time_s)}, {known}: model=execution"


def _beside(part: Topology, best: Projection, launched: str, *, by_default: bool) -> str:
    """Notes beside the quickest: launches where only links count, and switches that add where those count too."""
    from blinksim.timing.execution_model import nvls_time

    if by_default and best.model == LINKS_ONLY:
        rates = f"{best.rates} rates: links only, no launch"
        if best.rates.partition(" (")[0] == MEASURED:
            # Where rates of links come from that published times suggest.
            table = measured_rates(catalogued(part))
            sources = [] if table is None else table.source.split("; ")
            rates += "".join(f"; {words}" for words in sources if words.partition(" ")[0] in best.links)
        return rates + launched
    found, rates_of = [], part.execution
    if "executor" in dict(best.basis) and rates_of is not None and rates_of.measured.band is not None:
        band = 100 * rates_of.measured.band
        found.append(f"constants not measured on {rates_of.hardware}: {band:.0f} % more or less")
    time = nvls_time(part, best.size) if by_default and best.collective.name == "allreduce" else None
    if time is not None and time < best.time_s:
        ratio = f"{best.time_s / time:.3g} times as fast: algorithm=nvls"
        found.append(f"where switches add, NCCL's NVLS takes {format_time(time)}, {ratio}")
    return "; ".join(found)
