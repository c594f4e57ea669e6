"""Sweeps: every combination of edits, nodes, sizes and algorithms as a tidy table, one row for each.

A case is one combination of values: a full factorial design, as in Montgomery, Design and Analysis of
Experiments, chapter 5. Tidy data: one observation per row, one variable per column, units in the names of the
columns (Wickham, Journal of Statistical Software 59(10), 2014). A point without an answer is a row with the
reason.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from itertools import chain
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal
from warnings import warn

from blinksim import plugins
from blinksim._version import __version__
from blinksim.algorithms.registry import AlgorithmName, algorithm, candidates
from blinksim.answers import project, worker_pool
from blinksim.answers.worker_pool import Journal, Rows
from blinksim.bounds.bound_result import TWO_PHASES
from blinksim.bounds.compute import bound
from blinksim.collective import OF_EXPERTS, Collective, CollectiveLike
from blinksim.errors import BlinksimError, InputError, OutdatedWarning, unknown
from blinksim.formats.schedule_json import MOST_BYTES, located, names_a_file
from blinksim.machines import MachineLike, Question, preferring
from blinksim.results import Result, count
from blinksim.textio.text_files import read_bytes
from blinksim.timing import model_registry as models
from blinksim.timing.contest import asked_as, each
from blinksim.timing.experts import project_experts
from blinksim.timing.library_model import MODEL as LIBRARY
from blinksim.timing.projection_result import Projection
from blinksim.timing.timing_model import ScheduleModel, TimingModel
from blinksim.topology.edits import VERBS, parsed
from blinksim.topology.graph import Topology
from blinksim.topology.selection import NONE, listed
from blinksim.traffic import Routing
from blinksim.units import Sizes, exact_GBps, in_GBps, parse_rate, parse_time, sizes_of

SIZES = (2**20, 2**24, 2**28)
# Ranks up to which the bound of allreduce is the best one; beyond, that of its two phases, which takes
# seconds.
MOST_EXACT = 8192
_MEASURES = ("ranks", "algorithm", "size_bytes", "time_s", "algbw_GBps", "busbw_GBps", "bottleneck", "rates")
# Of answers that say it: seconds by link class, each of which gets a column.
_BY_CLASS = "time_by_class_s"
_BOUND = ("bound_algbw_GBps", "bound_exact_GBps", "bound_scope", "bound_assumes", "bound_reason")
_BOUND_WORK = " bound"
# Whether the reason is bad input.
_MISTAKEN = "mistaken"
_APART = {"reason", _MISTAKEN, _BY_CLASS, *_BOUND}
_BY_LINKS = "alpha-beta"

SETTINGS = ("nodes", "ranks-per-node", "members", "relays", "links", "rates", "edit")
TOKENS = ("tokens", "hidden", "dtype", "experts", "experts-per-rank", "top-k", "skew", "hot", "node-limit", "seed")
"""What varies besides in a dispatch or combine: settings of `blinksim.project_experts`."""
PROPERTIES = ("bandwidth", "latency", "lanes", "overhead")
# Values of these hold commas themselves.
_LISTS = frozenset({"members", "relays", "links", "edit"})
_COUNTS = frozenset({"nodes", "ranks-per-node", "lanes", *TOKENS} - {"dtype", "skew", "hot", "seed"})
_EXAMPLES = {"bandwidth": "15GB/s,53GB/s", "latency": "1us,2us", "overhead": "1us,2us"}
MOST_CASES = 100_000
# The value of the axis links that stands for what the machine file says.
_DEFAULT = "default"
# What runs; of tokens of experts, which every case draws, the name alone.
Wanted = Collective | str


@dataclass(frozen=True)
class Axis:
    """One thing that varies, and the values that it takes, as text.

    name: one of `SETTINGS` or `TOKENS`, or the beginning of an edit up to its last property (``xe bandwidth``, which
    replaces; ``degrade gpu0-gpu3 lanes``; ``add gpu0-gpu5 nvlink lanes``).
    """

    name: str
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        words = self.name.split()
        if not words:
            raise InputError("nothing named before the =; write what varies like 'nodes=1,2,4'")
        if len(words) == 1 and words[0] not in SETTINGS + TOKENS:
            hint = "(or a property of links, as in 'xe bandwidth=15GB/s,53GB/s')"
            raise unknown("thing to vary", self.name, SETTINGS + TOKENS, hint=hint)
        if len(words) > 1 and words[-1] not in PROPERTIES:
            hint = "(whole edits vary with 'edit=…;…')"
            raise unknown(f"property of links in {self.name!r}:", words[-1], PROPERTIES, hint=hint)
        if not self.values or not all(self.values):
            example = "none;without gpu0-gpu3" if self.name == "edit" else "a;b" if self.name in _LISTS else "a,b"
            example = "1,2,4" if words[-1] in _COUNTS else _EXAMPLES.get(words[-1], example)
            raise InputError(f"{self.name}: a value is missing; write them like '{self.name}={example}'")
        for value in self.values:
            self.number(value)
        if doubled := [value for value, times in Counter(self.values).items() if times > 1]:
            raise InputError(f"{self.name} takes the value {doubled[0]} twice")

    @classmethod
    def parse(cls, text: str) -> Axis:
        """``nodes=1,2,4``, ``xe bandwidth=15GB/s,53GB/s``, ``edit=none;without gpu0-gpu3``.

        Values are separated by commas; those of members, relays, links and edit, which have commas of their
        own, by semicolons. Raises `InputError` for anything else, and for one list that names a GPU twice, as two
        lists do that a comma separates.
        """
        name, given, rest = text.partition("=")
        if not given:
            example = "'nodes=1,2,4' or 'xe bandwidth=15GB/s,53GB/s'"
            raise InputError(f"{text!r} names no values; write it like {example}")
        key = _setting(name)
        values = tuple(value.strip() for value in rest.split(";" if key in _LISTS else ","))
        if key in ("members", "relays") and len(values) == 1 and "," in values[0]:
            named = listed(values[0], [str(number) for number in range(10**6)], key)
            if len(set(named)) < len(named):
                raise InputError(f"{text!r} names a GPU twice; separate values by semicolons, as in '{key}=0-1;0-3'")
        return cls(key, values)

    @classmethod
    def of(cls, name: str, values: Iterable[object]) -> Axis:
        """From Python values: counts, bandwidths in bytes/s, times in seconds, lists of names, or text."""
        key = _setting(name)
        kind, texts = key.split()[-1] if key else "", list[str]()
        for value in values:
            if isinstance(value, (int, float, Fraction)) and kind == "bandwidth":
                texts.append(f"{float(value) / 1e9:.15g}GB/s")
            elif isinstance(value, (int, float)) and kind in ("latency", "overhead"):
                texts.append(f"{value:.15g}s")
            elif isinstance(value, str) or not isinstance(value, Iterable):
                texts.append(NONE if value is None else str(value))
            else:
                texts.append(",".join(map(str, value)))
        return cls(key, tuple(texts))

    @property
    def column(self) -> str:
        """The name of the column, with the unit of its numbers."""
        words = self.name.split()
        if len(words) == 1:
            return self.name.replace("-", "_")
        units = {"bandwidth": "_GBps", "latency": "_s", "overhead": "_s"}
        verb = f"{words[0]}_" if words[0] == "add" else ""
        return verb + "_".join(words[words[0] in VERBS :]) + units.get(words[-1], "")

    def number(self, value: str) -> int | float | str:
        """The cell of a value: a number in the column's unit, or the text; raises `InputError`."""
        kind = self.name.split()[-1]
        if kind == "edit" and value != NONE:
            parsed(value)
        if kind in _COUNTS:
            if not (re.fullmatch("[0-9]{1,18}", value) and 1 <= int(value) <= 10**6):
                raise InputError(f"'{self.name}={value:.40}': give whole numbers of at least 1, at most 1,000,000")
            return int(value)
        if kind == "bandwidth":
            return float(parse_rate(value) / 10**9)
        if kind in ("skew", "hot", "seed"):
            if not re.fullmatch(r"[0-9]{1,9}" if kind == "seed" else r"[0-9]{1,2}(\.[0-9]{1,9})?", value):
                raise InputError(f"'{self.name}={value:.40}': give numbers that are not negative")
            return int(value) if kind == "seed" else float(value)
        return parse_time(value) if kind in ("latency", "overhead") else value

    def apply(self, case: Case, value: str) -> Case:
        """`case` with this value, and its column."""
        words, question, label = self.name.split(), case.question, (self.column, self.number(value))
        case = replace(case, labels=(*case.labels, label))
        if self.name in TOKENS:
            return replace(case, tokens=(*case.tokens, label))
        if len(words) > 1 or (self.name == "edit" and value != NONE):
            verb = "" if words[0] in (*VERBS, "edit") else "replace "
            edit = value if self.name == "edit" else f"{verb}{self.name}={value}"
            question = replace(question, edits=(*question.edits, edit))
        elif self.name != "edit":
            changes: Any = {self.column: None if (self.name, value) == ("links", _DEFAULT) else label[1]}
            question = replace(question, **changes)
        return replace(case, question=question)


