"""How long a collective takes, with which algorithm, and which one is best for a size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from blinksim.collective import Collective
from blinksim.results import Tabular
from blinksim.timing import model_registry as models
from blinksim.timing.projection_result import Ceiling, Projection
from blinksim.timing.timing_model import ScheduleModel, ceiling_of
from blinksim.units import parse_size

if TYPE_CHECKING:
    from blinksim.schedule.model import Schedule
    from blinksim.topology.graph import Topology

Answer = Callable[[int], Projection]


@dataclass(repr=False)
class Contest(Tabular):
    """All algorithms that can run a collective on a machine, built once and timed for any size.

    model: what times the schedules. schedules: by name. refused: the reason, for those that cannot run here. others:
    what models without a schedule answer for a size, by name.
    """

    topology: Topology
    collective: Collective
    model: ScheduleModel
    schedules: dict[str, Schedule] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    others: dict[str, Answer] = field(default_factory=dict)

    def only(self, *names: str) -> Contest:
        """The same contest among the algorithms named."""
        schedules = {name: schedule for name, schedule in self.schedules.items() if name in names}
        others = {name: answer for name, answer in self.others.items() if name in names}
        return Contest(self.topology, self.collective, self.model, schedules, others=others)

    @cached_property
    def bound(self) -> Ceiling:
        """What no algorithm exceeds here."""
        return ceiling_of(self.topology, self.collective)

    def projections(self, size: int, gamma: float = 0.0) -> list[Projection]:
        """One projection per schedule and other model for `size` bytes, quickest first."""
        timed = self.model.rank(self.topology, self.schedules, size, self.bound, gamma)
        timed += [answer(size) for answer in self.others.values()]
        return sorted(timed, key=lambda projection: projection.time_s)

    def rows(self) -> list[dict[str, Any]]:
        """One row per schedule, and one per refused algorithm with the reason."""
        rows: list[dict[str, Any]] = [
            {"algorithm": name, "sends": schedule.sends, "steps": schedule.steps, "refused": ""}
            for name, schedule in self.schedules.items()
        ]
        none = {"sends": None, "steps": None}
        return [*rows, *({"algorithm": name, **none, "refused": why} for name, why in self.refused.items())]

    def __repr__(self) -> str:
        entrants = ", ".join((*self.schedules, *self.others))
        refused = f"; refused: {', '.join(self.refused)}" if self.refused else ""
        return f"<Contest for {self.collective} on {self.topology.name} by {self.model.name}: {entrants}{refused}>"


def contest(
    topology: Topology,
    collective: Collective,
    names: Iterable[str] | None = None,
    report: Callable[[str], None] | None = None,
    model: str | ScheduleModel = models.DEFAULT,
) -> Contest:
    """Builds the named algorithms (default: all that have the collective and need no solver) on a selected topology.

    report: called with a progress message. model: what times them, ``alpha-beta`` or ``simulate``. A named algorithm
    that cannot run raises; of the default ones the reason is kept. Raises `InfeasibleError` if none is left.
    """
    timing = models.schedule_model(model) if isinstance(model, str) else model
    schedules, refused = timing.schedules(topology, collective, names, report)
    return Contest(topology, collective, timing, schedules, refused)


def project(
    topology: Topology,
    collective: Collective | str,
    size: int | str,
    *,
    algorithm: str = "best",
    model: str = models.DEFAULT,
    gamma: float = 0.0,
) -> Projection:
    """The time of a collective of `size` (bytes, or text such as ``256MiB``) on a topology.

    topology: as `Topology.select` gives it, or a whole machine, of which its default members and links take part.

    algorithm: a name of the registry, ``best`` for the quickest that needs no solver, or ``nccl`` for what NCCL would
    choose (of a whole machine, loaded at the rates ``nccl``). model: a name of `blinksim.timing.model_registry`:
    ``alpha-beta``, ``simulate``, ``nccl-tuner``, ``projection`` or another preset in models/ (load the machine with the
    rates that the preset pins). gamma: seconds per byte reduced. Raises `InputError` for unknown names and
    `InfeasibleError` where the algorithm or the model does not cover the case.
    """
    chosen = Collective.parse(collective) if isinstance(collective, str) else collective
    chosen.check_ranks(topology.ranks)
    count = parse_size(str(size))
    if model == models.DEFAULT:
        model = models.chooser(algorithm) or model
    timing = models.model(model, **({"gamma": gamma} if gamma else {}))
    return timing.times(topology, chosen, [count], timing.best if algorithm == "best" else [algorithm])[0]
