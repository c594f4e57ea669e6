"""How long a collective takes, with which algorithm, and which one is best for a size."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from dataclasses import field as attribute
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from blinksim.algorithms.registry import AlgorithmName
from blinksim.bounds.assumptions import NOTHING
from blinksim.collective import Collective, CollectiveName
from blinksim.cost.terms import Term
from blinksim.errors import InputError
from blinksim.machines import MachineLike, as_topology
from blinksim.question import preferring
from blinksim.results import Tabular
from blinksim.timing import model_registry as models
from blinksim.timing.entrants import Entrant, Field
from blinksim.timing.projection_result import Ceiling, LeastTime, Projection
from blinksim.timing.timing_model import LARGE, ScheduleModel, TimingModel
from blinksim.units import size_of

if TYPE_CHECKING:
    from blinksim.schedule.model import Schedule
    from blinksim.topology.graph import Topology

# The models whose times are those of links with latency, overhead and bandwidth.
ON_LINKS = ("alpha-beta", "simulate")
# Ranks up to which the bound is a matter of a second.
_MOST_RANKS = 4096
_WAITS = "waits that these sums leave out"

Answer = Callable[[int], Projection]
ChoiceName = Literal["best", "nccl"]
"""Names that stand for a choice among algorithms: the quickest, or NCCL's own."""


@dataclass(repr=False)
class Contest(Tabular):
    """All algorithms that can run a collective on a machine, built once and timed for any size.

    Attributes
    ----------
    topology : Topology
        The part that takes part.
    collective : Collective
        What runs.
    model : ScheduleModel
        What times the schedules.
    field : Field
        The schedules by the name of their algorithm, and the reasons of those that cannot run or were not tried.
    others : dict
        What models without a schedule answer for a size, by name.

    Examples
    --------
    >>> import blinksim as bs
    >>> found = bs.contest("dgx1-v100", "allreduce")
    >>> for size in (2**10, 2**30):
    ...     print(found.projections(size)[0].algorithm)
    recursive_doubling
    ring
    """

    topology: Topology
    collective: Collective
    model: ScheduleModel
    field: Field
    others: dict[str, Answer] = attribute(default_factory=dict)

    @cached_property
    def schedules(self) -> dict[str, Schedule]:
        """The schedules by name, their sends divided among parallel routes."""
        return {name: entrant.schedule for name, entrant in self.field.entrants.items()}

    @property
    def refused(self) -> dict[str, str]:
        """The reasons of those that cannot run here."""
        return self.field.refused

    @property
    def on_links(self) -> bool:
        """True if times count links alone: latency, overhead and bandwidth."""
        return self.model.on(self.topology).name in ON_LINKS

    def check_on_links(self, option: str) -> None:
        """Raises `InputError`, which names an option for links alone, where the model in force counts more."""
        if not self.on_links:
            name = self.model.on(self.topology).name
            raise InputError(f"{option} is for the links alone, and {name} counts more; leave it out")

    @property
    def left_out(self) -> dict[str, str]:
        """The reasons of those that were not tried."""
        return self.field.left_out

    @property
    def slower(self) -> tuple[str, ...]:
        """Those that are slower than others for sure, and have no schedule therefore."""
        return tuple(self.field.slower)

    def only(self, *names: str) -> Contest:
        """The same contest among the algorithms named."""
        entrants = {name: entrant for name, entrant in self.field.entrants.items() if name in names}
        others = {name: answer for name, answer in self.others.items() if name in names}
        return Contest(self.topology, self.collective, self.model, Field(entrants, self.bound), others)

    @property
    def bound(self) -> Ceiling:
        """What no algorithm exceeds here."""
        return self.field.ceiling

    def projections(self, size: int, gamma: float = 0.0, best: bool = False) -> list[Projection]:
        """One projection per schedule and other model for `size` bytes, quickest first.

        best: only the first one counts; the others may be by a quicker model.
        """
        rank = self.model.rank_best if best else self.model.rank
        timed = rank(self.topology, self.field.entrants, size, self.bound, gamma)
        timed += [answer(size) for answer in self.others.values()]
        return sorted(timed, key=lambda projection: projection.time_s)

    def answers(self, size: int, gamma: float = 0.0, best: bool = False) -> list[Projection]:
        """As `projections`, with the least time that any schedule takes, where the model counts the links alone."""
        return with_least_times(self.topology, self.projections(size, gamma, best))

    def rows(self) -> list[dict[str, Any]]:
        """One row per schedule, and one per refused algorithm with the reason."""
        rows: list[dict[str, Any]] = [
            {"algorithm": name, "sends": entrant.sends, "steps": entrant.steps, "refused": ""}
            for name, entrant in self.field.entrants.items()
        ]
        none = {"sends": None, "steps": None}
        return [*rows, *({"algorithm": name, **none, "refused": why} for name, why in self.refused.items())]

    def __repr__(self) -> str:
        entrants = ", ".join((*self.field.entrants, *self.others))
        refused = f"; refused: {', '.join(self.refused)}" if self.refused else ""
        return f"<Contest for {self.collective} on {self.topology.name} by {self.model.name}: {entrants}{refused}>"


