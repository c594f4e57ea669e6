"""Schedules of algorithms from outside the package: a function fills a `Plan`, and the result is proved."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from blinksim.algorithms.building.plan import Plan
from blinksim.errors import PluginError
from blinksim.plugins import blamed, located, source_of
from blinksim.schedule.verify import verify
from blinksim.textio.text_table import count

if TYPE_CHECKING:
    from blinksim.collective import Collective
    from blinksim.schedule.model import Schedule
    from blinksim.topology.graph import Topology


def filled(
    name: str, fill: Callable[..., object], form: str, topology: Topology, collective: Collective, **options: Any
) -> Schedule:
    """The schedule that `fill` puts into a plan.

    Raises `InfeasibleError` if the function does, and `PluginError` if it fails, or if the schedule does not do what
    the collective promises.
    """
    what = f"algorithm {name!r}"
    file, line = source_of(fill)
    plan = Plan(topology, collective, name, form)
    with blamed(what, file, line):
        returned = fill(plan, **options)
        schedule = plan.finish()
    if returned is not None:
        kind = type(returned).__name__
        raise PluginError(f"{located(what, file, line)} returns a {kind}; fill the plan, return nothing")
    if not schedule.chunks:
        raise PluginError(f"{located(what, file, line)} adds no chunk to the plan; begin with plan.add_chunk(share)")
    verdict = verify(schedule)
    if not verdict.ok:
        more = f" (and {count(len(verdict.reasons) - 1, 'more fault')})" if len(verdict.reasons) > 1 else ""
        doing = f"does not do {collective} on {topology.name}, {topology.ranks} ranks"
        raise PluginError(f"{located(what, file, line)} {doing}: {verdict.reasons[0]}{more}")
    return schedule
