"""Exchanges along the bits of ranks' numbers.

Exchanges along the bits of ranks' numbers, for GPUs behind switches: which bits first, and how far.

Halving, then doubling (Thakur, Rabenseifner and Gropp, IJHPCA 2005) in any order of bits: inside the nodes before the
rails between them, say. An allreduce may stop halving and exchange what is left in full, which saves steps; an alltoall
goes round in turns, so that no two messages meet.

Schedules of rounds along the bits of ranks' numbers, with the data divided among many orders of them.

For machines on which all ranks send alike: behind switches, on rails, on a torus that is a cube.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial

import numpy as np

from blinksim.algorithms.building.plan import Plan
from blinksim.collective import Collective
from blinksim.packing.cubes import DOUBLE, HALVE, Cube, CubeColumn, Cubes, cube, labels, seen_after, turns
from blinksim.packing.rounds import Rounds, Search, Solved, exact_shares
from blinksim.packing.wires import Wires, joined_directly
from blinksim.schedule.model import COPY, REDUCE, Builder, Schedule
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


# Ranks up to which it is tried, rounds for every bit, and rounds in a row that bring nothing before it ends.
_MOST_RANKS, _ROUNDS_A_BIT, _IN_VAIN = 32, 4, 3
# Rounds after which what came over long latencies goes on.
_DELAYS = (1, 2, 3)
_KINDS = ("allgather", "reducescatter", "allreduce")


def along_bits(
    topology: Topology, collective: Collective, name: str, size: int, search: Search
) -> tuple[float, Schedule] | None:
    """The best that is found until it is over, with its seconds; None where there is none of this kind."""
    n = topology.ranks
    if collective.name not in _KINDS or n & (n - 1) or not 2 < n <= _MOST_RANKS:
        return None
    wires = Wires.of(topology, size)
    numbers = [*range(n)]
    if joined_directly(topology):
        to = [{b for a, b in zip(wires.src.tolist(), wires.dst.tolist(), strict=True) if a == rank} for rank in numbers]
        numbers = labels(to)
    backwards = collective.name == "reducescatter"
    given = cube(wires.turned() if backwards else wires, numbers)
    if given is None:
        return None
    found = _best(given, "allgather" if backwards else collective.name, search)
    if found is None:
        return None
    solved, rounds = found
    builder = Builder(topology, collective, name, "steps")
    writer = _Writer(builder, wires, numbers, rounds if backwards else 0)
    for column, share in exact_shares(solved, [1.0]):
        assert isinstance(column, CubeColumn)
        if collective.name == "allreduce":
            writer.add_sums(column, share)
        else:
            writer.add_copies(column, share)
    return solved.microseconds / 1e6, builder.finish()


def _best(given: Cube, name: str, search: Search) -> tuple[Solved, int] | None:
    best: tuple[Solved, int] | None = None
    latency = given.wires.latency
    for rounds in range(given.bits, _ROUNDS_A_BIT * given.bits + 1):
        if search.over() or (best is not None and rounds > best[1] + _IN_VAIN):
            break
        allowed = turns(given, rounds)
        for delay in _DELAYS if latency.max() > 2 * latency.min() else _DELAYS[:1]:
            seen = seen_after(given, rounds, delay)
            found = Rounds(given.wires, Cubes(name, allowed, seen), allowed, search.over, seen, search.pieces).solve()
            if found is not None and (best is None or found.microseconds < best[0].microseconds):
                best = found, rounds
                search.report(found.microseconds / 1e6)
    return best


class _Writer:
    """Writes ways along the bits as chunks and sends of all ranks; turned: the rounds, if it goes backwards."""

    def __init__(self, builder: Builder, wires: Wires, numbers: list[int], turned: int) -> None:
        self.builder, self.turned, self.n = builder, turned, wires.ranks
        topology = builder.topology
        self.device = topology.member_places.tolist()
        self.rank = {number: rank for rank, number in enumerate(numbers)}
        self.route: dict[tuple[int, int], int] = {}
        for ends, route in zip(zip(wires.src.tolist(), wires.dst.tolist(), strict=True), wires.routes, strict=True):
            if ends not in self.route:
                self.route[ends] = builder.add_route(route)

    def _send(self, a: int, b: int, chunk: int, op: int, now: int) -> None:
        """Between the ranks of two numbers."""
        src, dst = self.rank[a], self.rank[b]
        if self.turned:
            src, dst, now = dst, src, self.turned - 1 - now
        self.builder.add_sends(
            chunk=chunk, src=self.device[src], dst=self.device[dst], op=op, step=now, route=self.route[src, dst]
        )

    def add_copies(self, column: CubeColumn, share: Fraction) -> None:
        """An allgather, or a reducescatter backwards: a chunk of every rank."""
        op, collective = REDUCE if self.turned else COPY, self.builder.collective
        for number in range(self.n):
            ends = (-1, self.rank[number]) if self.turned else (self.rank[number], -1)
            chunk = self.builder.add_chunk(share / self.n, *collective.labels(*ends))
            for event in column.events:
                for holder in event.holders:
                    here = number ^ holder
                    self._send(here, here ^ 1 << event.bit, chunk, op, event.now)

    def add_sums(self, column: CubeColumn, share: Fraction) -> None:
        """An allreduce: a chunk for every number, which ranks that agree with it in the halved bits add up."""
        chunks = [self.builder.add_chunk(share / self.n) for _ in range(self.n)]
        mask = 0
        for event in column.events:
            bit = 1 << event.bit
            for here in range(self.n):
                after = mask | bit if event.kind == HALVE else mask
                whose = here ^ bit if event.kind == HALVE else here
                for number in range(self.n):
                    if number & after == whose & after:
                        op = COPY if event.kind == DOUBLE else REDUCE
                        self._send(here, here ^ bit, chunks[number], op, event.now)
            mask = mask | bit if event.kind == HALVE else mask & ~bit
