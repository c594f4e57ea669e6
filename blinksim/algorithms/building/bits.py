"""Exchanges along the bits of rank numbers, in one order of the bits or with data divided among several.

Halving, then doubling (Thakur, Rabenseifner and Gropp, IJHPCA 2005) in any order of bits: inside the nodes
before the rails between them, say. An allreduce may stop halving and exchange what is left in full, which
saves steps; an alltoall goes round-robin, so that no two messages meet. Where all ranks send alike (behind
switches, on rails, on a torus that is a cube), a linear program divides the data.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.collective import Collective
from blinksim.packing.cubes import (
    DOUBLE,
    HALVE,
    Cube,
    CubeColumn,
    Cubes,
    Event,
    bit_rotation,
    cube,
    doubled,
    halved,
    labels,
    seen_after,
)
from blinksim.packing.rounds import Rounds, Search, Solved, exact_shares
from blinksim.packing.wires import Ints, Wires, joined_directly
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.graph import Topology

# Ranks up to which the data is divided, rounds for every bit, and rounds in a row that bring nothing before it ends.
_MOST_RANKS, _ROUNDS_A_BIT, _IN_VAIN = 32, 4, 3
# Rounds after which what came over long latencies goes on.
_DELAYS = (1, 2, 3)
_KINDS = ("allgather", "reducescatter", "allreduce")


def patterns(topology: Topology, collective: Collective, name: str) -> Iterator[Schedule]:
    """Schedules in one order of the bits; none for numbers of ranks that are no power of two, but for an alltoall."""
    n, ranks = topology.ranks, np.arange(topology.ranks)
    if collective.name == "alltoall":
        plan = Plan(topology, collective, name, "steps")
        for a in range(n):
            for b in range(n):
                plan.add_chunk(Fraction(1, n), a, b)
        for distance in range(1, n):
            to = (ranks + distance) % n
            plan.send(ranks, to, chunk=ranks * n + to, op=COPY, step=distance - 1)
        yield plan.finish()
    if n & (n - 1) or n < 2 or collective.name not in ("allgather", "allreduce"):
        return
    # Ranks of a node, if their numbers follow each other and all nodes have as many; else all.
    hosts = [topology.device(member).node for member in topology.members]
    inside = n // len({*hosts})
    if n != inside * len({*hosts}) or any(hosts[rank] != hosts[rank - rank % inside] for rank in range(n)):
        inside = n
    bits = range(n.bit_length() - 2, -1, -1)
    near, far = (tuple(bit for bit in bits if (1 << bit < inside) == here) for here in (True, False))
    for order in dict.fromkeys([(*near, *far), (*far, *near)]):
        if collective.name == "allgather":
            variants = [doubled(tuple(range(len(order))), order, (0,))]
        else:
            there_and_back = [(*order, *reversed(order[:halvings])) for halvings in range(len(order) + 1)]
            variants = [halved(range(len(along)), along, halvings) for halvings, along in enumerate(there_and_back)]
        for events in variants:
            plan = Plan(topology, collective, name, "steps")
            _add(plan, events, Fraction(1), ranks)
            yield plan.finish()
    if collective.name == "allgather" and inside < n:
        plan = Plan(topology, collective, name, "steps")
        _two_at_once(plan, inside)
        yield plan.finish()


def _two_at_once(plan: Plan, inside: int) -> None:
    """Between the nodes and, beside it, inside the own one; then what came spreads inside."""
    ranks, steps = np.arange(plan.n), inside.bit_length() - 1
    _add(plan, doubled(tuple(range(steps)), tuple(range(steps)), (0,)), Fraction(1), ranks)
    for away in range(inside, plan.n, inside):
        plan.send(ranks, (ranks + away) % plan.n, chunk=ranks, op=COPY, step=away // inside - 1)
        for step in range(steps):
            came = (ranks[:, None] - away) % plan.n ^ np.arange(1 << step)
            plan.send(
                ranks[:, None], ranks[:, None] ^ 1 << step, chunk=came, op=COPY, step=steps * (away // inside) + step
            )


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
        path = schedule.route_links[schedule.route_start[route] : schedule.route_start[route + 1]].tolist()
        busy[step][path[0]] += links[path[0]].overhead
        for link in path:
            busy[step][link] += bytes_ / float(links[link].bandwidth)
        latency[step] = max(latency[step], sum(links[link].latency for link in path))
    return sum(max(busy[step].values()) + latency[step] for step in busy)


def along_bits(
    topology: Topology, collective: Collective, name: str, size: int, search: Search
) -> tuple[float, Schedule] | None:
    """The best division that is found until it is over, with its seconds; None where there is none of this kind."""
    n = topology.ranks
    if collective.name not in _KINDS or n & (n - 1) or not 2 < n <= _MOST_RANKS:
        return None
    wires = Wires.of(topology, size)
    numbers = [*range(n)]
    if joined_directly(topology):
        to = [{b for a, b in zip(wires.src.tolist(), wires.dst.tolist(), strict=True) if a == rank} for rank in numbers]
        numbers = labels(to)
    backwards = collective.name == "reducescatter"
    given = cube(wires.reversed() if backwards else wires, numbers)
    best = None if given is None else _best(given, "allgather" if backwards else collective.name, search)
    if best is None:
        return None
    solved, rounds = best
    plan = Plan(topology, collective, name, "steps")
    for column, share in exact_shares(solved, [1.0]):
        assert isinstance(column, CubeColumn)
        _add(plan, column.events, share, np.argsort(numbers), rounds if backwards else 0)
    return solved.microseconds / 1e6, plan.finish()


def _best(given: Cube, name: str, search: Search) -> tuple[Solved, int] | None:
    best: tuple[Solved, int] | None = None
    latency = given.wires.latency
    for rounds in range(given.bits, _ROUNDS_A_BIT * given.bits + 1):
        if search.over() or (best is not None and rounds > best[1] + _IN_VAIN):
            break
        allowed = bit_rotation(given, rounds)
        for delay in _DELAYS if latency.max() > 2 * latency.min() else _DELAYS[:1]:
            seen = seen_after(given, rounds, delay)
            trial = Rounds(given.wires, Cubes(name, allowed, seen), allowed, search.over, seen, search.pieces).solve()
            if trial is not None and (best is None or trial.microseconds < best[0].microseconds):
                best = trial, rounds
                search.report(trial.microseconds / 1e6)
    return best


def _add(plan: Plan, events: Sequence[Event], share: Fraction, rank: Ints, span: int = 0) -> None:
    """A part of the data that goes along the bits. rank: of every number. span: the rounds, if it goes backwards.

    An allgather, or a reducescatter backwards, has a chunk of every rank; an allreduce one for every number,
    which ranks that agree with it in the halved bits add up.
    """
    n, collective, mask = plan.n, plan.collective, 0
    chunk = np.array([plan.add_chunk(share / n, *collective.labels(own, own)) for own in rank.tolist()])
    if collective.name != "allreduce":
        now, bit, holder = np.array([(e.now, 1 << e.bit, sender) for e in events for sender in e.holders]).T
        here = np.arange(n)[:, None] ^ holder
        src, dst = rank[here], rank[here ^ bit]
        if span:
            src, dst, now = dst, src, span - 1 - now
        plan.send(src, dst, chunk=chunk[:, None], op=REDUCE if span else COPY, step=now)
        return
    for event in events:
        bit = 1 << event.bit
        after, flip = (mask | bit, bit) if event.kind == HALVE else (mask, 0)
        here, number = np.nonzero((np.arange(n)[:, None] ^ flip) & after == np.arange(n) & after)
        op = COPY if event.kind == DOUBLE else REDUCE
        plan.send(rank[here], rank[here ^ bit], chunk=chunk[number], op=op, step=event.now)
        mask = after if event.kind == HALVE else mask & ~bit
