"""Interface to linear programming: OR-Tools' GLOP with duals, and the limit on a program's size.

GLOP is a revised simplex (Dantzig 1963), so its answers are vertices: duals that become short fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ortools.linear_solver.python.model_builder_helper import ModelBuilderHelper, ModelSolverHelper, SolveStatus

from blinksim.budget import seconds_left
from blinksim.errors import InfeasibleError

Vector = NDArray[np.float64]

# Flow variables (`flow_program`: sources times arcs) up to which a program is built, for bounds and packings
# alike, and GLOP's own count of its work, about seconds and the same on every machine, after which it is
# given up. Then a bound is a cut, and a packing takes the shortest routes.
MOST_FLOWS = 300_000
MOST_WORK = 20.0
# The part of its time by which GLOP may stop too early.
_LAST = 0.1
# Rounds in which a program of trees (`tree_program`) may ask for more sets; it rarely needs more than 20.
MOST_ROUNDS = 200


class Program:
    """Maximise a sum of non-negative variables under rows; build it, `solve` it, read `value`, `values` and `duals`."""

    def __init__(self) -> None:
        self._model = ModelBuilderHelper()
        self._variables = 0
        self.value = 0.0
        self.values: Vector = np.zeros(0)
        self.duals: Vector = np.zeros(0)

    def variables(self, count: int) -> range:
        """Indices of `count` new variables, each at least 0."""
        if count:
            lower: Any = np.zeros(count)
            upper: Any = np.full(count, np.inf)
            whole: Any = np.zeros(count, dtype=bool)
            self._model.add_var_array_with_bounds(lower, upper, whole, "")
        first, self._variables = self._variables, self._variables + count
        return range(first, self._variables)

    def row(self, terms: Sequence[tuple[int, float]], *, at_most: float, at_least: float = -np.inf) -> int:
        """The index of a new row at_least <= sum of factor times variable <= at_most."""
        number: int = self._model.add_linear_constraint()
        self._model.set_constraint_lower_bound(number, at_least)
        self._model.set_constraint_upper_bound(number, at_most)
        for variable, factor in terms:
            self._model.safe_add_term_to_constraint(number, variable, factor)
        return number

    def solve(self, objective: Sequence[tuple[int, float]]) -> float:
        """The greatest sum of factor times variable; raises `InfeasibleError` if GLOP finds no optimum.

        What ends the work around it (`deadline`) ends this too.
        """
        for variable, factor in objective:
            self._model.set_var_objective_coefficient(variable, factor)
        self._model.set_maximize(True)
        solver = ModelSolverHelper("glop")
        left = seconds_left()
        limits = "" if left is None else f" max_time_in_seconds: {left}"
        solver.set_solver_specific_parameters(f"max_deterministic_time: {MOST_WORK}{limits}")
        solver.solve(self._model)
        if solver.status() != SolveStatus.OPTIMAL:
            if left is not None:
                seconds_left(_LAST * left)
            raise InfeasibleError(f"the linear program of this bound has no optimum ({solver.status().name.lower()})")
        self.values, self.duals = np.asarray(solver.variable_values()), np.asarray(solver.dual_values())
        self.value = float(solver.objective_value())
        return self.value


class Growing:
    """Minimise one variable, the first, under rows that stay; further variables join between calls of `solve`.

    The simplex goes on from where it ended, which for column generation is several times quicker than a new
    `Program`.
    """

    def __init__(self) -> None:
        from ortools.linear_solver import pywraplp  # type: ignore[attr-defined]

        self._solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        self._solver.SetSolverSpecificParametersAsString(f"max_deterministic_time: {MOST_WORK}")
        # What presolving takes out is no basis to go on from. If going on fails numerically, it starts anew.
        self._onward, self._anew = pywraplp.MPSolverParameters(), pywraplp.MPSolverParameters()
        self._onward.SetIntegerParam(self._onward.INCREMENTALITY, self._onward.INCREMENTALITY_ON)
        self._onward.SetIntegerParam(self._onward.PRESOLVE, self._onward.PRESOLVE_OFF)
        self._anew.SetIntegerParam(self._anew.INCREMENTALITY, self._anew.INCREMENTALITY_OFF)
        self._optimal = pywraplp.Solver.OPTIMAL
        self._variables: list[Any] = []
        self._rows: list[Any] = []
        self.variable()
        self._solver.Objective().SetCoefficient(self._variables[0], 1.0)
        self._solver.Objective().SetMinimization()

    def variable(self, terms: Sequence[tuple[int, float]] = ()) -> int:
        """The index of a new variable of at least 0, which occurs in these rows with these factors."""
        new = self._solver.NumVar(0.0, self._solver.infinity(), "")
        for row, factor in terms:
            self._rows[row].SetCoefficient(new, factor)
        self._variables.append(new)
        return len(self._variables) - 1

    def row(self, terms: Sequence[tuple[int, float]], *, at_least: float, at_most: float = np.inf) -> int:
        """The index of a new row at_least <= sum of factor times variable <= at_most."""
        row = self._solver.Constraint(at_least, at_most)
        for variable, factor in terms:
            row.SetCoefficient(self._variables[variable], factor)
        self._rows.append(row)
        return len(self._rows) - 1

    def solve(self) -> tuple[Vector, Vector]:
        """The values of all variables, and the duals of all rows; raises `InfeasibleError` if there is no optimum."""
        if self._optimal not in (self._solver.Solve(settings) for settings in (self._onward, self._anew)):
            raise InfeasibleError("a linear program that grows has no optimum")
        values = np.array([variable.solution_value() for variable in self._variables])
        return values, np.array([row.dual_value() for row in self._rows])


# Largest denominators, in the order in which they are tried: the values at a vertex of a program are short
# fractions.
DENOMINATORS = (1, 2, 3, 4, 5, 6, 8, 12, 24, 60, 120, 840, 5040)
_GRID = 2**20
# Accuracy of a program's values, as a part of the greatest.
_ACCURACY = 1e-10
# Largest denominator whose multiples a double can tell apart.
_TOLD_APART = 2**53

Rounding = Callable[[Sequence[float]], list[Fraction]]


def roundings(best: Fraction) -> Iterator[Rounding]:
    """Ways to turn a program's values into fractions, the likeliest first; the last rounds down and always fits.

    A vertex has short fractions, or multiples of those of the rate `best` that it attains.
    """
    yield _common
    for most in DENOMINATORS:
        yield partial(_short, most=most)
    for times in DENOMINATORS[:-2]:
        if best.denominator * times <= _TOLD_APART:
            yield partial(_multiples, denominator=best.denominator * times)
    yield _down


def _common(values: Sequence[float]) -> list[Fraction]:
    """With the least common denominator that the solver's accuracy can tell; where there is none, with a large one."""
    error = _ACCURACY * max(values)
    denominator = 1
    for value in values:
        times = value * denominator
        for most in (1, 10, 100, 1000, 10**4, 10**5, 10**6):
            near = Fraction(times).limit_denominator(most)
            if abs(near - times) <= error * denominator:
                break
        denominator *= near.denominator
        if denominator * error > 1e-3:
            break
    return [Fraction(round(value * denominator), denominator) for value in values]


def _short(values: Sequence[float], most: int) -> list[Fraction]:
    return [Fraction(value).limit_denominator(most) for value in values]


def _multiples(values: Sequence[float], denominator: int) -> list[Fraction]:
    return [Fraction(round(value * denominator), denominator) for value in values]


def _down(values: Sequence[float]) -> list[Fraction]:
    step = Fraction(max(1, round(max(values))), _GRID)
    return [int(value / float(step) + 1e-6) * step for value in values]
