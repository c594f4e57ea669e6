"""Comparisons: algorithms against message sizes, with crossovers; the same by several models; machines and buckets.

NCCL's tuner knows rings and trees with its own channels (`blinksim.nccl.tuner.tuner`); its two trees mirror
each other, so it is compared with ``double_binary``. Where models differ much, an assumption of one does not
hold there.

Machines side by side, and many calls in place of one, are by the time that libraries take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise, product
from typing import Any

from blinksim.algorithms.registry import REGISTRY, AlgorithmName
from blinksim.answers.project import UNKNOWN, Answer, answer, contest, held_at, origins, schedules, simulating
from blinksim.collective import Collective, CollectiveLike
from blinksim.errors import InfeasibleError, InputError
from blinksim.graphs.connectivity import grouped
from blinksim.machines import NOMINAL, MachineLike, Question, as_topology
from blinksim.results import Result, count, keyed, refused_words, table
from blinksim.timing import model_registry
from blinksim.timing.contest import CandidateLike, Contest, each
from blinksim.timing.library_model import GUESSES, SHARE, Library
from blinksim.timing.model_registry import DEFAULT, ScheduleModelName
from blinksim.timing.projection_result import Projection, labelled, left_out_words, part_lines
from blinksim.timing.timing_model import ScheduleModel, TimingModel
from blinksim.topology.graph import Topology
from blinksim.units import SIZES, Sizes, format_rate, format_size, format_size_about, format_time, size_of, sizes_of

# Algorithms that stand beside each other on a line of 80 characters.
_COLUMNS = 5
_FOR_THE_SIZE = "for the size"
# What a size takes, its interval, and what it could take.
_FIGURES = "takes_s=time_s takes_low_s=low_s takes_high_s=high_s could_take_s=could.best.time_s"
# What rows say of programs, where some are timed.
_OF_A_RUN = ("protocol", "calls")


@dataclass(frozen=True)
class Crossover:
    """From `size` bytes on, `faster` is quicker than `slower`, which led before.

    To the byte, of programs to 2 %.
    """

    size: int
    slower: str
    faster: str


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result):
    """Projections of every algorithm at every size.

    Attributes
    ----------
    topology : Topology
        The part that takes part.
    collective : Collective
        What runs.
    sizes : tuple of int
        Bytes, ascending.
    timed : callable
        Gives `projections`, which the rows need: the answers need the quickest alone, which are sooner known.
    refused : dict
        The reason, by algorithm, for those that cannot run here.
    left_out : dict
        The reason, by algorithm, for those that were not tried.
    contest : Contest
        What times the algorithms at further sizes.
    made : dict
        Simulated projections of schedules that were made for one size, by size in bytes.
    answers : tuple of Answer
        The three figures for each size, if neither algorithms nor a model were named.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.compare("dgx1-v100", "allreduce", ["1KiB", "1GiB"], ["ring", "recursive_doubling"])
    >>> [(change.faster, change.size) for change in found.crossovers]
    [('ring', 595201)]
    >>> found.to_frame().pivot(index="size_bytes", columns="algorithm", values="busbw_GBps").shape
    (2, 2)
    """

    topology: Topology
    collective: Collective
    sizes: tuple[int, ...]
    timed: Callable[[], Iterable[tuple[Projection, ...]]]
    refused: dict[str, str]
    left_out: dict[str, str]
    contest: Contest
    made: dict[int, Projection] = field(default_factory=dict)
    answers: tuple[Answer, ...] = ()

    @cached_property
    def projections(self) -> tuple[tuple[Projection, ...], ...]:
        """One tuple for each size, quickest first."""
        return tuple(self.timed())

    @cached_property
    def crossovers(self) -> tuple[Crossover, ...]:
        """Where the lead changes, looked for when asked."""
        crossovers, width = list[Crossover](), self.contest.model.crossover_precision
        for before, after in pairwise(self.best()):
            slower, faster = before.algorithm, after.algorithm
            if slower == faster:
                continue
            # The size at which the algorithm that wins at the larger one overtakes, by bisection.
            pair, low, high = self.contest.only(slower, faster), before.size, after.size
            while high - low > max(1, high // (width or after.size)):
                middle = (low + high) // 2
                times = {one.algorithm: one.time_s for one in pair.projections(middle, best=True)}
                low, high = (middle, high) if times[slower] <= times[faster] else (low, middle)
            crossovers.append(Crossover(high, slower, faster))
        return tuple(crossovers)

    @cached_property
    def least_s(self) -> dict[int, float]:
        """The bound on the time of all algorithms by size, seconds; of the sizes at which each has one."""
        rows: Any = [(one,) for one in self.answers] or self.projections
        known = [row for row in rows if all(one.least for one in row)]
        return {row[0].size: min(one.least.time_s for one in row) for row in known}

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Names, quickest at the largest size first."""
        return tuple(projection.algorithm for projection in self.projections[-1])

    @property
    def rates(self) -> str:
        """The rates behind the rows, in words; a library's own choice has rates of its own."""
        if not self.best():
            return ""
        by_table = grouped((one.rates, one.algorithm) for one in self.projections[-1])
        most, *others = sorted(by_table, key=lambda table: -len(by_table[table]))
        return ", but ".join([f"{most} rates", *(f"{', '.join(by_table[one])} at {one} rates" for one in others)])

    def best(self) -> tuple[Projection, ...]:
        """The quickest projection for each size; empty if no schedule is known."""
        known: Any = [one.could and one.could.projections for one in self.answers] or self.projections
        return tuple(found[0] for found in known if found)

    def rows(self) -> list[dict[str, Any]]:
        """One row per size and algorithm, with units in the keys; NCCL's own choice adds columns.

        ``time_s`` is what the row's algorithm takes by the row's model. Rows of programs say their protocol, and
        whether calls follow each other or are apart; those of `answers` the three figures at their size, also
        where no schedule is known: ``takes_s`` is what the library takes.
        """
        if not self.best():
            return [{"size_bytes": one.size, **one.row()} for one in self.answers]
        figures = {one.size: keyed(one, f"{_FIGURES} cannot_take_less_s=least.time_s") for one in self.answers}
        # NCCL's own choice is among the algorithms.
        picked = any(one.pick for one in self.projections[-1])
        run = [key for key in _OF_A_RUN if any(key in one.details for found in self.projections for one in found)]
        rows = []
        for place, one in [entry for found in self.projections for entry in enumerate(found)]:
            row = {"size_bytes": one.size, **Projection.row(one), "model": one.model, "best": place == 0}
            row |= {key: one.details.get(key) for key in run} | ({"nccl_takes": one.pick} if picked else {})
            rows.append(row | figures.get(one.size, {}))
        return rows

    def envelope(self) -> list[dict[str, Any]]:
        """One row per size: the quickest, the bound on the time, its share, and what was made for that size alone.

        Keys: size_bytes; algorithm and time_s where a schedule is known; time_bound_s and share (of the time)
        where a bound is; made_algorithm and made_s where a schedule was made for the size; takes_s, takes_low_s,
        takes_high_s and could_take_s where the figures are those of `answers`.
        """
        found, answers = list[dict[str, Any]](), {one.size: one for one in self.answers}
        for size, projections in zip(self.sizes, self.projections, strict=True):
            figures, best, least = answers.get(size), next(iter(projections), None), self.least_s.get(size)
            share = None if best is None or least is None else least / best.time_s
            row = keyed(best, "algorithm? time_s? time_bound_s? share?", time_bound_s=least, share=share)
            row |= keyed(self.made.get(size), "made_algorithm?=algorithm made_s?=time_s")
            found.append({"size_bytes": size, **row, **keyed(figures, _FIGURES.replace("=", "?="))})
        return found

    def to_dict(self) -> dict[str, Any]:
        """The rows, the crossovers, the envelope, and the reasons of the algorithms that were refused or left out."""
        changes = [keyed(change, "size_bytes=size slower faster") for change in self.crossovers]
        values = {"rows": self.rows(), "envelope": self.envelope(), "considered": sorted(self.algorithms)}
        return keyed(self, "@Comparison", crossovers=changes, **values)

    def sentence(self) -> str:
        """The answer in one line."""
        if self.answers:
            last = self.answers[-1]
            takes, could, least = last.times()
            known = f", {last.unbeaten}" if last.unbeaten else "" if could == "-" else f", could take {could}"
            known += "" if least == "-" else f", cannot take less than {least}"
            takes = f"{format_size_about(last.size)} takes {takes} with {last.library}{known}"
            return f"{self.collective} on {last.taking_part}: {takes}"
        best = self.best()
        changes = [f"{x.faster} from {format_size_about(x.size)}" for x in self.crossovers]
        where = f" is quickest at small sizes, {', '.join(changes)}" if changes else " is quickest throughout"
        where = where if len(self.algorithms) > 1 else ""
        rate = f"{best[-1].algbw_GBps:.4g} GB/s at {format_size(best[-1].size)}"
        plain = {(one.model, one.rates) for one in best} == {("alpha-beta", NOMINAL)}
        how = ", at nominal (data-sheet) rates, without launches" if plain else ""
        return f"{self.collective} on {self.topology.title}: {best[0].algorithm}{where}; {rate}{how}"

    def text(self, edits: Sequence[str] = ()) -> str:
        """The sentence, and algbw by size of the algorithms that lead or come close. edits: of the machine."""
        if self.answers:
            notes = [f"  {line}" for line in origins({"size_bytes": x.size, **x.row()} for x in self.answers)]
            held = held_at(map(Answer.row, self.answers))
            if said := dict.fromkeys(one.could.best.runs_as for one in self.answers if one.could):
                held["could take"] = f"{held.get('could take', '')}, {' or '.join(said)}"
            notes.append("  " + ", ".join(map("".join, held.items())))
            # A line for every size: what the library takes, and what the links could and must take.
            head = ("size", f"with {self.answers[0].library}", "busbw", SHARE, "could take", "by", "cannot take less")
            rows = []
            for one in self.answers:
                takes, could, least = one.times()
                ends = f"{format_time(one.low_s)} to {format_time(one.high_s)}"
                by, size = "-" if one.could is None else one.could.best.algorithm, format_size_about(one.size)
                rows.append((size, takes, format_rate(one.busbw), ends, could, by, least))
            return "\n".join((self.sentence(), "", table(head, rows, left=(5,)), "", *notes)).rstrip()
        shown, slower = columns(self.projections, self.contest.named)
        every = [projection for found in self.projections for projection in found]
        models = list(dict.fromkeys(one.model for one in every if one.algorithm in shown))
        quicker = dict.fromkeys(one.model for one in every if one.algorithm in slower and one.model not in models)
        by = f", where slow by {', '.join(quicker)}" if quicker else ""
        marked = ", the quickest marked *" if len(self.algorithms) > 1 or self.made else ""
        lines = [self.sentence(), f"\n  algbw in GB/s{marked}\n", self._table(shown) + "\n"]
        lines += [f"  slower: {', '.join(slower)} (as CSV: all{by})"] if slower else []
        if self.made:
            # What schedules that were made for one size gain.
            best = {one.size: one.time_s for one in self.best()}
            made = ", ".join(dict.fromkeys(one.algorithm for one in self.made.values()))
            gains = {size: best[size] / one.time_s for size, one in self.made.items() if one.time_s < best[size]}
            at = f"at {', '.join(map(format_size, gains))}, up to {max(gains.values()):.3g} times" if gains else ""
            lines.append(f"  {_FOR_THE_SIZE}: {made}; {f'quicker {at}' if gains else 'nowhere quicker'}")
        lines += part_lines(self.topology, f"; model {', '.join(models)}", edits, self.rates)
        # The quickest was simulated, and so states errors, where slower ones are by the closed form.
        conditions = dict(pair for found in self.projections for one in reversed(found) for pair in one.conditions)
        lines += [f"  {label} {words}" for label, words in conditions.items()]
        told = ((one.least, self.least_s.get(one.size)) for one in (*self.answers, *every))
        assumed = dict.fromkeys(one.assumes for one, least in told if one and one.time_s == least and one.assumes)
        lines += [f"  at least: it assumes {' or '.join(assumed)}"] * bool(assumed)
        if len({projection.rates for projection in self.projections[-1]}) > 1:
            lines.append("  rates= takes one table for all")
        lines += [f"  {words}" for words in refused_words(self.refused)]
        lines += [f"  left out: {words}" for words in left_out_words(self.left_out)]
        return "\n".join(lines)

    def _table(self, shown: Sequence[str]) -> str:
        """A line for every size: the best time, the bound and its share of that, what was made, and some rates."""
        mark = "*" if len(self.algorithms) > 1 or self.made else ""
        rows = list[dict[str, str]]()
        for projections in self.projections:
            made, least = self.made.get(projections[0].size), self.least_s.get(projections[0].size)
            leader = min(projections[0], made or projections[0], key=lambda one: one.time_s)
            cells = {"size": format_size_about(leader.size), "best time": format_time(leader.time_s)}
            if self.least_s:
                reached = f"{100 * least / leader.time_s:.0f} %" if least else ""
                cells |= {"at least": format_time(least) if least else "", "reached": reached}
            if self.made:
                cells[_FOR_THE_SIZE] = f"{'*' if leader is made else ''}{made.algbw_GBps:.4g}" if made else "-"
            rate = {one.algorithm: f"{mark * (one is leader)}{one.algbw_GBps:.4g}" for one in projections}
            cells |= {name: rate[name] for name in shown}
            pick = next(filter(None, (one.pick for one in projections)), "")
            cells |= {"NCCL takes": pick} if pick else {}
            rows.append(cells)
        head = list(rows[-1])
        left = {0, len(head) - 1} if head[-1] == "NCCL takes" else {0}
        return table(head, [[cells.get(name, "") for name in head] for cells in rows], left=left)


