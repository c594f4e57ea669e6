"""Several collectives on the same links at once: a tenant and its neighbour, the keys of a training step.

Each keeps its own pieces; forests take turns, steps do not. Links serve whatever comes first, ties by
piece, then in the order of the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from blinksim.errors import BlinksimError, InputError
from blinksim.schedule.loads import resource_loads, resources
from blinksim.schedule.model import Schedule
from blinksim.timing.alpha_beta import cost
from blinksim.timing.event_graph import (
    EventGraph,
    ScheduleGraph,
    Work,
    event_graph,
    in_ticks,
    longest,
    transfer_times,
    unit_of,
)
from blinksim.timing.events import first_come
from blinksim.timing.simulation_options import Options, ProtocolName
from blinksim.units import format_time

Part = tuple[ScheduleGraph, int]
# Pieces at servers, all together: more take minutes, and gigabytes to hold.
MOST_TRANSFERS = 50_000_000


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
    options = Options(protocol=protocol, gamma=gamma)
    parts = _parts(jobs, options)
    work, numbers = _merged(jobs, parts, options)
    in_turn = [graph.schedule.form == "forest" for graph, _ in parts for _ in range(graph.count)]
    amounts = np.array([pieces for graph, pieces in parts for _ in range(graph.count)], dtype=np.int64)
    if int(amounts.sum()) > MOST_TRANSFERS:
        raise InputError(f"{int(amounts.sum()):,} transfers are too many to simulate at once; take fewer pieces")
    run = first_come(work, amounts.tolist(), turns=in_turn)
    load = np.zeros(len(work.load), dtype=np.int64)
    np.add.at(load, work.graph.resource, work.hold * amounts)
    busiest = int(np.argmax(load))
    if run.finish < max(int(load[busiest]), work.critical):
        raise BlinksimError("simulated less than the loads or the longest path need; this is a fault of blinksim")
    # When the last piece of each part is delivered.
    assert run.start is not None
    rows = np.arange(len(run.start))[:, None] < amounts
    done = np.where(rows & ~work.graph.timeless, run.start + work.lag, 0)
    finish, first = [], 0
    for graph, _ in parts:
        finish.append(work.seconds(int(done[:, first : first + graph.count].max(initial=0))))
        first += graph.count
    _check(jobs, finish, options)
    by_itself = finish
    if alone:
        own = [Job(job.schedule, job.size, pieces) for job, (_, pieces) in zip(jobs, parts, strict=True)]
        by_itself = [together([job], protocol=protocol, gamma=gamma, alone=False).finish_s[0] for job in own]
    elapsed = tuple(end - job.start_s for job, end in zip(jobs, finish, strict=True))
    name = next(name for (_, name), number in numbers.items() if number == busiest)
    return Together(elapsed, tuple(by_itself), name, float(load[busiest]) / max(1, run.finish))


def _parts(jobs: Sequence[Job], options: Options) -> list[Part]:
    """The event graph and the pieces of each job; jobs with one schedule share its graph."""
    graphs: dict[int, ScheduleGraph] = {}
    parts = []
    for job in jobs:
        if job.size < 1 or (job.pieces is not None and job.pieces < 1) or job.start_s < 0:
            raise InputError("a collective needs at least 1 byte and 1 piece, and starts at 0 s or later")
        if id(job.schedule) not in graphs:
            graphs[id(job.schedule)] = event_graph(job.schedule, options)
        parts.append((graphs[id(job.schedule)], job.pieces or cost(job.schedule, job.size).pieces))
    return parts


def _merged(jobs: Sequence[Job], parts: Sequence[Part], options: Options) -> tuple[Work, dict[tuple[str, str], int]]:
    """The work of all jobs, whose stages follow each other, and the number of each resource by class and name.

    Resources of the same name, and reducers of devices of the same name, are the same.
    """
    pairs = list(zip(jobs, parts, strict=True))
    transfers = [transfer_times(graph, job.size, pieces, options) for job, (graph, pieces) in pairs]
    most_s = sum(
        job.start_s + longest(graph, times, pieces)
        for (job, (graph, pieces)), times in zip(pairs, transfers, strict=True)
    )
    unit = unit_of((time for times in transfers for time in times), most_s)
    numbers: dict[tuple[str, str], int] = {}
    rates: dict[tuple[str, str], Fraction | None] = {}
    works, resource, waits, first, joints = [], [], [], 0, 0
    for (job, (graph, _)), times in zip(pairs, transfers, strict=True):
        works.append(in_ticks(graph, times, unit, Fraction(job.start_s)))
        shared = graph.shared
        names = map(shared.name, range(len(shared.rate)))
        known: list[tuple[str, str, Fraction | None]] = [*zip(shared.kinds, names, shared.rate, strict=True)]
        known += [("", f"reduction at {device.name}", None) for device in graph.schedule.topology.devices]
        for kind, name, rate in known:
            if rates.setdefault((kind, name), rate) != rate:
                raise InputError(f"{name} has another rate in one of the collectives than in the others")
        here = [numbers.setdefault((kind, name), len(numbers)) for kind, name, _ in known]
        resource.append(np.array([*here, *[0] * int(graph.timeless.sum())])[graph.resource])
        waits.append((graph.before + first, graph.after + first))
        first, joints = first + graph.count, joints + int(graph.timeless.sum())
    timeless = np.concatenate([graph.timeless for graph, _ in parts])
    resources = np.concatenate(resource)
    resources[timeless] = len(numbers) + np.arange(joints)
    before, after = (np.concatenate(ends) for ends in zip(*waits, strict=True))
    columns = zip(*((work.hold, work.lag, work.release) for work in works), strict=True)
    hold, lag, release = (np.concatenate(column) for column in columns)
    return Work(EventGraph(resources, timeless, before, after), hold, lag, release, unit), numbers


def _check(jobs: Sequence[Job], finish: Sequence[float], options: Options) -> None:
    """Raises `BlinksimError` if a collective beats the loads of its links."""
    for job, end in zip(jobs, finish, strict=True):
        shared = resources(job.schedule.topology)
        loads = zip(shared.rate, resource_loads(job.schedule, shared), strict=True)
        least = max((job.size * part / rate for rate, part in loads), default=Fraction(0)) / options.efficiency
        if end < (job.start_s + float(least)) * (1 - 1e-12):
            raise BlinksimError("a collective beats the loads of its links; this is a fault of blinksim")
