"""What-if studies: every combination of edits, nodes, sizes and algorithms as a tidy table, one row for each.

Tidy data: one observation per row, one variable per column, units in the names of the columns (Wickham, Journal of
Statistical Software 59(10), 2014). A point without an answer is a row with the reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from hashlib import sha256
from typing import Any, Literal

from blinksim import machines
from blinksim._version import __version__
from blinksim.algorithms.registry import AlgorithmName, candidates
from blinksim.answers.sweeps import pool
from blinksim.answers.sweeps.axes import Axis, Case, axes, expand
from blinksim.answers.sweeps.journal import Journal, Rows
from blinksim.answers.sweeps.last_part import KeptQuestion, forget
from blinksim.answers.sweeps.outside import digests
from blinksim.bounds.assumptions import TWO_PHASES
from blinksim.collective import Collective, CollectiveName
from blinksim.errors import BlinksimError, InputError
from blinksim.machines import MachineLike
from blinksim.question import Question
from blinksim.results import Result, paragraph
from blinksim.textio.text_table import count
from blinksim.timing import model_registry as models
from blinksim.timing.candidates import asked_as, each
from blinksim.timing.projection_result import Projection
from blinksim.timing.timing_model import ScheduleModel, TimingModel
from blinksim.topology.graph import Topology
from blinksim.units import Sizes, exact_GBps, in_GBps, sizes_of

SIZES = (2**20, 2**24, 2**28)
# Ranks up to which the bound of allreduce is the best one; beyond, that of its two phases, which takes seconds.
MOST_EXACT = 8192
_MEASURES = ("ranks", "algorithm", "size_bytes", "time_s", "algbw_GBps", "busbw_GBps", "bottleneck", "rates")
_BOUND = ("bound_algbw_GBps", "bound_exact_GBps", "bound_scope", "bound_assumes", "bound_reason")
_BOUND_WORK = " bound"


@dataclass(frozen=True)
class Task:
    """A piece of work that stands alone: one case with one algorithm at all sizes, or the bound of one case."""

    key: str
    node: Topology
    case: Case
    collective: Collective
    sizes: tuple[int, ...]
    algorithm: str
    model: str

    @property
    def question(self) -> Question:
        """The question of the case about this node, at the rates that it was loaded with."""
        return KeptQuestion.like(replace(self.case.question, machine=self.node, rates=self.node.rates))

    def row(self, **values: Any) -> dict[str, Any]:
        """A row of the table with what is not given left empty."""
        empty = {"model": self.model, "asked": self.algorithm, **dict.fromkeys(_MEASURES), "rates": self.node.rates}
        return {**empty, **values, "reason": values.get("reason", "")}


@dataclass(frozen=True)
class Sweep(Result):
    """The answers of a sweep, a row for each point.

    Attributes
    ----------
    machine : str
        Its name.
    collective : Collective
        What runs.
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

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.sweep("dgx-a100", "allreduce", ["1GiB"], {"nodes": [1, 2]}, algorithms=["ring"])
    >>> found.to_frame()[["nodes", "ranks"]].values.tolist()
    [[1, 8], [2, 16]]
    """

    machine: str
    collective: Collective
    axes: tuple[Axis, ...]
    points: tuple[dict[str, Any], ...]
    resumed: int = 0
    damaged: tuple[int, ...] = ()
    base: Question = field(default_factory=Question)

    @property
    def failed(self) -> tuple[dict[str, Any], ...]:
        """The rows that hold a reason instead of an answer."""
        return tuple(row for row in self.points if row["reason"])

    def varying(self) -> list[str]:
        """The columns of the axes, of the size and of the algorithm asked for, as far as they take several values."""
        columns = [*(axis.column for axis in self.axes), "asked", "size_bytes"]
        return [column for column in columns if len({row[column] for row in self.points}) > 1]

    def rows(self) -> list[dict[str, Any]]:
        """One row per point, with units in the keys; a point without an answer has a reason."""
        return list(self.points)

    def __repr__(self) -> str:
        lost = f", {len(self.failed)} without an answer" if self.failed else ""
        along = ", ".join(self.varying()) or "nothing"
        return f"<Sweep of {self.collective} on {self.machine} over {along}: {count(len(self.points), 'row')}{lost}>"

    def _repr_html_(self) -> str:
        table: str = self.to_frame().to_html(index=False, max_rows=20, float_format="{:.4g}".format)
        return f"{paragraph(f'{self.collective} on {self.machine}')}{table}"


def sweep(
    machine: MachineLike,
    collective: Collective | CollectiveName | str,
    sizes: Sizes = SIZES,
    vary: Mapping[str, Iterable[object]] | Sequence[str | Axis] | str = (),
    *,
    algorithms: Sequence[AlgorithmName | Literal["best", "all", "nccl"] | str] | str = ("best",),
    model: models.ModelName | str = "alpha-beta",
    bounds: bool = False,
    base: Question | None = None,
    workers: int = 1,
    cluster: str | None = None,
    journal: str | os.PathLike[str] | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Times a collective at every combination of what varies.

    Parameters
    ----------
    machine : str, path or Topology
        A name or a file as `blinksim.load` takes it, or one node as a topology.
    collective : str or Collective
        Such as ``"allreduce"``; an alltoallv with its traffic matrix, which is scaled to the sizes.
    sizes : iterable of int or str, or str
        Bytes, or text such as ``"1MiB"``; as a single text also ``"1KiB:1GiB:x4"`` or ``"1MiB,3MiB"``.
    vary : mapping or sequence of str, or str
        Axes by name, such as ``{"nodes": [1, 2, 4], "xe bandwidth": ["15GB/s", "53GB/s"]}``, or as text
        (`blinksim.answers.sweeps.axes.Axis.parse`).
    algorithms : sequence of str, or str
        Names of the registry, also as text such as ``"ring,chain"``; files of schedules, own and of MSCCL; ``best``
        is the quickest of those that are found
        quickly, ``all`` every one that needs no solver, ``nccl`` what NCCL would choose by its own model, at the rates
        ``nccl`` unless the base names others.
    model : str
        ``alpha-beta``, ``execution``, ``simulate`` or the name of a projection preset. The default times all points
        alike, also those after an edit, which measured constants do not cover.
    bounds : bool
        Adds the bound at every point (of allreduce beyond 8,192 ranks: in two phases).
    base : Question, optional
        What all cases have in common.
    workers : int
        Processes of this machine (scripts then need an ``if __name__ == "__main__":``).
    cluster : str, optional
        The address of a dask scheduler, instead of workers. What a worker that dies was working on goes to another.
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
    >>> [row["algorithm"] for row in found.rows()]
    ['ring', 'packed']
    """
    wanted = Collective.of(collective)
    lengths = sizes_of(sizes)
    pool.check(workers, cluster)
    along = axes(vary)
    if not models.times_schedules(model):
        models.check(model, (*models.schedule_models(), *models.preset_names()))
    timing = models.model(model)
    names = _algorithms(algorithms, wanted, timing)
    outside = digests(names, model, alone=workers == 1 and cluster is None and journal is None)
    start = base or Question()
    if timing.pins_rates and timing.rates is not None:
        start = replace(start, rates=timing.rates)
        if any(axis.name == "rates" for axis in along):
            raise InputError(f"model={model} pins the rates {timing.rates!r}; they cannot vary")
    cases = expand(start, along)
    asked = [case.question for case in cases]
    for question in asked:
        timing.check(question)
    wants = {name: _rates_of(name) for name in names}
    nodes = _nodes(machine, {_table_of(machine, one, rates) for one in asked for rates in wants.values()})
    tasks = []
    for case in cases:
        at = {name: _table_of(machine, case.question, rates) for name, rates in wants.items()}
        # A bound for each table of rates that stands in a row of this case.
        limits = [(_BOUND_WORK, table) for table in dict.fromkeys(at.values())] if bounds else []
        for name, table in (*at.items(), *limits):
            node, print_ = nodes[table]
            key = _key(print_, case, wanted, lengths, name, model, outside)
            tasks.append(Task(key, node, case, wanted, lengths, name, model))
    kept = Journal(journal)
    answers = {task.key: kept.found[task.key] for task in tasks if task.key in kept.found}
    resumed, total = len(answers), len({task.key for task in tasks})
    say = report or _silent
    say(resumed, total)
    for task, found in pool.finished(run, [task for task in tasks if task.key not in answers], workers, cluster):
        if found is None:
            answers[task.key] = _failed(task, pool.DIED)
        else:
            answers[task.key] = found
            kept.add(task.key, found)
        say(len(answers), total)
    forget()
    title = next(iter(nodes.values()))[0].name
    return Sweep(title, wanted, along, tuple(_table(tasks, answers, title, bounds)), resumed, kept.damaged, start)


