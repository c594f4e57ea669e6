"""Schedules that could be loaded: timed by the model in force, and as the files that NCCL or MSCCL reads."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from blinksim import exports
from blinksim.algorithms.registry import algorithm
from blinksim.errors import BlinksimError, InfeasibleError
from blinksim.schedule.candidate import Candidate
from blinksim.schedule.verify import verify
from blinksim.schedule.ways import MOST_SENDS
from blinksim.topology.cluster import nodes_of

if TYPE_CHECKING:
    from blinksim.answers.logs.expectation import Expectation
    from blinksim.schedule.model import Schedule
    from blinksim.textio.whole_files import Exported
    from blinksim.timing.contest import Contest
    from blinksim.timing.projection_result import Projection

# Solvers run up to this many ranks; beyond, only algorithms that need none.
MOST_RANKS = 64
# MSCCL's chunks are equal: shares in finer parts than this exceed what its runtimes hold.
MOST_CHUNKS = 2000
_FOR_NCCL = ("ring", "rings", "chains", "chain_tree")


@dataclass(frozen=True)
class Option:
    """A schedule that could run. exported: what a runtime would read, if any.

    time_s: seconds by the model in force; for what NCCL would load on several nodes not less than its own model says,
    and by NCCL's constants where those were measured. projection: what the model in force says of the schedule.
    """

    schedule: Schedule
    time_s: float
    projection: Projection
    format: str = ""
    exported: Exported | None = None

    @property
    def algorithm(self) -> str:
        return self.schedule.algorithm


def options_of(rivals: Contest, expectation: Expectation, size: int, within_s: float) -> list[Option]:
    """Verified schedules: the quickest that needs no solver, the packed one, and those that NCCL might read.

    within_s: seconds; of schedules that need no solver and take longer nothing would be loaded into NCCL. If it is
    infinite, times of schedules that are clearly not the quickest may be estimates.
    """
    part, collective = expectation.part, expectation.collective
    # Where any time will do to be looked at, only the quickest must be timed exactly.
    best = math.isinf(within_s)
    entrants, timed = rivals.entrants, rivals.projections(size, best)
    # One that has too many sends to be written out cannot be loaded: the next quickest stands for it.
    ranked = [name for p in timed if entrants[name := p.algorithm].sends <= MOST_SENDS]
    if not ranked:
        raise InfeasibleError(
            f"{part.name}: every schedule has more than {MOST_SENDS:,} sends on {part.ranks} ranks; take fewer"
        )
    worth = {p.algorithm for p in timed if p.time_s <= within_s}
    wanted = dict.fromkeys((ranked[0], *(name for name in _FOR_NCCL if name in worth)))
    plans = {name: entrants[name].schedule for name in wanted if name in ranked}
    # Between nodes NCCL keeps to shapes of its own, which the solvers' schedules do not have.
    solved = ("packed", "rings", "chains") if len(nodes_of(part, part.members)) == 1 else ("packed",)
    for name in solved if part.ranks <= MOST_RANKS else ():
        try:
            plans[name] = algorithm(name).build(part, collective, bound=expectation.bounds)
            rivals.model.check_schedule(Candidate(plans[name]))
        except BlinksimError:
            # There is no such schedule for this collective or machine, or nothing that says how long it takes.
            plans.pop(name, None)
    timed = rivals.among({name: Candidate(plan) for name, plan in plans.items()}).projections(size, best)
    projections = {projection.algorithm: projection for projection in timed}
    return [
        Option(plan, projections[name].time_s, projections[name]) for name, plan in plans.items() if verify(plan).ok
    ]


def for_nccl(option: Option, expectation: Expectation, size: int, *, measured: bool) -> Option | None:
    """The option as a graph file; None if the format cannot hold it.

    On one node the links' own arithmetic counts: NCCL's model halves every tree, while chains of Blink+ got all of
    their lanes (58.9 GB/s of allreduce over three, Blink+ report, section 4.2). Between nodes, where NCCL decides how
    the channels go on, its model counts too: the longer of the two times is taken. measured: NCCL's own choice is timed
    by constants that were measured, and so is the file, as far as they know what it makes NCCL do.
    """
    from blinksim.nccl.files import graph_file

    if option.algorithm not in _FOR_NCCL or not expectation.runs:
        return None
    found = _exported(option, "nccl-graph")
    if found is None or found.exported is None:
        return None
    kind = "tree" if "tree" in found.exported.environment.get("NCCL_ALGO", "") else "ring"
    if measured:
        time_s = expectation.measured_as(kind, size)
        return None if time_s is None else replace(found, time_s=time_s)
    if len(nodes_of(option.schedule.topology, option.schedule.topology.members)) == 1:
        return found
    file = graph_file.read_text(found.exported.files[""], "graph.xml")
    time_s = expectation.with_file(file, size, kind)
    return found if time_s is None else replace(found, time_s=max(time_s, option.time_s))


def _exported(option: Option, name: str) -> Option | None:
    """The option with what a runtime reads; None if the format cannot hold it."""
    try:
        found = exports.find(name).export(option.schedule)
    except BlinksimError:
        return None
    return replace(option, format=name, exported=found)


def for_msccl(option: Option, expectation: Expectation) -> Option | None:
    """The option as an MSCCL algorithm, if such a runtime runs here and the format's equal chunks are not too many."""
    if not expectation.runs or option.schedule.share_den > MOST_CHUNKS:
        return None
    return _exported(option, "msccl-xml")