def contest(
    machine: MachineLike,
    collective: Collective | CollectiveName | str,
    names: Iterable[AlgorithmName | Entrant] | str | None = None,
    report: Callable[[str], None] | None = None,
    model: models.ScheduleModelName | str | ScheduleModel = models.DEFAULT,
    *,
    sizes: Collection[int] = (LARGE,),
    only_best: bool = False,
) -> Contest:
    """Builds algorithms once, to be timed for any size.

    Parameters
    ----------
    machine : str, path or Topology
        As for `project`.
    collective : str or Collective
        Such as ``"allreduce"``.
    names : iterable of str, path or Schedule, or str, optional
        Algorithms by name, also as text such as ``"ring,chain"``, schedules, and files of schedules, own and of
        MSCCL. Default: all that have the collective
        and are quickly found (`blinksim.timing.shortlist`).
    report : callable, optional
        Called with a progress message.
    model : str or ScheduleModel
        What times them: ``alpha-beta``, ``execution`` or ``simulate``; ``auto`` is ``execution`` where the machine's
        constants are known, else ``alpha-beta``.
    sizes : collection of int
        The default algorithms are to be the best for these sizes in bytes.
    only_best : bool
        Only the quickest at these sizes is asked for: on more than 4,096 ranks, algorithms that are slower for sure get
        no schedule; `slower` names them.

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
    wanted.check_ranks(part.ranks)
    timing = (models.schedule_model(model) if isinstance(model, str) else model).on(part)
    return Contest(part, wanted, timing, timing.field(part, wanted, names, report, sizes, only_best=only_best))


def project(
    machine: MachineLike,
    collective: Collective | CollectiveName | str,
    size: int | float | str | None = None,
    *,
    algorithm: AlgorithmName | ChoiceName | str = "best",
    model: models.ModelName | str | TimingModel = models.DEFAULT,
    gamma: float = 0.0,
) -> Projection:
    """The time of a collective.

    Parameters
    ----------
    machine : str, path or Topology
        A name of the catalogue, a machine file, or a topology. Of a whole machine the default members and links take
        part.
    collective : str or Collective
        Such as ``"allreduce"``.
    size : int or str
        Bytes, or text such as ``"256MiB"``. Default: that of the traffic matrix, where there is one.
    algorithm : str
        A name of the registry, the file of a schedule, ``best`` for the quickest of those that are found quickly, or
        ``nccl`` for what NCCL would choose (of a whole machine; at the rates ``nccl`` unless it was loaded at others).
    model : str or TimingModel
        A name of `blinksim.timing.model_registry`: ``alpha-beta``, ``execution``, ``simulate``, ``nccl-tuner``,
        ``projection`` or another preset in models/, at the rates that it pins. ``auto`` is ``execution`` where the
        machine's constants are known (such as ``hgx-h200`` at measured rates), else ``alpha-beta``.
        With settings of its own: `blinksim.model`.
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


def with_least_times(part: Topology, projections: Iterable[Projection]) -> list[Projection]:
    """Projections on `part` with their bounds on time, quickest first; those of other models as they are.

    The sums of alpha-beta leave out that messages wait for each other. Where that makes a time less than any schedule
    takes, the rest is added as a term of its own, so that no answer is below a proved bound.
    """
    found = (with_least_time(part, projection) for projection in projections)
    return sorted(found, key=lambda projection: projection.time_s)


def with_least_time(part: Topology, projection: Projection) -> Projection:
    """A projection on `part` with the bound on its time, and raised to it; one of another model as it is."""
    if projection.model not in ON_LINKS or part.ranks > _MOST_RANKS or projection.size < 1:
        return projection
    from blinksim.bounds.time.delays import SECOND
    from blinksim.bounds.time.time_bound import least_time

    best = least_time(part, projection.collective, projection.size, projection.grants)
    assumes = "" if best.assumes == NOTHING else best.assumes
    least = LeastTime(best.time / SECOND, best.words(part), assumes, best.kind)
    missing = least.time_s - projection.time_s
    terms = projection.terms
    if missing > 0:
        terms = (*terms, Term(_WAITS, missing, "alpha"))
    return replace(projection, least=least, terms=terms)
