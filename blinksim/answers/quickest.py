"""Which algorithm is quickest at a size, and how long a schedule takes there beside the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from blinksim.algorithms.registry import REGISTRY
from blinksim.answers.project import ON_LINKS, Contest, contest, with_least_time
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.schedule.ways import MOST_SENDS, Parallel
from blinksim.timing.projection_result import OF_RUNS, Projection
from blinksim.topology.graph import Topology

if TYPE_CHECKING:
    from blinksim.bounds.bound_result import Bound
    from blinksim.schedule.model import Schedule


@dataclass(frozen=True)
class AtSize:
    """How long a schedule takes at a size.

    Attributes
    ----------
    projection : Projection
        The time, its terms, and what timed it.
    least_s : float
        No schedule is quicker; where the model counts more than links, the bytes alone at the rate of the bound.
    alternatives : tuple of Projection
        Of the other algorithms that were considered, quickest first.
    """

    projection: Projection
    least_s: float
    alternatives: tuple[Projection, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.projection.size

    @property
    def time_s(self) -> float:
        """Seconds."""
        return self.projection.time_s

    @property
    def quickest(self) -> bool:
        """True if none of the alternatives takes less."""
        return all(self.time_s <= other.time_s for other in self.alternatives)

    def to_dict(self) -> dict[str, Any]:
        """What ``synth --json`` says of the size."""
        found = self.projection
        return {
            "size_bytes": self.size,
            "time_s": self.time_s,
            "least_time_s": self.least_s,
            "model": found.model,
            "terms": [{"name": t.name, "time_s": t.time_s, "limit": t.limit} for t in found.terms],
            **({"executor": found.executor} if found.executor else {}),
            **{key: found.details[key] for key in OF_RUNS if key in found.details},
            "alternatives": [{"algorithm": one.algorithm, "time_s": one.time_s} for one in self.alternatives],
        }


@dataclass(frozen=True)
class Candidates:
    """What `blinksim.project` considers at a size (bytes), built and timed by the model in force."""

    field: Contest
    size: int
    projections: tuple[Projection, ...]

    def quickest(self) -> Schedule:
        """The schedule that takes the least time, of those that are not too long to write out.

        Raises `InfeasibleError` if all are.
        """
        entrants = self.field.field.entrants
        for projection in self.projections:
            if entrants[projection.algorithm].sends <= MOST_SENDS:
                return entrants[projection.algorithm].schedule
        raise InfeasibleError(f"every schedule has more than {MOST_SENDS:,} sends; take fewer nodes")


def candidates(part: Topology, collective: Collective, size: int, *, search: bool = False) -> Candidates:
    """The algorithms that are considered on a selected topology; raises as `blinksim.contest` does.

    search: True for those too that search for the size, where the model in force counts the links alone.
    """
    rivals = contest(part, collective, sizes=[size])
    if search and rivals.model.on(part).name in ON_LINKS:
        more = dict(_searched(part, collective, size))
        rivals = replace(rivals, field=replace(rivals.field, entrants={**rivals.field.entrants, **more}))
    return Candidates(rivals, size, tuple(rivals.answers(size)))


def _searched(part: Topology, collective: Collective, size: int) -> Iterator[tuple[str, Parallel]]:
    for entry in REGISTRY.values():
        if entry.supports(collective.name) and "size" in entry.options():
            with suppress(InfeasibleError):
                yield entry.name, entry.parallel(part, collective, size=size)


def timed(rivals: Candidates, schedule: Schedule, bound: Bound) -> AtSize:
    """What a schedule of the same question takes.

    Raises `InfeasibleError` if the model in force cannot time it.
    """
    field, entrant = rivals.field, Parallel(schedule)
    field.model.check_schedule(entrant)
    [own] = field.model.rank(field.topology, {schedule.algorithm: entrant}, rivals.size, field.bound)
    others = tuple(one for one in rivals.projections if one.algorithm != schedule.algorithm)
    own = with_least_time(field.topology, own)
    return AtSize(own, own.least.time_s if own.least else rivals.size / float(bound.rate), others)
