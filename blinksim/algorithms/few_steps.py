"""Schedules of few steps: the least latency for a given bandwidth, or the least rounds for given steps.

Every rank's data is cut into C chunks; the schedule has S steps of R rounds together, in each of which a
lane moves one chunk: time S alpha + R (size of a chunk) beta. Which (C, S, R) are possible is decided
exactly, by constraint programming on the graph unrolled in time (Ford and Fulkerson 1962; SCCL, Cai et al.,
"Synthesizing optimal collective algorithms", PPoPP 2021, who ask an SMT solver). Chunks that are copied on
their way are distinct; chunks that only move are counted by origin, which makes their program far smaller.
A reducing collective is the reverse of a spreading one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import wraps
from math import ceil, inf
from typing import Any

from ortools.sat.python import cp_model

from blinksim.algorithms.building.plan import Plan
from blinksim.algorithms.registry import Algorithm
from blinksim.collective import COLLECTIVES, Collective
from blinksim.errors import InfeasibleError, InputError
from blinksim.graphs.connectivity import distances
from blinksim.packing.choose import Limits
from blinksim.packing.columns import Arc, Hops, find_hops
from blinksim.results import count
from blinksim.schedule.model import COPY, REDUCE, Schedule
from blinksim.topology.graph import Topology

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


# Chunks by (origin or owner, target, which of them).
Numbers = dict[tuple[int, int, int], int]
ENTRY = Algorithm(
    COLLECTIVES, "the fewest steps and rounds for a given number of chunks, by search", solver=True, most_ranks=1024
)


def find(
    topology: Topology,
    collective: Collective,
    *,
    steps: int | None = None,
    rounds: int | None = None,
    chunks: int | None = None,
    time_limit: float = 60.0,
    seed: int = 0,
) -> tuple[Schedule, tuple[int, ...], bool]:
    """A schedule in steps form with given numbers of chunks, steps and rounds; and the rounds of every step.

    Last, whether the rounds, each as long as a chunk takes on a lane, attain the bound.

    steps: default the fewest possible (for allreduce: of a reducescatter and an allgather). rounds: default
    as few as the search finds in `time_limit` seconds. chunks: per rank, for broadcast and reduce of the
    whole vector; for alltoall a multiple of the ranks (default: their number), since a rank has chunks for
    every rank, and itself. The answer is the same for the same seed, unless the time limit ends the search.

    Raises `InputError` for numbers out of range and `InfeasibleError` if there is no such schedule, or if
    none was found in time; the message says which.
    """
    from blinksim.bounds.compute import bound

    if collective.data is not None:
        raise InfeasibleError(f"few_steps has chunks of equal size, which {collective.name} has not; take packed")
    known = bound(topology, collective)
    ranks, name = topology.ranks, collective.name
    chunks = chunks if chunks is not None else ranks if name == "alltoall" else 1
    _check_numbers(topology, collective, steps, rounds, chunks)
    hops = find_hops(topology)
    phases = [Collective("reducescatter"), Collective("allgather")] if name == "allreduce" else [collective]
    plan = Plan(topology, collective, "few_steps", "steps")
    numbers = Numbers()
    per_step: list[int] = []
    for number, phase in enumerate(phases):
        left = len(phases) - number
        fewest = fewest_steps(hops, phase)
        own_steps = fewest if steps is None else (steps - len(per_step)) // left
        own_rounds = None if rounds is None else (rounds - sum(per_step)) // left
        rate = (known if phase == collective else bound(topology, phase)).rate
        least = max(ceil(_vector(phase, ranks, chunks) * hops.lane / rate), own_steps)
        what = f"{phase} of {count(chunks, 'chunk')} on {topology.name}"
        if own_steps < fewest:
            needs = f"{what} needs at least {count(fewest, 'step')}, not {own_steps}"
            raise InfeasibleError(f"{needs}: some rank is that many hops away")
        if own_rounds is not None and own_rounds < least:
            raise InfeasibleError(f"{what} needs at least {least} rounds, not {own_rounds}, by its bound")
        work = hops.reversed if phase.collects else hops
        question = Question(work, own_steps, own_rounds, least, time_limit, seed)
        answer = _search(what, question, phase, chunks)
        _add(plan, hops, phase, chunks, answer, len(per_step), numbers)
        per_step += answer.rounds[::-1] if phase.collects else answer.rounds
    attained = _vector(collective, ranks, chunks) * hops.lane == sum(per_step) * known.rate
    return plan.finish(), tuple(per_step), attained


@wraps(find)
def build(*arguments: Any, **options: Any) -> Schedule:
    """What `find` finds."""
    return find(*arguments, **options)[0]


def fewest_steps(hops: Hops, collective: Collective) -> int:
    """No schedule has fewer steps: the hops between the two members farthest apart, or between them and the root."""
    members = hops.vertices[: hops.members]
    next_to = (hops.reversed if collective.collects else hops).next_to
    starts = [members[collective.root]] if collective.rooted else members
    reached = [distances(start, next_to.__getitem__) for start in starts]
    return max(far.get(member, len(hops.vertices)) for far in reached for member in members)


def _check_numbers(
    topology: Topology, collective: Collective, steps: int | None, rounds: int | None, chunks: int
) -> None:
    for what, value in (("steps", steps), ("rounds", rounds), ("chunks", chunks)):
        if value is not None and value < 1:
            raise InputError(f"{value} {what}: give 1 or more")
    if collective.name == "alltoall" and chunks % topology.ranks:
        n = topology.ranks
        lacks = f"every rank has the same number for each of the {n} ranks; give a multiple of {n}"
        raise InputError(f"alltoall of {chunks} chunks per rank: {lacks}")
    if steps is not None and rounds is not None and rounds < steps:
        raise InputError(f"{rounds} rounds in {steps} steps: every step has at least one round")


def _vector(collective: Collective, ranks: int, chunks: int) -> int:
    """Chunks in the whole vector, which is what algbw counts."""
    return chunks if collective.name in ("broadcast", "reduce", "alltoall") else chunks * ranks


def _search(what: str, question: Question, collective: Collective, chunks: int) -> Answer:
    """The answer for a spreading collective, or the reverse of one; steps count from its start."""
    members = question.hops.vertices[: question.hops.members]
    name = (collective.dual if collective.collects else collective).name
    if name == "broadcast":
        answer = spread(question, [members[collective.root]] * chunks)
    elif name == "allgather":
        answer = spread(question, [member for member in members for _ in range(chunks)])
    else:
        each = chunks // len(members) if name == "alltoall" else chunks
        starts = members if name == "alltoall" else (members[collective.root],)
        answer = move(question, {a: {b: each for b in members if b != a} for a in starts})
    if answer.journeys is None:
        rounds = "" if question.rounds is None else f" and {count(question.rounds, 'round')}"
        asked = f"{count(question.steps, 'step')}{rounds}"
        if answer.proved:
            raise InfeasibleError(f"{what}: no schedule has {asked}; more steps or rounds may help")
        failure = f"found none of {asked} in {question.time_limit:g} s"
        raise InfeasibleError(f"{what}: {failure}; allow more time, steps or rounds")
    return answer


def _add(
    plan: Plan, hops: Hops, phase: Collective, chunks: int, answer: Answer, first_step: int, numbers: Numbers
) -> None:
    """The sends of one phase. numbers: chunks already there."""
    topology, whole = plan.topology, plan.collective
    rank = {topology.index[name]: number for number, name in enumerate(topology.members)}
    backwards = phase.collects
    share = Fraction(1, _vector(whole, topology.ranks, chunks))
    seen: dict[tuple[int, int], int] = {}

    steps = len(answer.rounds)
    for journey in answer.journeys or ():
        ends = (rank[journey.origin], -1 if journey.target is None else rank[journey.target])
        which = seen[ends] = seen.get(ends, -1) + 1
        if (*ends, which) not in numbers:
            numbers[*ends, which] = plan.add_chunk(share, *whole.labels(*(ends[::-1] if backwards else ends)))
        chunk = numbers[*ends, which]
        for step, a, b in journey.sends:
            src, dst = (b, a) if backwards else (a, b)
            now = first_step + (steps - 1 - step if backwards else step)
            plan.add_edges(chunk, [(src, dst, hops.routes[src, dst])], REDUCE if phase.reduces else COPY, now, 0)
    plan.add_own(share, chunks // topology.ranks if whole.name == "alltoall" else chunks)
