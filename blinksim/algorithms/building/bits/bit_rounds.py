"""Schedules of rounds along the bits of ranks' numbers, with the data divided among many orders of them.

For machines on which all ranks send alike: behind switches, on rails, on a torus that is a cube.
"""

from __future__ import annotations

from fractions import Fraction

from blinksim.collective import Collective
from blinksim.packing.rounds.cubes import DOUBLE, HALVE, Cube, CubeColumn, Cubes, cube, labels, seen_after, turns
from blinksim.packing.rounds.rounds_program import Rounds, Search, Solved, exact_shares
from blinksim.packing.rounds.wires import Wires, joined_directly
from blinksim.schedule.model import COPY, REDUCE, Builder, Schedule
from blinksim.topology.graph import Topology

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
