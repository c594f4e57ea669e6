"""Calibration of programs and of NCCL from at most 40 runs on this machine's GPUs: the runs, and the fit.

What times the runs is handed in (`Clock`), so that everything but the launches also works without a GPU. The
constants are those of running programs (`blinksim.timing.measured_constants`).

Least squares on the logarithms of times with Cauchy's weights (a point that is 3 % off counts half), solved
in a trust region on the logarithms of the constants. Some constants can hardly be told apart by few runs, so
each has a weak prior: being a factor of e^0.5 away from where it started costs like 5 % of error.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import groupby, repeat
from multiprocessing import get_context
from operator import attrgetter
from statistics import median
from typing import Any, Protocol

import numpy as np

from blinksim import data_files
from blinksim.algorithms.registry import REGISTRY
from blinksim.answers.logs.calibrate import STAND_IN, ConstantsFit, NcclFit, digits, fit_nccl, leaving
from blinksim.answers.logs.expectation import Sample, Series
from blinksim.answers.logs.fit import Fitted, Floats, student_quantile
from blinksim.collective import Collective
from blinksim.errors import InputError
from blinksim.formats.rate_tables import RateTable
from blinksim.gpu.execution_time.simulate_blocks import run_time
from blinksim.gpu.programs.dtypes import ELEMENT_TYPES
from blinksim.gpu.programs.fit import fit, worth_staging
from blinksim.gpu.programs.of_calls import compile_schedule
from blinksim.gpu.programs.program import Program
from blinksim.machines import load
from blinksim.results import Result, keyed
from blinksim.schedule.model import Schedule
from blinksim.textio.text_files import read_rows
from blinksim.timing.measured_constants import ExecutionRates, FitError, Origin
from blinksim.topology.graph import Topology
from blinksim.topology.shapes import one_switch
from blinksim.units import format_size, size_of

# Every rank's slice has whole lines of memory, as nccl-tests makes it.
_LINE = 128
_KIND = ELEMENT_TYPES["float32"]


@dataclass(frozen=True, slots=True)
class Case:
    """A run to time.

    Parameters
    ----------
    gpus : int
        How many take part.
    collective, algorithm, protocol : str
        What runs; ``nccl`` as the algorithm is NCCL's own collective, by whatever protocol it takes.
    size : int
        Bytes, before they are rounded down to whole lines.
    slices : int, optional
        Instead of what `blinksim.gpu.programs.fit` takes.
    """

    gpus: int
    collective: str
    algorithm: str
    protocol: str
    size: int
    slices: int | None = None

    @property
    def used(self) -> int:
        """Bytes that really run."""
        return self.size - self.size % (_LINE * self.gpus)

    @property
    def schedule(self) -> Schedule:
        """The schedule of the algorithm on GPUs around one switch."""
        return _schedule(self.gpus, self.collective, self.algorithm)


@cache
def _schedule(gpus: int, collective: str, algorithm: str) -> Schedule:
    # No time depends on the rate of the links of this machine, only on which ones there are.
    machine = one_switch(gpus, bandwidth=Fraction(450 * 10**9)).select()
    return REGISTRY[algorithm].build(machine, Collective(collective))


def plan(gpus: int) -> tuple[Case, ...]:
    """At most 40 runs for a machine of so many GPUs: half of them of two GPUs, half of all; 24 of ours, then NCCL's."""

    def case(row: dict[str, str]) -> Case:
        return Case(2, row["collective"], row["algorithm"], row["protocol"], size_of(row["size"]))

    few = read_rows(data_files.folder("models") / "calibration_runs.csv", case, "run to time")
    every = [*few, *(replace(one, gpus=gpus) for one in few if gpus > 2)]
    return tuple(sorted(every, key=lambda one: one.algorithm == NCCL))


# --- the fit --------------------------------------------------------------------------------------------------------

# What predicts many cases, called as the built-in `map`: that one, or one that uses several processes.
Map = Callable[..., Iterable[float]]

COMMON = ("launch_s", "visit_s", "ports.out", "ports.fan", "ports.posted_s", "ports.first_s")
_OF_PACKETS = ("piece_s", "round_s", "local_s", "inbox_s", "step_s", "soft", "wire", "far_s")
PACKETS = tuple(f"packets.{name}" for name in _OF_PACKETS)
_OF_FLAGS = ("before_s", "piece_s", "round_s", "far_s", "byte_s", "fence_s", "flag_s", "look_s", "load")
# What is fitted. The others hardly show: they keep what they had, and the way into a GPU its ratio to the way out.
CONSTANTS = (*COMMON, *PACKETS, *(f"flags.{name}" for name in _OF_FLAGS))
# A fit that half of the times miss by more is refused.
MOST_ERROR = 0.08
_CAUCHY = 0.03
_PRIOR = 0.05 / 0.5
# The variance of a constant that nobody measured, as the logarithm.
_UNKNOWN = 0.5**2
_STEP = 0.02
_ROUNDS = 20
# A step that gains less, as a share, is the last.
_LEAST_GAIN = 0.004
# A constant of which the times leave more of the prior's variance than this does not show.
_MOST_LEFT = 0.5


