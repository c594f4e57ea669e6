"""Integer choices of columns by CP-SAT: the fewest that reach a rate, the most that fit, and equal shares.

Every rate is exact, and limits on work give the same answer every time and on every machine. The fewest
columns, as in Blink (Wang et al. 2020, section 4): whole parts of the rate per column, and which columns
carry any. Answers that a symmetry of the machine maps onto themselves are searched first, which makes the
program a fraction of its size; the bound of the full program proves how few could suffice.

NCCL splits data evenly over its channels, so it can run K columns with equal shares. For a given rate that is
a feasibility question; the largest rate follows by bisection. In the search for the fewest trees from one
root, the trees themselves are unknown, unlike in Blink (section 4.1), so "T - 1 trees cannot do it" is a
proof (for rates that are multiples of 1/D).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil, lcm
from typing import TYPE_CHECKING, Any

import numpy as np

from blinksim.budget import seconds_left
from blinksim.graphs.connectivity import grouped, joined_labels
from blinksim.graphs.rooted_trees import hung_from
from blinksim.packing.columns import Arc, Column, Load, Mix, loads

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

# One CP-SAT worker and a limit on its deterministic time make answers repeatable on every machine.
EFFORT = 2.0


def new_model() -> cp_model.CpModel:
    """An empty program. CP-SAT takes longer to load than most machines take to answer, so it loads here."""
    from ortools.sat.python import cp_model

    return cp_model.CpModel()


@dataclass(frozen=True, slots=True)
class Limits:
    """How long solvers may take: seconds (None: only the deterministic limit), and the seed of their choices."""

    time_limit: float | None = None
    seed: int = 0
    effort: float = EFFORT

    def solver(self) -> cp_model.CpSolver:
        """A CP-SAT solver that answers the same way every time, unless the clock ends it.

        That is its own limit, or the end of the work around it (`deadline`).
        """
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        # Its own handler takes Ctrl-C away from Python, for good.
        solver.parameters.catch_sigint_signal = False
        solver.parameters.random_seed = self.seed
        solver.parameters.max_deterministic_time = self.effort
        if limits := [limit for limit in (self.time_limit, seconds_left()) if limit is not None]:
            solver.parameters.max_time_in_seconds = min(limits)
        return solver

    def solved(self, model: cp_model.CpModel) -> cp_model.CpSolver | None:
        """A solver that has an answer to `model`; None if it found none."""
        solver = self.solver()
        return solver if solver.status_name(solver.solve(model)) in _FOUND else None


LIMITS = Limits()
# What CP-SAT says of a program that it has an answer to.
_FOUND = ("OPTIMAL", "FEASIBLE")
# Largest common denominator of rates for which the fewest columns are looked for.
MOST_PARTS = 100_000
# Extra seconds for a short search on a busy processor, so that it ends with the same answer.
_GRACE = 10.0


@dataclass(frozen=True, slots=True)
class Selection:
    """amounts: of each column, as multiples of a common part. least: no selection of these columns has fewer."""

    amounts: tuple[int, ...]
    least: int

    @property
    def count(self) -> int:
        return sum(amount > 0 for amount in self.amounts)


@dataclass(frozen=True)
class Choice:
    """Columns, of which every group needs the same `rate` in multiples of 1/parts, under the capacities."""

    columns: Sequence[Column]
    capacity: Sequence[int]
    rate: Fraction
    parts: int

    @property
    def least(self) -> int:
        """A lower bound on the number of columns: no column can carry more than fits alone."""
        wide, columns = self.capacity, self.columns
        alone = ((c.group, min(Fraction(wide[r], times) for r, times in c.load)) for c in columns)
        return sum(ceil(self.rate / max(rates)) for rates in grouped(alone).values())

    def fewest(
        self, seconds: float, seed: int = 0, *, maps: Sequence[Sequence[int]] = (), known: Sequence[int] | None = None
    ) -> Selection | None:
        """As few columns as are found in about `seconds`; None if they cannot reach the rate, or time runs out.

        maps: symmetries of the columns (`images`); for each, an answer that it maps onto itself is looked for
        first. known: amounts to start from. One worker; the answer is the same every time unless the clock
        ends the search.
        """
        best = None if known is None else Selection(tuple(known), self.least)
        if best is not None and best.count == best.least:
            return best
        for image in maps:
            answer = self._solve(seconds / 2 / len(maps), seed, image, None)
            if answer is not None and (best is None or answer.count < best.count):
                best = answer
        rest = seconds / 2 if maps else seconds
        answer = self._solve(rest, seed, range(len(self.columns)), None if best is None else best.amounts)
        if answer is None:
            return best
        return answer if best is None or answer.count < best.count else Selection(best.amounts, answer.least)

    def _solve(self, seconds: float, seed: int, image: Sequence[int], hint: Sequence[int] | None) -> Selection | None:
        model, amounts, used = self.program(image, hint)
        for group in dict.fromkeys(column.group for column in self.columns):
            # Implied by the amounts; it helps to prove that fewer are impossible.
            own = [number for number, column in enumerate(self.columns) if column.group == group]
            model.add_at_least_one({used[number].index: used[number] for number in own}.values())
        model.minimize(sum(used))
        # One unit of deterministic time takes 0.3 to 0.4 s; the clock ends only what is much slower.
        if (solver := Limits(2 * seconds + _GRACE, seed, 2 * seconds).solved(model)) is None:
            return None
        return Selection(tuple(map(solver.value, amounts)), max(round(solver.best_objective_bound), self.least))

    def program(
        self, image: Sequence[int], hint: Sequence[int] | None
    ) -> tuple[cp_model.CpModel, list[Any], list[Any]]:
        """Amounts that fit and make the rate, equal on the orbits of `image`, and whether columns are used.

        The columns of an orbit share the variables of its first. There is no objective yet.
        """
        orbit = joined_labels(len(image), np.arange(len(image)), np.array(image, dtype=np.int64)).tolist()
        total = int(self.rate * self.parts)
        model = new_model()
        amounts, used = list[Any](), list[Any]()
        groups = defaultdict[int, list[Any]](list)
        for number, column in enumerate(self.columns):
            if orbit[number] == number:
                most = min([total, *(self.capacity[r] * self.parts // t for r, t in column.load)])
                amount, use = model.new_int_var(0, most, f"amount{number}"), model.new_bool_var(f"used{number}")
                model.add(amount <= most * use)
                model.add(amount >= use)
                if hint is not None:
                    model.add_hint(amount, hint[number])
                    model.add_hint(use, hint[number] > 0)
            else:
                amount, use = amounts[orbit[number]], used[orbit[number]]
            amounts.append(amount)
            used.append(use)
            groups[column.group].append(amount)
        for resource, load in loads(zip(self.columns, amounts, strict=True)).items():
            model.add(load <= self.capacity[resource] * self.parts)
        for _, parts in sorted(groups.items()):
            model.add(sum(parts) == total)
        return model, amounts, used


def fewest(
    mix: Mix, more: Sequence[Column], capacity: Sequence[int], wanted: Fraction, limits: Limits, cheapest: bool = False
) -> Mix:
    """As few columns as a search finds that give every group the rate `wanted`.

    more: columns beside those of `mix` that may be used. Rates are multiples of 1/D: D is the denominator of
    the rate, which suffices for trees (Edmonds; Nash-Williams and Tutte), then twice that, then what `mix`
    itself needs. Equal numbers of columns: least sum of costs. cheapest: the least sum of rate times cost
    comes first, then the number. Returns `mix` itself where nothing better is found in time.
    """
    own = lcm(*(r.denominator for r in mix.rates), wanted.denominator)
    pool = list(dict.fromkeys((*mix.columns, *more)))
    known = dict(zip(mix.columns, mix.rates, strict=True))
    for parts in sorted({wanted.denominator, 2 * wanted.denominator, own}):
        if parts > MOST_PARTS or not mix.columns:
            continue
        whole = wanted == mix.rate and all(parts % r.denominator == 0 for r in mix.rates)
        hint = [int(known.get(column, 0) * parts) for column in pool] if whole else None
        model, amounts, used = Choice(pool, capacity, wanted, parts).program(range(len(pool)), hint)
        costs = [column.cost for column in pool]
        if cheapest:
            total = sum(cost * (len(pool) + 1) * amount for cost, amount in zip(costs, amounts, strict=True))
            model.minimize(total + sum(used))
        else:
            # What one column counts, beside its cost: more than the costs of as many as suffice.
            big = 1 + sum(sorted(costs, reverse=True)[: len(mix.columns)])
            model.minimize(sum((big + cost) * use for cost, use in zip(costs, used, strict=True)))
        if (solver := limits.solved(model)) is not None:
            rates = {c: Fraction(solver.value(amount), parts) for c, amount in zip(pool, amounts, strict=True)}
            return replace(mix, columns=tuple(filter(rates.get, pool)), rates=tuple(filter(None, rates.values())))
    return mix


def most_whole(columns: Sequence[Column], capacity: Sequence[int], limits: Limits = LIMITS) -> tuple[list[int], bool]:
    """How often to take each column so that the most fit together, and true if that number is proved maximal."""
    model = new_model()
    alone = [min(capacity[r] // times for r, times in column.load) for column in columns]
    counts: list[Any] = [model.new_int_var(0, most, f"n{number}") for number, most in enumerate(alone)]
    for resource, load in loads(zip(columns, counts, strict=True)).items():
        model.add(load <= capacity[resource])
    model.maximize(sum(counts))
    if (solver := limits.solved(model)) is None:
        return [0] * len(columns), False
    return [solver.value(count) for count in counts], solver.status_name(solver.response_proto.status) == "OPTIMAL"


def equal_shares(
    columns: Sequence[Column], capacity: Sequence[int], most: int, best: Fraction, limits: Limits = LIMITS
) -> tuple[Fraction, list[int]]:
    """K <= `most` columns (some perhaps several times) that carry 1/K of the data each, at the largest rate found.

    best: a rate that no choice can exceed. Returns the rate, exact, and how often to take each column; among
    choices of that rate the fewest. The rates that K equal shares can have are K c / m, with c a capacity and
    m a whole load, so the largest is found by bisection.
    """
    tried: dict[Fraction, list[int]] = {}

    def fails(rate: Fraction) -> bool:
        """Whether no K <= `most` equal shares are found to reach `rate`; keeps the fewest that do."""
        model = new_model()
        counts: list[Any] = [model.new_int_var(0, most, f"n{number}") for number in range(len(columns))]
        total = model.new_int_var(1, most, "K")
        model.add(sum(counts) == total)
        for resource, load in loads(zip(columns, counts, strict=True)).items():
            model.add(rate.numerator * load <= rate.denominator * capacity[resource] * total)
        model.minimize(total)
        if (solver := limits.solved(model)) is not None:
            tried[rate] = [solver.value(count) for count in counts]
        return solver is None

    if fails(best):
        single = max(min(Fraction(capacity[r], times) for r, times in column.load) for column in columns)
        used = {capacity[r] for column in columns for r, _ in column.load}
        ladder = {
            Fraction(k * c, m)
            for k in range(1, most + 1)
            for c in used
            for m in range(max(1, int(k * c / best)), int(k * c / single) + 1)
            if single <= Fraction(k * c, m) < best
        }
        fails(single)
        bisect_left(sorted(ladder), True, key=fails)
    return max(tried), tried[max(tried)]


# Members up to which the model is small enough.
MOST_MEMBERS = 10


def search_trees(
    loads: Mapping[Arc, Load], root: int, capacity: Sequence[int], rate: Fraction, trees: int, limits: Limits
) -> list[tuple[tuple[Arc, ...], Fraction]] | None:
    """`trees` out-trees from `root` that span all vertices, with rates of the denominator of `rate` that add up to it.

    loads: what a tree loads that takes an arc. Low trees are preferred. Returns the trees with their rates
    (arcs away from the root, parents first), none if that is impossible; None if the search does not end.
    """
    model, (total, parts) = new_model(), rate.as_integer_ratio()
    rows = defaultdict[int, list[Any]](list)
    # What each tree carries, the most first; and for each arc that it may take, the variable that selects it.
    amounts = [model.new_int_var(1, total, f"w{t}") for t in range(trees)]
    model.add(sum(amounts) == total)
    for wide, narrow in pairwise(amounts):
        model.add(wide >= narrow)
    heights, taken = zip(*(_add_tree(model, loads, root, amount, total, rows) for amount in amounts), strict=True)
    for resource, terms in rows.items():
        model.add(sum(terms) <= capacity[resource] * parts)
    model.minimize(sum(heights))
    solver = limits.solver()
    if (status := solver.status_name(solver.solve(model))) not in _FOUND:
        return [] if status == "INFEASIBLE" else None
    chosen = [[arc for arc, taken_here in takes.items() if solver.value(taken_here)] for takes in taken]
    rates = [Fraction(solver.value(amount), parts) for amount in amounts]
    return [(hung_from(root, arcs), share) for arcs, share in zip(chosen, rates, strict=True)]


def _add_tree(
    model: cp_model.CpModel, loads: Mapping[Arc, Load], root: int, amount: Any, most: int, rows: Mapping[int, list[Any]]
) -> tuple[Any, dict[Arc, Any]]:
    """The height of a tree that carries `amount`, up to `most`, and which arcs it takes; `rows` gain what it loads."""
    vertices = list(dict.fromkeys([*(a for a, _ in loads), *(b for _, b in loads)]))
    last = len(vertices) - 1
    depth = {v: model.new_int_var(v != root, 0 if v == root else last, "") for v in vertices}
    height, takes = model.new_int_var(1, last, ""), dict[Arc, Any]()
    for (a, b), load in loads.items():
        if b != root:
            takes[a, b] = model.new_bool_var("")
            carried = model.new_int_var(0, most, "")
            model.add(depth[b] == depth[a] + 1).only_enforce_if(takes[a, b])
            model.add(carried == amount).only_enforce_if(takes[a, b])
            model.add(carried == 0).only_enforce_if(~takes[a, b])
            for resource, times in load:
                rows[resource].append(times * carried)
    for v in vertices:
        model.add(depth[v] <= height)
        if v != root:
            model.add_exactly_one(one for (_, b), one in takes.items() if b == v)
    return height, takes