def _silent(done: int, total: int) -> None:
    pass


def _algorithms(names: Sequence[str] | str, collective: Collective, model: TimingModel) -> list[str]:
    if not isinstance(model, ScheduleModel):
        if each(names) != ("best",):
            given = ", ".join(map(str, each(names)))
            raise InputError(f"model={model.name} has an algorithm of its own; leave {given} out")
        return ["best"]
    found: list[str] = []
    for name in (str(name).strip() for name in each(names)):
        if name == "all":
            found += [entry.name for entry in candidates(collective.name)]
        else:
            found.append(name if name == "best" or models.chooser(name) else asked_as(name))
    if not found:
        raise InputError("no algorithms to sweep over")
    return list(dict.fromkeys(found))


def _rates_of(name: str) -> str | None:
    """The rates that what a library chooses wants, None for other algorithms."""
    chooser = models.chooser(name)
    return models.model(chooser).rates if chooser else None


def _table_of(machine: MachineLike, question: Question, rates: str | None) -> str:
    """The rates that a question is answered at, which would be `rates` unless it names some.

    A topology that has no such table keeps its own.
    """
    if not isinstance(machine, Topology) or rates is None:
        return question.preferring(rates).table
    return replace(question, machine=machine).preferring_known(rates).table


def _nodes(machine: MachineLike, rates: set[str]) -> dict[str, tuple[Topology, str]]:
    """One node of the machine with each of the rates, and its fingerprint."""
    if not isinstance(machine, Topology):
        loaded = {name: machines.load(machine, rates=name) for name in rates}
    else:
        loaded = {name: Question(machine, rates=name).node() for name in rates}
    return {name: (node, _fingerprint(node)) for name, node in loaded.items()}


