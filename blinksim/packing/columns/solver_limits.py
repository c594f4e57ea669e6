"""How long CP-SAT may search, with the same answer every time and on every machine."""

from __future__ import annotations

from dataclasses import dataclass

from ortools.sat.python import cp_model

from blinksim.limits.deadline import seconds_left

# One CP-SAT worker and a limit on its deterministic time make answers repeatable on every machine.
EFFORT = 2.0


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
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        # Its own handler takes Ctrl-C away from Python, for good.
        solver.parameters.catch_sigint_signal = False
        solver.parameters.random_seed = self.seed
        solver.parameters.max_deterministic_time = self.effort
        limits = [limit for limit in (self.time_limit, seconds_left()) if limit is not None]
        if limits:
            solver.parameters.max_time_in_seconds = min(limits)
        return solver
