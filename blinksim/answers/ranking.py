"""The ranking of algorithms at one size, by one model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from blinksim.algorithms.registry import AlgorithmName
from blinksim.collective import Collective, CollectiveLike
from blinksim.errors import InfeasibleError
from blinksim.formats.shipped.machine_names import MEASURED
from blinksim.machines import MachineLike, as_topology
from blinksim.nccl.export.graph_export import as_run
from blinksim.nccl.files import graph_file
from blinksim.nccl.files.graph_file import GraphFile
from blinksim.nccl.tuner.prediction import predict
from blinksim.question import Question
from blinksim.results import Result, Term, keyed
from blinksim.textio.text_table import refused_words, table
from blinksim.timing import model_registry as models
from blinksim.timing.contest import CandidateLike, Contest
from blinksim.timing.library_model import Library
from blinksim.timing.nccl_model import NcclTuner
from blinksim.timing.projection_result import Projection, labelled, left_out_words
from blinksim.timing.timing_model import LARGE, ScheduleModel, TimingModel
from blinksim.topology.cluster import nodes_of
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
        of MSCCL. Default: all that have the collective and are quickly found (`blinksim.timing.contest`).
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
    slower : tuple of str
        Algorithms that were considered and are slower for sure: on thousands of ranks these get no
        projection.
    library : Projection, optional
        Beside NCCL's own model: what NCCL takes, as `blinksim.project` answers without a model.

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
    slower: tuple[str, ...] = ()
    library: Projection | None = None

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
        if self.library is not None:
            keys = "measured_time_s=time_s measured_algbw_GBps=algbw measured_busbw_GBps=busbw measured_terms"
            terms = [keyed(term, "name time_s limit") for term in self.library.terms]
            answer |= keyed(self.library, keys, measured_terms=terms)
            ends = {f"measured_{end}": self.library.details[f"interval_{end}"] for end in ("low_s", "high_s", "share")}
            answer |= {"measured_on": self.library.details["origin"], **ends}
        return answer

    def sentence(self) -> str:
        """The answer in one line."""
        return self.best.sentence()

    def runs_as(self, rates: str = "") -> str:
        """The quickest in a few words: its time, its name, `rates` in words, and what runs it."""
        return f"{format_time(self.best.time_s)} by {self.best.algorithm}{rates}, {self.best.runs_as}"

    def text(self) -> str:
        """The sentence, the ranking if it was asked for, the terms of the quickest, and what else is known of it."""
        lines, best = [self.sentence(), ""], self.best
        if self.library is not None and "graph_file" in self.library.details:
            how = f"{format_time(self.library.time_s)} by {self.library.terms[0].name} (NCCL_ALGO, NCCL_PROTO)"
            lines.insert(0, f"NCCL takes {how}; its tuner expects:")
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
        refused, left_out, slower = rivals.refused, rivals.left_out, tuple(rivals.slower)
        return Ranking(found, algorithms, None, refused, question.edits, left_out, slower)
    found = tuple(timing.times(topology, wanted, [count], timing.best if algorithms == BEST else names, report))
    chooses = timing.best is not None and (names is None or tuple(names) == timing.best)
    chosen = timing.times(topology, wanted, [count], timing.best)[0] if chooses else None
    library = None
    if isinstance(timing, NcclTuner) and timing.channels is None:
        own = Library(version=timing.version, multicast=timing.multicast).at(question)[0]
        # NCCL goes through hosts where the links that take part do not connect the GPUs.
        with suppress(InfeasibleError):
            [library] = own.times(own.machine, wanted, [count])
            if timing.graph_file is not None:
                own_pick = found[0].details["nccl_algorithm"], found[0].details["nccl_protocol"]
                picks = dict.fromkeys((("tree", "Simple"), ("ring", "Simple"), own_pick))
                loaded, times = graph_file.read(timing.graph_file), list[Projection]()
                for pick in picks:
                    with suppress(InfeasibleError):
                        times.append(with_file(own, library, loaded, pick))
                library = min(times, key=lambda one: one.time_s, default=None)
    return Ranking(found, algorithms, chosen, edits=question.edits, library=library)


def with_file(library: Library, takes: Projection, file: GraphFile, picked: tuple[str, str]) -> Projection:
    """What NCCL takes with the channels of a graph file: as without it, times what its model says of the file.

    That model halves every tree; chains inside a node got all of their lanes (58.9 GB/s of allreduce over three,
    Blink+ report, section 4.2), so there the links count, at the rates that NCCL computes with. takes: the library's
    time without the file. picked: the algorithm and the protocol that run with it. Raises `InfeasibleError` if NCCL
    is not modelled here, or the file has no such channels of the members.
    """
    collective, size, asked = takes.collective, takes.size, library.question.preferring_known("nccl")
    stated, whole = library.stated(collective, size), asked.whole()
    part, on_links = asked.part(whole, collective), 0.0
    told = predict(whole, part.members, multicast=library.multicast, graphs=graph_file.graphs_of(file))
    listed = {(one.algorithm, one.protocol): one.time_s for one in told.times(collective.name, size)}
    if stated is None or takes.least is None or picked not in listed:
        raise InfeasibleError(f"{takes.machine}: NCCL's model says nothing of {' '.join(picked)} for {collective}")
    time_s = listed[picked]
    if len(nodes_of(part, part.members)) == 1 and picked in (("tree", "Simple"), ("ring", "Simple")):
        links = replace(library.question.preferring_known(MEASURED), collective=collective).part()
        runs = [as_run(file, machine, collective, picked[0]) for machine in (links, part)]
        rivals = [contest(run.topology, collective, [run], model=LINKS_ONLY, sizes=[size]) for run in runs]
        on_links, at_nccl = (rival.projections(size)[0].time_s for rival in rivals)
        time_s = at_nccl if picked[0] == "tree" else max(time_s, at_nccl)
    # What NCCL assumes of links is no rate that they reach: those of what it could take hold for files too.
    time_s = max(takes.least.time_s, on_links, takes.time_s * time_s / stated.time_s)
    factor, details = time_s / takes.time_s, dict(takes.details)
    details |= {end: factor * details[end] for end in ("interval_low_s", "interval_high_s")}
    details |= {"origin": f"{details['origin']}; times {factor:.3g} with the graph file", "graph_file": factor}
    return replace(takes, terms=(Term(f"{' '.join(picked)} with the graph file", time_s, ""),), details=details)
