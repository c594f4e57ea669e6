"""Do the sends ever wait for each other in a circle, when connections have room for only a few of them?

The connections are the triples (src, dst, channel). Each is a queue of `slots` buffers, filled by its sender and
emptied by its receiver, both in the order of the schedule; the ends of different connections do not wait for one
another. A send is *put* when its data is read into a slot, and *taken* when the receiver applies it. It is put

- after the previous send of its connection was put, and the one `slots` before it was taken;
- after everything that earlier steps bring to its chunk at its source was taken;

and taken after it was put, after the previous send of its connection was taken, after every send of the same or an
earlier step that reads the chunk at the receiver was put, and after what earlier steps bring there was taken. A
circle of such waits is a deadlock, and without one everything runs (the events of a finite acyclic order).

Only the wait for a slot can close a circle: all others lead from a step to a later one, or from puts to takes of one
step. So a circle lies inside one step, in which a connection has more sends than slots and some device both sends and
receives the same chunk. (Coffman, Elphick and Shoshani, "System deadlocks", 1971: circular wait.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from blinksim.graphs.fronts import fronts
from blinksim.schedule.contents import describe
from blinksim.schedule.model import Schedule
from blinksim.structures.arrays import among, distinct
from blinksim.textio.text_table import count

Indices = npt.NDArray[np.int64]


def connections(schedule: Schedule) -> Indices:
    """The number of each send's connection, counted from 0."""
    ends = schedule.src.astype(np.int64) * len(schedule.topology.devices) + schedule.dst
    _, pair = np.unique(ends, return_inverse=True)
    _, number = np.unique(
        pair.astype(np.int64) * (int(schedule.channel.max(initial=0)) + 1) + schedule.channel, return_inverse=True
    )
    return number.astype(np.int64)


def crowd(schedule: Schedule) -> tuple[int, Indices, Indices]:
    """The most sends that one connection has in one step, the connection of each send, and its place in that queue.

    With that many slots no sender ever waits for its receiver inside a step.
    """
    connection = connections(schedule)
    key = schedule.step.astype(np.int64) * (int(connection.max(initial=0)) + 1) + connection
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    start = np.ones(len(key), dtype=np.bool_)
    start[1:] = ordered[1:] != ordered[:-1]
    first = np.flatnonzero(start)
    place = np.empty(len(key), dtype=np.int64)
    place[order] = np.arange(len(key)) - np.repeat(first, np.diff(np.append(first, len(key))))
    return int(place.max(initial=-1)) + 1, connection, place


def deadlock(schedule: Schedule, slots: int = 1) -> str | None:
    """A circle of waits with `slots` buffers a connection, as a sentence; None if there is none."""
    most, connection, place = crowd(schedule)
    if most <= slots:
        return None
    for step in distinct(schedule.step[place >= slots]):
        sends = np.arange(*np.searchsorted(schedule.step, (step, step + 1)))
        circle = _circle(schedule, sends, connection[sends], slots)
        if circle:
            listed = ", ".join(describe(schedule, int(sends[k])) for k in circle[:4])
            more = f" and {len(circle) - 4} more" if len(circle) > 4 else ""
            return (
                f"deadlock in step {step} with {count(slots, 'slot')} a connection: "
                f"{listed}{more} wait for each other in a circle; {most} slots avoid it"
            )
    return None


def passes_on(schedule: Schedule) -> bool:
    """True if a device sends a chunk in a step in which it receives it; without that nothing waits in a circle."""
    places = schedule.step.astype(np.int64) * schedule.chunks + schedule.chunk
    read, written = (places * len(schedule.topology.devices) + ends for ends in (schedule.src, schedule.dst))
    return bool(among(read, written).any())


def _circle(schedule: Schedule, sends: Indices, connection: Indices, slots: int) -> list[int]:
    """The sends of one step (as positions in `sends`) on a circle of waits; empty if there is none."""
    m, devices = len(sends), len(schedule.topology.devices)
    chunk = schedule.chunk[sends].astype(np.int64) * devices
    read, written = chunk + schedule.src[sends], chunk + schedule.dst[sends]
    both = distinct(read[among(read, written)])
    if not len(both):
        return []
    # Events: send k is put (k), taken (m + k); all reads of a place that is also written are done (2 m + its number).
    order = np.argsort(connection, kind="stable")
    mates = connection[order]
    next_one = np.flatnonzero(mates[1:] == mates[:-1])
    behind = np.flatnonzero(mates[slots:] == mates[:-slots])
    reader, writer = np.flatnonzero(among(read, both)), np.flatnonzero(among(written, both))
    before_after = (
        (np.arange(m), m + np.arange(m)),
        (order[next_one], order[next_one + 1]),
        (m + order[next_one], m + order[next_one + 1]),
        (m + order[behind], order[behind + slots]),
        (reader, 2 * m + np.searchsorted(both, read[reader])),
        (2 * m + np.searchsorted(both, written[writer]), m + writer),
    )
    before = np.concatenate([pair[0] for pair in before_after]).astype(np.int64)
    after = np.concatenate([pair[1] for pair in before_after]).astype(np.int64)
    left = _stuck(before, after, 2 * m + len(both))
    if not len(left):
        return []
    # Every stuck event waits for a stuck one: follow the waits back until one comes again.
    stuck = np.zeros(2 * m + len(both), dtype=np.bool_)
    stuck[left] = True
    inside = stuck[before] & stuck[after]
    waits_for = dict(zip(after[inside].tolist(), before[inside].tolist(), strict=True))
    trail: dict[int, int] = {}
    event = int(left[0])
    while event not in trail:
        trail[event] = len(trail)
        event = waits_for[event]
    events = list(trail)[trail[event] :]
    return list(dict.fromkeys(e % m for e in reversed(events) if e < 2 * m))


def _stuck(before: Indices, after: Indices, events: int) -> Indices:
    """The events that never happen when each waits for those `before` it."""
    done = np.zeros(events, dtype=np.bool_)
    for front in fronts(before, after, events):
        done[front] = True
    return np.flatnonzero(~done)
