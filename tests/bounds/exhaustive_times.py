"""The least time of a collective on a tiny machine, by trying every schedule of messages (CP-SAT); times in ns.

Shares no code with `blinksim.bounds`. Data is cut into equal chunks, so what it finds may be more than the least time
of divisible data, and is never less.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, permutations

from ortools.sat.python import cp_model

# One message per route and slot; two suffice for what a tiny machine gains from a second one.
SLOTS = 2
LATEST = 4000


@dataclass(frozen=True)
class Wire:
    """A link of a tiny machine: ns of latency and overhead, and ns that a chunk takes."""

    src: int
    dst: int
    latency: int
    overhead: int
    chunk: int


def least_time(collective: str, ranks: int, wires: list[Wire], chunks: int, seconds: float = 20.0) -> int | None:
    """The least time in ns; None if the solver did not prove one. chunks: of every block."""
    return _Search(collective, ranks, wires, chunks).solve(seconds)


class _Search:
    def __init__(self, collective: str, ranks: int, wires: list[Wire], chunks: int) -> None:
        self.n, self.wires, self.model = ranks, wires, cp_model.CpModel()
        self.needs = list(_needs(collective, ranks, chunks))
        self.held: dict[tuple[int, int, frozenset[int]], tuple[cp_model.IntVar, cp_model.IntVar]] = {}
        self.reasons: dict[tuple[int, int, frozenset[int]], list[cp_model.IntVar]] = {}
        self.busy: list[list[cp_model.IntervalVar]] = [[] for _ in wires]
        self.hold()
        for route in _routes(ranks, wires):
            for _ in range(SLOTS):
                self.message(route)
        self.merge()
        for intervals in self.busy:
            self.model.add_no_overlap(intervals)
        self.end = self.model.new_int_var(0, LATEST, "end")
        for key, reasons in self.reasons.items():
            self.model.add_bool_or(reasons).only_enforce_if(self.held[key][0])
        for number, (_, given, takers) in enumerate(self.needs):
            for rank in takers:
                has, when = self.held[rank, number, given]
                self.model.add(has == 1)
                self.model.add(self.end >= when)
        self.model.minimize(self.end)

    def hold(self) -> None:
        """What each rank may hold: a sum of the contributions of some ranks, of every chunk."""
        for number, (_, given, _) in enumerate(self.needs):
            for rank in range(self.n):
                for count in range(1, len(given) + 1):
                    for subset in map(frozenset, combinations(sorted(given), count)):
                        key = rank, number, subset
                        self.held[key] = self.model.new_bool_var(""), self.model.new_int_var(0, LATEST, "")
                        self.reasons[key] = []
                        if subset == {rank}:
                            at_once = self.model.new_bool_var("")
                            self.reasons[key].append(at_once)

    def merge(self) -> None:
        """Two sums without a rank in common make one, once both are there."""
        for (rank, number, subset), reasons in self.reasons.items():
            for count in range(1, len(subset) // 2 + 1):
                for part in map(frozenset, combinations(sorted(subset), count)):
                    both = self.model.new_bool_var("")
                    for half in (part, subset - part):
                        has, when = self.held[rank, number, half]
                        self.model.add_implication(both, has)
                        self.model.add(self.held[rank, number, subset][1] >= when).only_enforce_if(both)
                    reasons.append(both)

    def message(self, route: tuple[int, ...]) -> None:
        """A message over a route, with any chunks, at any time; what it brings and what it occupies."""
        model, wires = self.model, [self.wires[wire] for wire in route]
        contents = [
            (key, model.new_bool_var(""))
            for key in self.held
            if key[0] == wires[0].src and (wires[-1].dst, *key[1:]) in self.held
        ]
        sent, start, size = model.new_bool_var(""), model.new_int_var(0, LATEST, ""), sum(y for _, y in contents)
        for number in range(len(self.needs)):
            model.add_at_most_one(y for key, y in contents if key[1] == number)
        for _, y in contents:
            model.add_implication(y, sent)
        begins, extra = start, wires[0].overhead
        for place, (wire, here) in enumerate(zip(route, wires, strict=True)):
            length, end = model.new_int_var(0, LATEST, ""), model.new_int_var(0, 2 * LATEST, "")
            model.add(length == size * here.chunk + extra).only_enforce_if(sent)
            self.busy[wire].append(model.new_optional_interval_var(begins, length, end, sent, ""))
            if place + 1 < len(route):
                following = model.new_int_var(0, LATEST, "")
                later = max(0, here.chunk - wires[place + 1].chunk)
                model.add(following >= begins + extra + here.latency + size * later).only_enforce_if(sent)
                begins = following
            extra = 0
        arrival = model.new_int_var(0, LATEST, "")
        model.add(arrival >= end + wires[-1].latency).only_enforce_if(sent)
        for (rank, number, subset), y in contents:
            has, when = self.held[rank, number, subset]
            model.add_implication(y, has)
            model.add(start >= when).only_enforce_if(y)
            there = wires[-1].dst, number, subset
            if subset != {there[0]}:
                self.reasons[there].append(y)
                model.add(self.held[there][1] >= arrival).only_enforce_if(y)

    def solve(self, seconds: float) -> int | None:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 1
        solver.parameters.max_time_in_seconds = seconds
        return int(solver.objective_value) if solver.solve(self.model) == cp_model.OPTIMAL else None


def _needs(collective: str, ranks: int, chunks: int) -> list[tuple[int, frozenset[int], list[int]]]:
    """(chunk, the ranks that contribute to it, the ranks that must have it in the end)."""
    every = list(range(ranks))
    all_of_them = frozenset(every)
    match collective:
        case "broadcast":
            found = [(frozenset({0}), every)]
        case "reduce":
            found = [(all_of_them, [0])]
        case "allreduce":
            found = [(all_of_them, every)]
        case "allgather":
            found = [(frozenset({rank}), every) for rank in every]
        case "reducescatter":
            found = [(all_of_them, [rank]) for rank in every]
        case "gather":
            found = [(frozenset({rank}), [0]) for rank in every]
        case "scatter":
            found = [(frozenset({0}), [rank]) for rank in every]
        case _:
            found = [(frozenset({a}), [b]) for a, b in permutations(every, 2)]
    return [(copy, given, takers) for given, takers in found for copy in range(chunks)]


def blocks(collective: str, ranks: int) -> int:
    """How many blocks the size of a collective has."""
    return 1 if collective in ("broadcast", "reduce", "allreduce") else ranks


def _routes(ranks: int, wires: list[Wire]) -> list[tuple[int, ...]]:
    """All ways of one or two links between two ranks."""
    single: list[tuple[int, ...]] = [(number,) for number, _ in enumerate(wires)]
    double = [
        (first, second)
        for first, a in enumerate(wires)
        for second, b in enumerate(wires)
        if a.dst == b.src and a.src != b.dst
    ]
    return single + double