def columns(found: Sequence[Sequence[Projection]], named: bool, most: int = 0) -> tuple[list[str], list[str]]:
    """Algorithms to be shown, and the others: those that lead somewhere, then, up to `most` in all, those that come
    closest at the largest size; all of them if they were `named`, and no `most` is given."""
    leaders = list(dict.fromkeys(projections[0].algorithm for projections in reversed(found)))
    names = [*leaders, *(one.algorithm for one in found[-1] if one.algorithm not in leaders)]
    shown = max(most or (len(names) if named else _COLUMNS), len(leaders))
    return names[:shown], names[shown:]


def compare(
    machine: Question | MachineLike,
    collective: CollectiveLike,
    sizes: Sizes | None = None,
    algorithms: Iterable[AlgorithmName | CandidateLike] | str | None = None,
    report: Callable[[str], None] | None = None,
    others: Mapping[str, Callable[[int], Projection]] | None = None,
    model: ScheduleModelName | str | ScheduleModel | Library | None = None,
    search: float | None = None,
) -> Comparison:
    """Time algorithms at many sizes, and find where the lead changes.

    Parameters
    ----------
    machine : str, path or Topology
        A name of the catalogue, a machine file, or a topology. Of a whole machine the default members take
        part.
    collective : str or Collective
        Such as ``"allreduce"``.
    sizes : iterable of int or str, or str, optional
        Bytes, or text such as ``"1MiB"``; as a single text ``"1KiB:1GiB:x4"`` or ``"1MiB,3MiB"``
        (`parse_sizes`). Default: 1 KiB to 1 GiB, doubling (`SIZES`).
    algorithms : sequence of str, path or Schedule, or str, optional
        Names, also as text such as ``"ring,chain"``; schedules, or files of schedules, own and of MSCCL,
        which must fit the machine. Default: all that are found quickly (`blinksim.timing.contest`).
    report : callable, optional
        Called with a progress message.
    others : mapping, optional
        What models without a schedule answer for a size, by name, such as what NCCL would choose
        (`blinksim.timing.nccl_model.NcclTuner`).
    model : str or ScheduleModel
        ``alpha-beta``, ``execution`` or ``simulate``; ``auto`` is ``execution`` where the machine's constants
        are known, else ``alpha-beta``.
    search : float, optional
        Also search, this many seconds for each size, a schedule that is made for it (`Comparison.made`),
        where the links alone are counted. Where one is found, all are simulated.

    Returns
    -------
    Comparison
        A projection of every algorithm at every size, and the crossovers.

    Raises
    ------
    InputError
        For unknown names, and for sizes that are no whole number of bytes.
    InfeasibleError
        If none of the named algorithms can run here.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.compare("dgx1-v100", "allreduce", ["1KiB", "256MiB"], ["ring", "recursive_doubling"])
    >>> [projection.algorithm for projection in found.best()]
    ['recursive_doubling', 'ring']
    >>> own = bs.synthesize("dgx1-v100", "allreduce", "chains").schedule
    >>> bs.compare("dgx1-v100", "allreduce", ["64MiB"], ["ring", own]).algorithms
    ('ring', 'chains (given)')
    """
    ordered = sizes_of(SIZES if sizes is None else sizes)
    if isinstance(model, Library) or (algorithms is None and model is None and search is None and not others):
        asked, wanted = machine if isinstance(machine, Question) else Question(machine), Collective.of(collective)
        every = schedules(asked, wanted, ordered, report, only_best=False)
        figures = partial(answer, asked, wanted, ordered, report, model)
        rivals = replace(every, only_best=True)
        said = rivals.refused, rivals.left_out, simulating(every)
        timed = partial(lambda of: [one.could.projections if one.could else () for one in figures(of)], every)
        return Comparison(rivals.topology, wanted, ordered, timed, *said, answers=tuple(figures(rivals)))
    rivals = contest(machine, collective, algorithms, report, model or DEFAULT, sizes=ordered)
    rivals.others |= others or {}
    if search is None:
        return compared(rivals, ordered, report)
    from blinksim.answers.synthesize import by_simulation, made_for

    rivals.check_on_links("search=")
    made = made_for(rivals, ordered, search, report)
    found = compared(by_simulation(rivals) if made else rivals, ordered, report)
    searched = [] if made else [entry.name for entry in REGISTRY.values() if "size" in entry.options()]
    nothing = dict.fromkeys(searched, f"no schedule for a size within {search:g} s")
    return replace(found, made=made, left_out=found.left_out | nothing)