def _setting(name: str) -> str:
    words = name.split()
    return words[0].replace("_", "-") if len(words) == 1 else " ".join(words)


@dataclass(frozen=True)
class Case:
    """One combination: the question that it asks, and the columns of the axes with their values (`labels`).

    tokens: what `project_experts` is told of the tokens of a dispatch or combine.
    """

    question: Question
    labels: tuple[tuple[str, int | float | str], ...] = ()
    tokens: tuple[tuple[str, Any], ...] = ()


def axes(vary: Mapping[str, Iterable[object]] | Sequence[str | Axis] | str) -> tuple[Axis, ...]:
    """Axes from text, from a mapping of names to values, or as they are; raises `InputError` if one is named twice."""
    if isinstance(vary, Mapping):
        found = tuple(Axis.of(name, values) for name, values in vary.items())
    else:
        given = [vary] if isinstance(vary, str) else vary
        found = tuple(entry if isinstance(entry, Axis) else Axis.parse(entry) for entry in given)
    if doubled := [column for column, times in Counter(axis.column for axis in found).items() if times > 1]:
        raise InputError(f"{doubled[0]} varies twice; give all its values at once")
    return found


def expand(base: Question, along: Sequence[Axis], tokens: Iterable[tuple[str, Any]] = ()) -> list[Case]:
    """Every combination of the values of the axes applied to `base`, the last axis fastest.

    tokens: of all cases, where an axis has no others.
    """
    if (number := prod(len(axis.values) for axis in along)) > MOST_CASES:
        raise InputError(f"{number:,} cases are too many for one sweep (at most {MOST_CASES:,})")
    cases = [Case(base, tokens=(*tokens,))]
    for axis in along:
        cases = [axis.apply(case, value) for case in cases for value in axis.values]
    return cases


