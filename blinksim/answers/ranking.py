"""One collective at one size by every algorithm that a model can time: what ``blinksim project`` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from blinksim.algorithms.registry import AlgorithmName
from blinksim.answers.project import contest
from blinksim.collective import Collective, CollectiveName
from blinksim.errors import BlinksimError
from blinksim.formats.shipped.machine_names import MEASURED, measured_rates
from blinksim.machines import MachineLike
from blinksim.question import Question
from blinksim.results import Result
from blinksim.textio.text_table import refused_words, table
from blinksim.timing import model_registry
from blinksim.timing.contest import Contest
from blinksim.timing.measured.library_time import Interval, catalogued, over_links
from blinksim.timing.model_registry import DEFAULT, ModelName
from blinksim.timing.projection_result import Projection, labelled, left_out_words
from blinksim.timing.timing_model import ScheduleModel, TimingModel
from blinksim.topology.graph import Topology
from blinksim.units import format_rate, format_time, size_of

BEST, ALL = "best", "all"
# The model that counts neither launches nor steps.
LINKS_ONLY = "alpha-beta"


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
        Algorithms that were considered and are slower for sure: on thousands of ranks these get no projection.

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
        """What is chosen, or the quickest."""
        return self.chosen or self.projections[0]

    @property
    def shown(self) -> tuple[Projection, ...]:
        """All of them if all were asked for, else the quickest."""
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
        rivals = len(self.projections) + len(self.slower) if self.asked == BEST else None
        facts = labelled(self.best.facts(self.edits, rivals, self.left_out))
        head = (self.sentence(), *(f"  {line}" for line in (self.beside, self._known_to()) if line))
        return "\n".join((*head, "", *self._ranked(), self.best.terms_table(), "", *facts))

    def _known_to(self) -> str:
        """The interval in words, empty where there is none."""
        if self.interval is None:
            return ""
        if self.best.model == LINKS_ONLY:
            return f"libraries take {self.interval.words()}"
        return f"time {format_time(self.best.time_s)}, within {self.interval.words()}"

    def _ranked(self) -> Iterator[str]:
        if self.asked != ALL:
            return
        header = ["algorithm", "time", "algbw", "busbw", "bottleneck"]
        cells = [
            [p.algorithm, format_time(p.time_s), format_rate(p.algbw), format_rate(p.busbw), p.bottleneck]
            for p in self.projections
        ]
        width = 5 if self.chosen is None else 4
        yield table(header[:width], [line[:width] for line in cells])
        yield from (f"  {words}" for words in refused_words(self.refused))
        yield from (f"  left out: {words}" for words in left_out_words(self.left_out))
        yield ""

    def __repr__(self) -> str:
        return f"<Ranking {self.sentence()}; {len(self.projections)} projections>"


def rank(
    machine: Question | MachineLike,
    collective: Collective | CollectiveName | str,
    size: int | float | str,
    model: ModelName | str | TimingModel = DEFAULT,
    algorithms: Literal["best", "all"] | AlgorithmName | str | Sequence[AlgorithmName | str] = BEST,
    report: Callable[[str], None] | None = None,
) -> Ranking:
    """Times several algorithms at one size, and ranks them.

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
        model = model_registry.model(model)
        model.check(question)
        if not isinstance(question.machine, Topology):
            question = model.at_its_rates(question)
        elif model.rates is not None:
            question = question.preferring_known(model.rates)
    algorithms = algorithms if isinstance(algorithms, str) else ",".join(algorithms)
    names = None if algorithms in (BEST, ALL) else algorithms.split(",")
    timing, topology = model.at(replace(question, collective=wanted))
    if isinstance(timing, ScheduleModel):
        entrants = contest(topology, wanted, names, report, timing, sizes=[count], only_best=algorithms == BEST)
        if report is not None:
            report(f"timing by {timing.name}")
        found = tuple(entrants.answers(count, best=algorithms == BEST))
        best = found[0]
        links_only = model.name == DEFAULT and timing.name == LINKS_ONLY
        interval = over_links(topology, best) if links_only else _within(best)
        beside, launches = _guessed(topology, best), ""
        if model.name == DEFAULT:
            launches = _with_launches(entrants, best) if best.model == LINKS_ONLY else ""
            beside = _beside(entrants, best, launches)
        refused, left_out = entrants.refused, entrants.left_out
        edits, slower = question.edits, tuple(entrants.slower)
        return Ranking(found, algorithms, None, refused, edits, left_out, beside, interval, bool(launches), slower)
    asked = timing.best if algorithms == BEST else names
    found = tuple(timing.times(topology, wanted, [count], asked, report))
    chosen = None
    if timing.best is not None and (names is None or tuple(names) == timing.best):
        chosen = timing.times(topology, wanted, [count], timing.best)[0]
    return Ranking(found, algorithms, chosen, edits=question.edits)


def _within(best: Projection) -> Interval | None:
    """The interval by the error of the model's constants, None where it states none."""
    p90 = best.details.get("error_p90")
    return None if p90 is None else Interval.within(best.time_s, p90)


def _beside(entrants: Contest, best: Projection, launches: str) -> str:
    """What stands beside the quickest: launches where only links count, and switches that add where those count too."""
    if best.model != LINKS_ONLY:
        return "; ".join(filter(None, (_guessed(entrants.topology, best), _with_nvls(entrants, best))))
    return f"{best.rates} rates: links only, no launch{_reached(entrants, best)}{launches}"


def _reached(entrants: Contest, best: Projection) -> str:
    """Where rates of links come from that published times suggest; empty for all others."""
    if best.rates.partition(" (")[0] != MEASURED:
        return ""
    table = measured_rates(catalogued(entrants.topology))
    told = [] if table is None else table.source.split("; ")
    return "".join(f"; {words}" for words in told if words.partition(" ")[0] in best.links)


def _guessed(part: Topology, best: Projection) -> str:
    """That constants of programs were not measured on these GPUs; empty where they were, and for other models."""
    rates = part.execution
    if "executor" not in dict(best.basis) or rates is None or rates.measured.band is None:
        return ""
    return f"constants not measured on {rates.hardware}: {100 * rates.measured.band:.0f} % more or less"


def _with_launches(entrants: Contest, best: Projection) -> str:
    """How long the same schedule takes as a program; empty where nobody knows."""
    from blinksim.cost.execution_rates import uncovered

    part = entrants.topology
    if part.execution is None or uncovered(part):
        return ""
    from blinksim.timing.execution_model import Executed

    try:
        [found] = Executed().on(part).rank(entrants.only(best.algorithm), best.size)
    except BlinksimError:
        return ""
    library = found.details.get("library")
    how, origin = "as a program" if library is None else "run by NCCL", part.execution.measured
    known = f"by constants {found.details['constants']}"
    if library is None and origin.band is not None:
        known = f"{100 * origin.band:.0f} % more or less, as nobody measured {part.execution.hardware}"
    return f"; {how} about {format_time(found.time_s)}, {known}: model=execution"


def _with_nvls(entrants: Contest, best: Projection) -> str:
    """How much quicker switches that add are, where NCCL's NVLS was measured; empty where it is not."""
    from blinksim.timing.execution_model import nvls_time

    time = nvls_time(entrants.topology, best.size) if best.collective.name == "allreduce" else None
    if time is None or time >= best.time_s:
        return ""
    ratio = best.time_s / time
    return f"where switches add, NCCL's NVLS takes {format_time(time)}, {ratio:.3g} times as fast: algorithm=nvls"
