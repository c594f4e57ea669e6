"""Several collectives on the same links at once: a tenant and its neighbour, the keys of a training step.

Each keeps its own pieces; forests take turns, steps do not (`outcome`). Links serve whatever comes first, ties by
piece, then in the order of the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from blinksim.cost.alpha_beta import cost
from blinksim.errors import BlinksimError, InputError
from blinksim.schedule.loads import resource_loads, resources
from blinksim.schedule.model import Schedule
from blinksim.simulation.engines import events
from blinksim.simulation.simulation_options import ProtocolName, Sending
from blinksim.simulation.stages import Stages, stages
from blinksim.simulation.work import Part, Run, Work, merged
from blinksim.units import format_time

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
    sending = Sending(protocol, gamma)
    parts = _parts(jobs, reduction=gamma > 0)
    work = merged(parts, sending)
    turns = [job.schedule.form == "forest" for job, part in zip(jobs, parts, strict=True) for _ in range(part[0].count)]
    amounts = np.array([pieces for graph, _, pieces, _ in parts for _ in range(graph.count)], dtype=np.int64)
    if int(amounts.sum()) > MOST_TRANSFERS:
        raise InputError(f"{int(amounts.sum()):,} transfers are too many to simulate at once; take fewer pieces")
    run = events.fifo(work, amounts.tolist(), turns=turns)
    load = np.zeros(len(work.load), dtype=np.int64)
    np.add.at(load, work.resource, work.hold * amounts)
    busiest = int(np.argmax(load))
    if run.finish < max(int(load[busiest]), work.critical):
        raise BlinksimError("simulated less than the loads or the longest path need; this is a fault of blinksim")
    finish = _finish(parts, work, run, amounts)
    _check(jobs, finish, sending)
    by_itself = finish
    if alone:
        one = [Job(job.schedule, job.size, part[2]) for job, part in zip(jobs, parts, strict=True)]
        by_itself = [together([job], protocol=protocol, gamma=gamma, alone=False).finish_s[0] for job in one]
    elapsed = tuple(end - job.start_s for job, end in zip(jobs, finish, strict=True))
    return Together(elapsed, tuple(by_itself), _name(parts, work, busiest), float(load[busiest]) / max(1, run.finish))


def _parts(jobs: Sequence[Job], *, reduction: bool) -> list[Part]:
    """The jobs as `merged` takes them; jobs with one schedule share its graph."""
    graphs: dict[int, Stages] = {}
    parts = []
    for job in jobs:
        if job.size < 1 or (job.pieces is not None and job.pieces < 1) or job.start_s < 0:
            raise InputError("a collective needs at least 1 byte and 1 piece, and starts at 0 s or later")
        if id(job.schedule) not in graphs:
            graphs[id(job.schedule)] = stages(job.schedule, reduction=reduction)
        pieces = job.pieces or cost(job.schedule, job.size).pieces
        parts.append((graphs[id(job.schedule)], job.size, pieces, job.start_s))
    return parts


def _finish(parts: Sequence[Part], work: Work, run: Run, amounts: npt.NDArray[np.int64]) -> list[float]:
    """Seconds at which the last piece of each part is delivered. amounts: pieces by stage."""
    assert run.start is not None
    rows = np.arange(len(run.start))[:, None] < amounts
    done = np.where(rows & ~work.timeless, run.start + work.lag, 0)
    finish, first = [], 0
    for graph, _, _, _ in parts:
        finish.append(work.seconds(int(done[:, first : first + graph.count].max(initial=0))))
        first += graph.count
    return finish


def _check(jobs: Sequence[Job], finish: Sequence[float], sending: Sending) -> None:
    """Raises `BlinksimError` if a collective beats the loads of its links."""
    for job, end in zip(jobs, finish, strict=True):
        shared = resources(job.schedule.topology)
        loads = zip(shared.rate, resource_loads(job.schedule, shared), strict=True)
        least = max((job.size * part / rate for rate, part in loads), default=Fraction(0)) / sending.efficiency
        if end < (job.start_s + float(least)) * (1 - 1e-12):
            raise BlinksimError("a collective beats the loads of its links; this is a fault of blinksim")


def _name(parts: Sequence[Part], work: Work, resource: int) -> str:
    """The name of a resource of the merged work, from the first part that uses it."""
    stage = int(np.flatnonzero(work.resource == resource)[0])
    for graph, _, _, _ in parts:
        if stage < graph.count:
            return graph.resource_name(int(graph.resource[stage]))
        stage -= graph.count
    raise AssertionError("every stage belongs to a part")
