"""Constants of a library on a machine from the part of its published tables that is stated for that.

The fit is that of `blinksim.answers.logs.calibrate` for NCCL's constants: sums, robust, on relative errors, constants
that the times do not determine left out. No bytes take less seconds than the links need: a constant that comes out so
is what they need.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from blinksim.answers.logs.fit import Fit, Timed, fit_sums
from blinksim.answers.measurements.public import Jobs, grouped, with_places
from blinksim.nccl.tuner.tuner import Timing
from blinksim.timing.measured import public_tables
from blinksim.timing.measured.library_rates import (
    CHOICE,
    STEPS,
    LibraryJob,
    LibraryRates,
    choice_counts,
    nccl_time,
    scope_of,
    step_counts,
)
from blinksim.timing.measured.public_tables import Cell
from blinksim.timing.measured_constants import FitError

# Where a fit begins, by what a constant is; factors begin at 1, and are 1 where the times say nothing.
_START = {"start": 1e-5, "hop": 1e-6, "across": 1e-6, "turn": 1e-11}
_FACTORS = ("latency", "bytes")
_BYTE_S = 1e-11
_FEWEST = 3
# A time, what NCCL would take, and the seconds that the links need for the bytes.
Taken = tuple[Cell, "Timing | None", float]
# No fit counts a time as farther off, as a logarithm.
_WILD = 0.7


def fit_machine(machine: str) -> list[LibraryRates]:
    """The constants of a machine by library, scope and form, the better form of each scope first.

    Of one node they are for what NCCL's constants in the machine's file leave open.
    """
    jobs = Jobs(machine)
    taken = list[Taken]()
    for cell, fitted in with_places(public_tables.cells(machine)):
        timing = jobs.nccl_takes(cell) if fitted else None
        # What NCCL's constants in the machine's own file give needs no others.
        if fitted and nccl_time(machine, jobs.rates, jobs.job(cell), cell.size, timing) is None:
            bound = jobs.bound(cell)
            taken.append((cell, timing, cell.size / float(bound.rate) if bound else 0.0))
    found: list[LibraryRates] = []
    for (library, scope), cells in grouped(taken, _kind):
        forms = [_fitted(machine, library, scope, form, cells) for form in (CHOICE, STEPS)]
        known = [one for one in forms if one is not None]
        found += [rates for _, rates in sorted(known, key=lambda one: one[0])]
    return found


def _kind(one: Taken) -> tuple[str, str]:
    cell = one[0]
    return cell.set.library.split()[0], scope_of(cell.nodes, cell.gpus)


def _fitted(machine: str, library: str, scope: str, form: str, cells: list[Taken]) -> tuple[float, LibraryRates] | None:
    """The constants of one form and how far off they are, counted per degree of freedom; None if nothing is known."""
    times, ranks, least = list[Timed](), list[int](), dict[str, float]()
    for cell, timing, least_s in cells:
        job = LibraryJob(cell.collective, cell.gpus, cell.nodes, library)
        if form == STEPS:
            counts = step_counts(cell.collective, cell.gpus, cell.nodes, cell.size)
        elif timing is not None:
            counts = choice_counts(timing, job.collective, job.ranks, job.nodes, cell.size)
        else:
            continue
        times.append(Timed(cell.time_s, counts))
        # Factors on what NCCL says are of no link.
        for name in counts if form == STEPS else ():
            if name.endswith(" bytes"):
                least[name] = max(least.get(name, 0.0), _digits(least_s / counts[name]))
        ranks.append(cell.gpus)
    if len(times) < _FEWEST:
        return None
    start, absent = _start(times, form)
    absent |= {name: max(absent[name], most) for name, most in least.items()}
    found = fit_sums(times, start, absent, least)
    if found is None:
        return None
    error = FitError.of(list(found.predicted), [time.seconds for time in times])
    constants = _constants(found, absent)
    return _misses(found), LibraryRates(machine, library, scope, form, (min(ranks), max(ranks)), constants, error)


def _misses(found: Fit[str]) -> float:
    """The mean error of the fitted times, wild ones bounded, for each time that no constant uses up."""
    errors = np.minimum(np.abs(found.residual), _WILD)
    return float(errors.sum()) / max(0.5, len(errors) - len(found.intervals))


def _start(times: list[Timed], form: str) -> tuple[dict[str, float], dict[str, float]]:
    """Where each constant begins, and what it is if the times do not determine it."""
    start, absent = dict[str, float](), dict[str, float]()
    for name in sorted({name for time in times for name in time.counts}):
        kind = name.rpartition(" ")[2]
        if form == CHOICE:
            start[name] = _START.get(kind, 1.0)
            absent[name] = 1.0 if kind in _FACTORS else 0.0
        else:
            start[name] = _START.get(kind, _BYTE_S if kind == "bytes" else (_BYTE_S * _START["hop"]) ** 0.5)
            absent[name] = 0.0
    return start, absent


class Constant(float):
    """A fitted constant, and its interval of 95 %; None where the times did not determine it."""

    low: float | None = None
    high: float | None = None


def _constants(found: Fit[str], absent: Mapping[str, float]) -> dict[str, Constant]:
    """The fitted constants with their intervals, and the factors of 1 that stand for what NCCL says."""
    constants = dict[str, Constant]()
    for name, value in found.values.items():
        if name in found.intervals:
            constants[name] = Constant(_digits(value))
            constants[name].low, constants[name].high = map(_digits, found.intervals[name])
        elif absent[name]:
            constants[name] = Constant(absent[name])
    return constants


def _digits(value: float) -> float:
    """To four digits: more are noise."""
    return float(f"{value:.3e}")


def constant_rows(found: LibraryRates) -> list[dict[str, Any]]:
    """The rows of ``constants.csv``."""
    head = {"machine": found.machine, "library": found.library, "scope": found.scope, "form": found.form}
    tail: dict[str, Any] = {"least_gpus": found.ranks[0], "most_gpus": found.ranks[1]}
    tail |= {"cells": found.error.points, "median": found.error.median, "p90": found.error.p90}
    return [
        {
            **head,
            "constant": name,
            "value": repr(float(one)),
            **{end: "" if (at := getattr(one, end, None)) is None else repr(at) for end in ("low", "high")},
            **tail,
        }
        for name, one in found.constants.items()
    ]
