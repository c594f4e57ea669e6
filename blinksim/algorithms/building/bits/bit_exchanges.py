"""Exchanges along the bits of ranks' numbers, for GPUs behind switches: which bits first, and how far.

Halving, then doubling (Thakur, Rabenseifner and Gropp, IJHPCA 2005) in any order of bits: inside the nodes before the
rails between them, say. An allreduce may stop halving and exchange what is left in full, which saves steps; an alltoall
goes round in turns, so that no two messages meet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.collective import Collective
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.graph import Topology

Bits = tuple[int, ...]


def patterns(topology: Topology, collective: Collective, name: str) -> Iterator[Schedule]:
    """The schedules of this kind; none for numbers of ranks that are no power of two, but for an alltoall."""
    n = topology.ranks
    if collective.name == "alltoall":
        yield _made(topology, collective, name, _in_turns)
    if n & (n - 1) or n < 2:
        return
    for order in _orders(topology):
        if collective.name == "allgather":
            yield _made(topology, collective, name, partial(_doubling, order=order))
        if collective.name == "allreduce":
            for halvings in range(len(order) + 1):
                yield _made(topology, collective, name, partial(_halving, order=order, halvings=halvings))
    if collective.name == "allgather" and _inside(topology) < n:
        yield _made(topology, collective, name, partial(_two_at_once, inside=_inside(topology)))


def step_seconds(schedule: Schedule, size: int) -> float:
    """Seconds of its steps one after another: in each the link that is busy longest, and the longest latency."""
    links = schedule.topology.links
    messages: dict[tuple[int, int], float] = defaultdict(float)
    shares = schedule.share_num / schedule.share_den
    for step, route, chunk in zip(
        schedule.step.tolist(), schedule.route.tolist(), schedule.chunk.tolist(), strict=True
    ):
        messages[step, route] += float(shares[chunk]) * size
    busy: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    latency: dict[int, float] = defaultdict(float)
    for (step, route), bytes_ in messages.items():
        way = schedule.route_links[schedule.route_start[route] : schedule.route_start[route + 1]].tolist()
        busy[step][way[0]] += links[way[0]].overhead
        for link in way:
            busy[step][link] += bytes_ / float(links[link].bandwidth)
        latency[step] = max(latency[step], sum(links[link].latency for link in way))
    return sum(max(busy[step].values()) + latency[step] for step in busy)


def _made(topology: Topology, collective: Collective, name: str, fill: Callable[[Plan], None]) -> Schedule:
    plan = Plan(topology, collective, name, "steps")
    fill(plan)
    return plan.finish()


def _inside(topology: Topology) -> int:
    """Ranks of a node, if their numbers follow each other and all nodes have as many; else all."""
    hosts = [topology.device(member).node for member in topology.members]
    count = len(hosts) // len({*hosts})
    alike = all(hosts[rank] == hosts[rank - rank % count] for rank in range(len(hosts)))
    return count if alike and len(hosts) == count * len({*hosts}) else len(hosts)


def _orders(topology: Topology) -> list[Bits]:
    """Bits inside a node first, largest first; and those between the nodes first."""
    n, inside = topology.ranks, _inside(topology)
    near = tuple(bit for bit in (1 << p for p in range(n.bit_length())) if bit < inside)[::-1]
    far = tuple(bit for bit in (1 << p for p in range(n.bit_length())) if inside <= bit < n)[::-1]
    return list(dict.fromkeys([(*near, *far), (*far, *near)]))


def _mask(bits: Bits) -> int:
    return sum(bits)


def _in_turns(plan: Plan) -> None:
    n = plan.n
    for a in range(n):
        for b in range(n):
            plan.add_chunk(Fraction(1, n), a, b)
    ranks = np.arange(n)
    for turn in range(1, n):
        to = (ranks + turn) % n
        plan.send(ranks, to, chunk=ranks * n + to, op=COPY, step=turn - 1)


def _doubling(plan: Plan, order: Bits) -> None:
    for rank in range(plan.n):
        plan.add_chunk(Fraction(1, plan.n), rank)
    for step, bit in enumerate(order):
        _send(plan, bit, ~_mask(order[:step]), step, COPY)


def _two_at_once(plan: Plan, inside: int) -> None:
    """Between the nodes and, beside it, inside the own one; then what came spreads inside."""
    for rank in range(plan.n):
        plan.add_chunk(Fraction(1, plan.n), rank)
    ranks, steps = np.arange(plan.n), inside.bit_length() - 1
    for away in range(inside, plan.n, inside):
        plan.send(ranks, (ranks + away) % plan.n, chunk=ranks, op=COPY, step=away // inside - 1)
    for step in range(steps):
        _send(plan, 1 << step, ~((1 << step) - 1), step, COPY)
    for away in range(inside, plan.n, inside):
        for step in range(steps):
            for rank in range(plan.n):
                came = (rank - away) % plan.n
                group = [came ^ low for low in range(1 << step)]
                plan.send(rank, rank ^ (1 << step), chunk=group, op=COPY, step=steps * (away // inside) + step)


def _halving(plan: Plan, order: Bits, halvings: int) -> None:
    for _ in range(plan.n):
        plan.add_chunk(Fraction(1, plan.n))
    step = 0
    for place, bit in enumerate(order):
        if place < halvings:
            _send(plan, bit, _mask(order[: place + 1]), step, REDUCE, of_partner=True)
        else:
            _send(plan, bit, _mask(order[:halvings]), step, REDUCE)
        step += 1
    for place in reversed(range(halvings)):
        _send(plan, order[place], _mask(order[: place + 1]), step, COPY)
        step += 1


def _send(plan: Plan, bit: int, mask: int, step: int, op: int, *, of_partner: bool = False) -> None:
    """Every rank to the one whose number differs in `bit`: the chunks that agree with it in the bits of `mask`.

    of_partner: those that agree with the other one.
    """
    every = np.arange(plan.n)
    for rank in range(plan.n):
        whose = rank ^ bit if of_partner else rank
        chunks = every[(every & mask) == (whose & mask & (plan.n - 1))]
        plan.send(rank, rank ^ bit, chunk=chunks, op=op, step=step)
