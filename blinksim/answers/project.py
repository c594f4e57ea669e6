"""The answer to "how long does it take": with the library that runs there, at best, and at least.

Three figures in this order, the same in every command. The first is that of `blinksim.timing.library_model`, the
second the best schedule that is quickly found, as a program where the constants of programs are known, and the third
a bound with a certificate, for switches that do what they can. None is below the third.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any

from blinksim.algorithms.registry import AlgorithmName
from blinksim.answers.ranking import BEST, LINKS_ONLY, ChoiceName, Ranking
from blinksim.collective import Collective, CollectiveLike
from blinksim.errors import BlinksimError, InfeasibleError, InputError
from blinksim.formats.shipped.machine_names import MEASURED
from blinksim.machines import NOMINAL, MachineLike, as_topology
from blinksim.question import Question, preferring
from blinksim.results import Term
from blinksim.timing import model_registry as models
from blinksim.timing.contest import Contest, ceiling_of, with_least_time
from blinksim.timing.library_model import Library
from blinksim.timing.measured_constants import uncovered
from blinksim.timing.nccl_model import weakest
from blinksim.timing.projection_result import Projection, labelled
from blinksim.timing.timing_model import ScheduleModel, TimingModel
from blinksim.units import format_rate, format_size_about, format_time, size_of

# Nobody measured the job, nor anything like it.
_UNKNOWN = ("predicted", "links")


@dataclass(frozen=True, repr=False)
class Answer(Projection):
    """How long a collective takes with the library that runs on the machine, and could take, and takes at least.

    Its time, terms and rates are those of the library; `details` has the interval and where it comes from.

    Attributes
    ----------
    could : Ranking, optional
        The best schedule, and what it was chosen from; None if there is none.
    projected : Projection, optional
        What a published projection of this machine says.
    edits : tuple of str
        Of the machine.
    weakest : str
        What has less bandwidth than most of its sort, in words; empty if nothing has.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.project("p5", "allreduce", "16MiB")
    >>> found.low_s < found.time_s < found.high_s
    True
    >>> found.least.time_s < min(found.time_s, found.could.best.time_s)
    True
    """

    could: Ranking | None = None
    projected: Projection | None = None
    edits: tuple[str, ...] = ()
    weakest: str = ""

    @property
    def low_s(self) -> float:
        """The lower end of the interval, seconds."""
        return float(self.details["interval_low_s"])

    @property
    def high_s(self) -> float:
        """The upper end of the interval, seconds."""
        return float(self.details["interval_high_s"])

    @property
    def library(self) -> str:
        """The name of the library."""
        return str(self.details["library"])

    @property
    def known(self) -> bool:
        """True if somebody measured the job, or others like it."""
        return self.details["basis"] not in _UNKNOWN

    @property
    def limited_by(self) -> str:
        """What takes the most time of the best schedule, in words: a link class, or latency."""
        if self.could is None:
            return ""
        best, shares = self.could.best, dict[str, float]()
        for term in best.terms:
            what = term.limit if term.limit in best.links else _NOT_LINKS.get(term.limit, term.name)
            shares[what] = shares.get(what, 0.0) + term.time_s / best.time_s
        most = max(shares, key=lambda what: shares[what])
        return f"{most}, {100 * shares[most]:.0f} % of the time of the best schedule"

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints: those of the library's time, and the best schedule under ``could_take``."""
        found = super().to_dict()
        found |= {} if self.least is None else {"cannot_take_less_s": self.least.time_s}
        if self.could is not None:
            best = self.could.best
            found |= {"could_take_s": best.time_s, "could_take_algorithm": best.algorithm}
            found["could_take"] = self.could.to_dict()
        found |= {"weakest": self.weakest} if self.weakest else {}
        if self.projected is not None:
            found |= {"projected_s": self.projected.time_s, "projected_by": self.projected.model}
        return found

    def row(self) -> dict[str, Any]:
        """The three figures as a row of a table."""
        found = super().row() | {key: self.details[key] for key in ("interval_low_s", "interval_high_s")}
        found["could_take_s"] = None if self.could is None else self.could.best.time_s
        found["cannot_take_less_s"] = None if self.least is None else self.least.time_s
        found["could_take_rates"] = None if self.could is None else self.could.best.rates
        found["cannot_take_less_rates"] = self.details["bound_rates"]
        return found | {key: self.details[key] for key in ("library", "basis")}

    def rows(self) -> list[dict[str, Any]]:
        """One row: the three figures."""
        return [self.row()]

    def sentence(self, how: str = "") -> str:
        """The answer in one line."""
        takes = f"{format_time(self.time_s)} with {self.library}, busbw {format_rate(self.busbw)}"
        where = gpus_of(self.machine, len(self.members), self.details["nodes"])
        return f"{self.collective} of {format_size_about(self.size)} on {where}: {takes}"

    def times(self) -> list[str]:
        """The three figures; - where there is none."""
        known = (self, None if self.could is None else self.could.best, self.least)
        return ["-" if one is None else format_time(one.time_s) for one in known]

    def in_short(self) -> str:
        """The three figures at this size in one line."""
        takes, could, least = self.times()
        could = "" if self.could is None else f", could take {could}"
        least = "" if self.least is None else f", cannot take less than {least}"
        return f"{format_size_about(self.size)} takes {takes} with {self.library}{could}{least}"

    def text(self) -> str:
        """The three figures, where the first comes from, and what limits: at most nine lines."""
        return "\n".join((self.sentence(), *labelled(self.lines(), 17)))

    def lines(self) -> list[tuple[str, str]]:
        """The lines below the sentence, as labels and texts."""
        details, least, at = self.details, self.least, held_at([self.row()])
        choice = f"; {self.library} picks {details['choice']}" if details["choice"] else ""
        ends = f"{format_time(self.low_s)} to {format_time(self.high_s)}"
        found = [("interval", f"{ends}, {details['interval_share']} runs{choice}")]
        nobody = "" if self.known else "nobody has published a time of this; "
        found.append(("from", nobody + details["origin"]))
        found += [("projected", f"{format_time(one.time_s)} ({one.model})") for one in [self.projected] if one]
        if self.could is not None:
            slower = f"; {self.library} is quicker" if self.could.best.time_s > self.time_s else ""
            found.append(("could take", self.could.runs_as(at.get("could take", "")) + slower))
        if least is not None:
            granted = "add" if self.collective.reduces else "multicast"
            words = f", with switches that {granted}" if self.grants else ""
            held = f"{format_time(least.time_s)}{at.get('cannot take less', '')}"
            found.append(("cannot take less", f"{held}, whatever the schedule{words}"))
        limits = ("limited by", self.limited_by), ("weakest", self.weakest)
        found += [(what, words) for what, words in limits if words]
        return found + [("edited", edit) for edit in self.edits]

    def why(self) -> str:
        """All that is known of the three figures: terms, bounds and what they assume, and the schedules considered."""
        lines = [self.text(), "", f"{self.library} takes", self.terms_table()]
        lines += [f"  the quickest of what NCCL's tuner expects: {self.expects}"] if self.expects else []
        if self.least is not None:
            lines += ["", "cannot take less", f"  {self.least.words}"]
            lines += [f"  it assumes: {self.least.assumes}"] if self.least.assumes else []
        return "\n".join((*lines, "", *([] if self.could is None else ["could take", self.could.text()])))

    def __repr__(self) -> str:
        return f"<Answer {self.text()}>"


