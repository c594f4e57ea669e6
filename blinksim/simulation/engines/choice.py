"""Which engine answers: a formula where the pattern has one, array recurrences where the order of service is known, one
event per transfer otherwise. They agree to the tick, so the choice only affects the running time.

In rounds, once the pipe is full, every further piece adds the load of one piece on the busiest server, unless latencies
are longer than rounds (max-plus linear systems become periodic: Baccelli et al., "Synchronization and linearity", 1992,
theorem 3.109); such runs are cut short as soon as that is certain. First come, first served is not linear: there the
growth can settle at that value for dozens of pieces and leave it again, so nothing is cut short.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from blinksim.budget import check_events, most_events
from blinksim.errors import InputError
from blinksim.schedule.contents import connections
from blinksim.simulation.engines import events, formulas, given_order, rounds, sharing, steps
from blinksim.simulation.engines.slots import bounded
from blinksim.simulation.simulation_options import Service
from blinksim.simulation.stages import Flags, Stages
from blinksim.simulation.work import Run, Ticks, Work


@dataclass(frozen=True, eq=False)
class Outcome:
    """finish: ticks. engine: what found it. pieces: how many it ran before the affine tail took over (0: a formula).

    run: the run that was recorded last, of `pieces` pieces.
    """

    finish: int
    engine: str
    pieces: int
    run: Run | None = None


def outcome(
    graph: Stages, work: Work, pieces: int, service: Service, *, tail: bool = True, record: bool = False
) -> Outcome:
    """The makespan of `pieces` of everything.

    tail: True if ``static`` rounds may stop where the growth is certain. record: True to keep the starts. Raises
    `InputError` for an engine that cannot answer.
    """
    if service.slots is not None:
        owner, first, last = _connections(graph)
        slots = service.slots
        return _full(lambda n: bounded(work, n, owner, first, last, slots), work, pieces, "heap")
    if service.shares:
        weighted = service.name == "weighted"
        return _full(lambda n: sharing.shared(work, n, weighted=weighted), work, pieces, "shares")
    if service.name == "static":
        return _static(graph, work, pieces, service.engine, tail=tail, record=record)
    if service.name == "ordered":
        return _full(lambda n: given_order.in_order(work, step_order(graph, work, n), n), work, pieces, "heap")
    return _first_come(graph, work, pieces, service, record=record)


def _static(graph: Stages, work: Work, pieces: int, engine: str, *, tail: bool, record: bool) -> Outcome:
    if engine == "heap":
        return _full(lambda n: given_order.in_order(work, static_order(graph, work, n), n), work, pieces, "heap")
    if graph.schedule.form == "steps":
        return _full(lambda n: steps.in_steps(work, n, record=record, check=False)[0], work, pieces, "waves")
    return _in_rounds(work, pieces, tail, record)


def _first_come(graph: Stages, work: Work, pieces: int, service: Service, *, record: bool) -> Outcome:
    engine, turns = service.engine, service.offered(graph.schedule.form) == "turns"
    if engine in ("auto", "closed-form") and not record:
        known = formulas.makespan(work, pieces, turns=turns)
        if known is not None:
            return Outcome(known, "closed-form", 0)
        if engine == "closed-form":
            raise InputError(f"there is no formula for {graph.schedule.algorithm} here; take waves or heap")
    if engine == "waves" or (engine == "auto" and not turns):
        found = None if turns else _first_come_waves(work, pieces, record)
        if found is not None:
            return found
        if engine == "waves":
            raise InputError("first come, first served is no static order here; take the heap, or service static")
    return _full(lambda n: events.fifo(work, n, turns=turns, record=record), work, pieces, "heap")


def _full(run: Callable[[int], Run], work: Work, pieces: int, engine: str) -> Outcome:
    check_events(engine, pieces, work.count)
    full = run(pieces)
    return Outcome(full.finish, "heap" if engine == "shares" else engine, pieces, full)


def _in_rounds(work: Work, pieces: int, tail: bool, record: bool) -> Outcome:
    n = int(work.level.max(initial=0)) + 6
    few = min(pieces, most_events("waves") // max(1, work.count))
    while tail and 2 * n + 1 < few:
        before, after = (rounds.in_rounds(work, m, record=record, watch=True)[0] for m in (n, n + 1))
        if before.settled and after.finish - before.finish == work.busiest:
            return Outcome(after.finish + (pieces - n - 1) * work.busiest, "waves", n + 1, after)
        n *= 2
    check_events("waves", pieces, work.count)
    full = rounds.in_rounds(work, pieces, record=record)[0]
    return Outcome(full.finish, "waves", pieces, full)


def _first_come_waves(work: Work, pieces: int, record: bool) -> Outcome | None:
    # Two pieces cost little and usually settle it.
    if not steps.in_steps(work, min(pieces, 2))[1]:
        return None
    check_events("waves", pieces, work.count)
    run, agrees = steps.in_steps(work, pieces, record=record)
    return Outcome(run.finish, "waves", pieces, run) if agrees else None


def connection_of(graph: Stages) -> Ticks:
    """The connection of each stage; joints share one of their own."""
    number = connections(graph.schedule)
    owner = np.full(graph.count, len(number), dtype=np.int64)
    owner[graph.send >= 0] = number[graph.send[graph.send >= 0]]
    return owner


def _connections(graph: Stages) -> tuple[Ticks, Flags, Flags]:
    """(the connection of each stage, True where a send begins, True where one ends)."""
    real = graph.send >= 0
    owner = connection_of(graph)
    begins = real.copy()
    begins[1:] &= ~graph.follows[:-1]
    return owner, begins, real & ~graph.follows


def static_order(graph: Stages, work: Work, pieces: int) -> Ticks:
    """The order of service ``static`` as items (piece * E + stage)."""
    items = np.arange(pieces * work.count)
    piece, stage = items // work.count, items % work.count
    level = work.level[stage]
    if graph.schedule.form == "steps":
        return items[np.lexsort((stage, piece, level))]
    return items[np.lexsort((stage, piece + level))]


def step_order(graph: Stages, work: Work, pieces: int) -> Ticks:
    """The order of service ``ordered`` as items (piece * E + stage): every server goes by step, then by piece.

    Raises `InputError` for a forest, whose pieces are in several steps at once.
    """
    if graph.schedule.form != "steps":
        raise InputError("service ordered is for schedules in steps; take static for trees")
    items = np.arange(pieces * work.count)
    piece, stage = items // work.count, items % work.count
    # A joint is a server of its own, so its place is no matter.
    step = np.append(graph.schedule.step, -1)[graph.send[stage]]
    return items[np.lexsort((stage, piece, step))]
