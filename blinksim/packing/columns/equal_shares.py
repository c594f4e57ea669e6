"""Choose whole numbers of columns: the most that fit together, or K that carry equal shares.

NCCL splits data evenly over its channels, so what it can run is a choice of K columns with equal shares. For a given
rate that is a feasibility question for CP-SAT, in whole numbers; the largest rate follows by bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from ortools.sat.python import cp_model

from blinksim.packing.columns.column_mix import Column
from blinksim.packing.columns.solver_limits import Limits


def most_whole(
    columns: Sequence[Column], capacity: Sequence[int], limits: Limits | None = None
) -> tuple[list[int], bool]:
    """How often to take each column so that the most fit together, and true if that number is proved maximal."""
    model = cp_model.CpModel()
    counts, rows = _counts(model, columns, capacity, None)
    for resource, terms in rows.items():
        model.add(sum(terms) <= capacity[resource])
    model.maximize(sum(counts))
    solver = (limits or Limits()).solver()
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return [0] * len(columns), False
    return [solver.value(count) for count in counts], status == cp_model.OPTIMAL


def equal_shares(
    columns: Sequence[Column], capacity: Sequence[int], most: int, best: Fraction, limits: Limits | None = None
) -> tuple[Fraction, list[int]]:
    """K <= `most` columns (some perhaps several times) that carry 1/K of the data each, at the largest rate found.

    best: a rate that no choice can exceed. Returns the rate, exact, and how often to take each column; among choices
    of that rate the fewest. The rates that K equal shares can have are K c / m, with c a capacity and m a whole
    load, so the largest is found by bisection.
    """
    found = _fit(columns, capacity, most, best, limits)
    if found:
        return best, found
    single = max(min(Fraction(capacity[r], times) for r, times in column.load) for column in columns)
    used = {r for column in columns for r, _ in column.load}
    ladder = sorted(
        {
            Fraction(k * c, m)
            for k in range(1, most + 1)
            for c in {capacity[r] for r in used}
            for m in range(max(1, int(k * c / best)), int(k * c / single) + 1)
            if single <= Fraction(k * c, m) < best
        }
    )
    counts = _fit(columns, capacity, most, single, limits)
    assert counts is not None
    tried = {single: counts}

    def fails(rate: Fraction) -> bool:
        answer = _fit(columns, capacity, most, rate, limits)
        if answer:
            tried[rate] = answer
        return answer is None

    bisect_left(ladder, True, key=fails)
    rate = max(tried)
    return rate, tried[rate]


def _fit(
    columns: Sequence[Column], capacity: Sequence[int], most: int, rate: Fraction, limits: Limits | None
) -> list[int] | None:
    """How often to take each column so that K <= most equal shares reach `rate`, K being least; None if not found."""
    model = cp_model.CpModel()
    counts, rows = _counts(model, columns, capacity, most)
    total = model.new_int_var(1, most, "K")
    model.add(sum(counts) == total)
    for resource, terms in rows.items():
        model.add(rate.numerator * sum(terms) <= rate.denominator * capacity[resource] * total)
    model.minimize(total)
    solver = (limits or Limits()).solver()
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return [solver.value(count) for count in counts]


def _counts(
    model: cp_model.CpModel, columns: Sequence[Column], capacity: Sequence[int], most: int | None
) -> tuple[list[Any], dict[int, list[Any]]]:
    counts: list[Any] = []
    rows: dict[int, list[Any]] = {}
    for number, column in enumerate(columns):
        bound = min(capacity[r] // times for r, times in column.load) if most is None else most
        counts.append(model.new_int_var(0, bound, f"n{number}"))
        for resource, times in column.load:
            rows.setdefault(resource, []).append(times * counts[-1])
    return counts, rows