def gpus_of(machine: str, ranks: int, nodes: int) -> str:
    """Who takes part, such as ``32 GPUs of 4 x p5.48xlarge``; shapes that are clusters say their nodes themselves."""
    several = nodes > 1 and not machine.startswith(("fattree:", "rails:"))
    return f"{ranks} GPUs of {f'{nodes} x ' if several else ''}{machine}"


def held_at(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """At which rates the second and the third figure are, by what these are called; rows: of answers.

    Words such as `` at measured rates``; empty where both are at nominal ones, those of data sheets.
    """
    found: dict[str, dict[str, None]] = {"could take": {}, "cannot take less": {}}
    for row in rows:
        for what, tables in found.items():
            # A table that leaves classes out is labelled like "measured (qpi: nominal)".
            table = row.get(f"{what.replace(' ', '_')}_rates")
            tables.update({table.partition(" (")[0]: None} if table else {})
    plain = {*chain(*found.values())} <= {NOMINAL}
    return {what: f" at {' or '.join(used)} rates" for what, used in found.items() if used and not plain}


_NOT_LINKS = {"alpha": "latency", "gamma": "adding", "launch": "launches and flags"}


def answer(
    machine: Question | MachineLike,
    collective: Collective,
    sizes: Sequence[int],
    report: Callable[[str], None] | None = None,
    library: Library | None = None,
    contest: Contest | None = None,
) -> list[Answer]:
    """The three figures for each size in bytes; see `blinksim.project`.

    machine: a question, or a machine of which the default members take part. library: with the version of NCCL and
    whether switches may add. contest: what `schedules` returns, if it is known. Raises as `blinksim.project` does.
    """
    question = machine if isinstance(machine, Question) else Question(machine)
    asked, _ = (library or Library()).at(question)
    part, grants, bound = asked.bounded(collective)
    if contest is None:
        with suppress(InfeasibleError):
            contest = schedules(question, collective, sizes, report)
    if contest is not None and contest.topology == part and contest.model.name == LINKS_ONLY:
        # One object in place of two that are equal: tables of answers find it without comparing its links.
        part, asked.contests[collective] = contest.topology, contest
        asked.parts[collective] = part, grants, bound
    forwarding = ceiling_of(part, collective) if grants else bound
    on_links = contest is not None and contest.on_links
    programs = _launches(asked.healthy.question, collective, sizes) if on_links and asked.healthy is not None else {}
    found, narrow = [], weakest(asked.machine)
    for size, takes in zip(sizes, asked.times(asked.machine, collective, sizes), strict=True):
        best = None if contest is None else _best(contest, size)
        if best is not None:
            # What is measured of links is no bound: a program may exceed what others have measured.
            stated, more = list[Projection](), programs.get(size, ())
            for p in best.projections:
                limit = bound if p.grants else forwarding
                stated.append(replace(p, bound=limit, least=None, terms=(*p.terms, *more)))
            best = replace(best, projections=tuple(stated))
        given = {field.name: getattr(takes, field.name) for field in fields(takes)}
        given |= {"projected": _published_projection(asked.question, takes), "weakest": narrow}
        found.append(Answer(**given, could=best, edits=asked.question.edits))
    return found


def project(
    machine: MachineLike,
    collective: CollectiveLike,
    size: int | float | str | None = None,
    algorithm: AlgorithmName | ChoiceName | str | None = None,
    *,
    model: models.ModelName | str | TimingModel | None = None,
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
    algorithm : str, optional
        A name of the registry, the file of a schedule, ``best`` for the quickest of those that are found
        quickly, or ``nccl`` for what NCCL would choose (of a whole machine; at the rates ``nccl`` unless it
        was loaded at others). Default, if no model is named either: what the machine's library takes, with the
        best schedule and the bound beside it.
    model : str or TimingModel, optional
        A name of `blinksim.timing.model_registry`: ``alpha-beta``, ``execution``, ``simulate``,
        ``nccl-tuner``, ``projection`` or another preset in models/, at the rates that it pins. ``auto`` is
        ``execution`` where the machine's constants are known (such as ``hgx-h200`` at measured rates), else
        ``alpha-beta``. With settings of its own: `blinksim.model`.
    gamma : float
        Seconds per byte that a rank reduces, for models that time schedules.

    Returns
    -------
    Projection
        The time, the terms that add up to it, and what sets it; an `Answer` if neither an algorithm nor a model is
        named.

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
    >>> found.library, found.least.time_s < found.time_s
    ('NCCL', True)
    >>> ring = bs.project("dgx1-v100", "allreduce", "256MiB", algorithm="ring")
    >>> round(ring.algbw_GBps, 1)
    84.7
    """
    topology, wanted = as_topology(machine), Collective.of(collective)
    wanted.check_ranks(topology.ranks)
    if size is None and wanted.traffic is None:
        raise InputError(f"{wanted} has no size of its own; give size=, such as size='64MiB'")
    count = size_of(wanted.traffic.size if size is None and wanted.traffic else size or 0)
    if algorithm is None and model is None and not gamma:
        return answer(topology, wanted, [count])[0]
    algorithm = algorithm or BEST
    if model is None or model == models.DEFAULT:
        model = models.chooser(algorithm) or models.DEFAULT
    timing = models.model(model, **({"gamma": gamma} if gamma else {})) if isinstance(model, str) else model
    if gamma and timing is model:
        raise InputError("gamma is a setting of a model; give it to the one that you made")
    topology = preferring(topology, timing.rates) if timing.rates else topology
    found = timing.times(topology, wanted, [count], timing.best if algorithm == BEST else [algorithm])[0]
    return with_least_time(topology.selected(), found) if isinstance(timing, ScheduleModel) else found


def schedules(
    question: Question, collective: Collective, sizes: Sequence[int], report: Callable[[str], None] | None = None
) -> Contest:
    """Schedules at measured rates, timed as programs where the constants of those are known, else on the links.

    Raises `InfeasibleError` if there are none.
    """
    part = replace(question.preferring_known(MEASURED), collective=collective).part()
    model = models.schedule_model(LINKS_ONLY if uncovered(part) else "execution-closed")
    return model.contest(part, collective, None, report, sizes, only_best=True)


def _launches(question: Question, collective: Collective, sizes: Sequence[int]) -> dict[int, tuple[Term]]:
    """What programs take longer than the links say, by size; empty where nothing is known of programs.

    Edits of links leave that as it is: without it fewer links would take less time.
    """
    try:
        part = replace(question.preferring_known(MEASURED), collective=collective).part()
        if uncovered(part):
            return {}
        named = (models.schedule_model(name) for name in ("execution-closed", LINKS_ONLY))
        programs, links = (model.contest(part, collective, None, None, sizes, only_best=True) for model in named)
    except InfeasibleError:
        return {}
    both = {size: (_best(programs, size).best.time_s, links.answers(size, best=True)[0].time_s) for size in sizes}
    return {size: (Term("launches and flags", max(0.0, run - sent), "launch"),) for size, (run, sent) in both.items()}


def _best(contest: Contest, size: int) -> Ranking:
    """The quickest schedule of a contest; programs that the formula finds about as quick are simulated."""
    if not contest.on_links:
        contest = replace(contest, model=models.schedule_model("execution").on(contest.topology))
    found = tuple(contest.answers(size, best=True))
    return Ranking(found, BEST, None, contest.refused, (), contest.left_out, slower=tuple(contest.slower))


def _published_projection(question: Question, takes: Projection) -> Projection | None:
    """What the preset of this machine says, where there is one that covers the question."""
    name = f"{takes.machine}-projection"
    if name not in models.preset_names():
        return None
    try:
        model = models.model(name)
        model.check(question)
        preset, topology = model.at(model.at_its_rates(replace(question, rates=None)))
        return preset.times(topology, takes.collective, [takes.size])[0]
    except BlinksimError:
        return None