def compared(rivals: Contest, ordered: tuple[int, ...], report: Callable[[str], None] | None = None) -> Comparison:
    """The candidates at many sizes (bytes, ascending), and where the lead changes."""
    shown, found, say = set[str](), list[tuple[Projection, ...]](), report or (lambda _: None)
    for size in ordered:
        say(f"timing {format_size(size)}")
        found.append(tuple(rivals.answers(size, best=True)))
    # Those that are shown are not by a quicker model in place of the one in force.
    while not shown.issuperset(wanted := columns(found, rivals.named)[0]):
        shown.update(wanted)
        for place, projections in enumerate(found):
            cheaper = {one.algorithm for one in projections if one.model != rivals.model.name}
            again = cheaper & shown & rivals.candidates.keys()
            full = rivals.only(*again).answers(ordered[place]) if again else []
            others = [one for one in projections if one.algorithm not in again]
            found[place] = tuple(sorted((*full, *others), key=lambda projection: projection.time_s))
    part, collective, refused = rivals.topology, rivals.collective, rivals.refused
    return Comparison(part, collective, ordered, lambda: found, refused, rivals.left_out, rivals)


@dataclass(frozen=True, repr=False)
class Models(Result):
    """The times of the same algorithms by several models, from `across_models`.

    Attributes
    ----------
    topology : Topology
        The part that takes part.
    collective : Collective
        What runs.
    sizes : tuple of int
        Bytes, ascending.
    algorithms, models : tuple of str
        As asked.
    found : dict
        Projections by size, algorithm and model; those without an answer are left out.
    refused : dict
        Their reasons, by algorithm and model.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.across_models("dgx1-v100", "allreduce", ["1MiB"], ["alpha-beta", "nccl-tuner"], ["ring"])
    >>> found.sentence()
    'allreduce on dgx1-v100: the same algorithm by alpha-beta, nccl-tuner'
    """

    topology: Topology
    collective: Collective
    sizes: tuple[int, ...]
    algorithms: tuple[str, ...]
    models: tuple[str, ...]
    found: dict[tuple[int, str, str], Projection]
    refused: dict[str, str]

    def rows(self) -> list[dict[str, Any]]:
        """One row per size, algorithm and model; ratio: its time over that of the first model."""
        rows, keys = [], "size_bytes=size algorithm model time_s algbw_GBps=algbw busbw_GBps=busbw rates"
        for size, name, model in product(self.sizes, self.algorithms, self.models):
            first = self.found.get((size, name, self.models[0]))
            if one := self.found.get((size, name, model)):
                ratio = one.time_s / first.time_s if first else None
                rows.append(keyed(one, f"{keys} ratio", algorithm=name, model=model, ratio=ratio))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The rows, and the refused pairs of algorithm and model with the reasons."""
        return {"collective": self.collective.name, "rows": self.rows(), "refused": self.refused}

    def sentence(self) -> str:
        """The subject of the comparison in one line."""
        return f"{self.collective} on {self.topology.title}: the same algorithm by {', '.join(self.models)}"

    def text(self, edits: Sequence[str] = ()) -> str:
        """One line per size and algorithm: algbw by each model, and the time over that of the first.

        edits: of the machine.
        """
        header = ["size", "algorithm", self.models[0]]
        header += [word for model in self.models[1:] for word in (model, "time")]
        timed = {(row["size_bytes"], row["algorithm"], row["model"]): row for row in self.rows()}
        cells = []
        for size, name in product(self.sizes, self.algorithms):
            line = [format_size(size), name]
            for model in self.models:
                row: dict[str, Any] = timed.get((size, name, model), {})
                line.append(f"{row['algbw_GBps']:.4g}" if row else "-")
                line.append(f"{row['ratio']:.2f}x" if row.get("ratio") else "-")
            # The first model stands beside itself.
            cells.append([*line[:3], *line[4:]])
        what = "\n  algbw in GB/s, and the time over that of the first model\n"
        lines = [self.sentence(), what, table(header, cells, left=(1,)) + "\n"]
        lines += part_lines(self.topology, edits=edits)
        lines += [f"  {what}: {reason}" for what, reason in self.refused.items()]
        return "\n".join(lines)


def across_models(
    machine: MachineLike,
    collective: CollectiveLike,
    sizes: Sizes,
    models: Sequence[model_registry.ModelName | str | TimingModel] | None = None,
    algorithms: Sequence[AlgorithmName | str] | str = ("ring", "double_binary"),
    report: Callable[[str], None] | None = None,
) -> Models:
    """Time the named algorithms by each model.

    Parameters
    ----------
    machine : str, path or Topology
        A name of the catalogue, a machine file, or a topology, whole or as `Topology.select` gives it.
    collective : str or Collective
        Such as ``"allreduce"``.
    sizes : iterable of int or str, or str
        Bytes, or text such as ``"1MiB"`` or ``"1KiB:1GiB:x4"``.
    models : sequence of str or TimingModel, optional
        Default: all that time schedules. ``nccl-tuner`` needs a whole machine; for a selection give a
        `blinksim.timing.nccl_model.NcclTuner` that knows the machine.
    algorithms : sequence of str
        Names that the models know.
    report : callable, optional
        Called with a progress message.

    Returns
    -------
    Models
        A projection for each size, algorithm and model that has one.

    Raises
    ------
    InputError
        For unknown names.
    InfeasibleError
        If no model has an answer.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.across_models("dgx1-v100", "allreduce", ["256MiB"], ["alpha-beta", "simulate"], ["ring"])
    >>> [(row["model"], round(row["ratio"], 2)) for row in found.rows()]
    [('alpha-beta', 1.0), ('simulate', 1.0)]
    """
    topology, chosen = as_topology(machine), Collective.of(collective)
    ordered = sizes_of(sizes)
    if models is None:
        # All that time schedules there, each by its own name.
        others = {DEFAULT, "execution-closed", *(() if topology.execution is not None else ("execution",))}
        models = [name for name in model_registry.schedule_models() if name not in others]
    if not models or not algorithms:
        raise InputError("no models or algorithms to compare")
    known = model_registry.MODELS
    checked = [model_registry.check(one, known) if isinstance(one, str) else one for one in models]
    timing = [model_registry.model(one) if isinstance(one, str) else one for one in checked]
    names = tuple(dict.fromkeys(str(name).strip() for name in each(algorithms)))
    found, refused = dict[tuple[int, str, str], Projection](), dict[str, str]()
    say = report or (lambda _: None)
    for model, name in product(timing, names):
        say(f"{name} by {model.name}")
        try:
            timed = model.times(topology, chosen, ordered, [name])
        except InfeasibleError as error:
            refused[f"{name}, {model.name}"] = str(error)
            continue
        found |= {(projection.size, name, model.name): projection for projection in timed}
    if not found:
        raise InfeasibleError("; ".join(refused.values()))
    shown = tuple(model.name for model in timing)
    return Models(topology.selected(), chosen, ordered, names, shown, found, refused)


# What is known of a machine's times.
_KNOWN = ("origin", "library", "choice")
# What the times of a machine are held to, by whether any were published.
_HELD_BY = {True: "published times count", False: "models alone"}
# Calls together may take so many times as long as the quickest, to be called as good.
_AS_GOOD = 1.1


@dataclass(frozen=True, repr=False)
class MachineComparison(Result):
    """What a collective takes on several machines, with their libraries.

    Attributes
    ----------
    collective : Collective
        What runs.
    answers : mapping
        The answers by size, by machine.
    prices : mapping
        What a node costs an hour, by machine, where that was given.
    refused : mapping
        The reasons, by machine, where nothing is known of one.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.compare_machines(["p5", "p5en"], "allreduce", ["1GiB"], nodes=2, prices={"p5": 55.0})
    >>> [row["busbw_per_price"] is not None for row in found.rows()]
    [True, False]
    """

    collective: Collective
    answers: Mapping[str, tuple[Answer, ...]]
    prices: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """One row per machine and size; busbw_per_price: GB/s for each unit of price an hour of a GPU."""
        rows = []
        for name, one in [(name, one) for name, answers in self.answers.items() for one in answers]:
            row = {"machine": name, "size_bytes": one.size, "ranks": len(one.members), **one.row()}
            rows.append(row | {"busbw_per_price": self._worth(name, one)})
        return rows

    def _worth(self, name: str, one: Answer) -> float | None:
        price = self.prices.get(name)
        # busbw is that of one GPU.
        return None if price is None else one.busbw_GBps * len(one.members) / (price * one.details["nodes"])

    def to_dict(self) -> dict[str, Any]:
        """The rows, the reasons of machines without any, and why times are not like with like, if they are not."""
        return keyed(self, "collective=collective.name rows refused caveat?", rows=self.rows())

    @property
    def caveat(self) -> str:
        """Why the times at the largest size are not like with like; empty if they are.

        Of machines whose bound is above the times of the quickest one it makes no difference.
        """
        last = {name: answers[-1] for name, answers in self.answers.items()}
        most_s = next(iter(self._first(-1).values())).high_s
        near = {name: one for name, one in last.items() if one.least is None or one.least.time_s <= most_s}
        held = grouped((_HELD_BY[one.details["published"]], name) for name, one in near.items())
        words = "; ".join(f"{how} for {', '.join(same)}" for how, same in held.items())
        return f"not like with like: {words}; do not choose by this difference" * (len(held) > 1)

    def _first(self, at: int, worth: Mapping[str, float] | None = None) -> dict[str, Answer]:
        """The answers for a size of what takes least, and of what intervals do not tell from it.

        worth: by what the times of each machine are divided; default: by 1.
        """
        took = {name: answers[at] for name, answers in self.answers.items()}
        by = worth or dict.fromkeys(took, 1.0)
        first, *slower = sorted(took, key=lambda name: took[name].time_s / by[name])
        # An interval that holds the time of the other one; those that merely touch leave few runs in doubt.
        time_s, high_s = took[first].time_s / by[first], took[first].high_s / by[first]
        near = (one for one in slower if took[one].low_s / by[one] < time_s or took[one].time_s / by[one] < high_s)
        return {name: took[name] for name in (first, *near)}

    def sentence(self) -> str:
        """The answer in one line: the quickest at the largest size, or those that intervals do not tell apart."""
        last = {name: answers[-1] for name, answers in self.answers.items()}
        first, *others = near = self._first(-1)
        several = len({len(one.members) for one in last.values()}) > 1
        parts = {name: f"{len(one.members)} {one.details.get('unit', 'GPU')}s" for name, one in last.items()}
        called = {name: f"{name} ({parts[name]})" if several else name for name in last}
        asked = f"{self.collective} of {format_size(last[first].size)}"
        clear = ((tuple(self._first(at)), format_size(one.size)) for at, one in enumerate(self.answers[first]))
        leads = grouped(row for row in clear if row[0][1:] == () and row[0][0] != first)
        money = "".join(f"; at {', '.join(of)} {name}" for (name,), of in leads.items())
        money += f"; {self.best_for_money()}" if self.prices.keys() >= last.keys() else ""
        if self.caveat:
            listed = (near if others else last).items()
            each = ", ".join(f"{called[name]} {format_time(one.time_s)}" for name, one in listed)
            return f"{asked}: no clear winner: {each}; {self.caveat}"
        if not others:
            took = f"{format_time(last[first].time_s)} with {last[first].library}"
            return f"{asked}: {called[first]} is quickest, {took}{money}"
        *more, final = (f"{called[name]} {format_time(one.time_s)}" for name, one in near.items())
        return f"{asked}: no clear winner: {', '.join(more)} or {final}, as intervals overlap{money}"

    def text(self) -> str:
        """The sentence, and a table by size."""
        rows, marks, last = [], list[bool](), {name: answers[-1] for name, answers in self.answers.items()}
        for at, _ in enumerate(next(iter(self.answers.values()))):
            # Where any may take least, a mark tells nothing.
            marked = [*self._first(at)] * (len(self._first(at)) < len(self.answers))
            marks.append(bool(marked))
            for name, answers in self.answers.items():
                one, worth = answers[at], self._worth(name, answers[at])
                ends, takes = f"{format_time(one.low_s)} to {format_time(one.high_s)}", format_time(one.time_s)
                takes += ("  ", " *")[name in marked]
                ranks = f"{len(one.members)} {one.details.get('unit', '')}s".removesuffix(" s")
                row = [format_size(one.size), name, ranks, takes, ends, format_rate(one.busbw)]
                held = one.details.get("held_to")
                row += [f"held to {held}" if held else str(one.details["basis"])]
                rows.append([*row, "-" if worth is None else f"{worth:.4g}"][: 7 + bool(self.prices)])
        head = ["size", "machine", "GPUs", "takes  ", f"{SHARE} runs", "busbw", "from", "GB/s per unit of price"]
        notes = ["  * may take least" + "; of a size without one, any may" * (not all(marks))] * any(marks)
        notes += [f"  {words}" for words in refused_words(self.refused)]
        guess = f"  from {' or '.join(GUESSES)}: {UNKNOWN.format('')}"
        vague = any(row[6] in GUESSES for row in rows)
        notes += [f"{guess}: an interval that holds another time ranks no machines"] * vague
        # A newer machine may be slower by what its library picks, or as only times of the older one are published.
        told = grouped((tuple(map(one.details.get, _KNOWN)), name) for name, one in last.items())
        for (origin, *by), same in told.items():
            notes.append(f"  from, {', '.join(same)}: {origin}{f'; {by[0]} picks {by[1]}' * bool(by[1])}")
        alike = grouped((tuple(one.times()[0] for one in found), name) for name, found in self.answers.items())
        for same in alike.values():
            could = (f"{last[name].times()[1]} at {last[name].row()['could_take_rates']} rates" for name in same)
            what = f"{', '.join(same)}: nothing known tells their times apart"
            notes += [f"  {what}; could take {', '.join(could)}"] * (len(same) > 1)
        if self.prices:
            unpriced = [name for name in self.answers if name not in self.prices]
            none = f"; no price of {', '.join(unpriced)}" * bool(unpriced)
            notes.append(f"  GB/s per unit of price: busbw over what a GPU costs an hour{none}")
        return "\n".join((self.sentence(), "", table(head[: len(rows[0])], rows, left=(1, 6)), *notes))

    def best_for_money(self) -> str:
        """Which machine has most GB/s for its price at the largest size, and whether intervals tell it from others."""
        last = {name: answers[-1] for name, answers in self.answers.items()}
        worth = {name: (self._worth(name, one) or 0.0) * one.time_s for name, one in last.items()}
        best, *near = self._first(-1, worth)
        others = f"{'those' if near[1:] else 'that'} of {', '.join(near)}"
        overlap = f", but intervals do not tell it from {others}" if near else ""
        return f"{best} has most for the money{overlap}"


def compare_machines(
    machines: Sequence[Question | MachineLike],
    collective: CollectiveLike,
    sizes: Sizes | None = None,
    *,
    nodes: int = 1,
    prices: Mapping[str, float] | None = None,
    library: Library | None = None,
) -> MachineComparison:
    """What a collective takes on several machines.

    Parameters
    ----------
    machines : sequence of Question, str, path or Topology
        As for `project`, at least two.
    collective : str or Collective
        Such as ``"allreduce"``.
    sizes : iterable of int or str, or str, optional
        As for `compare`. Default: 1 KiB to 1 GiB, each 16 times the one before, and 1024 times where more than four
        machines are named.
    nodes : int
        Nodes of each machine that is no question.
    prices : mapping, optional
        What a node costs an hour, by the name of the machine as it is given, in any currency; its number of nodes
        may stand before it, as ``"2xp5"``, for that number alone.
    library : Library, optional
        The version of NCCL, and whether switches may add.

    Returns
    -------
    MachineComparison
        The answers by machine.

    Raises
    ------
    InputError
        For fewer than two machines, one that is named twice, prices of others, and two prices of one.
    InfeasibleError
        As `project` raises it, if there is no machine without a reason against it.

    Examples
    --------
    >>> import blinksim as bs
    >>> print(bs.compare_machines(["hgx-h100", "dgx-a100"], "allreduce", ["1GiB"]).sentence().partition(",")[0])
    allreduce of 1 GiB: hgx-h100 is quickest
    """
    asked = [one if isinstance(one, Question) else Question(one, nodes=nodes) for one in machines]
    plain = [str(getattr(one.machine, "name", one.machine)) for one in asked]
    counted = [f"{one.nodes}x{name}" for name, one in zip(plain, asked, strict=True)]
    names = counted if len({one.nodes for one in asked}) > 1 else plain
    if len(names) < 2 or len(set(names)) < len(names):
        raise InputError(f"machines {', '.join(names)}: name at least two, each once")
    costs = _node_prices(prices or {}, {name: {*two} for name, *two in zip(names, plain, counted, strict=True)})
    # With every machine at every size the table stays on a screen.
    few = SIZES[:: 4 if len(names) <= 4 else 10]
    wanted, ordered = Collective.of(collective), sizes_of(few if sizes is None else sizes)
    found, refused = dict[str, tuple[Answer, ...]](), dict[str, str]()
    for name, one in zip(names, asked, strict=True):
        try:
            found[name] = tuple(answer(one, wanted, ordered, library=library))
        except InfeasibleError as error:
            refused[name] = str(error)
    if not found:
        raise InfeasibleError("; ".join(refused.values()))
    return MachineComparison(wanted, found, costs, refused)


def _node_prices(given: Mapping[str, float], called: Mapping[str, set[str]]) -> dict[str, float]:
    """The prices by the machine's name in the table. called: by which names each machine may be given one."""
    if strangers := sorted(given.keys() - set().union(*called.values())):
        raise InputError(f"there are prices of {', '.join(strangers)}, and the machines are {', '.join(called)}")
    if not all(0 < price < math.inf for price in given.values()):
        raise InputError("the price of a node is a number above 0")
    found = {name: {given[word] for word in given.keys() & words} for name, words in called.items()}
    if twice := [name for name, priced in found.items() if len(priced) > 1]:
        raise InputError(f"{twice[0]} has two prices; give one")
    return {name: price for name, priced in found.items() for price in priced}


