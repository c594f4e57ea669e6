"""Work with an end ends in solvers too, which no exception interrupts."""

from __future__ import annotations

from time import monotonic

import numpy as np
import pytest

from blinksim.budget import seconds_left, until
from blinksim.errors import InfeasibleError
from blinksim.graphs.programs import Growing, Program
from blinksim.packing.choose import Limits


class Over(BaseException):
    pass


class Later(BaseException):
    pass


def long_program(size: int) -> tuple[Program, list[tuple[int, float]]]:
    """A dense random program, and what to maximise."""
    random = np.random.default_rng(1)
    program = Program()
    variables = program.variables(size)
    for factors in random.random((size, size)).tolist():
        program.row(list(zip(variables, factors, strict=True)), at_most=1.0)
    return program, list(zip(variables, random.random(size).tolist(), strict=True))


def test_a_linear_program_ends_when_the_work_around_it_must() -> None:
    program, objective = long_program(800)
    with until(monotonic() + 0.02, Over), pytest.raises(Over):
        program.solve(objective)
    # Without an end the same program has an optimum.
    assert program.solve(objective) > 0


def test_a_linear_program_that_grows_ends_when_the_work_around_it_must() -> None:
    random = np.random.default_rng(1)
    program = Growing()
    rows = [program.row([(0, 1.0)], at_least=1.0) for _ in range(600)]
    for factors in random.random((600, 600)).tolist():
        program.variable(list(zip(rows, factors, strict=True)))
    with until(monotonic() + 0.01, Over), pytest.raises((Over, InfeasibleError)):
        program.solve()
    values, _ = program.solve()
    assert values[0] >= 0


def test_a_program_that_has_no_optimum_says_so_within_an_end_too() -> None:
    program = Program()
    (variable,) = program.variables(1)
    with until(monotonic() + 60, Over), pytest.raises(InfeasibleError, match="no optimum"):
        program.solve([(variable, 1.0)])


def test_the_nearest_end_counts_and_only_within_its_work() -> None:
    assert seconds_left() is None
    with until(monotonic() + 60, Over):
        with until(monotonic() + 600, Later):
            left = seconds_left()
            assert left is not None
            assert 0 < left <= 60
            with pytest.raises(Over):
                seconds_left(margin=61)
        with until(monotonic() - 1, Later), pytest.raises(Later):
            seconds_left()
    assert seconds_left() is None


def test_searches_by_constraint_programming_know_the_end() -> None:
    def seconds(limits: Limits) -> float:
        return float(limits.solver().parameters.max_time_in_seconds)

    with until(monotonic() + 60, Over):
        assert 0 < seconds(Limits()) <= 60
        assert 0 < seconds(Limits(600.0)) <= 60
        assert seconds(Limits(6.0)) == 6
    assert seconds(Limits(600.0)) == 600
