"""The answer to "how long does it take": with the library that runs there, at best, and at least; and rankings.

Three figures in this order, the same in every command. The first is that of `blinksim.timing.library_model`, the
second the best schedule that is quickly found, as a program where the constants of programs are known, and the third
a bound with a certificate, for switches that do what they can. None is below the third. A ranking has the algorithms
at one size, by one model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Literal

from blinksim.algorithms.registry import REGISTRY, AlgorithmName
from blinksim.answers.idle_gpus import IDLE_GPUS, IdleGpus, idle_gpus
from blinksim.collective import Collective, CollectiveLike
from blinksim.errors import BlinksimError, InfeasibleError, InputError
from blinksim.formats.shipped.machine_names import MEASURED
from blinksim.graphs.connectivity import grouped
from blinksim.machines import NOMINAL, MachineLike, Question, as_topology
from blinksim.nccl.files import graph_file
from blinksim.nccl.tuner.tuner import predict
from blinksim.results import Result, Term, count, keyed, names, refused_words, table
from blinksim.textio.text_files import read_words
from blinksim.timing import model_registry as models
from blinksim.timing.contest import CandidateLike, Contest, Say, ceiling_of, least_time_of
from blinksim.timing.library_model import GUESSES, Library, sent_by
from blinksim.timing.measured.public_tables import LAUNCHED
from blinksim.timing.measured_constants import uncovered
from blinksim.timing.nccl_model import NcclTuner, weakest
from blinksim.timing.projection_result import Projection, guesses, labelled, left_out_words, rates_of_links
from blinksim.timing.timing_model import LARGE, ScheduleModel, TimingModel
from blinksim.topology.cluster import nodes_of
from blinksim.units import format_rate, format_size_about, format_time, size_of

ChoiceName = Literal["best", "nccl"]
"""Names that stand for a choice among algorithms: the quickest, or NCCL's own."""
BEST, ALL, COULD_TAKE = "best", "all", "could take"
# The model that counts neither launches nor steps.
LINKS_ONLY = "alpha-beta"


