"""The fewest columns that reach a rate, by CP-SAT in whole numbers, so that every rate is exact.

An integer program, as in Blink (Wang et al. 2020, section 4): how many parts of the rate each column carries, and which
columns carry any. Looking first for answers that a symmetry of the machine maps onto themselves makes that program a
fraction of its size; the bound of the full program says how few could suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, lcm
from typing import Any

from ortools.sat.python import cp_model

from blinksim.packing.columns.column_mix import Column, Mix
from blinksim.packing.columns.column_symmetries import column_orbits
from blinksim.packing.columns.solver_limits import Limits

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
class _Program:
    """amounts and used: variables by column; the columns of an orbit share those of its first. groups: of these."""

    model: cp_model.CpModel
    orbit: Sequence[int]
    amounts: dict[int, Any]
    used: dict[int, Any]
    groups: Sequence[Sequence[int]]

    def selected(self, solver: cp_model.CpSolver) -> list[int]:
        """The amount of each column in the solver's answer."""
        return [solver.value(self.amounts[number]) for number in self.orbit]


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
        widest: dict[int, Fraction] = {}
        for column in self.columns:
            alone = min(Fraction(self.capacity[resource], times) for resource, times in column.load)
            widest[column.group] = max(widest.get(column.group, Fraction(0)), alone)
        return sum(ceil(self.rate / most) for most in widest.values())

    def fewest(
        self, seconds: float, seed: int = 0, *, maps: Sequence[Sequence[int]] = (), known: Sequence[int] | None = None
    ) -> Selection | None:
        """As few columns as are found in about `seconds`; None if they cannot reach the rate, or time runs out.

        maps: symmetries of the columns (`images`); for each, an answer that it maps onto itself is looked for first.
        known: amounts to start from. One worker; the answer is the same every time unless the clock ends the search.
        """
        best = None if known is None else Selection(tuple(known), self.least)
        if best is not None and best.count == best.least:
            return best
        for image in maps:
            found = self._solve(seconds / 2 / len(maps), seed, image, None)
            if found is not None and (best is None or found.count < best.count):
                best = found
        rest = seconds / 2 if maps else seconds
        found = self._solve(rest, seed, range(len(self.columns)), None if best is None else best.amounts)
        if found is None:
            return best
        return found if best is None or found.count < best.count else Selection(best.amounts, found.least)

    def _solve(self, seconds: float, seed: int, image: Sequence[int], hint: Sequence[int] | None) -> Selection | None:
        program = self._program(image, hint)
        for group in program.groups:
            # Implied by the amounts; it helps to prove that fewer are impossible.
            program.model.add_at_least_one(program.used[number] for number in group)
        sizes = {number: program.orbit.count(number) for number in program.used}
        program.model.minimize(sum(sizes[number] * use for number, use in program.used.items()))
        # One unit of deterministic time takes 0.3 to 0.4 s; the clock ends only what is much slower.
        solver = Limits(2 * seconds + _GRACE, seed, 2 * seconds).solver()
        if solver.solve(program.model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        return Selection(tuple(program.selected(solver)), max(round(solver.best_objective_bound), self.least))

    def cheapest(self, limits: Limits, rates_first: bool, most: int, hint: Sequence[int] | None) -> list[int] | None:
        """The amounts of the fewest columns, of these those with the least sum of costs; None if none are found.

        rates_first: the least sum of rate times cost comes first, then the number of columns. most: a number of columns
        that suffices.
        """
        program = self._program(range(len(self.columns)), hint)
        amounts, used = program.amounts.values(), program.used.values()
        if rates_first:
            big = len(self.columns) + 1
            total = sum(c.cost * big * amount for c, amount in zip(self.columns, amounts, strict=True))
            program.model.minimize(total + sum(used))
        else:
            big = 1 + sum(sorted((c.cost for c in self.columns), reverse=True)[:most])
            program.model.minimize(sum((big + c.cost) * use for c, use in zip(self.columns, used, strict=True)))
        solver = limits.solver()
        if solver.solve(program.model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        return program.selected(solver)

    def _program(self, image: Sequence[int], hint: Sequence[int] | None) -> _Program:
        """Amounts that fit and make the rate, equal on the orbits of `image`; still without an objective."""
        orbit = column_orbits(image)
        total = int(self.rate * self.parts)
        model = cp_model.CpModel()
        amounts: dict[int, Any] = {}
        used: dict[int, Any] = {}
        for number in sorted(set(orbit)):
            most = min([total, *(self.capacity[r] * self.parts // t for r, t in self.columns[number].load)])
            amount, use = model.new_int_var(0, most, f"amount{number}"), model.new_bool_var(f"used{number}")
            model.add(amount <= most * use)
            model.add(amount >= use)
            if hint is not None:
                model.add_hint(amount, hint[number])
                model.add_hint(use, hint[number] > 0)
            amounts[number], used[number] = amount, use
        rows: dict[int, dict[int, int]] = {}
        groups: dict[int, dict[int, int]] = {}
        for number, column in enumerate(self.columns):
            _count(groups, column.group, orbit[number], 1)
            for resource, times in column.load:
                _count(rows, resource, orbit[number], times)
        for resource, row in rows.items():
            model.add(sum(t * amounts[number] for number, t in row.items()) <= self.capacity[resource] * self.parts)
        for _, group in sorted(groups.items()):
            model.add(sum(times * amounts[number] for number, times in group.items()) == total)
        return _Program(model, orbit, amounts, used, [sorted(group) for group in groups.values()])


def _count(table: dict[int, dict[int, int]], key: int, number: int, times: int) -> None:
    row = table.setdefault(key, {})
    row[number] = row.get(number, 0) + times


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
    known = dict(zip(mix.columns, mix.rates, strict=True))
    for parts in sorted({wanted.denominator, 2 * wanted.denominator, own}):
        if parts > MOST_PARTS or not mix.columns:
            continue
        hint = None
        if wanted == mix.rate and all(parts % r.denominator == 0 for r in mix.rates):
            hint = [int(known.get(column, 0) * parts) for column in pool]
        choice = Choice(pool, capacity, wanted, parts)
        amounts = choice.cheapest(limits or Limits(), cheapest, len(mix.columns), hint)
        if amounts is not None:
            chosen = [(c, Fraction(amount, parts)) for c, amount in zip(pool, amounts, strict=True) if amount]
            return replace(mix, columns=tuple(c for c, _ in chosen), rates=tuple(r for _, r in chosen))
    return mix
