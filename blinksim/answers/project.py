"""How long a collective takes, with which algorithm, and which one is best for a size."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Literal

from blinksim.algorithms.registry import AlgorithmName
from blinksim.collective import Collective, CollectiveName
from blinksim.errors import InputError
from blinksim.machines import MachineLike, as_topology
from blinksim.question import preferring
from blinksim.timing import model_registry as models
from blinksim.timing.candidates import Entrant
from blinksim.timing.contest import Contest, with_least_time
from blinksim.timing.projection_result import Projection
from blinksim.timing.timing_model import LARGE, ScheduleModel, TimingModel
from blinksim.units import size_of

ChoiceName = Literal["best", "nccl"]
"""Names that stand for a choice among algorithms: the quickest, or NCCL's own."""


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
        and are quickly found (`blinksim.timing.candidates`).
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
    timing = models.schedule_model(model) if isinstance(model, str) else model
    return timing.contest(part, wanted, names, report, sizes, only_best=only_best)


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