def digests(names: Iterable[str], model: str, recorded: Iterable[Routing | str] = (), *, alone: bool) -> list[str]:
    """The digests of the files that hold these algorithms and this model, as far as they are not the package's.

    recorded: routings and files of such, which have a digest too. alone: no other process and no later run takes
    part; otherwise what this process alone knows is an `InputError`.
    """
    found = [
        one.digest if isinstance(one, Routing) else sha256(read_bytes(one, 4 * MOST_BYTES, "routing")).hexdigest()
        for one in recorded
    ]
    for name in names:
        if names_a_file(name):
            found.append(sha256(read_bytes(located(name), MOST_BYTES, "schedule")).hexdigest())
        elif name != "best" and not models.chooser(name) and (entry := algorithm(name)).fill is not None:
            found.append(_digest(entry.file, f"algorithm {name!r}", alone))
    if (in_file := plugins.split(model, models.YAML)) is not None:
        found.append(plugins.digest(in_file[0]))
    registered = models.MODELS.get(models.known_as(model))
    if registered is not None and not isinstance(registered.home, str):
        found.append(_digest(registered.file, f"timing model {model!r}", alone))
    return found


def _digest(home: str, what: str, alone: bool) -> str:
    if home:
        return plugins.digest(Path(home))
    if not alone:
        need = "workers and journals need it in a file, named like 'pairs.py'"
        raise InputError(f"{what} is registered in this process only; {need}")
    return ""


# --- pieces of work ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The question of a case about one node, at the rates that the node was loaded with; equal keys ask the same."""

    key: str
    question: Question = field(compare=False)


@dataclass(frozen=True)
class Task:
    """A piece of work that stands alone: one case with one algorithm at all sizes, or the bound of one case.

    collective: the name alone for tokens of experts, which are drawn for every case.
    """

    key: str
    place: Place
    case: Case
    collective: Wanted
    sizes: tuple[int, ...]
    algorithm: str
    model: str

    @property
    def rates(self) -> str | None:
        """The table of rates that the node was loaded with."""
        return self.place.question.rates

    def row(self, **values: Any) -> dict[str, Any]:
        """A row of the table with what is not given left empty."""
        empty = {"model": self.model, "asked": self.algorithm, **dict.fromkeys(_MEASURES), "rates": self.rates}
        return {**empty, "reason": "", **values}

    def failed(self, reason: BlinksimError | str) -> Rows:
        """The rows of work without an answer."""
        if self.algorithm == _BOUND_WORK:
            return [dict.fromkeys(_BOUND[:-1]) | {"bound_reason": str(reason)}]
        why = {"reason": str(reason), _MISTAKEN: isinstance(reason, InputError)}
        return [self.row(size_bytes=size, **why) for size in self.sizes]