def _fingerprint(node: Topology) -> str:
    """Tells two machines apart that could give different answers."""
    devices = [
        (d.name, d.kind, d.node, d.capacity, str(d.attributes.get("reduction_rate")), sorted(d.can))
        for d in node.devices
    ]
    chosen = (node.members, node.relays, node.collective_links, node.inter_node_links)
    measured = (node.execution, node.nccl_rates)
    return sha256(
        repr((node.name, node.rates, devices, node.links, chosen, node.nodes, node.fabric, measured)).encode()
    ).hexdigest()


def _key(node: str, case: Case, collective: Collective, *what: object) -> str:
    asked = [__version__, node, case.question.settings(), collective.name, collective.root, *what]
    if collective.traffic is not None:
        asked.append(collective.traffic.digest)
    return sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


# --- one piece of work, on whatever machine ---------------------------------------------------------------------------


def run(task: Task) -> Rows:
    """The rows of one task; what goes wrong becomes the reason in them, so that one point never ends a sweep."""
    try:
        return _bounded(task) if task.algorithm == _BOUND_WORK else _timed(task)
    except BlinksimError as error:
        return _failed(task, str(error))
    except MemoryError:
        return _failed(task, "not enough memory")
    except Exception as error:  # A fault of ours in one of ten thousand points must not cost the others.
        return _failed(task, f"unexpected {type(error).__name__}: {error}")


def _failed(task: Task, reason: str) -> Rows:
    if task.algorithm == _BOUND_WORK:
        return [dict.fromkeys(_BOUND[:-1]) | {"bound_reason": reason}]
    return [task.row(size_bytes=size, reason=reason) for size in task.sizes]


def _timed(task: Task) -> Rows:
    chooser = models.chooser(task.algorithm)
    if chooser is not None:
        # The links must connect the members for what a library chooses as for all others.
        task.question.part(collective=task.collective)
    question = replace(task.question, collective=task.collective)
    model, topology = models.model(chooser or task.model).at(question)
    names = model.best if task.algorithm == "best" else [task.algorithm]
    quickest: dict[int, Projection] = {}
    for projection in model.times(topology, task.collective, task.sizes, names):
        quickest.setdefault(projection.size, projection)
    return [_answer(task, quickest[size]) for size in task.sizes]


def _answer(task: Task, found: Projection) -> dict[str, Any]:
    row = task.row(model=found.model, ranks=len(found.members), size_bytes=found.size, **found.row())
    held = found.bound
    # What takes the machine for more than its description has a bound of its own, which grants that.
    return row | (_bound_columns(held.rate, held.scope, held.assumes) if held and held.granted else {})


def _bound_columns(rate: Fraction, scope: str, assumes: str) -> dict[str, Any]:
    return dict(zip(_BOUND, (in_GBps(rate), exact_GBps(rate), scope, assumes, ""), strict=True))


def _bounded(task: Task) -> Rows:
    from blinksim.bounds import bound

    topology = task.question.part(collective=task.collective)
    if task.collective.name == "allreduce" and topology.ranks > MOST_EXACT:
        phases = [bound(topology, name).rate for name in ("reducescatter", "allgather")]
        rate = 1 / sum((1 / phase for phase in phases), start=Fraction(0))
        return [_bound_columns(rate, "reduce-scatter + allgather", TWO_PHASES)]
    best = bound(topology, task.collective).headline
    return [_bound_columns(best.rate, best.scope, best.assumes)]


def _table(tasks: Sequence[Task], answers: Mapping[str, Rows], title: str, bounds: bool) -> Iterable[dict[str, Any]]:
    limits = {(task.case, task.node.rates): answers[task.key][0] for task in tasks if task.algorithm == _BOUND_WORK}
    for task in tasks:
        if task.algorithm == _BOUND_WORK:
            continue
        for answer in answers[task.key]:
            row: dict[str, Any] = {"machine": title, "collective": str(task.collective), "model": answer["model"]}
            labels = dict(task.case.labels)
            row |= labels | {key: value for key, value in answer.items() if key not in {"reason", *_BOUND, *labels}}
            if bounds:
                row |= _limited(answer, limits[task.case, task.node.rates])
            yield row | {"reason": answer["reason"]}


def _limited(answer: Mapping[str, Any], limit: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row's bound: the answer's own, if it has one, else that of its case."""
    held = {key: answer.get(key, limit[key]) for key in _BOUND}
    most, rate = held["bound_algbw_GBps"], answer["algbw_GBps"]
    return {**held, "of_bound": rate / most if most and rate else None}
