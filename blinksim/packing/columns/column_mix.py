"""Choose among columns (trees, chains, rings): the best mix, and the fewest that attain its rate.

The best mix is a linear program; where there are too many columns to list, those that can improve it are generated
from its dual prices (Gilmore and Gomory 1961). Fewest trees at the best rate is an integer program, as in Blink (Wang
et al. 2020, section 4), here by CP-SAT in whole numbers, so that every rate is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from math import lcm
from typing import Any

from ortools.sat.python import cp_model

from blinksim.graphs.linear import Program
from blinksim.packing.columns.hops import Arc, Load

# Largest common denominator of rates for which the fewest columns are looked for.
MOST_PARTS = 100_000
# Shares with a larger common denominator are rounded to multiples of 1/ROUNDED.
# Both leave room to cut the shares into 2^14 pieces.
_MOST_DENOMINATOR = 2**26
_ROUNDED = 2**24
_EPSILON = 1e-7
# One CP-SAT worker and a limit on its deterministic time make answers repeatable on every machine.
EFFORT = 2.0


@dataclass(frozen=True, slots=True)
class Column:
    """Something that one unit of rate can use. load: (resource, times). group: columns of every group get equal rates.

    arcs: its hops. cost: what decides between equally good choices, such as the height of a tree.
    """

    arcs: tuple[Arc, ...]
    load: Load
    cost: int = 0
    group: int = 0


@dataclass(frozen=True, slots=True)
class Mix:
    """Columns with rates, in units of the capacity. rate: of every group together; exact.

    optimum: what the linear program over all columns says (rounded), or over those known if `priced_out` is False.
    """

    columns: tuple[Column, ...]
    rates: tuple[Fraction, ...]
    optimum: float
    priced_out: bool = True

    @property
    def rate(self) -> Fraction:
        """The rate of each group, which is the same for all."""
        if not self.columns:
            return Fraction(0)
        first = self.columns[0].group
        return sum((r for c, r in zip(self.columns, self.rates, strict=True) if c.group == first), start=Fraction(0))


@dataclass(frozen=True, slots=True)
class Limits:
    """How long solvers may take: seconds (None: only the deterministic limit), and the seed of their choices."""

    time_limit: float | None = None
    seed: int = 0
    effort: float = EFFORT

    def solver(self) -> cp_model.CpSolver:
        """A CP-SAT solver that answers the same way every time, unless the wall-clock limit ends it."""
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = self.seed
        solver.parameters.max_deterministic_time = self.effort
        if self.time_limit is not None:
            solver.parameters.max_time_in_seconds = self.time_limit
        return solver


Price = Callable[[Sequence[float], Sequence[float]], list[Column]]


def best_mix(
    columns: Sequence[Column],
    capacity: Sequence[int],
    *,
    groups: int = 1,
    price: Price | None = None,
    rounds: int = 200,
) -> Mix:
    """The columns and rates with the largest rate of every group, under the capacities.

    price: given a price per resource and the worth of each group, returns columns worth more than they cost, or none;
    None if `columns` are all there are. The rates are exact fractions that fit the capacities exactly; where the
    program's numbers cannot be made exact they are lowered until they fit.
    """
    pool = list(columns)
    known = {(c.arcs, c.group) for c in pool}
    for last in range(rounds, 0, -1):
        optimum, weights, prices, worth = _solve(pool, capacity, groups)
        found = [] if price is None else [c for c in price(prices, worth) if (c.arcs, c.group) not in known]
        if not found or last == 1:
            mix = _exact(pool, weights, capacity, groups, optimum)
            return replace(mix, priced_out=not found)
        known |= {(c.arcs, c.group) for c in found}
        pool += found
    raise AssertionError("unreachable")


def _solve(
    pool: Sequence[Column], capacity: Sequence[int], groups: int
) -> tuple[float, list[float], list[float], list[float]]:
    """(rate, rate of each column, price of each resource, worth of each group) of the linear program."""
    program = Program()
    weights, (rate,) = program.variables(len(pool)), program.variables(1)
    rows: dict[int, list[tuple[int, float]]] = {}
    members: list[list[tuple[int, float]]] = [[(rate, -1.0)] for _ in range(groups)]
    for number, column in zip(weights, pool, strict=True):
        members[column.group].append((number, 1.0))
        for resource, times in column.load:
            rows.setdefault(resource, []).append((number, float(times)))
    scale = float(max(capacity))
    tight = {r: program.row(terms, at_most=capacity[r] / scale) for r, terms in sorted(rows.items())}
    shares = [program.row(terms, at_most=float("inf"), at_least=0.0) for terms in members]
    optimum = program.solve([(rate, 1.0)])
    prices = [0.0] * len(capacity)
    for resource, row in tight.items():
        prices[resource] = max(0.0, float(program.duals[row]))
    worth = [abs(float(program.duals[row])) for row in shares]
    return optimum * scale, [float(program.values[w]) * scale for w in weights], prices, worth


def improves(column: Column, prices: Sequence[float], worth: Sequence[float]) -> bool:
    """Whether a column is worth more than its load costs."""
    return sum(prices[r] * times for r, times in column.load) < worth[column.group] - _EPSILON


def _exact(
    pool: Sequence[Column], weights: Sequence[float], capacity: Sequence[int], groups: int, optimum: float
) -> Mix:
    """The program's answer in fractions that fit: its vertex solved exactly, or short fractions, lowered."""
    chosen = [(c, w) for c, w in zip(pool, weights, strict=True) if w > _EPSILON]
    exact = _vertex(chosen, capacity, groups)
    if exact is None:
        rounded = [(c, Fraction(w).limit_denominator(10_000)) for c, w in chosen]
        totals = [sum((w for c, w in rounded if c.group == g), start=Fraction(0)) for g in range(groups)]
        level = [(c, w * min(totals) / totals[c.group]) for c, w in rounded]
        excess = max((load / capacity[r] for r, load in loads(level).items()), default=Fraction(0))
        exact = [(c, w / max(excess, Fraction(1))) for c, w in level]
    exact = [(c, w) for c, w in exact if w]
    return Mix(tuple(c for c, _ in exact), tuple(w for _, w in exact), optimum)


