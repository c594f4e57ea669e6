"""Simulations in which every send has room for a few pieces: an oracle for handshakes."""

from __future__ import annotations

import numpy as np

from blinksim.schedule.model import Schedule
from blinksim.timing.event_graph import EventGraph, Work, event_graph, timed
from blinksim.timing.events import first_come
from blinksim.timing.simulation_options import Options


def slotted(schedule: Schedule, size: int, pieces: int, slots: int) -> float:
    """Seconds of a schedule of which every send has room for `slots` pieces, first come, first served.

    A slot is free as soon as its piece has arrived, so the graph of all pieces has one wait more for each of them: the
    piece that comes `slots` later waits for it.
    """
    options = Options()
    graph = event_graph(schedule, options)
    work = timed(graph, size, pieces, options)
    send = graph.send[~graph.timeless]
    heads, tails = np.unique(send, return_index=True)[1], len(send) - 1 - np.unique(send[::-1], return_index=True)[1]
    shift = np.arange(pieces)[:, None] * graph.count
    waits = ((graph.before + shift, graph.after + shift), (tails + shift[:-slots], heads + shift[slots:]))
    before, after = (np.concatenate([part.ravel() for part in ends]) for ends in zip(*waits, strict=True))
    whole = EventGraph(np.tile(graph.resource, pieces), np.tile(graph.timeless, pieces), before, after)
    hold, lag, release = (np.tile(column, pieces) for column in (work.hold, work.lag, work.release))
    run = first_come(Work(whole, hold, lag, release, work.ticks_per_second), 1, record=False)
    return work.seconds(run.finish)