@lru_cache(maxsize=1)
def part_at(place: Place) -> Topology:
    """The machine of a case, put together once for all of its algorithms, which follow each other."""
    return place.question.part()


@dataclass(frozen=True)
class Sweep(Result):
    """The answers of a sweep, a row for each point.

    Attributes
    ----------
    machine : str
        Its name.
    collective : Collective or str
        What runs; the name of a dispatch or combine, whose tokens vary.
    axes : tuple of Axis
        What varied.
    points : tuple of dict
        The rows.
    resumed : int
        Pieces of work that came from a journal.
    damaged : tuple of int
        Lines of the journal that were not as they had been written; their work was done again.
    base : Question
        What all points have in common: nodes, edits and so on.
    classes : tuple of str
        The columns with the seconds of each link class, of models that say them.
    unfinished : int
        Pieces of work that Ctrl-C left undone; they have no rows.
    mistaken : tuple of str
        The reasons that are bad input, such as a GPU that the machine lacks, rather than what cannot be done there.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.sweep("dgx-a100", "allreduce", ["1GiB"], {"nodes": [1, 2]}, algorithms=["ring"])
    >>> found.to_frame()[["nodes", "ranks"]].values.tolist()
    [[1, 8], [2, 16]]
    """

    machine: str
    collective: Wanted
    axes: tuple[Axis, ...]
    points: tuple[dict[str, Any], ...]
    resumed: int = 0
    damaged: tuple[int, ...] = ()
    base: Question = field(default_factory=Question)
    classes: tuple[str, ...] = ()
    unfinished: int = 0
    mistaken: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[dict[str, Any], ...]:
        """The rows with a reason instead of an answer."""
        return tuple(row for row in self.points if row["reason"])

    def varying(self) -> list[str]:
        """The columns (axes, size, algorithm) that take several values; all axes where points are missing."""
        columns = dict.fromkeys((axis.column for axis in self.axes), 1 if self.unfinished else 2)
        columns |= {"asked": 2, "size_bytes": 2}
        return [one for one, least in columns.items() if len({row[one] for row in self.points}) >= least]

    def rows(self) -> list[dict[str, Any]]:
        """One row per point, with units in the keys; a point without an answer has a reason."""
        return list(self.points)

    def __repr__(self) -> str:
        lost = f", {len(self.failed)} without an answer" if self.failed else ""
        along = ", ".join(self.varying()) or "nothing"
        return f"<Sweep of {self.collective} on {self.machine} over {along}: {count(len(self.points), 'row')}{lost}>"