def _vertex(
    chosen: Sequence[tuple[Column, float]], capacity: Sequence[int], groups: int
) -> list[tuple[Column, Fraction]] | None:
    """The rates of the columns of a vertex, from the rows that are full there; None if these do not determine it."""
    total: dict[int, float] = {}
    for column, weight in chosen:
        for resource, times in column.load:
            total[resource] = total.get(resource, 0.0) + weight * times
    full = [r for r, load in sorted(total.items()) if load > capacity[r] * (1 - 1e-6)]
    width = len(chosen)
    # Unknowns: a rate per column and the rate of the groups; the last entry of a row is its right-hand side.
    rows = [[Fraction(dict(c.load).get(r, 0)) for c, _ in chosen] + [Fraction(0), Fraction(capacity[r])] for r in full]
    rows += [[Fraction(c.group == g) for c, _ in chosen] + [Fraction(-1), Fraction(0)] for g in range(groups)]
    values = _eliminate(rows, width + 1)
    if values is None or min(values) < 0:
        return None
    exact = [(c, value) for (c, _), value in zip(chosen, values, strict=False)]
    fits = all(load <= capacity[r] for r, load in loads(exact).items())
    return exact if fits else None


def _eliminate(rows: list[list[Fraction]], width: int) -> list[Fraction] | None:
    """The one solution of the equations `rows` (Gauss and Jordan); None if there is none, or more than one."""
    for place in range(width):
        pivot = next((i for i in range(place, len(rows)) if rows[i][place]), None)
        if pivot is None:
            return None
        rows[place], rows[pivot] = rows[pivot], rows[place]
        head = [value / rows[place][place] for value in rows[place]]
        rows[place] = head
        for i, row in enumerate(rows):
            if i != place and row[place]:
                factor = row[place]
                rows[i] = [x - factor * y if y else x for x, y in zip(row, head, strict=True)]
    return None if any(row[width] for row in rows[width:]) else [rows[i][width] for i in range(width)]


