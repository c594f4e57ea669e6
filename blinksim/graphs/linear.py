"""The only interface to linear programming: OR-Tools' GLOP on whole rows, with duals, and how large a program may be.

GLOP is a revised simplex (Dantzig 1963), so its answers are vertices: duals that become short fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ortools.linear_solver.python.model_builder_helper import ModelBuilderHelper, ModelSolverHelper, SolveStatus

from blinksim.errors import InfeasibleError
from blinksim.limits.deadline import seconds_left

Vector = NDArray[np.float64]

# Flow variables (`flow_program`: sources times arcs) up to which a program is built, for bounds and packings alike, and
# GLOP's own count of its work, about seconds and the same on every machine, after which it is given up. Then a bound is
# a cut, and a packing takes the shortest routes.
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
