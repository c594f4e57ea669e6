"""Schedules of chunks through a graph in a few steps, exactly, by constraint programming.

The graph is unrolled in time (Ford and Fulkerson 1962). A step has a number of rounds, and in a round every
lane moves one chunk; the question is which (chunks, steps, rounds) are possible (SCCL, Cai et al.,
"Synthesizing optimal collective algorithms", PPoPP 2021, who ask an SMT solver). Chunks that are copied on
their way are distinct; chunks that only move are counted by origin, which makes their program far smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import Any

from ortools.sat.python import cp_model

from blinksim.errors import InfeasibleError
from blinksim.graphs.connectivity import distances
from blinksim.packing.choose import Limits
from blinksim.packing.columns import Arc, Hops

# Variables (kinds of chunks, times steps, times hops) above which the search is hopeless.
LIMIT = 200_000


@dataclass(frozen=True, slots=True)
class Journey:
    """One chunk: origin, and for a chunk that only moves its target. sends: (step, from, to), in order of steps."""

    origin: int
    target: int | None
    sends: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """journeys: None if there is no answer. rounds: of each step. least_rounds: no answer has fewer, as far as proved.

    proved: true if the rounds are proved fewest, or proved infeasible.
    """

    journeys: tuple[Journey, ...] | None
    rounds: tuple[int, ...]
    least_rounds: int
    proved: bool


@dataclass(frozen=True, slots=True)
class Question:
    """steps: how many. rounds: the exact number, or None for as few as possible, but at least `least_rounds`."""

    hops: Hops
    steps: int
    rounds: int | None
    least_rounds: int
    time_limit: float
    seed: int = 0


class _Expansion:
    """The program of one question: rounds per step, and what every resource may carry in them."""

    def __init__(self, question: Question, kinds: int) -> None:
        self.question, self.hops = question, question.hops
        size = kinds * question.steps * len(question.hops.routes)
        if size > LIMIT:
            purpose = "it is for small machines, few chunks and few steps"
            raise InfeasibleError(f"few_steps: {size} ways to send, more than {LIMIT}; {purpose}")
        self.model = cp_model.CpModel()
        self._load: dict[tuple[int, int], list[Any]] = {}
        most = question.rounds or 2**20
        self.rounds = [self.model.new_int_var(1, most, f"rounds{step}") for step in range(question.steps)]
        if question.rounds is None:
            self.model.add(sum(self.rounds) >= question.least_rounds)
            self.model.minimize(sum(self.rounds))
        else:
            self.model.add(sum(self.rounds) == question.rounds)

    def send(self, arc: Arc, step: int, most: int) -> Any:
        """How many chunks (0 to `most`) of a kind cross a hop in a step."""
        amount = self.model.new_int_var(0, most, "")
        for resource, times in self.hops.loads[arc]:
            self._load.setdefault((resource, step), []).append(times * amount)
        return amount

    def answer(self, journeys: Callable[[cp_model.CpSolver], Sequence[Journey]]) -> Answer:
        """What the search finds. journeys: reads them from a solver that has an answer."""
        for (resource, step), terms in self._load.items():
            # Chunks per round: exact, since a bus or a limited device need not be a whole number of lanes.
            per_round = Fraction(self.hops.capacity[resource]) * self.hops.unit / self.hops.lane
            self.model.add(per_round.denominator * sum(terms) <= per_round.numerator * self.rounds[step])
        solver = Limits(self.question.time_limit, self.question.seed, inf).solver()
        status, least = solver.solve(self.model), self.question.least_rounds
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Answer(None, (), least, status == cp_model.INFEASIBLE)
        if self.question.rounds is None:
            least = max(least, round(solver.best_objective_bound))
        rounds = tuple(solver.value(r) for r in self.rounds)
        return Answer(tuple(journeys(solver)), rounds, least, sum(rounds) <= least)


def spread(question: Question, origins: Sequence[int]) -> Answer:
    """Every chunk from its origin to every member, copied on the way."""
    expansion, hops, steps = _Expansion(question, len(origins)), question.hops, question.steps
    model = expansion.model
    sends_of: list[dict[tuple[int, int, int], Any]] = []
    reach = {origin: distances(origin, hops.next_to.__getitem__) for origin in set(origins)}
    for origin in origins:
        sends: dict[tuple[int, int, int], Any] = {}
        arrivals: dict[int, list[tuple[int, Any]]] = {vertex: [] for vertex in hops.vertices}
        for step in range(steps):
            for a, b in hops.routes:
                if b != origin and reach[origin].get(a, steps) <= step:
                    sends[step, a, b] = amount = expansion.send((a, b), step, 1)
                    arrivals[b].append((step, amount))
        for vertex in hops.vertices[: hops.members]:
            if vertex != origin:
                model.add_exactly_one(amount for _, amount in arrivals[vertex])
        for (step, a, _), amount in sends.items():
            if a != origin:
                model.add(sum(earlier for when, earlier in arrivals[a] if when < step) >= amount)
        sends_of.append(sends)
    return expansion.answer(
        lambda solver: [
            Journey(origin, None, tuple(send for send, amount in sends.items() if solver.value(amount)))
            for origin, sends in zip(origins, sends_of, strict=True)
        ]
    )


def move(question: Question, wanted: Mapping[int, Mapping[int, int]]) -> Answer:
    """wanted[origin][target] chunks from every origin to every target, without copies."""
    expansion, hops, steps = _Expansion(question, len(wanted)), question.hops, question.steps
    model = expansion.model
    sends_of: dict[int, dict[tuple[int, int, int], Any]] = {}
    for origin, targets in wanted.items():
        total = sum(targets.values())
        stock: dict[int, Any] = {vertex: total if vertex == origin else 0 for vertex in hops.vertices}
        sends: dict[tuple[int, int, int], Any] = {}
        for step in range(steps):
            leaving, entering = ({vertex: list[Any]() for vertex in hops.vertices} for _ in range(2))
            for a, b in hops.routes:
                if b != origin:
                    sends[step, a, b] = amount = expansion.send((a, b), step, total)
                    leaving[a].append(amount)
                    entering[b].append(amount)
            for vertex in hops.vertices:
                after = model.new_int_var(0, total, "")
                model.add(sum(leaving[vertex]) <= stock[vertex])
                model.add(after == stock[vertex] - sum(leaving[vertex]) + sum(entering[vertex]))
                stock[vertex] = after
        for vertex in hops.vertices:
            model.add(stock[vertex] == targets.get(vertex, 0))
        sends_of[origin] = sends

    def journeys(solver: cp_model.CpSolver) -> list[Journey]:
        journeys = []
        for origin, sends in sends_of.items():
            # Counted chunks as single ones: each takes any of the places that its kind has, without circles.
            at = {origin: [list[tuple[int, int, int]]() for _ in range(sum(wanted[origin].values()))]}
            for step in range(steps):
                arrived = []
                for (when, a, b), amount in sends.items():
                    for _ in range(solver.value(amount) if when == step else 0):
                        trail = at[a].pop()
                        # A chunk that returns to a vertex skips the detour.
                        detour = next((i for i, (_, start, _) in enumerate(trail) if start == b), None)
                        arrived.append((b, [*trail, (step, a, b)] if detour is None else trail[:detour]))
                for vertex, trail in arrived:
                    at.setdefault(vertex, []).append(trail)
            journeys += [Journey(origin, vertex, tuple(trail)) for vertex in at for trail in at[vertex]]
        return journeys

    return expansion.answer(journeys)