def with_values(rates: ExecutionRates, names: Sequence[str], values: Sequence[float]) -> ExecutionRates:
    """The constants with some of them changed."""
    for name, value in zip(names, values, strict=True):
        group, _, field = name.rpartition(".")
        changed = replace(getattr(rates, group), **{field: float(value)}) if group else None
        rates = replace(rates, **({group: changed} if group else {field: float(value)}))
    return rates


@cache
def _program(case: Case, blocks: int) -> Program:
    """The program as the executor cuts it for GPUs that hold so many thread blocks."""
    packets, elements = case.protocol == "ll128", max(1, case.used // _KIND.itemsize)
    staged = packets or worth_staging(case.schedule, case.used)
    made = compile_schedule(case.schedule, elements, _KIND, packets=packets, staged=staged)
    return fit(made, blocks, slices=case.slices)


def predict(case: Case, rates: ExecutionRates) -> float:
    """Seconds of a case by the simulation of its program, with these constants."""
    return run_time(_program(case, rates.blocks), rates).time_s


@contextmanager
def processes() -> Iterator[Map]:
    """Predictions on several processes, one for each processor that this one may use."""
    if (workers := len(os.sched_getaffinity(0))) == 1:
        yield map
        return
    # Each worker is asked about the same cases again and again, and compiles them once.
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        yield pool.map


def fit_execution(
    cases: Sequence[Case],
    times: Sequence[float],
    start: ExecutionRates,
    evaluate: Map = map,
    names: Sequence[str] = CONSTANTS,
) -> ConstantsFit[ExecutionRates]:
    """The constants with which simulations come nearest to measured times.

    cases, times: what ran, and its seconds; at least eight. start: the constants to start from, and to stay
    near. evaluate: predicts many cases. names: of the constants to fit; those that are 0 stay so, and those that
    the times tell less about than the prior does. Raises `InputError` for too few times, and where half of them
    stay more than 8 % off.
    """
    if len(cases) < 8:
        raise InputError(f"{len(cases)} times; the constants of running programs need at least eight")
    from scipy.optimize import least_squares

    seen = np.log(np.array(times, dtype=np.float64))
    packets, every = np.array([case.protocol == "ll128" for case in cases]), np.ones(len(cases), bool)
    of_group = {"packets": packets, "flags": ~packets}
    touched = {name: of_group.get(name.partition(".")[0], every) for name in names}
    begun = {name: own for name in names if touched[name].any() and (own := attrgetter(name)(start)) > 0}
    free, first = [*begun], np.log([*begun.values()])
    prior = _PRIOR * np.eye(len(free))

    def rates_at(moved: Floats) -> ExecutionRates:
        found = with_values(start, free, [digits(value) for value in np.exp(first + moved)])
        into = digits(start.ports.into / start.ports.out * found.ports.out)
        return replace(found, ports=replace(found.ports, into=into))

    # A step asks for the same point several times.
    @cache
    def logs(point: bytes) -> Floats:
        return np.log([*evaluate(predict, cases, repeat(rates_at(np.frombuffer(point))))])

    @cache
    def slopes(point: bytes) -> Floats:
        """How `off` changes with the logarithm of each constant."""
        base, moved = logs(point), np.frombuffer(point)
        further = [rates_at(moved + _STEP * one) for one in np.eye(len(free))]
        places = [(row, at) for at, name in enumerate(free) for row in np.flatnonzero(touched[name]).tolist()]
        asked = [cases[row] for row, _ in places], [further[column] for _, column in places]
        found = np.zeros((len(cases), len(free)))
        for (row, column), time in zip(places, evaluate(predict, *asked), strict=True):
            found[row, column] = (math.log(time) - base[row]) / _STEP
        return np.concatenate([found, prior])

    def off(moved: Floats) -> Floats:
        """How far logarithms of predicted times are off, and how far constants are from where they began."""
        return np.concatenate([logs(moved.tobytes()) - seen, _PRIOR * moved])

    def loss(square: Floats) -> Floats:
        """Cauchy's for the times; the prior stays as it is. Without second derivatives, half of the steps suffice."""
        timed = np.arange(len(square)) < len(cases)
        rho, weight = np.where(timed, np.log1p(square), square), np.where(timed, 1 / (1 + square), 1.0)
        return np.array([rho, weight, np.zeros(len(square))])

    # As changes of logarithms: a first step is then limited to one factor of e, all constants together.
    # The stubs have losses without their derivatives.
    given: Any = {"loss": loss, "f_scale": _CAUCHY, "ftol": _LEAST_GAIN, "max_nfev": _ROUNDS}
    given["jac"] = lambda moved: slopes(moved.tobytes())
    solved = least_squares(off, np.zeros(len(free)), **given)
    phi, jacobian = first + solved.x, slopes(solved.x.tobytes())
    apart = solved.fun[: len(cases)]
    shares, weight = jacobian[: len(cases)], 1 / (1 + (apart / _CAUCHY) ** 2)
    info = (shares.T * weight) @ shares
    # The prior takes up a part of each constant's freedom.
    degrees = max(1.0, len(apart) - float(np.trace(np.linalg.inv(info + prior**2) @ info)))
    shown, deviation = _shown(info, float((weight * apart**2).sum()) / degrees)
    told = [free[at] for at in shown]
    again = fit_execution(cases, times, start, evaluate, told) if told != free else None
    values = dict(zip(free, np.exp(phi).tolist(), strict=True))
    if again is not None:
        values = {one.name: one.value for one in again.constants}
    width = np.exp(student_quantile(0.975, degrees) * deviation)
    figures = zip(told, width.tolist(), np.exp(first[shown]).tolist(), strict=True)
    rows = [(name, values[name], width, begun) for name, width, begun in figures if name in values]
    constants = tuple(Fitted(name, one, one / by, one * by, begun) for name, one, by, begun in rows)
    if again is not None:
        return replace(again, constants=constants, kept=tuple(name for name in names if name not in values))
    error = FitError.of(list(np.exp(seen + apart)), list(times))
    if error.median > MOST_ERROR:
        why = f"half of them stay {100 * error.median:.0f} % or more off (at most {100 * MOST_ERROR:.0f} %)"
        raise InputError(f"no constants explain these times: {why}; were the GPUs busy with something else?")
    gpus = tuple(sorted(set(map(attrgetter("gpus"), cases))))
    return ConstantsFit(replace(rates_at(solved.x), gpus=gpus, error=error), constants, (), error)


def _shown(info: Floats, noise: float) -> tuple[list[int], Floats]:
    """The constants that times show, and how far off each may be: the standard deviation of its logarithm.

    info: what the times tell of logarithms (J'J). noise: the variance of a time's logarithm. Times, the prior and
    constants that are kept, each as uncertain as one that nobody measured, add to what a constant is off; the one
    that is off most is kept, until none has more than half of that variance left.
    """
    shown, kept = [*range(len(info))], list[int]()
    while True:
        own = info[np.ix_(shown, shown)]
        held, across = np.linalg.inv(own + _PRIOR**2 * np.eye(len(shown))), info[np.ix_(shown, kept)]
        sources = noise * own + _UNKNOWN * (_PRIOR**4 * np.eye(len(shown)) + across @ across.T)
        left = np.diag(held @ sources @ held)
        if left.max(initial=0) <= _MOST_LEFT * _UNKNOWN:
            return shown, np.sqrt(left)
        kept.append(shown.pop(int(left.argmax())))


NCCL = "nccl"


class Clock(Protocol):
    """What times runs on GPUs.

    Attributes
    ----------
    hardware, driver, nccl_version : str
        Names of the GPUs and of what runs on them.
    gpus, blocks : int
        How many GPUs there are, and how many thread blocks each runs at once.
    """

    hardware: str
    driver: str
    nccl_version: str
    gpus: int
    blocks: int

    def time(self, schedule: Schedule, size: int, protocol: str, slices: int | None) -> Sequence[float]:
        """Seconds of successive iterations of a schedule on the first GPUs; size: bytes."""

    def time_nccl(self, gpus: int, collective: str, size: int) -> Sequence[float]:
        """Seconds of successive iterations of NCCL's own collective, without NVLS."""

    def close(self) -> None:
        """Ends what was begun on the GPUs."""


@dataclass(frozen=True)
class GpuCalibration(Result):
    """Constants of this machine's GPUs.

    Attributes
    ----------
    table : RateTable
        A rates file with the constants; links keep their rates.
    execution : ConstantsFit
        Of our programs.
    nccl : ConstantsFit, optional
        Of NCCL, where its rings run over the switches.
    measured : tuple
        Each case with its median time in seconds.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.load("hgx-h200").nccl_rates.gpus
    (2, 3, 4, 6, 8)
    """

    table: RateTable
    execution: ConstantsFit[ExecutionRates]
    nccl: NcclFit | None
    measured: tuple[tuple[Case, float], ...]

    def rows(self) -> list[dict[str, Any]]:
        """One row per constant of ours: its value with the interval of 95 %, in seconds or bytes/s."""
        return [keyed(one, "constant=name value low high before") for one in self.execution.constants]

    def to_dict(self) -> dict[str, Any]:
        """The keys that ``--json`` prints."""
        ran = "gpus collective algorithm protocol size_bytes=used"
        runs = [keyed(case, ran) | {"time_s": time} for case, time in self.measured]
        nccl = self.nccl and self.nccl.to_dict()
        return keyed(self, "@GpuCalibration", measurements=len(self.measured), rows=self.rows(), runs=runs, nccl=nccl)

    def __repr__(self) -> str:
        return f"<GpuCalibration {self.table.name}: {len(self.measured)} runs, {self.execution.error.words()}>"


def calibrate_gpus(
    clock: Clock, machine: Topology, *, date: str = "", report: Callable[[str], None] | None = None, evaluate: Map = map
) -> GpuCalibration:
    """Times at most 40 runs and fits the constants of our programs and of NCCL to them.

    Parameters
    ----------
    clock : Clock
        What times them.
    machine : Topology
        The GPUs, at least as many as the clock has, around one switch.
    date : str
        The day, such as ``2026-11-20``.
    report : callable, optional
        Called with a progress message.
    evaluate : Map
        What predicts many runs: in this process, or in several.

    Returns
    -------
    GpuCalibration
        The constants with their intervals, and how well they fit.

    Raises
    ------
    InputError
        For fewer than two GPUs, and where half of the times stay more than 8 % off.
    """
    say = report or (lambda message: None)
    if clock.gpus < 2 or machine.ranks < clock.gpus:
        raise InputError(f"{machine.name} has {machine.ranks} GPUs and {clock.gpus} are here; two or more must be both")
    measured: list[tuple[Case, float]] = []
    for case in plan(clock.gpus):
        say(f"timing {case.algorithm} {case.collective} of {format_size(case.size)} on {case.gpus} GPUs")
        if case.algorithm == NCCL:
            times = clock.time_nccl(case.gpus, case.collective, case.used)
        else:
            times = clock.time(case.schedule, case.used, case.protocol, case.slices)
        measured.append((case, median(times)))
    origin = Origin("blinksim calibrate on these GPUs", date, clock.driver)
    say("fitting the constants of programs")
    ours = [(case, time) for case, time in measured if case.algorithm != NCCL]
    # The machine's own constants to start from, else those of H200 for links of this rate.
    begun, known = machine.execution, load(STAND_IN)
    if begun is None:
        assert known.execution is not None
        begun = at_ports(known.execution, leaving(machine.select()) / leaving(known.select()))
    start = replace(begun, hardware=clock.hardware, measured=origin, blocks=clock.blocks)
    execution = fit_execution([case for case, _ in ours], [time for _, time in ours], start, evaluate)
    logs = []
    theirs = [(case, time) for case, time in measured if case.algorithm == NCCL]
    for (gpus, collective), timed in groupby(theirs, key=lambda one: (one[0].gpus, one[0].collective)):
        samples = tuple(Sample(case.used, time) for case, time in timed)
        logs.append(Series(machine.select(machine.members[:gpus]), Collective(collective), samples))
    nccl = fit_nccl(logs, version=clock.nccl_version)
    rates = None if nccl is None else replace(nccl.rates, hardware=clock.hardware, measured=origin)
    name = f"measured-{date}" if date else "measured"
    table = RateTable(name, {}, machine.name, origin.source, execution.rates, rates)
    return GpuCalibration(table, execution, nccl, tuple(measured))


def at_ports(rates: ExecutionRates, factor: float) -> ExecutionRates:
    """Constants of programs for GPUs that nobody measured, from others' that have 1 / factor of their bandwidth.

    >>> import blinksim as bs
    >>> round(at_ports(bs.load("hgx-h200").execution, 300 / 450).ports.out / 1e9)
    245
    """
    ports = replace(rates.ports, out=rates.ports.out * factor, into=rates.ports.into * factor)
    return replace(rates, ports=ports, error=None)
