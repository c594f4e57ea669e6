"""The best mix of columns (trees, chains, rings) under the capacities of what they share, with exact rates.

A linear program; where there are too many columns to list, those that can improve it are generated from its dual prices
(Gilmore and Gomory 1961). `blinksim.packing.columns.fewest_columns` then looks for few columns of the same rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm

from blinksim.graphs.linear import Program
from blinksim.packing.columns.hops import Arc, Load

# Shares with a larger common denominator are rounded to multiples of 1/ROUNDED.
# Both leave room to cut the shares into 2^14 pieces.
_MOST_DENOMINATOR = 2**26
_ROUNDED = 2**24
_EPSILON = 1e-7


@dataclass(frozen=True, slots=True)
class Column:
    """Something that one unit of rate can use. load: (resource, times). group: all groups get the same rate.

    arcs: its hops. cost: decides between equally good choices, such as the height of a tree.
    """

    arcs: tuple[Arc, ...]
    load: Load
    cost: int = 0
    group: int = 0


@dataclass(frozen=True, slots=True)
class Mix:
    """Columns with rates, in units of the capacity.

    optimum: the rate of each group that the linear program gives for the columns known to it, in floating point.
    """

    columns: tuple[Column, ...]
    rates: tuple[Fraction, ...]
    optimum: float

    @property
    def rate(self) -> Fraction:
        """The rate of each group, the same for all groups; exact."""
        if not self.columns:
            return Fraction(0)
        first = self.columns[0].group
        return sum((r for c, r in zip(self.columns, self.rates, strict=True) if c.group == first), start=Fraction(0))


Price = Callable[[Sequence[float], Sequence[float]], list[Column]]


def best_mix(
    columns: Sequence[Column],
    capacity: Sequence[int],
    *,
    groups: int = 1,
    price: Price | None = None,
    rounds: int = 200,
) -> Mix:
    """The columns and rates with the largest rate of each group, under the capacities.

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
            return _exact(pool, weights, capacity, groups, optimum)
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
    """True if a column is worth more than its load costs."""
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
    width = len(chosen)
    # Unknowns: a rate per column and the rate of the groups; the last place of an equation is its right-hand side.
    full = {
        r: {width + 1: Fraction(capacity[r])} for r, load in sorted(total.items()) if load > capacity[r] * (1 - 1e-6)
    }
    for place, (column, _) in enumerate(chosen):
        for resource, times in column.load:
            if resource in full:
                full[resource][place] = Fraction(times)
    equal = [{i: Fraction(1) for i, (c, _) in enumerate(chosen) if c.group == g} for g in range(groups)]
    values = _eliminate([*full.values(), *(row | {width: Fraction(-1)} for row in equal)], width + 1)
    if values is None or min(values) < 0:
        return None
    exact = [(c, value) for (c, _), value in zip(chosen, values, strict=False)]
    fits = all(load <= capacity[r] for r, load in loads(exact).items())
    return exact if fits else None


def _eliminate(rows: Iterable[dict[int, Fraction]], width: int) -> list[Fraction] | None:
    """The one solution of equations (Gauss); None if there is none, or more than one.

    rows: the coefficients that are not 0, by unknown, and the right-hand side at `width`.
    """
    first: dict[int, dict[int, Fraction]] = {}
    for row in rows:
        while (lead := min(row, default=width)) in first:
            row = _minus(row, row[lead], first[lead])
        if lead < width:
            first[lead] = {place: value / row[lead] for place, value in row.items()}
        elif row:
            return None
    if len(first) < width:
        return None
    values = [Fraction(0)] * width
    for lead in reversed(range(width)):
        row = first[lead]
        values[lead] = row.get(width, Fraction(0)) - sum(
            (value * values[place] for place, value in row.items() if lead < place < width), start=Fraction(0)
        )
    return values


def _minus(row: dict[int, Fraction], times: Fraction, other: dict[int, Fraction]) -> dict[int, Fraction]:
    left = dict(row)
    for place, value in other.items():
        left[place] = left.get(place, Fraction(0)) - times * value
    return {place: value for place, value in left.items() if value}


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
