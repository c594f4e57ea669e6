"""Why a run takes as long as it does: the chain of busy servers and journeys that ends with the last delivery.

Walking back from the last delivery, a piece either waited for its server, which was then busy with the piece before it,
or started as soon as its data was there. The pieces passed on the way add up to the whole time, without gaps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blinksim.simulation.stages import Stages
from blinksim.simulation.work import Run, Ticks, Work
from blinksim.units import format_time


@dataclass(frozen=True, slots=True)
class Leg:
    """A stretch of the critical path at one server.

    place: the link, bus, device or reducer, or what else took the time. kind: its link class. start_s, time_s: seconds.
    pieces: passed one after another. travel_s: the part of time_s in which the last of them was on its way (latency,
    and what a slower stage behind it took).
    """

    place: str
    kind: str
    start_s: float
    time_s: float
    pieces: int = 1
    travel_s: float = 0.0

    def words(self) -> str:
        """One sentence without a full stop."""
        if not self.pieces:
            return f"{self.place}: {format_time(self.time_s)}"
        many = f"{self.pieces} pieces in a row" if self.pieces > 1 else "1 piece"
        travel = f", of which {format_time(self.travel_s)} on its way" if self.travel_s > 0 else ""
        return f"{self.place} passes {many}: {format_time(self.time_s)}{travel}"

    def to_dict(self) -> dict[str, object]:
        return {
            "place": self.place,
            "class": self.kind,
            "start_s": self.start_s,
            "time_s": self.time_s,
            "pieces": self.pieces,
            "travel_s": self.travel_s,
        }


def path(graph: Stages, work: Work, run: Run, connection: Ticks | None = None) -> list[Leg]:
    """The critical path of a recorded run, first leg first.

    connection: of each stage, where connections have a limited number of slots.
    """
    assert run.start is not None
    start = run.start
    done = np.where((start >= 0) & ~work.timeless, start + work.lag, -1)
    piece, stage = np.unravel_index(int(np.argmax(done)), done.shape)
    walk = _Walk(graph, work, start, connection)
    visits: list[tuple[int, int, int, int, int]] = []  # server, begin, end, pieces, travel
    item = (int(piece), int(stage))
    while True:
        server, end = int(work.resource[item[1]]), int(start[item] + work.lag[item[1]])
        travel = int(work.lag[item[1]] - work.hold[item[1]])
        count, first = walk.busy_since(item)
        begin = int(start[first])
        visits.append((server, begin, end, count, travel))
        previous = walk.cause(first)
        if previous is None:
            break
        if isinstance(previous, int):
            visits.append((-1, previous, begin, 0, 0))
            break
        item = previous
    if visits[-1][1] > 0:
        visits.append((-2, 0, visits[-1][1], 0, 0))
    legs, clock = [], 0
    for server, begin, end, count, travel in reversed(visits):
        # A piece may start at the next server before it has left this one: the leg then ends where the next begins.
        place, kind = _name(graph, server)
        legs.append((place, kind, begin, end, count, travel))
    result = []
    for number, (place, kind, begin, end, count, travel) in enumerate(legs):
        stop = legs[number + 1][2] if number + 1 < len(legs) else end
        clock = stop - begin
        result.append(
            Leg(place, kind, work.seconds(begin), work.seconds(clock), count, work.seconds(max(0, min(travel, clock))))
        )
    return result


def _name(graph: Stages, server: int) -> tuple[str, str]:
    if server == -1:
        return "waiting for a free slot", "slots"
    if server == -2:
        return "before the first send starts", "launch"
    kind = graph.shared.kinds[server] if server < len(graph.shared.kinds) else "reduction"
    return graph.resource_name(server), kind


class _Walk:
    """Steps back through a recorded run."""

    def __init__(self, graph: Stages, work: Work, start: Ticks, connection: Ticks | None) -> None:
        self.graph, self.work, self.start, self.connection = graph, work, start, connection
        self.lines: dict[int, tuple[Ticks, Ticks, Ticks, Ticks]] = {}
        order = np.argsort(work.after, kind="stable")
        self.before = work.before[order]
        self.limits = np.searchsorted(work.after[order], np.arange(work.count + 1))
        by_server = np.argsort(work.resource, kind="stable")
        self.stages = by_server
        self.server_limits = np.searchsorted(work.resource[by_server], np.arange(int(work.resource.max()) + 2))

    def line(self, server: int) -> tuple[Ticks, Ticks, Ticks, Ticks]:
        """What a server did, in order: (pieces, stages, starts, first of the unbroken busy time that each is in)."""
        if server not in self.lines:
            stages = self.stages[self.server_limits[server] : self.server_limits[server + 1]]
            start = self.start[:, stages]
            piece, column = np.nonzero(start >= 0)
            begun = start[piece, column]
            stage = stages[column]
            order = np.lexsort((stage, piece, begun + self.work.hold[stage], begun))
            piece, stage, begun = piece[order], stage[order], begun[order]
            breaks = np.ones(len(begun), dtype=np.bool_)
            breaks[1:] = begun[1:] > (begun + self.work.hold[stage])[:-1]
            first = np.maximum.accumulate(np.where(breaks, np.arange(len(begun)), 0))
            self.lines[server] = (piece, stage, begun, first)
        return self.lines[server]

    def busy_since(self, item: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        """How many pieces the server of `item` passed without a break up to it, and the first of them."""
        pieces, stages, begun, first = self.line(int(self.work.resource[item[1]]))
        low, high = np.searchsorted(begun, self.start[item], "left"), np.searchsorted(begun, self.start[item], "right")
        at = next(k for k in range(int(low), int(high)) if (pieces[k], stages[k]) == item)
        # The busy time is entered where its first piece came in, unless that one was itself waiting for something
        # later than its arrival, which cannot be: a server that is free takes what is there.
        head = int(first[at])
        return at - head + 1, (int(pieces[head]), int(stages[head]))

    def cause(self, item: tuple[int, int]) -> tuple[int, int] | int | None:
        """The delivery that let a piece start; None for a source at its release, a time for a wait for a slot."""
        piece, stage = item
        begun = int(self.start[item])
        before = self.before[self.limits[stage] : self.limits[stage + 1]]
        for source in before.tolist():
            if self.work.timeless[source]:
                inner = self._through(source, piece)
                if self.start[piece, inner] + self.work.lag[inner] == begun:
                    return (piece, inner)
            elif self.start[piece, source] + self.work.lag[source] == begun:
                return (piece, source)
        if self.connection is not None and begun > int(self.work.release[stage]):
            mates = np.flatnonzero(self.connection == self.connection[stage])
            then = self.start[:, mates] + self.work.lag[mates]
            found = np.argwhere((then == begun) & (self.start[:, mates] >= 0))
            if len(found):
                return (int(found[-1][0]), int(mates[found[-1][1]]))
            return int(self.work.release[stage])
        return None

    def _through(self, joint: int, piece: int) -> int:
        """The latest arrival that a joint collected."""
        found, latest = -1, -1
        for source in self.before[self.limits[joint] : self.limits[joint + 1]].tolist():
            inner = self._through(source, piece) if self.work.timeless[source] else source
            if int(self.start[piece, inner] + self.work.lag[inner]) > latest:
                found, latest = inner, int(self.start[piece, inner] + self.work.lag[inner])
        return found
