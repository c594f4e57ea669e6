"""Damaged schedules: a send, a chunk, a rank, a route, an order or a share other than it was."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from blinksim.schedule.model import Schedule
from blinksim.topology.routes import Router

COLUMNS = ("chunk", "src", "dst", "op", "step", "route", "channel")
# Refused though this run of numbers came out right: what is read is the neutral element or depends on timing, or a
# doubled contribution is overwritten before anybody looks.
STRICTER = ("sends what is not there", "in one step", "a second time", "only copies")


def rearranged(schedule: Schedule, rows: list[int], **columns: list[int]) -> Schedule:
    """The schedule with these sends in this order, sorted by step; columns replace those of the rows."""
    table = {name: getattr(schedule, name)[rows] for name in COLUMNS}
    table |= {name: np.array(values, dtype=table[name].dtype) for name, values in columns.items()}
    order = np.argsort(table["step"], kind="stable")
    return replace(schedule, **{name: column[order] for name, column in table.items()})


def changed(schedule: Schedule, send: int, **values: int) -> Schedule:
    rows = list(range(schedule.sends))
    columns = {name: getattr(schedule, name).tolist() for name in values}
    for name, value in values.items():
        columns[name][send] = value
    return rearranged(schedule, rows, **columns)


def redirected(schedule: Schedule, send: int, **ends: int) -> Schedule:
    """With another source or destination, and the route that leads there."""
    src, dst = ends.get("src", int(schedule.src[send])), ends.get("dst", int(schedule.dst[send]))
    links = Router(schedule.topology).route(src, dst) if src != dst else ()
    longer = replace(
        schedule,
        route_start=np.append(schedule.route_start, schedule.route_start[-1] + len(links)).astype(np.int32),
        route_links=np.append(schedule.route_links, links).astype(np.int32),
    )
    return changed(longer, send, route=len(schedule.route_start) - 1, **ends)


def mutants(schedule: Schedule, numbers: random.Random) -> Iterator[tuple[str, Schedule]]:
    everything = list(range(schedule.sends))
    devices = [int(d) for d in schedule.device_of]
    picked = numbers.sample(everything, min(4, len(everything)))
    for send in picked:
        rest = [i for i in everything if i != send]
        yield "drop", rearranged(schedule, rest)
        yield "duplicate", rearranged(schedule, sorted([*everything, send]))
        late = [*schedule.step.tolist(), schedule.steps]
        yield "repeat at the end", rearranged(schedule, [*everything, send], step=late)
        yield "reorder", changed(schedule, send, step=numbers.randrange(schedule.steps + 1))
        other = numbers.choice(everything)
        both = schedule.step.copy()
        both[[send, other]] = both[[other, send]]
        yield "swap", rearranged(schedule, everything, step=both.tolist())
        yield "redirect", redirected(schedule, send, dst=numbers.choice(devices))
        yield "take from elsewhere", redirected(schedule, send, src=numbers.choice(devices))
        yield "wrong destination", changed(schedule, send, dst=numbers.choice(devices))
        yield "wrong route", changed(schedule, send, route=numbers.randrange(len(schedule.route_start) - 1))
        yield "other operation", changed(schedule, send, op=1 - int(schedule.op[send]))
        yield "other chunk", changed(schedule, send, chunk=numbers.randrange(schedule.chunks))
        yield "other channel", changed(schedule, send, channel=1)
    chunk = numbers.randrange(schedule.chunks)
    for name in ("origin", "target"):
        labels = getattr(schedule, name).copy()
        labels[chunk] = numbers.randrange(-1, schedule.topology.ranks)
        yield f"other {name}", replace(schedule, **{name: labels})
    shares = schedule.share_num.copy()
    shares[chunk] += 1
    yield "other share", replace(schedule, share_num=shares)
