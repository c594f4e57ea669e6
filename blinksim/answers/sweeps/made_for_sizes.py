"""Schedules that are made for one size each, beside algorithms that serve all sizes: all of them simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from blinksim.algorithms.registry import REGISTRY
from blinksim.answers.project import ON_LINKS, Contest, with_least_times
from blinksim.answers.quickest import MOST_SIMULATED, candidates, of_the_quickest, searches
from blinksim.budget import asked_to_stop, stoppable
from blinksim.collective import Collective
from blinksim.errors import InfeasibleError
from blinksim.schedule.ways import Parallel
from blinksim.timing.entrants import Field, ceiling_of
from blinksim.timing.model_registry import DEFAULT, schedule_model
from blinksim.timing.projection_result import Projection
from blinksim.topology.graph import Topology
from blinksim.units import format_size

if TYPE_CHECKING:
    from blinksim.schedule.model import Schedule
    from blinksim.timing.timing_model import ScheduleModel

# Sizes that schedules are made for to stand beside a comparison, between these, and on how many ranks.
_MOST_MADE, _SMALLEST, _LARGEST, _MOST_MADE_RANKS = 8, 2**12, 2**26, 16


def by_simulation(rivals: Contest) -> Contest:
    """The same schedules timed in a simulation, as those that are made for a size; refuses those that are too long.

    Raises `InfeasibleError` if all are too long.
    """
    model, entrants, refused = schedule_model("simulate").on(rivals.topology), dict[str, Parallel](), dict[str, str]()
    for name, entrant in rivals.field.entrants.items():
        try:
            model.check_schedule(entrant)
        except InfeasibleError as error:
            refused[name] = str(error)
        else:
            entrants[name] = entrant
    if not entrants:
        raise InfeasibleError(next(iter(refused.values()), "no schedule can be simulated"))
    return replace(
        rivals, model=model, field=replace(rivals.field, entrants=entrants, refused=rivals.refused | refused)
    )


def made_for(
    part: Topology,
    collective: Collective,
    sizes: Sequence[int],
    seconds: float,
    report: Callable[[str], None] | None = None,
    model: ScheduleModel | None = None,
) -> dict[int, Projection]:
    """Projections of schedules that are made for one size, by size in bytes, searched for so many seconds each.

    Message by message on the links; nothing where another model than that of links is in force. report: called with a
    progress message. Ctrl-C ends the searches with those that are found.
    """
    found = dict[int, Projection]()
    with stoppable():
        for size in sizes:
            if report is not None:
                report(f"a schedule for {format_size(size)}")
            made = best_made(part, collective, size, seconds, model)
            if made is not None:
                found[size] = made[0]
            if asked_to_stop():
                break
    return found


def quicker_made(
    part: Topology,
    collective: Collective,
    sizes: Sequence[int],
    seconds: float,
    report: Callable[[str], None] | None = None,
) -> dict[int, Projection]:
    """As `made_for`, those that are quicker than all that need no search, which are simulated as well."""
    made = made_for(part, collective, sizes, seconds, report)
    rivals = {size: candidates(part, collective, size).projections[0].time_s for size in made}
    return {size: one for size, one in made.items() if one.time_s < rivals[size]}


def nothing_made(made: dict[int, Projection], seconds: float) -> dict[str, str]:
    """Why no schedule was made for any size, by algorithm; empty if one was."""
    searched = [entry.name for entry in REGISTRY.values() if "size" in entry.options()]
    return {} if made else dict.fromkeys(searched, f"no schedule for a size within {seconds:g} s")


def best_made(
    part: Topology, collective: Collective, size: int, seconds: float, model: ScheduleModel | None = None
) -> tuple[Projection, Schedule] | None:
    """The best of the schedules that a search of so many seconds makes for a size, and its simulated projection.

    None where there is none, or where another model than that of links is in force. model: default, the one in force.
    """
    model = (model or schedule_model(DEFAULT)).on(part)
    if model.name not in ON_LINKS:
        return None
    ceiling = ceiling_of(part, collective)
    entrants = dict(searches(part, collective, size, {"time_limit": seconds}))
    answers = with_least_times(part, model.rank(part, entrants, size, ceiling))
    made = of_the_quickest(Contest(part, collective, model, Field(entrants, ceiling)), answers, MOST_SIMULATED)
    return (made[0], entrants[made[0].algorithm].schedule) if made else None


def some_sizes(part: Topology, sizes: Sequence[int]) -> list[int]:
    """The sizes for which schedules are made within seconds, to stand in a picture."""
    if part.ranks > _MOST_MADE_RANKS:
        return []
    inside = [size for size in sizes if _SMALLEST <= size <= _LARGEST]
    return inside[:: -(-len(inside) // _MOST_MADE) or 1]
