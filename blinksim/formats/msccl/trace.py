"""What thread blocks move, and what each rank did with it: the steps of a program traced back to sends of a schedule.

A program may keep several values of the same data on a rank: its own contribution, what came from others, sums of
these. A schedule has one value of each chunk at each device, to which a send adds or which it replaces. `stories` puts
what was sent on, and what had to be there in the end, into such an order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from blinksim.errors import InfeasibleError
from blinksim.schedule.model import COPY, REDUCE

OWN = -1
Unit = tuple[int, int]
"""The rank that a unit comes from (-1 where ranks add to it) and its place in the input."""
Parts = frozenset[int]
"""What is in a place: arrivals by number, and `OWN` for the rank's own data."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a rank holds of a unit."""

    unit: Unit
    parts: Parts


@dataclass(frozen=True, slots=True)
class Arrival:
    """A unit that came over a connection. message: of the units that went together. parts: what the sender read."""

    message: int
    src: int
    dst: int
    channel: int
    unit: Unit
    parts: Parts


class Trace:
    """The contents of places while blocks run, and all arrivals in order. reduces: ranks add to the same units."""

    def __init__(self, reduces: bool) -> None:
        self.reduces = reduces
        self.arrivals: list[Arrival] = []
        self.messages = 0
        self._open: dict[tuple[int, int, int], int] = {}

    def own(self, rank: int, unit: int) -> Held:
        return Held((-1 if self.reduces else rank, unit), frozenset((OWN,)))

    def added(self, first: Held, second: Held) -> Held:
        if first.unit != second.unit:
            raise InfeasibleError("it adds different parts of the vector to each other")
        return Held(first.unit, first.parts | second.parts)

    def sent(self, src: int, dst: int, channel: int, values: list[Held], more: bool) -> list[Held]:
        found, connection = [], (src, dst, channel)
        if connection not in self._open:
            self._open[connection] = self.messages
            self.messages += 1
        message = self._open[connection]
        for value in values:
            found.append(Held(value.unit, frozenset((len(self.arrivals),))))
            self.arrivals.append(Arrival(message, src, dst, channel, value.unit, value.parts))
        if not more:
            del self._open[connection]
        return found

    def effort(self, values: list[Held]) -> int:
        return sum(len(value.parts) for value in values)


@dataclass(frozen=True, slots=True)
class Send:
    """A send of one unit, over the ranks of `stops`. arrivals: one for every hop, by number. reads: at the source."""

    stops: tuple[int, ...]
    arrivals: tuple[int, ...]
    reads: Parts


@dataclass(frozen=True, slots=True)
class State:
    """A value that a rank has of a unit. writes: (send, COPY or REDUCE) that make it from the one before. reads: the
    sends that carry it on. Both by the number of a send's last arrival."""

    writes: tuple[tuple[int, int], ...]
    reads: tuple[int, ...]


def sends(trace: Trace, kept: dict[tuple[int, Unit], Parts]) -> dict[int, Send]:
    """All sends, by the number of their last arrival.

    What a rank passes on once, unchanged, while it has another value of the same unit, is one send over that rank.
    kept: what ranks must have in the end, by rank and unit.
    """
    readers: dict[tuple[int, Unit], dict[Parts, list[int]]] = {}
    for number, arrival in enumerate(trace.arrivals):
        readers.setdefault((arrival.src, arrival.unit), {}).setdefault(arrival.parts, []).append(number)
    passed: dict[int, int] = {}  # the next arrival of what is passed on
    for number, arrival in enumerate(trace.arrivals):
        place = arrival.dst, arrival.unit
        known = readers.get(place, {})
        uses = [parts for parts in {*known, *([kept[place]] if place in kept else [])} if number in parts]
        others = len(known) > 1 or kept.get(place) not in (None, *known)
        alone = uses == [frozenset((number,))] and kept.get(place) != uses[0]
        if alone and others and len(known[uses[0]]) == 1:
            passed[number] = known.pop(uses[0])[0]
    found = {number: Send((a.src, a.dst), (number,), a.parts) for number, a in enumerate(trace.arrivals)}
    for number, following in passed.items():
        first, second = found.pop(number), found[following]
        found[following] = Send((*first.stops, *second.stops[1:]), (*first.arrivals, *second.arrivals), first.reads)
    return found


def stories(
    found: dict[int, Send], trace: Trace, kept: dict[tuple[int, Unit], Parts], starts: set[tuple[int, Unit]]
) -> Iterator[list[State]]:
    """For every rank and unit the values that there are one after another.

    starts: where there is data at first. Raises `InfeasibleError` where no order serves all that was sent on.
    """
    readers: dict[tuple[int, Unit], dict[Parts, list[int]]] = {}
    for number, send in sorted(found.items()):
        place = send.stops[0], trace.arrivals[number].unit
        readers.setdefault(place, {}).setdefault(send.reads, []).append(number)
    for place, parts in kept.items():
        readers.setdefault(place, {}).setdefault(parts, [])
    arrived = {number for known in readers.values() for parts in known for number in parts if number != OWN}
    lost = found.keys() - arrived
    if lost:
        arrival = trace.arrivals[min(lost)]
        raise InfeasibleError(f"GPU {arrival.dst} makes no use of what it receives from GPU {arrival.src}")
    for (rank, unit), known in readers.items():
        last = kept.get((rank, unit))
        yield list(_states(rank, _ordered(known, last), known, (rank, unit) in starts))


def _ordered(known: Iterable[Parts], last: Parts | None) -> list[Parts]:
    """Sums after what they are made of, what has the rank's own data in it first, and otherwise as they came."""
    left = list(known)
    if last in left:
        left.remove(last)
        left.append(last)
    found = []
    while left:
        least = [parts for parts in left if not any(other < parts for other in left)]
        chosen = next((parts for parts in least if OWN in parts), None)
        if chosen is None:
            # A sum with the rank's own data waits for nothing but smaller sums of this kind.
            chosen = next((parts for parts in left if OWN in parts), least[0])
        left.remove(chosen)
        found.append(chosen)
    return found


def _states(rank: int, order: list[Parts], known: dict[Parts, list[int]], starts: bool) -> Iterator[State]:
    now: Parts | None = frozenset((OWN,)) if starts else None
    applied: set[int] = set()
    for parts in order:
        if now is not None and now <= parts:
            new = [(number, REDUCE) for number in sorted(parts - now)]
        elif OWN in parts:
            raise InfeasibleError(f"GPU {rank} keeps several sums of the same data, and a schedule has one")
        else:
            first, *rest = sorted(parts)
            new = [(first, COPY), *((number, REDUCE) for number in rest)]
        if any(number in applied for number, _ in new):
            raise InfeasibleError(f"GPU {rank} uses the same data in several sums, and a schedule has one")
        applied |= {number for number, _ in new}
        now = parts
        yield State(tuple(new), tuple(known[parts]))