def sweep(
    machine: MachineLike,
    collective: CollectiveLike,
    sizes: Sizes = SIZES,
    vary: Mapping[str, Iterable[object]] | Sequence[str | Axis] | str = (),
    *,
    algorithms: Sequence[AlgorithmName | Literal["best", "unsearched", "nccl", "library"] | str] | str = (),
    model: models.ModelName | str | None = None,
    bounds: bool = False,
    base: Question | None = None,
    tokens: Mapping[str, Any] | None = None,
    workers: int = 1,
    cluster: str | None = None,
    journal: str | os.PathLike[str] | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Time a collective at every combination of the axes.

    Parameters
    ----------
    machine : str, path or Topology
        A name or a file as `blinksim.load` takes it, or one node as a topology.
    collective : str or Collective
        Such as ``"allreduce"``; an alltoallv with its traffic matrix, which is scaled to the sizes; or
        ``"dispatch"`` or ``"combine"``, which `blinksim.project_experts` times, and whose sizes are those of its
        tokens.
    sizes : iterable of int or str, or str
        Bytes, or text such as ``"1MiB"``; as a single text also ``"1KiB:1GiB:x4"`` or ``"1MiB,3MiB"``.
    vary : mapping or sequence of str, or str
        Axes by name, such as ``{"nodes": [1, 2, 4], "xe bandwidth": ["15GB/s", "53GB/s"]}``, or as text
        (`blinksim.answers.sweep.Axis.parse`).
    algorithms : sequence of str, or str
        Names of the registry, also as text such as ``"ring,chain"``; files of schedules, own and of MSCCL;
        ``best`` is the quickest of those that are found quickly, ``all`` every one that needs no solver,
        ``nccl`` what NCCL would choose by its own model, at the rates ``nccl`` unless the base names others;
        ``library`` what the machine's library takes, with the best schedule and the bound beside it, as
        `blinksim.project` says. Default: ``library`` if no model is named, else ``best``.
    model : str, optional
        ``alpha-beta``, ``execution``, ``simulate`` or the name of a projection preset. Default: ``alpha-beta``,
        which times all schedules alike, also those after an edit, which measured constants do not cover.
    bounds : bool
        Adds the bound at every point (of allreduce beyond 8,192 ranks: in two phases).
    base : Question, optional
        What all cases have in common.
    tokens : mapping, optional
        Of a dispatch or combine, what all cases have in common: settings of `blinksim.project_experts`. The axes
        may be such settings too: ``{"tokens": [128, 4096], "top-k": [4, 8]}``.
    workers : int
        Processes of this machine (scripts then need an ``if __name__ == "__main__":``).
    cluster : str, optional
        The address of a dask scheduler, instead of workers. What a worker that dies was working on goes to
        another.
    journal : str or path, optional
        A file that keeps finished work; the same call goes on from it after a kill.
    report : callable, optional
        Called with the number of finished pieces of work and their total.

    Returns
    -------
    Sweep
        One row per point; a point without an answer is a row with a reason.

    Raises
    ------
    InputError
        For what cannot be right at any point: names, values, a scheduler that does not answer or goes away.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.sweep("dgx1-v100", "allreduce", ["256MiB"], {"edit": ["none", "without gpu0-gpu3"]})
    >>> [row["library"] for row in found.rows()], found.rows()[0]["time_s"] < found.rows()[1]["time_s"]
    (['NCCL', 'NCCL'], True)
    """
    name = str(collective).lower()
    wanted: Wanted = name if name in OF_EXPERTS else Collective.of(collective)
    lengths = (0,) if isinstance(wanted, str) else sizes_of(sizes)
    worker_pool.check(workers, cluster)
    along = axes(vary)
    named, model = model, model or _BY_LINKS
    if not models.times_schedules(model):
        models.check(model, (*models.schedule_models(), *models.preset_names()))
    timing = models.model(model)
    drawn = {**(tokens or {}), **dict.fromkeys(axis.name for axis in along if axis.name in TOKENS)}
    names = _algorithms(algorithms, wanted, timing, named, bool(drawn), bounds=bounds)
    recorded = [value for value in drawn.values() if isinstance(value, Routing) or os.path.isfile(str(value))]
    outside = digests(names, model, recorded, alone=(workers, cluster, journal) == (1, None, None))
    start = base or Question()
    if timing.pins_rates and timing.rates is not None:
        start = replace(start, rates=timing.rates)
        if any(axis.name == "rates" for axis in along):
            raise InputError(f"model={model} pins the rates {timing.rates!r}; they cannot vary")
    cases = expand(start, along, (tokens or {}).items())
    for case in cases:
        timing.check(case.question)
    asked = Task("", Place("", start), Case(start), wanted, lengths, "", model)
    tasks = _tasks(machine, cases, asked, names, outside, bounds=bounds)
    title = tasks[0].place.question.node().name
    stored = Journal(journal)
    keys = {task.key for task in tasks}
    answers = {key: stored.found[key] for key in keys & stored.found.keys()}
    resumed, total = len(answers), len(keys)
    say = report or (lambda _, __: None)
    say(resumed, total)
    left = [task for task in tasks if task.key not in answers]
    try:
        for task, found in worker_pool.finished(run, left, workers, cluster):
            answers[task.key] = task.failed(worker_pool.DIED) if found is None else found
            if found is not None:
                stored.add(task.key, found)
            say(len(answers), total)
    except KeyboardInterrupt:
        tasks = [task for task in tasks if task.key in answers]
        if not any(task.algorithm != _BOUND_WORK for task in tasks):
            raise
    part_at.cache_clear()
    # The rows of the table, and the columns with the seconds of link classes.
    bound_of = {(task.case, task.rates): answers[task.key][0] for task in tasks if task.algorithm == _BOUND_WORK}
    every = list(chain.from_iterable(answers.values()))
    columns = dict.fromkeys(chain.from_iterable(every))
    classes = dict.fromkeys(kind for row in every for kind in row.get(_BY_CLASS) or ())
    points = list[dict[str, Any]]()
    for task in tasks:
        for answer in answers[task.key] if task.algorithm != _BOUND_WORK else ():
            row: dict[str, Any] = {"machine": title, "collective": str(task.collective), "model": answer["model"]}
            row |= {key: answer.get(key) for key in columns if key not in _APART} | dict(task.case.labels)
            row |= {f"{kind}_s": answer.get(_BY_CLASS, classes).get(kind, 0.0) for kind in classes}
            if bounds:
                # The bound of the answer itself, if it has one, else that of its case.
                limit = bound_of.get((task.case, task.rates), dict.fromkeys(_BOUND))
                rate = answer["algbw_GBps"]
                row |= {key: answer.get(key, limit[key]) for key in _BOUND}
                most = row["bound_algbw_GBps"]
                row["of_bound"] = rate / most if most and rate else None
            points.append(row | {"reason": answer["reason"]})
    seconds, damaged = tuple(f"{kind}_s" for kind in classes), tuple(stored.damaged)
    mistaken = tuple(dict.fromkeys(row["reason"] for row in every if row.get(_MISTAKEN)))
    return Sweep(title, wanted, along, tuple(points), resumed, damaged, start, seconds, total - len(answers), mistaken)


def _tasks(
    machine: MachineLike, cases: list[Case], like: Task, names: list[str], outside: list[str], *, bounds: bool
) -> list[Task]:
    """The work for every case. like: work of no case and no algorithm; bounds: also one for each table of rates."""
    # The rates that what a library chooses wants, None for other algorithms.
    wants = {name: models.model(by).rates if (by := models.chooser(name)) else None for name in names}
    nodes, tasks = dict[str, tuple[Topology, str]](), list[Task]()
    for case in cases:
        # The rates that the question is answered at; a machine that has no such table keeps its own.
        asked = replace(case.question, machine=machine)
        tables = {name: asked.preferring_known(rates).table for name, rates in wants.items()}
        # A bound for each table of rates that stands in a row of this case.
        limits = [(_BOUND_WORK, table) for table in dict.fromkeys(tables.values()) if bounds]
        for name, table in (*tables.items(), *limits):
            if table not in nodes:
                node = Question(machine, rates=table).node()
                # What a library takes is known from these tables, whichever the links are at.
                every = (node, preferring(node, "nccl"), preferring(node, "measured"))
                nodes[table] = node, "".join(map(_fingerprint, every))
            node, print_ = nodes[table]
            drawn = None if isinstance(like.collective, str) else like.collective
            question = replace(asked, machine=node, rates=node.rates, collective=drawn)
            key = _key(print_, case, like.collective, like.sizes, name, like.model, outside)
            place = Place(_key(print_, case, like.collective, str(node.loaded_from)), question)
            tasks.append(replace(like, key=key, place=place, case=case, algorithm=name))
    return tasks


def _algorithms(
    names: Sequence[str] | str, wanted: Wanted, model: TimingModel, by: str | None, tokens: bool, bounds: bool
) -> list[str]:
    """The algorithms asked for. tokens: whether settings of such are given. Raises for what does not go together."""
    if isinstance(wanted, str):
        if names or by or bounds:
            raise InputError(f"{wanted} is timed by its ways beside its floor; leave algorithms, model and bounds out")
        return ["best"]
    if tokens:
        raise InputError(f"{wanted.name} has no tokens; only a {' and a '.join(OF_EXPERTS)} have")
    names = names or ("best" if by else LIBRARY)
    if not isinstance(model, ScheduleModel):
        if each(names) != ("best",):
            given = ", ".join(map(str, each(names)))
            raise InputError(f"model={model.name} has an algorithm of its own; leave {given} out")
        return ["best"]
    found: list[str] = []
    for name in (str(name).strip() for name in each(names)):
        if name in ("unsearched", "all"):
            if name == "all":
                warn("sweep takes algorithms=unsearched in place of algorithms=all", OutdatedWarning, stacklevel=3)
            found += [entry.name for entry in candidates(wanted.name)]
        else:
            found.append(name if name == "best" or models.chooser(name) else asked_as(name))
    if not found:
        raise InputError("no algorithms to sweep over")
    return list(dict.fromkeys(found))


def _fingerprint(node: Topology) -> str:
    """Tells two machines apart that could give different answers."""
    facts = attrgetter("name", "kind", "node", "capacity")
    devices = [(*facts(d), str(d.attributes.get("reduction_rate")), sorted(d.can)) for d in node.devices]
    chosen = (node.members, node.relays, node.collective_links, node.inter_node_links)
    of_node = (node.name, node.rates, devices, node.links, chosen, node.nodes, node.fabric)
    return sha256(repr((*of_node, (node.execution, node.nccl_rates))).encode()).hexdigest()


def _key(node: str, case: Case, collective: Wanted, *what: object) -> str:
    asked: list[object] = [__version__, node, case.question.settings()]
    if isinstance(collective, str):
        asked += [collective, [f"{key}={value}" for key, value in case.tokens], *what]
    else:
        traffic = [] if collective.traffic is None else [collective.traffic.digest]
        asked += [collective.name, collective.root, *what, *traffic]
    return sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def run(task: Task) -> Rows:
    """The rows of one task; what goes wrong becomes the reason in them, so that one point never ends a sweep."""
    try:
        if not isinstance(task.collective, str):
            return _rows(task, task.collective)
        timed = project_experts(part_at(task.place), task.collective, **dict(task.case.tokens))
        more = "library origin interval_low_s interval_high_s could_take_s cannot_take_less_s wire_GBps logical_GBps"
        said, keys = timed.to_dict(), (*_MEASURES[1:-1], *more.split())
        return [task.row(model=said["model"], ranks=timed.routing.ranks, **{key: said[key] for key in keys})]
    except BlinksimError as error:
        if len(task.sizes) > 1 and task.algorithm != _BOUND_WORK:  # other sizes may have an answer
            return [row for size in task.sizes for row in run(replace(task, sizes=(size,)))]
        return task.failed(error)
    except MemoryError:
        return task.failed("not enough memory")
    except Exception as error:  # A fault of ours in one of ten thousand points must not cost the others.
        return task.failed(f"unexpected {type(error).__name__}: {error}")


def _rows(task: Task, collective: Collective) -> Rows:
    """As `run` for what is not of tokens; raises what goes wrong."""
    if task.algorithm == _BOUND_WORK:
        topology = part_at(task.place)
        if collective.name == "allreduce" and topology.ranks > MOST_EXACT:
            phases = [bound(topology, name).rate for name in ("reducescatter", "allgather")]
            rate = 1 / sum((1 / phase for phase in phases), start=Fraction(0))
            return [_bound_columns(rate, "reduce-scatter + allgather", TWO_PHASES)]
        best = bound(topology, collective).headline
        return [_bound_columns(best.rate, best.scope, best.assumes)]
    question, chooser = task.place.question, models.chooser(task.algorithm)
    projections: Sequence[Projection]
    if task.algorithm == LIBRARY:
        # It has rates of its own, unless the case names some.
        asked = replace(question, rates=task.case.question.rates)
        projections = project.answer(asked, collective, task.sizes)
    else:
        model = models.model(chooser or task.model)
        # The links must connect the members for what a library chooses as for all others.
        if chooser or isinstance(model, ScheduleModel):
            part = part_at(task.place)
        if not isinstance(model, ScheduleModel):
            model, part = model.at(question)
        names = model.best if task.algorithm == "best" else [task.algorithm]
        projections = [replace(one, least=None) for one in model.times(part, collective, task.sizes, names)]
    rows, quickest = Rows(), {found.size: found for found in reversed(projections)}
    for found in map(quickest.__getitem__, task.sizes):
        row = task.row(model=found.model, ranks=len(found.members), size_bytes=found.size, **found.row())
        held = found.bound
        # What takes the machine for more than its description has a bound of its own, which grants that; what
        # NCCL plans has one at nominal rates.
        own = _bound_columns(held.rate, held.scope, held.assumes) if held and (held.granted or found.pick) else {}
        rows.append(row | own | {_BY_CLASS: found.details.get(_BY_CLASS)})
    return rows


def _bound_columns(rate: Fraction, scope: str, assumes: str) -> dict[str, Any]:
    return dict(zip(_BOUND, (in_GBps(rate), exact_GBps(rate), scope, assumes, ""), strict=True))
