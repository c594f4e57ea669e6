"""Evaluation of an event graph: by formula where its pattern has one, else in arrays, else event by event."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from blinksim.budget import check_events, most_events
from blinksim.errors import InputError
from blinksim.graphs.arrays import distinct, per_topology
from blinksim.timing.event_graph import EventGraph, Run, ScheduleGraph, Work
from blinksim.timing.events import first_come, in_order, step_order
from blinksim.timing.rounds import in_levels, in_rounds
from blinksim.timing.simulation_options import Options


def evaluated(graph: ScheduleGraph, work: Work, pieces: int, options: Options, *, record: bool = False) -> Run:
    """The run of `pieces` of everything: by a formula where the pattern has one, in arrays where the order of service
    is known, event by event otherwise. All agree to the tick, so the choice only affects the running time.

    In rounds, once the pipe is full, every further piece adds the load of one piece on the busiest server,
    unless latencies are longer than rounds (max-plus linear systems become periodic: Baccelli et al.,
    "Synchronization and linearity", 1992, theorem 3.109); such runs are cut short as soon as that is certain.
    First come, first served is not linear: there the growth can settle at that value for dozens of pieces and
    leave it again, so nothing is cut short.

    record: True to keep the starts, of all pieces.
    """
    steps = graph.schedule.form == "steps"
    turns = options.offered(graph.schedule.form) == "turns"
    if options.service == "static" and not steps and not record:
        short = _cut_short(work, pieces)
        if short is not None:
            return short
    elif options.service == "fifo":
        known = None if record else makespan(work, pieces, turns=turns)
        if known is not None:
            return Run(known, engine="closed-form")
        # Two pieces cost little and usually settle whether levels are served in the order of arrival.
        if not turns and in_levels(work, min(pieces, 2))[1]:
            check_events("waves", pieces, graph.count)
            run, agrees = in_levels(work, pieces, record=record)
            if agrees:
                return replace(run, engine="waves", pieces=pieces)
    engine = "waves" if options.service == "static" else "heap"
    check_events(engine, pieces, graph.count)
    if options.service == "ordered":
        if not steps:
            raise InputError("service ordered is for schedules in steps; take static for trees")
        run = in_order(work, step_order(graph, np.append(graph.schedule.step, -1)[graph.send], pieces), pieces)
    elif options.service == "fifo":
        run = first_come(work, pieces, turns=turns, record=record)
    elif steps:
        run = in_levels(work, pieces, record=record, check=False)[0]
    else:
        run = in_rounds(work, pieces, record=record)
    return replace(run, engine=engine, pieces=pieces)


def _cut_short(work: Work, pieces: int) -> Run | None:
    """The run in rounds, of the first pieces alone; None where the growth is not certain before too many of them."""
    few = int(work.graph.level.max(initial=0)) + 6
    while 2 * few + 1 < min(pieces, most_events("waves") // max(1, work.count)):
        before, after = (in_rounds(work, count, watch=True) for count in (few, few + 1))
        if before.settled and after.finish - before.finish == work.busiest:
            finish = after.finish + (pieces - few - 1) * work.busiest
            return replace(after, finish=finish, engine="waves", pieces=few + 1)
        few *= 2
    return None


def makespan(work: Work, pieces: int, *, turns: bool = False) -> int | None:
    """Ticks of `pieces` of everything first come, first served, by a formula; None where the pattern has none.

    With pieces of equal size (P. Fraigniaud and E. Lazard, "Methods and problems of communication in usual
    networks", 1994, and common practice):

    - every server has one stage: a pipeline; piece after piece leaves a path at the pace of its slowest stage, so the
      time is the largest of (longest path through a stage) + (C - 1) hold of the stage;
    - every server has one stage in each of K levels, all alike (rings, one for each channel): a level takes C holds, or
      the lag of one piece where that is longer: (K - 1) max(lag, C hold) + (C - 1) hold + lag;
    - nothing waits for anything (direct exchanges, a star): the busiest server, and what follows its last piece.

    turns: True if a stage puts its next piece in line when the one before has left; levels then mix.
    """
    graph = work.graph
    if not graph.count:
        return 0
    pattern = _pattern(graph)
    if pattern == "pipeline":
        return int((work.head + work.tail + (pieces - 1) * work.hold).max())
    if graph.timeless.any() or (work.release != work.release[0]).any():
        return None
    start, hold, lag = int(work.release[0]), int(work.hold[0]), int(work.lag[0])
    if not len(graph.after):
        after = work.lag - work.hold
        most = np.zeros(len(work.load), dtype=np.int64)
        np.maximum.at(most, graph.resource, after)
        # If these differ, the last piece served need not be the last delivered.
        return None if (after != most[graph.resource]).any() else start + int((work.load * pieces + most).max())
    alike = (work.hold == hold).all() and (work.lag == lag).all() and not (turns and pieces > 1)
    if pattern != "lock step" or not alike:
        return None
    return start + int(graph.level.max()) * max(lag, pieces * hold) + (pieces - 1) * hold + lag


@per_topology
def _pattern(graph: EventGraph) -> str:
    """``pipeline``: every server has one stage; ``lock step``: one in each level; or ``other``."""
    rounds, at_server = int(graph.level.max()) + 1, np.bincount(graph.resource)
    if int(at_server.max()) == 1:
        return "pipeline"
    full = int(np.count_nonzero(at_server)) * rounds == graph.count
    return "lock step" if full and len(distinct(graph.resource * rounds + graph.level)) == graph.count else "other"