@dataclass(frozen=True, repr=False)
class Buckets(Result):
    """Many calls of one size, one after another, in place of one call of all bytes.

    Attributes
    ----------
    bytes : int
        Of all calls together.
    calls : tuple
        Numbers of calls with what one of them takes, those of the rest behind: of the size that was asked, then of
        powers of two up to all bytes.
    edits : tuple
        Of the machine.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.buckets("hgx-h100", "allreduce", "14GB", "25MiB")
    >>> found.rows()[0]["calls"], found.rows()[-1]["calls"]
    (535, 1)
    """

    bytes: int
    calls: tuple[tuple[tuple[int, Projection], ...], ...]
    edits: tuple[str, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """One row for each size of a bucket."""
        rows, keys = [], "bucket_bytes=size size_bytes=size calls call_s=time_s"
        for parts in self.calls:
            one = parts[0][1]
            row = keyed(one, keys, calls=sum(calls for calls, _ in parts)) | keyed(one.details, "basis origin")
            row["time_s"] = sum(calls * one.time_s for calls, one in parts)
            for end in ("low_s", "high_s"):
                row[end] = sum(calls * one.details[f"interval_{end}"] for calls, one in parts)
            rows.append(row)
        return rows

    def to_dict(self) -> dict[str, Any]:
        """The rows, and the smallest bucket that is nearly as good as the quickest."""
        return {"bytes": self.bytes, "rows": self.rows(), "best_bucket_bytes": self.best.size}

    @property
    def best(self) -> Projection:
        """The smallest bucket whose calls take at most a tenth longer than those of the quickest."""
        times = [row["time_s"] for row in self.rows()]
        firsts = (parts[0][1] for parts in self.calls)
        as_good = [one for one, time in zip(firsts, times, strict=True) if time <= _AS_GOOD * min(times)]
        return min(as_good, key=lambda one: one.size)

    def sentence(self) -> str:
        """The answer in one line."""
        one = self.calls[0][0][1]
        calls = f"{count(self.rows()[0]['calls'], f'{one.collective} call')} of {format_size(one.size)}"
        return f"{format_size(self.bytes)} in {calls} with {one.details['library']}: {self.figures['takes']}"

    @cached_property
    def figures(self) -> dict[str, str]:
        """What all calls take, with its interval, one of them, and one call of all bytes, in words."""
        one, whole = self.calls[0][0][1], max((parts[0][1] for parts in self.calls), key=lambda one: one.size)
        time, low, high = (format_time(self.rows()[0][key]) for key in ("time_s", "low_s", "high_s"))
        took = f"{format_time(one.time_s)}, busbw {format_rate(one.busbw)}"
        takes = f"{time} ({low} to {high}, {SHARE} runs)"
        return {"takes": takes, "one bucket": took, "all in one call": format_time(whole.time_s)}

    @property
    def told(self) -> list[str]:
        """Where the times of the smallest and the largest call come from, a line each."""
        return origins((self.rows()[0], self.rows()[-1]))

    def text(self) -> str:
        """The sentence, what one call takes, and from which size on buckets are as good."""
        good = f"buckets from {format_size(self.best.size)} on cost at most 10 % more than one call"
        good += ", where no computing overlaps"
        quickest = min(self.rows(), key=lambda row: row["time_s"])["bucket_bytes"]
        if quickest != self.bytes:
            more = f"; those of {format_size(self.best.size)} cost at most 10 % more"
            good = f"buckets of {format_size(quickest)} take least{more * (self.best.size != quickest)}"
        elif self.best.size == self.bytes:
            good = "none: buckets of every size cost over 10 % more than one call"
        _, *lines = *self.figures.items(), ("nearly as good", good), ("edited", "; ".join(self.edits))
        return "\n".join((self.sentence(), *labelled(lines, 17), *map("  {}".format, self.told)))


def buckets(
    machine: Question | MachineLike,
    collective: CollectiveLike,
    total: int | float | str,
    bucket: int | float | str,
    library: Library | None = None,
) -> Buckets:
    """What many calls take, one after another, such as the gradients of a training step in buckets.

    Parameters
    ----------
    machine : Question, str, path or Topology
        As for `project`.
    collective : str or Collective
        Such as ``"allreduce"``.
    total : int or str
        Bytes of all calls, or text such as ``"14GB"``.
    bucket : int or str
        Bytes of a call; the last one has the rest.
    library : Library, optional
        The version of NCCL, and whether switches may add.

    Returns
    -------
    Buckets
        The times by size of a bucket.

    Raises
    ------
    InputError
        For a bucket larger than all bytes.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.buckets("hgx-h100", "allreduce", "1GiB", "64MiB")
    >>> found.rows()[0]["calls"]
    16
    """
    whole, first = size_of(total), size_of(bucket)
    if first > whole:
        raise InputError(f"bucket={format_size(first)} is more than all bytes, {format_size(whole)}")
    powers = (2**power for power in range(20, math.ceil(math.log2(whole))))
    sizes = [*dict.fromkeys((first, *powers, whole))]
    question = machine if isinstance(machine, Question) else Question(machine)
    model, where = (library or Library()).at(question)
    times = model.times(where, Collective.of(collective), [*sizes, *(whole % size for size in sizes if whole % size)])
    by_size = {one.size: one for one in times}
    parts = [((whole // size, size), *([(1, whole % size)] if whole % size else [])) for size in sizes]
    calls = tuple(tuple((many, by_size[size]) for many, size in each) for each in parts)
    return Buckets(whole, calls, question.edits)