def contest(
    machine: Question | MachineLike,
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
        Only the quickest at these sizes is asked for.

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
        Algorithms that were considered and are slower for sure: these get no projection.
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
        """All projections if several were asked for, else the quickest."""
        several = self.asked == ALL or (self.asked != BEST and not self.chosen)
        return self.projections if several else self.projections[:1]

    def rows(self) -> list[dict[str, Any]]:
        """One row per projection that was asked for."""
        return [projection.row() for projection in self.shown]

    @property
    def own_left_out(self) -> list[str]:
        """What a user has registered and was left out, with the reason: it is not lost among others."""
        return left_out_words({of: why for of, why in (self.left_out or {}).items() if REGISTRY[of].fill})

    def to_dict(self) -> dict[str, Any]:
        """The keys of the best projection; ``rows`` and ``refused`` where several were asked for; ``considered`` and
        ``left_out`` where the algorithms were chosen here."""
        answer = self.best.to_dict()
        several = self.asked != BEST and (len(self.projections) > 1 or self.refused)
        if self.asked == ALL if self.chosen else several:
            answer["rows"] = [projection.row() for projection in self.projections]
            answer |= {} if self.refused is None else {"refused": dict(self.refused)}
        if self.asked in (BEST, ALL) and self.left_out is not None:
            answer["considered"] = sorted((*(projection.algorithm for projection in self.projections), *self.slower))
            answer["left_out"] = dict(self.left_out)
        if self.library is not None:
            terms = [keyed(term, "name time_s limit") for term in self.library.terms]
            answer |= keyed(self.library, "@Ranking.library", measured_terms=terms)
        return answer

    def sentence(self) -> str:
        """The answer in one line."""
        return self.best.sentence()

    def text(self) -> str:
        """The sentence, the ranking if it was asked for, the terms of the quickest, and what else is known of it."""
        lines, best = [self.sentence(), ""], self.best
        if self.library is not None and "graph_file" in self.library.details:
            how = f"{format_time(self.library.time_s)} by {self.library.terms[0].name} (NCCL_ALGO, NCCL_PROTO)"
            lines.insert(0, f"NCCL takes {how}; its tuner expects:")
        if self.asked == ALL or len(self.shown) > 1 or (self.asked != BEST and self.refused):
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
        What times them. A machine that is named is loaded at the rates that the model wants.
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
    model = models.model(model) if isinstance(model, str) else model
    model.check(question)
    question = model.at_its_rates(question)
    algorithms = algorithms if isinstance(algorithms, str) else ",".join(algorithms)
    names = None if algorithms in (BEST, ALL) else algorithms.split(",")
    timing, topology = model.at(replace(question, collective=wanted))
    if isinstance(timing, ScheduleModel):
        run = timing.contest(topology, wanted, names, report, [count], only_best=algorithms == BEST)
        if report is not None:
            report(f"timing by {timing.name}")
        found = tuple(run.answers(count, best=algorithms == BEST))
        return Ranking(found, algorithms, None, run.refused, question.edits, run.left_out, _slower(run, found))
    timed = [*timing.times(topology, wanted, [count], timing.best if algorithms == BEST else names)]
    for place, one in enumerate(timed):
        if one.bound is None and len(one.members) <= _BOUNDED:
            # By equations of its own it may be below what the links need.
            asked = replace(question, members=",".join(one.members), ranks_per_node=None)
            part, grants, bound = Library().at(asked)[0].bounded(one.collective)
            least = least_time_of(part, one.collective, one.size, bound, grants)
            timed[place] = replace(one, bound=bound, least=least)
    chooses = timing.best is not None and (names is None or tuple(names) == timing.best)
    chosen = timing.times(topology, wanted, [count], timing.best)[0] if chooses else None
    library = None
    if isinstance(timing, NcclTuner) and timing.channels is None:
        own = Library(version=timing.version, multicast=timing.multicast).at(question)[0]
        # NCCL goes through hosts where the links that take part do not connect the GPUs.
        with suppress(InfeasibleError):
            [library] = own.times(own.machine, wanted, [count])
            if timing.graph_file is not None:
                own_pick = timed[0].details["nccl_algorithm"], timed[0].details["nccl_protocol"]
                picks = dict.fromkeys((("tree", "Simple"), ("ring", "Simple"), own_pick))
                loaded, times = graph_file.read(timing.graph_file), list[Projection]()
                for pick in picks:
                    with suppress(InfeasibleError):
                        times.append(with_file(own, library, loaded, pick))
                library = min(times, key=lambda one: one.time_s, default=None)
    return Ranking(tuple(timed), algorithms, chosen, edits=question.edits, library=library)


# Times the best schedule, from which on its bottleneck explains no more than a third of what the library takes.
_FAR = 3
# Ranks up to which what equations give has the bound beside it: on 256, 1,024 and 10,000 nodes of Aurora this takes
# 2.0, 5.8 and 250 s of CPU, and the equations none.
_BOUNDED = 4096


def with_file(library: Library, takes: Projection, file: graph_file.GraphFile, picked: tuple[str, str]) -> Projection:
    """What NCCL takes with the channels of a graph file: as without it, times what its model says of the file.

    That model halves every tree; chains inside a node got all of their lanes (58.9 GB/s of allreduce over three,
    Blink+ report, section 4.2), so there the links count, at the rates that NCCL computes with. takes: the library's
    time without the file. picked: the algorithm and the protocol that run with it. Raises `InfeasibleError` if NCCL
    is not modelled here, or the file has no such channels of the members.
    """
    from blinksim.nccl.graph_export import as_run

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


# The share of the time that bytes take where bandwidth decides.
_SENDS = 0.5
UNKNOWN = "an estimate, as no time of this very job{} is published"


@dataclass(frozen=True, repr=False)
class Answer(Projection):
    """How long a collective takes with the library that runs on the machine, and could take, and takes at least.

    Its time, terms and rates are those of the library; `details` has the interval and where it comes from.

    Attributes
    ----------
    could : Ranking, optional
        The best schedule, and what it was chosen from; None if there is none.
    projected : Projection, optional
        What a published projection of this machine says, which may be of other GPUs: two tiles of Aurora are
        on two cards there on one node, and on one card on several.
    edits : tuple of str
        Of the machine.
    weakest : str
        What has less bandwidth than most of its sort, in words; empty if nothing has.
    beside : IdleGpus, optional
        What GPUs of the node that idle would add as relays; None where that is little.
    meanwhile : Projection, optional
        What the library takes without adapters that carry less than others; None where that is no less.

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
    beside: IdleGpus | None = None
    meanwhile: Projection | None = None

    @property
    def idle(self) -> IdleGpus | None:
        """What idle GPUs would add where bandwidth decides: elsewhere more links are of no use."""
        terms = () if self.could is None else self.could.best.terms
        sends = sum(term.time_s for term in terms if term.name.startswith("bandwidth"))
        return self.beside if sends > _SENDS * sum(term.time_s for term in terms) else None

    @property
    def projected_members(self) -> tuple[str, ...] | None:
        """The GPUs that the projection is of, if these are others."""
        others = self.projected and self.projected.members
        return others if others and {*others} != {*self.members} else None

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
        """True if somebody measured the job or others like it; else it says little of which is quicker."""
        return self.details["basis"] not in GUESSES

    @property
    def limited_by(self) -> str:
        """What sets the time of the best schedule: a link class and how long it is busy, or a term."""
        if self.could is None:
            return ""
        best = self.could.best
        what, share, counts = best.limit
        own = f", {100 * share * best.time_s / self.time_s:.2g} % of what {self.library} takes"
        here = f"{what}, {100 * share:.0f} % of the time of {best.algorithm}{counts}"
        return here + own * (self.time_s > _FAR * best.time_s)

    @property
    def unbeaten(self) -> str:
        """Says that what the library runs is the quickest that is known; empty where it is not."""
        beaten = self.could is None or self.could.best.time_s <= (self.meanwhile or self).time_s
        spared = " without slow adapters" * (self.meanwhile is not None)
        return "" if beaten else f"the quickest that is known is what {self.library} runs{spared}"

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints: those of the library's time, and the best schedule under ``could_take``."""
        return super().to_dict() | keyed(self, "@Answer", could_take=self.could and self.could.to_dict())

    def row(self) -> dict[str, Any]:
        """The three figures as a row of a table."""
        best, at = self.could.best if self.could else None, self.details["bound_rates"]
        if best is None or best.rates != at.partition(" (")[0]:
            at = best and rates_of_links(best.rates, best.links)
        return super().row() | keyed(self, "@Answer.row", could_take_rates=at)

    def rows(self) -> list[dict[str, Any]]:
        """One row: the three figures."""
        return [self.row()]

    def sentence(self) -> str:
        """The answer in one line."""
        takes = f"{format_time(self.time_s)} with {self.library}, busbw {format_rate(self.busbw)}"
        return f"{self.collective} of {format_size_about(self.size)} on {self.taking_part}: {takes}"

    def times(self) -> list[str]:
        """The three figures; - where there is none."""
        known = (self, None if self.could is None else self.could.best, self.least)
        return ["-" if one is None else format_time(one.time_s) for one in known]

    def text(self) -> str:
        """The three figures, where the first comes from, and what limits: at most nine lines."""
        return "\n".join((self.sentence(), *labelled(self.lines(), 17)))

    def lines(self, alone: str = "") -> list[tuple[str, str]]:
        """The lines below the sentence, as labels and texts. alone: said of the interval."""
        details, least, at = self.details, self.least, held_at([self.row()])
        choice = f"; {self.library} picks {details['choice']}" if details["choice"] else ""
        bound = " (the bound)" * (self.low_s == getattr(least, "time_s", None))
        ends = f"{format_time(self.low_s)}{bound} to {format_time(self.high_s)}"
        launched = f" launched {LAUNCHED[details['set_up']]}" if "set_up" in details else ""
        origin = ("" if self.known else f"{UNKNOWN.format(launched)}: ") + details["origin"]
        if runs := details.get("published_s"):
            origin += f"; the runs took {format_time(runs[0])} to {format_time(runs[-1])}"
        found = [("interval", f"{ends}{alone}, {details['interval_share']} runs{launched}{choice}"), ("from", origin)]
        if one := self.projected:
            apart = "" if self.low_s <= one.time_s <= self.high_s else "; outside the interval"
            apart = f"; of {names(others)}" if (others := self.projected_members) else apart
            found.append(("projected", f"{format_time(one.time_s)} ({one.model}){apart}"))
        if self.could is not None:
            best = self.could.best
            by = f"{format_time(best.time_s)} by {best.algorithm}{at.get(COULD_TAKE, '')}, {best.runs_as}"
            found.append((COULD_TAKE, f"{by}; {self.unbeaten}".removesuffix("; ")))
            found += [("left out", words) for words in self.could.own_left_out]
        if least is not None:
            words = f", with in-switch {('multicast', 'reduction')[self.collective.reduces]}" * bool(self.grants)
            held = f"{format_time(least.time_s)}{at.get('cannot take less', '')}"
            short = next((few for many, few in _HELD_FOR.items() if many in least.assumes), "whatever the schedule")
            short = short if self.collective.reduces else short.replace(" and sums", "")
            short = short.replace("ordinary ", "") if self.grants else short
            words += ", if the guess is right" * (guesses(details["bound_rates"]) != "")
            found.append(("cannot take less", f"{held}, {short}{words}"))
        # What is weaker than its like says more than the class of its links.
        limits = [("meanwhile", meanwhile(self.meanwhile, self))]
        limits += [("weakest", self.weakest) if self.weakest else ("limited by", self.limited_by)]
        limits += [(IDLE_GPUS, f"{self.idle.words()} algorithm=blinkplus")] if self.idle else []
        return found + [(what, words) for what, words in (*limits, ("edited", "; ".join(self.edits))) if words]

    def why(self) -> str:
        """All that is known of the three figures: terms, bounds and what they assume, and the schedules considered."""
        made = f"  {self.details['basis']}: {read_words('basis')[self.details['basis']]}"
        lines = [self.text(), "", f"{self.library} takes", self.terms_table(), made]
        lines += [f"  NCCL's tuner expects (it picks the first): {self.expects}"] if self.expects else []
        if self.least is not None:
            lines += ["", "cannot take less", f"  {self.least.words}"]
            lines += [f"  it assumes: {self.least.assumes}"] if self.least.assumes else []
        return "\n".join((*lines, "", *([] if self.could is None else [COULD_TAKE, self.could.text()])))

    def __repr__(self) -> str:
        return self.text()


# What a least time assumes of schedules, in few words.
_HELD_FOR = read_words("held")


def meanwhile(other: Projection | None, now: Projection) -> str:
    """What to leave out until it is mended, and how, beside what it takes now; empty if there is nothing."""
    if other is None:
        return ""
    busbw = f"busbw {format_rate(other.busbw)}"
    if "set" in other.details:
        same = grouped((what, node) for node, what in other.details["set"].items())
        how = ", ".join(f"{what} on {names(nodes)}" for what, nodes in same.items())
        return f"leave out {names(other.details['left_out'])}, {how}: {format_time(other.time_s)}, {busbw}"
    few = count(len(other.members), "GPU")
    visible = f"CUDA_VISIBLE_DEVICES={','.join(name.strip('gpu') for name in other.members)}"
    # GPUs that stay idle compute nothing either.
    pays = other.busbw * len(other.members) > now.busbw * len(now.members)
    return f"{f'take {few}, {visible}' if pays else f'take all, as {few} compute less; these alone'}: {busbw}"


def held_at(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """At which rates the second and the third figure are, by what these are called; rows: of answers.

    Words such as `` at measured rates``; empty where both are at nominal ones, those of data sheets.
    """
    shown, keys = list(rows), {what: f"{what.replace(' ', '_')}_rates" for what in (COULD_TAKE, "cannot take less")}
    found = {what: dict.fromkeys(filter(None, (row.get(key) for row in shown))) for what, key in keys.items()}
    plain = {*chain(*found.values())} <= {NOMINAL}
    return {what: f" at {' or '.join(used)} rates" for what, used in found.items() if used and not plain}


def origins(told: Iterable[Mapping[str, Any]], by_size: bool = True) -> list[str]:
    """Where the times of rows come from, a line each, the largest sizes first; told: by ascending size.

    by_size: False where rows differ in more than their sizes, so that these do not tell which is of where.
    """
    guess, notes = f"{UNKNOWN.format('')}: ", list[str]()
    known = [(row["size_bytes"], guess * (row.get("basis") in GUESSES) + row["origin"]) for row in told]
    by_origin = grouped((origin, place) for place, (_, origin) in enumerate(known))
    if len(by_origin) > 1 and not by_size:
        some = ", some of them estimates" * any(one.startswith(guess) for one in by_origin)
        return [f"times from several sources{some}: each row of the CSV names its own"]
    # Sizes that follow each other are a range; others may lie between two ranges of an origin.
    for origin, places in [*reversed(by_origin.items())][:4]:
        runs = ([*run] for _, run in groupby(enumerate(places), lambda at: at[1] - at[0]))
        ends = ([format_size_about(known[place][0]) for _, place in (run[0], run[-1])] for run in runs)
        spans = dict.fromkeys(" to ".join(dict.fromkeys(both)) for both in ends)
        notes.append(f"from, {', '.join(spans)}: {origin}")
    return notes


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
    contest = contest or schedules(question, collective, sizes, report)
    forwarding = ceiling_of(part, collective) if grants else bound
    beside = idle_gpus(asked.question, part, collective, bound.rate)
    programs = _launches(asked.healthy if contest.on_links else None, collective, sizes)
    found, narrow, sent = [], weakest(asked.machine), sent_by(part, collective)
    spared = asked.spared(collective, sizes)
    for size, takes, other in zip(sizes, asked.times(asked.machine, collective, sizes), spared, strict=True):
        best, every = None, list[Projection]()
        if contest.candidates:
            # What the library sends by, where no launches of programs are counted.
            own = (*sent, takes.details["choice"].partition(" ")[0]) * (contest.on_links > bool(programs))
            best = _best(contest, size, own)
            for one in best.projections:
                # What is measured of links is no bound: a program may exceed what others have measured.
                longer = one.longer(*programs.get(size, ()))
                details = _limited(longer.details, contest.topology.of_nominal)
                stated = replace(longer, bound=bound if one.grants else forwarding, least=None, details=details)
                if (name := one.algorithm) in own and (
                    stated.time_s > takes.time_s
                    and (asked.nodes == 1 or takes.time_s >= asked.links(collective, size, [name]).terms[-1].time_s)
                ):
                    # The library sends in this way, on one node by several rings, between nodes if the
                    # busiest link can carry the bytes so quickly: links reach what its time shows.
                    stated = replace(stated, terms=takes.terms, rates=f"{asked.library}-reached")
                every.append(stated)
            best = replace(best, projections=tuple(sorted(every, key=attrgetter("time_s"))))
        given = {field.name: getattr(takes, field.name) for field in fields(takes)}
        given |= {"projected": _published_projection(asked.question, takes), "weakest": narrow}
        if asked.question.nodes < question.nodes:
            given["members"] = question.member_names(question.whole())
        found.append(Answer(**given, could=best, edits=asked.question.edits, beside=beside, meanwhile=other))
    return found


def _limited(details: Mapping[str, Any], of_nominal: Mapping[str, Fraction]) -> Mapping[str, Any]:
    """How busy classes are, at the rates of data sheets where one that nobody measured is busiest at these.

    Measured rates, which are lower, do not make others slower than that one.
    """
    nominal = {kind: share * float(of_nominal.get(kind, 1)) for kind, share in details.get("busy_by_class", {}).items()}
    busiest = max(nominal, key=nominal.__getitem__, default="")
    less = nominal and of_nominal.get(busiest, 1) == 1 and nominal[busiest] < details["bottleneck_busy"]
    return {**details, "busy_by_class": nominal, "busy_rates": "nominal"} if less else details


def project(
    machine: Question | MachineLike,
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
    machine : str, path, Topology or Question
        A name of the catalogue, a machine file, a topology, or the part of a question. Of a whole
        machine the default members and links take part; `blinksim.load` gives several nodes, or an edited
        one, and `Topology.select` some of the GPUs.
    collective : str or Collective
        Such as ``"allreduce"``.
    size : int or str
        Bytes, or text such as ``"256MiB"``. Default: that of the traffic matrix or routing, where there is one.
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
    >>> two_nodes = bs.project(bs.load("hgx-h100", nodes=2), "allreduce", "14GB")
    >>> four_gpus = bs.project(bs.load("hgx-h100").select([0, 1, 2, 3]), "allreduce", "14GB")
    >>> len(two_nodes.members), len(four_gpus.members)
    (16, 4)
    >>> ring = bs.project("dgx1-v100", "allreduce", "256MiB", algorithm="ring")
    >>> round(ring.algbw_GBps, 1)
    84.7
    """
    topology, wanted = as_topology(machine), Collective.of(collective)
    wanted.check_ranks(topology.ranks)
    if size is None and wanted.data is None:
        raise InputError(f"{wanted} has no size of its own; give size=, such as size='64MiB'")
    count = size_of(wanted.data.size if size is None and wanted.data else size or 0)
    if algorithm is None and model is None and not gamma:
        return answer(topology, wanted, [count])[0]
    algorithm = algorithm or BEST
    model = (models.chooser(algorithm) or models.DEFAULT) if model in (None, models.DEFAULT) else model
    timing = models.model(model, **({"gamma": gamma} if gamma else {})) if isinstance(model, str) else model
    if gamma and timing is model:
        raise InputError("gamma is a setting of a model; give it to the one that you made")
    return rank(topology, wanted, count, timing, algorithm).best


def schedules(
    question: Question, collective: Collective, sizes: Sequence[int], report: Say | None = None, only_best: bool = True
) -> Contest:
    """Schedules at measured rates, timed as programs where the constants of those are known, else on the links.

    Without candidates, and with the reason as why `best` is refused, if there are none. only_best: as in `Contest`.
    """
    part = replace(question.preferring_known(MEASURED), collective=collective).part()
    model = models.schedule_model(LINKS_ONLY if uncovered(part) else "execution-closed")
    try:
        return model.contest(part, collective, None, report, sizes, only_best=only_best)
    except InfeasibleError as error:
        return Contest(part, collective, model, ceiling_of(part, collective), refused={BEST: str(error)})


def _launches(healthy: Library | None, collective: Collective, sizes: Sequence[int]) -> dict[int, tuple[Term]]:
    """What programs take longer than the links say, by size; empty where nothing is known of programs.

    Edits of links leave that as it is: without it fewer links would take less time.
    """
    if healthy is None:
        return {}
    if healthy.healthy is not None:
        return _launches(healthy.healthy, collective, sizes)
    question = healthy.question
    part = replace(question.preferring_known(MEASURED), collective=collective).part()
    if uncovered(part) or not (run := schedules(question, collective, sizes)).candidates:
        return {}
    sent = models.schedule_model(LINKS_ONLY).contest(part, collective, None, None, sizes, only_best=True)
    more = {size: _best(run, size).best.time_s - sent.answers(size, best=True)[0].time_s for size in sizes}
    return {size: (Term("launches and flags", max(0.0, time_s), "launch"),) for size, time_s in more.items()}


def simulating(contest: Contest) -> Contest:
    """The same contest by simulations of programs where `schedules` takes their closed form."""
    if contest.on_links:
        return contest
    return replace(contest, model=models.schedule_model("execution").on(contest.topology))


def _slower(contest: Contest, found: Iterable[Projection]) -> tuple[str, ...]:
    """Those of a contest that have no projection, as they are slower than others for sure."""
    return (*contest.candidates.keys() - {one.algorithm for one in found},)


def _best(contest: Contest, size: int, beside: Sequence[str] = ()) -> Ranking:
    """The quickest schedule of a contest; programs that the formula finds about as quick are simulated.

    beside: what is timed as well.
    """
    found = tuple(simulating(contest).answers(size, best=True, beside=beside))
    return Ranking(found, BEST, None, contest.refused, (), contest.left_out, slower=_slower(contest, found))


def _published_projection(question: Question, takes: Projection) -> Projection | None:
    """What the preset of this machine says, where there is one that covers the question.

    It may place ranks on other GPUs. None for edits of nominal bandwidths, which are not in its terms.
    """
    name, nominal = f"{takes.machine}-projection", any("bandwidth" in edit for edit in question.edits)
    if name in models.preset_names() and not (nominal and question.rates is None):
        # The first ranks of every node, or those that it places itself, however they are named.
        each = len(takes.members) // takes.details["nodes"]
        placed = replace(question, rates=None, members=None, ranks_per_node=each)
        with suppress(BlinksimError):
            found, own = rank(placed, takes.collective, takes.size, name).best, question.member_names(question.whole())
            if tuple(own) in (tuple(placed.member_names(placed.whole())), found.members):
                return found
    return None