def shortened(mix: Mix, capacity: Sequence[int]) -> Mix:
    """`mix` itself, or, where its rates need too large a common denominator, a slightly lower one that does not.

    Every group keeps the same rate.
    """
    total = mix.rate
    shares = [rate / total for rate in mix.rates]
    if lcm(*(share.denominator for share in shares)) <= _MOST_DENOMINATOR:
        return mix
    rounded: list[Fraction] = [Fraction(0)] * len(shares)
    for group in {column.group for column in mix.columns}:
        mine = [i for i, column in enumerate(mix.columns) if column.group == group]
        parts = {i: int(shares[i] * _ROUNDED) for i in mine}
        # What rounding down leaves goes to the largest remainders.
        by_rest = sorted(mine, key=lambda i: parts[i] - shares[i] * _ROUNDED)
        for i in by_rest[: _ROUNDED - sum(parts.values())]:
            parts[i] += 1
        for i in mine:
            rounded[i] = Fraction(parts[i], _ROUNDED)
    kept = [(column, share) for column, share in zip(mix.columns, rounded, strict=True) if share]
    rate = min(capacity[r] / load for r, load in loads(kept).items())
    return replace(mix, columns=tuple(c for c, _ in kept), rates=tuple(share * rate for _, share in kept))


def loads(chosen: Sequence[tuple[Column, Fraction]]) -> dict[int, Fraction]:
    """What each resource carries."""
    total: dict[int, Fraction] = {}
    for column, weight in chosen:
        for resource, times in column.load:
            total[resource] = total.get(resource, Fraction(0)) + weight * times
    return total


# --- the fewest ---------------------------------------------------------------------------------------------------


def fewest(
    mix: Mix,
    more: Sequence[Column],
    capacity: Sequence[int],
    *,
    rate: Fraction | None = None,
    limits: Limits | None = None,
    cheapest: bool = False,
) -> Mix:
    """As few columns as a search finds that give every group `rate` (default: what `mix` gives).

    more: columns beside those of `mix` that may be used. Rates are multiples of 1/D: D is the denominator of the rate,
    which suffices for trees (Edmonds; Nash-Williams and Tutte), then twice that, then what `mix` itself needs. Equal
    numbers of columns: least sum of costs. cheapest: the least sum of rate times cost comes first, then the number.
    Returns `mix` itself where nothing better is found in time.
    """
    wanted = mix.rate if rate is None else rate
    own = lcm(*(r.denominator for r in mix.rates), wanted.denominator)
    pool = list(dict.fromkeys((*mix.columns, *more)))
    for parts in sorted({wanted.denominator, 2 * wanted.denominator, own}):
        if parts <= MOST_PARTS and mix.columns:
            found = _fewest(mix, pool, capacity, wanted, parts, limits or Limits(), cheapest)
            if found is not None:
                return found
    return mix


def _fewest(
    mix: Mix,
    pool: Sequence[Column],
    capacity: Sequence[int],
    rate: Fraction,
    parts: int,
    limits: Limits,
    cheapest: bool,
) -> Mix | None:
    total = int(rate * parts)
    hint = dict(zip(mix.columns, mix.rates, strict=True))
    hinted = rate == mix.rate and all(parts % r.denominator == 0 for r in mix.rates)
    model = cp_model.CpModel()
    amounts, used = [], []
    rows: dict[int, list[Any]] = {}
    for number, column in enumerate(pool):
        most = min([total, *(capacity[r] * parts // times for r, times in column.load)])
        amount, use = model.new_int_var(0, most, f"w{number}"), model.new_bool_var(f"u{number}")
        model.add(amount <= most * use)
        model.add(amount >= use)
        amounts.append(amount)
        used.append(use)
        for resource, times in column.load:
            rows.setdefault(resource, []).append(times * amount)
        if hinted:
            model.add_hint(amount, int(hint.get(column, 0) * parts))
            model.add_hint(use, column in hint)
    for resource, terms in rows.items():
        model.add(sum(terms) <= capacity[resource] * parts)
    for _, group in groupby(sorted(range(len(pool)), key=lambda i: pool[i].group), key=lambda i: pool[i].group):
        model.add(sum(amounts[i] for i in group) == total)
    if cheapest:
        big = len(pool) + 1
        model.minimize(sum(c.cost * big * a for c, a in zip(pool, amounts, strict=True)) + sum(used))
    else:
        big = 1 + sum(sorted((c.cost for c in pool), reverse=True)[: len(mix.columns)])
        model.minimize(sum((big + c.cost) * u for c, u in zip(pool, used, strict=True)))
    solver = limits.solver()
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    chosen = [(c, Fraction(solver.value(a), parts)) for c, a in zip(pool, amounts, strict=True) if solver.value(a)]
    return replace(mix, columns=tuple(c for c, _ in chosen), rates=tuple(r for _, r in chosen))
