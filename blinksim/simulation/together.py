"""Several collectives on the same links at once: a tenant and its neighbour, the keys of a training step.

Each keeps its own pieces; forests take turns, steps do not (`outcome`). Links serve whatever comes first, ties by
piece, then in the order of the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from blinksim.cost.alpha_beta import cost
from blinksim.errors import InputError
from blinksim.schedule.loads import resource_loads, resources
from blinksim.schedule.model import Schedule
from blinksim.simulation.engines import events
from blinksim.simulation.simulation_options import ProtocolName, Sending
from blinksim.simulation.stages import Stages, stages
from blinksim.simulation.work import merged
from blinksim.units import format_time


@dataclass(frozen=True, eq=False)
class Job:
    """One collective among several. size: bytes. pieces: of each chunk (default: the alpha-beta model's choice).

    start_s: seconds.
    """

    schedule: Schedule
    size: int
    pieces: int | None = None
    start_s: float = 0.0


@dataclass(frozen=True)
class Together:
    """Several collectives, each timed from its own start.

    finish_s: seconds that each took. alone_s: each on an idle machine. busiest: the link with the most to carry, and
    busy: the share of the whole time in which it was.
    """

    finish_s: tuple[float, ...]
    alone_s: tuple[float, ...]
    busiest: str
    busy: float

    @property
    def time_s(self) -> float:
        """Seconds of the job that took longest."""
        return max(self.finish_s)

    @property
    def slowdown(self) -> tuple[float, ...]:
        """For each job its time among the others over its time alone, both from its own start."""
        return tuple(a / b for a, b in zip(self.finish_s, self.alone_s, strict=True))

    def __repr__(self) -> str:
        return f"<Together: {len(self.finish_s)} collectives in {format_time(self.time_s)}; {self.busiest} is busiest>"


def together(
    jobs: Sequence[Job], *, protocol: ProtocolName = "simple", gamma: float = 0.0, alone: bool = True
) -> Together:
    """Runs all jobs on the links that they share by name.

    alone: True to run each on its own too; otherwise alone_s repeats finish_s. Raises `InputError` without jobs,
    for sizes and pieces below 1, and where two machines give the same link different rates.
    """
    if not jobs:
        raise InputError("no collectives to simulate; give at least one")
    sending = Sending(protocol, gamma)
    graphs: dict[int, Stages] = {}
    parts, turns = [], list[bool]()
    for job in jobs:
        if job.size < 1 or (job.pieces is not None and job.pieces < 1) or job.start_s < 0:
            raise InputError("a collective needs at least 1 byte and 1 piece, and starts at 0 s or later")
        if id(job.schedule) not in graphs:
            graphs[id(job.schedule)] = stages(job.schedule, reduction=gamma > 0)
        graph = graphs[id(job.schedule)]
        parts.append((graph, job.size, job.pieces or cost(job.schedule, job.size).pieces, job.start_s))
        turns += [job.schedule.form == "forest"] * graph.count
    work = merged(parts, sending)
    pieces = [count for graph, _, count, _ in parts for _ in range(graph.count)]
    amounts = np.array(pieces, dtype=np.int64)
    if int(amounts.sum()) > 50_000_000:
        raise InputError(f"{int(amounts.sum()):,} transfers are too many to simulate at once; take fewer pieces")
    run = events.fifo(work, pieces, turns=turns)
    assert run.start is not None
    rows = np.arange(len(run.start))[:, None] < amounts
    done = np.where(rows & ~work.timeless, run.start + work.lag, 0)
    finish, first = [], 0
    for graph, _, _, _ in parts:
        finish.append(work.seconds(int(done[:, first : first + graph.count].max(initial=0))))
        first += graph.count
    load = np.zeros(len(work.load), dtype=np.int64)
    np.add.at(load, work.resource, work.hold * amounts)
    worst = int(np.argmax(load))
    assert run.finish >= int(load[worst]), "simulated less than the loads need"
    assert run.finish >= work.critical, "simulated less than the longest path"
    for job, end in zip(jobs, finish, strict=True):
        shared = resources(job.schedule.topology)
        loads = zip(shared.rate, resource_loads(job.schedule, shared), strict=True)
        least = max((job.size * part / rate for rate, part in loads), default=Fraction(0)) / sending.efficiency
        assert end >= (job.start_s + float(least)) * (1 - 1e-12), "a collective beats the loads of its links"
    by_itself = [
        together([Job(job.schedule, job.size, part[2])], protocol=protocol, gamma=gamma, alone=False).finish_s[0]
        for job, part in zip(jobs, parts, strict=True)
    ] if alone else finish  # fmt: skip
    elapsed = tuple(end - job.start_s for job, end in zip(jobs, finish, strict=True))
    stage = int(np.flatnonzero(work.resource == worst)[0])
    owner = next(k for k in range(len(parts)) if stage < sum(g.count for g, _, _, _ in parts[: k + 1]))
    inside = stage - sum(g.count for g, _, _, _ in parts[:owner])
    name = parts[owner][0].resource_name(int(parts[owner][0].resource[inside]))
    return Together(elapsed, tuple(by_itself), name, float(load[worst]) / max(1, run.finish))
