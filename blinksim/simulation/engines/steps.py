"""A static order of service for steps that run one after another: level by level, in arrays.

A level serves all of its stages with all of their pieces; inside a level a server goes by piece, then stage. The
recurrence is that of `blinksim.simulation.engines.rounds`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blinksim.simulation.work import Run, Ticks, Work
from blinksim.structures.arrays import distinct, places


def in_steps(work: Work, pieces: int, *, record: bool = False, check: bool = True) -> tuple[Run, bool]:
    """Runs `pieces` of everything level by level, and whether every server then served first come, first served.

    If it was, this is what FIFO service gives, start by start: the order of service and of arrival are the same.
    record: True to return when each stage began. check: False skips that test; the answer is then False.
    """
    if not work.count:
        return Run(0, np.zeros((pieces, 0), dtype=np.int64)), True
    plans = work.once(_plans)
    free = np.zeros(len(work.load), dtype=np.int64)
    arrived = np.full(len(work.load), -1, dtype=np.int64)
    start = np.full((pieces, work.count), -1, dtype=np.int64) if record else None
    delivered: dict[int, Ticks] = {}
    finish, came_in_order, released = 0, check, bool(work.release.any())
    turn = np.arange(pieces, dtype=np.int64)
    spare = np.zeros((0, pieces), dtype=np.int64)
    for number, plan in enumerate(plans):
        ready, spare = _arrived(plan, delivered, number, pieces, spare)
        holds, lags = work.hold[plan.stages], work.lag[plan.stages]
        if released and number == 0:
            np.maximum(ready, work.release[plan.stages][:, None], out=ready)
        for gone in plan.forget:
            spare = delivered.pop(gone)
        if plan.slots == 1:
            came_in_order = came_in_order and _in_order(plan, ready, arrived)
            _private_servers(plan, holds, lags, ready, turn, free, start)
        else:
            came_in_order = _shared_servers(plan, holds, ready, turn, free, arrived) and came_in_order
            if start is not None:
                start[:, plan.stages] = ready.T
            ready += lags[:, None]
        finish = max(finish, int(ready[:, -1].max()))
        if plan.needed:
            delivered[number] = ready
    return Run(finish, start), came_in_order


@dataclass(frozen=True, eq=False)
class _Plan:
    """One level: stages in the order of servers, where their arrivals come from, which levels no later one needs.

    servers (rows): one per row; row and slot (stages): where each stage stands at its server.
    """

    stages: Ticks
    servers: Ticks
    row: Ticks
    slot: Ticks
    slots: int
    waits: list[tuple[int, Ticks, Ticks]]
    unique: bool
    straight: Ticks | None
    forget: list[int]
    needed: bool


def _plans(work: Work) -> list[_Plan]:
    order = np.lexsort((work.resource, work.level))
    where = np.empty(work.count, dtype=np.int64)
    tall = int(work.level.max()) + 1
    limits = np.searchsorted(work.level[order], np.arange(tall + 1)).tolist()
    where[order] = np.arange(work.count) - np.repeat(limits[:-1], np.diff(limits))
    waits, wait_limits = work.by_level
    last_use = np.zeros(tall, dtype=np.int64)
    np.maximum.at(last_use, work.level[work.before], work.level[work.after])
    plans = []
    for number in range(tall):
        stages = order[limits[number] : limits[number + 1]]
        server = work.resource[stages]
        servers, row, counts = np.unique(server, return_inverse=True, return_counts=True)
        slot = places(counts)
        edges = waits[wait_limits[number] : wait_limits[number + 1]]
        into, source = where[work.after[edges]], where[work.before[edges]]
        level = work.level[work.before[edges]]
        groups = [(int(k), into[level == k], source[level == k]) for k in distinct(level)]
        unique = all(len(distinct(g[1])) == len(g[1]) for g in groups)
        straight = None
        if len(groups) == 1 and groups[0][0] == number - 1 and unique and len(into) == len(stages):
            straight = np.empty(len(stages), dtype=np.int64)
            straight[into] = source
        plan = _Plan(
            stages=stages,
            servers=servers,
            row=row,
            slot=slot,
            slots=int(counts.max()),
            waits=groups,
            unique=unique,
            straight=straight,
            forget=np.flatnonzero(last_use == number).tolist() if number else [],
            needed=bool(last_use[number]),
        )
        plans.append(plan)
    return plans


def _arrived(plan: _Plan, delivered: dict[int, Ticks], number: int, pieces: int, spare: Ticks) -> tuple[Ticks, Ticks]:
    """(stages, pieces): when each piece is ready for each stage of level `number`; and the room that stays spare."""
    shape = (len(plan.stages), pieces)
    if plan.straight is not None:
        # Each row from one row of the level before; the level before that leaves its room.
        ready = spare if spare.shape == shape else np.empty(shape, dtype=np.int64)
        np.take(delivered[number - 1], plan.straight, axis=0, out=ready, mode="clip")
        return ready, np.zeros((0, pieces), dtype=np.int64)
    ready = np.zeros(shape, dtype=np.int64)
    for level, into, source in plan.waits:
        if plan.unique:
            ready[into] = np.maximum(ready[into], delivered[level][source])
        else:
            np.maximum.at(ready, into, delivered[level][source])
    return ready, spare


def _in_order(plan: _Plan, ready: Ticks, arrived: Ticks) -> bool:
    """True if at servers with one stage in this level all pieces arrive in order, behind those of earlier levels."""
    behind = bool((ready[:, 0] > arrived[plan.servers]).all()) and bool((ready[:, 1:] >= ready[:, :-1]).all())
    arrived[plan.servers] = ready[:, -1]
    return behind


def _private_servers(
    plan: _Plan, holds: Ticks, lags: Ticks, ready: Ticks, turn: Ticks, free: Ticks, start: Ticks | None
) -> None:
    """The scan where every server has one stage in this level; `ready` becomes the deliveries."""
    ramp = turn * (holds[0] if (holds == holds[0]).all() else holds[:, None])
    np.maximum(ready[:, 0], free[plan.servers], out=ready[:, 0])
    ready -= ramp
    np.maximum.accumulate(ready, axis=1, out=ready)
    free[plan.servers] = ready[:, -1] + holds + ramp[..., -1]
    later = lags[0] if (lags == lags[0]).all() else lags[:, None]
    if start is not None:
        start[:, plan.stages] = (ready + ramp).T
    # One pass over the table instead of two.
    ready += ramp + later


def _shared_servers(plan: _Plan, holds: Ticks, ready: Ticks, turn: Ticks, free: Ticks, arrived: Ticks) -> bool:
    """The scan where servers have several stages in one level; `ready` becomes the starts.

    Returns True if all arrive in the order of service.
    """
    rows, slots, pieces = len(plan.servers), plan.slots, len(turn)
    table = np.zeros((rows, pieces, slots), dtype=np.int64)
    hold = np.zeros((rows, slots), dtype=np.int64)
    hold[plan.row, plan.slot] = holds
    real = np.zeros((rows, 1, slots), dtype=np.bool_)
    real[plan.row, 0, plan.slot] = True
    table[plan.row, :, plan.slot] = ready
    flat = table.reshape(rows, pieces * slots)
    latest = np.maximum.accumulate(flat, axis=1).reshape(table.shape)
    ordered = bool(((latest == table) | ~real).all()) and bool((table[:, 0, 0] > arrived[plan.servers]).all())
    arrived[plan.servers] = latest[:, -1, -1]
    before = np.cumsum(hold, axis=1) - hold
    ramp = turn[None, :, None] * hold.sum(axis=1)[:, None, None] + before[:, None, :]
    np.maximum(table[:, 0, 0], free[plan.servers], out=table[:, 0, 0])
    table -= ramp
    np.maximum.accumulate(flat, axis=1, out=flat)
    table += ramp
    free[plan.servers] = table[:, -1, -1] + hold[:, -1]
    ready[:] = table[plan.row, :, plan.slot]
    return ordered
