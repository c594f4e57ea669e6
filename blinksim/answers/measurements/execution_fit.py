"""The constants of running programs (`blinksim.cost.execution_rates`) from times that were measured.

Least squares on the logarithms of times with Cauchy's weights (a point that is 3 % off counts half), solved by damped
Gauss-Newton (Levenberg 1944, Marquardt 1963) on the logarithms of the constants. Some constants can hardly be told
apart by few runs, so each has a weak prior: being a factor of e^0.5 away from where it started costs like 5 % of error.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context

import numpy as np
import numpy.typing as npt

from blinksim.answers.logs.robust import student_quantile
from blinksim.answers.measurements.execution_cases import Case
from blinksim.cost.execution_rates import ExecutionRates
from blinksim.cost.origin import FitError
from blinksim.errors import InputError
from blinksim.gpu.program_time.run_time import run_time
from blinksim.gpu.programs.program import Program

Floats = npt.NDArray[np.float64]
Map = Callable[[Callable[["Question"], float], Sequence["Question"]], list[float]]
"""What evaluates many predictions: in this process, or in several."""

COMMON = ("launch_s", "visit_s", "ports.out", "ports.fan", "ports.posted_s", "ports.first_s")
PACKETS = tuple(
    f"packets.{name}" for name in ("piece_s", "round_s", "local_s", "inbox_s", "step_s", "soft", "wire", "far_s")
)
FLAGS = tuple(
    f"flags.{name}"
    for name in ("before_s", "piece_s", "round_s", "far_s", "byte_s", "fence_s", "flag_s", "look_s", "load")
)
CONSTANTS = (*COMMON, *PACKETS, *FLAGS)
"""What is fitted. The others hardly show: they keep what they had, and the way into a GPU its ratio to the way out."""
MOST_ERROR = 0.08
"""A fit that half of the times miss by more is refused."""
_CAUCHY = 0.03
_PRIOR = 0.05 / 0.5
_STEP = 0.02
_ROUNDS = 20
# No constant moves by more than this factor in a step.
_LONGEST = math.log(1.6)
# A constant moves the times as a whole by less than this per factor e: it does not show.
_LEAST_SHOWN = 0.005


@dataclass(frozen=True, slots=True)
class Question:
    """A case to predict, with these constants."""

    case: Case
    rates: ExecutionRates


@dataclass(frozen=True, slots=True)
class Constant:
    """A fitted constant in its own unit (seconds, bytes/s, or none). low, high: its interval of 95 %."""

    name: str
    value: float
    low: float
    high: float
    before: float


@dataclass(frozen=True)
class ExecutionFit:
    """Constants, how they were found, and how well they fit.

    rates: all of them. constants: the fitted ones. kept: those that the times say nothing about. error: of the times
    that were fitted. predicted: seconds, in the order of the times.
    """

    rates: ExecutionRates
    constants: tuple[Constant, ...]
    kept: tuple[str, ...]
    error: FitError
    predicted: tuple[float, ...]


def value_of(rates: ExecutionRates, name: str) -> float:
    """A constant by its name, such as ``launch_s`` or ``ports.out``."""
    group, _, field = name.rpartition(".")
    return float(getattr(getattr(rates, group) if group else rates, field))


def with_values(rates: ExecutionRates, names: Sequence[str], values: Sequence[float]) -> ExecutionRates:
    """The constants with some of them changed."""
    for name, value in zip(names, values, strict=True):
        group, _, field = name.rpartition(".")
        changed = replace(getattr(rates, group), **{field: float(value)}) if group else None
        rates = replace(rates, **({group: changed} if group else {field: float(value)}))
    return rates


@cache
def _program(case: Case, blocks: int) -> Program:
    return case.program(blocks)


def predict(question: Question) -> float:
    """Seconds of a case by the simulation of its program."""
    return run_time(_program(question.case, question.rates.blocks), question.rates).time_s


def here(work: Callable[[Question], float], questions: Sequence[Question]) -> list[float]:
    """All predictions, in this process."""
    return [work(question) for question in questions]


@contextmanager
def processes(count: int | None = None) -> Iterator[Map]:
    """Predictions on several processes, by default one for each processor that this one may use."""
    workers = count or len(os.sched_getaffinity(0))
    if workers == 1:
        yield here
        return
    # Each worker is asked about the same cases again and again, and compiles them once.
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        yield lambda work, questions: list(pool.map(work, questions, chunksize=1))


def fit_execution(
    cases: Sequence[Case],
    times: Sequence[float],
    start: ExecutionRates,
    evaluate: Map = here,
    names: Sequence[str] = CONSTANTS,
) -> ExecutionFit:
    """The constants with which simulations come nearest to measured times.

    cases, times: what ran, and its seconds; at least eight. start: the constants to start from, and to stay near.
    evaluate: predicts many cases. names: of the constants to fit; those that are 0 stay so. Raises `InputError` for too
    few times, and where half of them stay more than 8 % off.
    """
    if len(cases) < 8:
        raise InputError(f"{len(cases)} times; the constants of running programs need at least eight")
    problem = _Problem(tuple(cases), np.log(np.array(times, dtype=np.float64)), start, evaluate, names)
    found = problem.solve()
    if found.error.median > MOST_ERROR:
        raise InputError(
            f"no constants explain these times: half of them stay {100 * found.error.median:.0f} % or more off "
            f"(at most {100 * MOST_ERROR:.0f} %); were the GPUs busy with something else?"
        )
    return found


class _Problem:
    def __init__(
        self, cases: tuple[Case, ...], seen: Floats, start: ExecutionRates, evaluate: Map, names: Sequence[str]
    ) -> None:
        self.cases, self.seen, self.start, self.evaluate = cases, seen, start, evaluate
        packets, every = np.array([case.protocol == "ll128" for case in cases]), np.ones(len(cases), bool)
        self.touched = {
            name: packets if name.startswith("packets.") else ~packets if name.startswith("flags.") else every
            for name in names
        }
        self.names = [name for name in names if self.touched[name].any() and value_of(start, name) > 0]
        self.first = np.log([value_of(start, name) for name in self.names])

    def rates(self, phi: Floats) -> ExecutionRates:
        moved = with_values(self.start, self.names, list(np.exp(phi)))
        into = self.start.ports.into / self.start.ports.out * moved.ports.out
        return replace(moved, ports=replace(moved.ports, into=into))

    def predicted(self, phi: Floats) -> Floats:
        """Logarithms of the predicted times."""
        rates = self.rates(phi)
        return np.log(self.evaluate(predict, [Question(case, rates) for case in self.cases]))

    def slopes(self, phi: Floats, base: Floats) -> Floats:
        """How the logarithms of times move with those of constants (times x constants)."""
        questions, places = list[Question](), list[tuple[int, int]]()
        for column, name in enumerate(self.names):
            moved = phi.copy()
            moved[column] += _STEP
            rates = self.rates(moved)
            for row in np.flatnonzero(self.touched[name]).tolist():
                questions.append(Question(self.cases[row], rates))
                places.append((row, column))
        slopes = np.zeros((len(self.cases), len(self.names)))
        for (row, column), time in zip(places, self.evaluate(predict, questions), strict=True):
            slopes[row, column] = (math.log(time) - base[row]) / _STEP
        return slopes

    def cost(self, phi: Floats, base: Floats) -> float:
        off = (self.seen - base) / _CAUCHY
        return float(_CAUCHY**2 * np.log1p(off**2).sum() + (_PRIOR**2) * ((phi - self.first) ** 2).sum())

    def solve(self) -> ExecutionFit:
        phi = self.first.copy()
        base = self.predicted(phi)
        cost, damping = self.cost(phi, base), 1e-3
        slopes = self.slopes(phi, base)
        for _ in range(_ROUNDS):
            moved = self._better(phi, base, slopes, cost, damping)
            if moved is None:
                break
            gained = cost - moved[2]
            (phi, base, cost), damping = moved[:3], moved[3]
            slopes = self.slopes(phi, base)
            if gained < 0.004 * cost:
                break
        return self._result(phi, base, slopes)

    def _better(
        self, phi: Floats, base: Floats, slopes: Floats, cost: float, damping: float
    ) -> tuple[Floats, Floats, float, float] | None:
        """A step that lowers the cost, with damping for the next one; None if there is none."""
        off = self.seen - base
        weight = 1 / (1 + (off / _CAUCHY) ** 2)
        normal = (slopes.T * weight) @ slopes + _PRIOR**2 * np.eye(len(phi))
        downhill = (slopes.T * weight) @ off - _PRIOR**2 * (phi - self.first)
        for _ in range(5):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), downhill)
            step = np.clip(step, -_LONGEST, _LONGEST)
            there = self.predicted(phi + step)
            new = self.cost(phi + step, there)
            if new < cost:
                return phi + step, there, new, damping / 5
            damping = max(1e-3, 10 * damping)
        return None

    def _result(self, phi: Floats, base: Floats, slopes: Floats) -> ExecutionFit:
        off = self.seen - base
        weight = 1 / (1 + (off / _CAUCHY) ** 2)
        free = max(1, len(off) - len(phi))
        spread = math.sqrt(float((weight * off**2).sum()) / free)
        # The prior counts as it does in the fit: as a measurement of its own.
        normal = (slopes.T * weight) @ slopes + _PRIOR**2 * np.eye(len(phi))
        errors = max(spread, 1e-6) * np.sqrt(np.diag(np.linalg.inv(normal)))
        reach = student_quantile(0.975, free) * errors
        shown = np.abs(slopes).max(axis=0) >= _LEAST_SHOWN
        constants = tuple(
            Constant(name, *(float(np.exp(value)) for value in (at, at - width, at + width, first)))
            for name, at, width, first, shows in zip(self.names, phi, reach, self.first, shown, strict=True)
            if shows
        )
        kept = tuple(name for name in self.touched if name not in {one.name for one in constants})
        predicted = np.exp(base)
        error = FitError.of(list(predicted), list(np.exp(self.seen)))
        gpus = tuple(sorted({case.gpus for case in self.cases}))
        rates = replace(self.rates(phi), gpus=gpus, error=error)
        return ExecutionFit(rates, constants, kept, error, tuple(map(float, predicted)))
