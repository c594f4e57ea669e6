"""How long CP-SAT may search, with the same answer every time and on every machine."""

from __future__ import annotations

from dataclasses import dataclass

from ortools.sat.python import cp_model

# One CP-SAT worker and a limit on its deterministic time make answers repeatable on every machine.
EFFORT = 2.0


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
