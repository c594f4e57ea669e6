"""Fit of library constants to listed cells of published tables, and the errors of its predictions on all others.

    PYTHONPATH=. python3 validate/recipes/usable_rates.py

`models/usable/parts.csv` states the cells that constants are fitted to; ``constants.csv`` holds what comes out,
``spreads.csv`` what the other cells say of predictions, and `docs/measurements/how-wrong.md` sums it up for readers.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from blinksim.answers.measurements.public import (
    PublicMeasurements,
    grouped,
    public_measurements,
    question_of,
    with_places,
)
from blinksim.collective import Collective
from blinksim.errors import BlinksimError
from blinksim.machines import Question, load
from blinksim.timing.library_model import Library
from blinksim.timing.measured import library_rates, public_tables
from blinksim.timing.measured.library_rates import (
    AGAIN,
    ALONE,
    BETWEEN,
    EVERY,
    EXPECTED,
    GUESSED,
    LENT,
    LINKS,
    PREDICTED,
    SENDS,
    SEVERAL,
    scope_of,
)
from blinksim.timing.measured.library_time import library_time, relatives_of
from blinksim.timing.measured.public_tables import Cell
from validate.recipes.how_wrong import page
from validate.recipes.usable_fit import constant_rows, fit_machine

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measurements" / "how-wrong.md"
# Ranks up to which straight sends are timed.
MOST_RANKS = 32
# Eight in ten of the cells; what models alone say of a machine that nobody measured needs wider ends for that.
ENDS, WIDER = (0.1, 0.5, 0.9), (0.05, 0.5, 0.95)
Ratios = dict[str, list[float]]
# Cells from which on quantiles are taken, in place of the ends.
MANY = 10


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """A table with the keys of the rows as its first line."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def constants() -> list[dict[str, Any]]:
    """The rows of ``constants.csv``."""
    return [row for name in public_tables.machines() for one in fit_machine(name) for row in constant_rows(one)]


def measurements() -> list[PublicMeasurements]:
    """All cells beside their predictions, by machine."""
    return [public_measurements(name) for name in public_tables.machines()]


def spreads() -> list[dict[str, Any]]:
    """The rows of ``spreads.csv``: of every machine, of all of them, and of the guesses of every library."""
    ratios = defaultdict[tuple[str, str, str], Ratios](dict)
    libraries = dict[str, str]()
    for machine in public_tables.machines():
        libraries[machine] = Library().at(Question(machine))[0].library
        for where, ratio in _ratios(machine):
            ratios[where].setdefault(machine, []).append(ratio)
    errors = defaultdict[tuple[str, str, str], Ratios](dict)
    for where in [where for where in ratios if where[0] in GUESSED]:
        for machine, own in ratios[where].items():
            guess = _pooled(_levels(ratios, where, libraries, libraries[machine]), 0.5, machine)
            errors[where][machine] = [ratio / guess for ratio in own]
    rows, order = list[dict[str, Any]](), [name for _, name in library_rates.SIZE_STEPS]
    # What is not sure of more bytes is no surer of fewer.
    wide = defaultdict[tuple[str, str, str], tuple[float, float]](lambda: (1.0, 1.0))
    for where in sorted(ratios, key=lambda where: -order.index(where[2])):
        (what, scope, _), known = where, ratios[where]
        ends = WIDER if what in GUESSED else ENDS
        each = {machine: _quantiles({machine: values}, ends) for machine, values in known.items() if what != AGAIN}
        found = {**each, EVERY: _quantiles(known, ends)}
        for name in {EVERY, *(libraries[one] for one in known)} if what in GUESSED else ():
            low, high = (_pooled(_levels(errors, where, libraries, name), end) for end in ends[::2])
            before = wide[what, scope, name]
            low, high = wide[what, scope, name] = min(low, before[0]), max(high, before[1])
            middle = _pooled(_levels(ratios, where, libraries, name), 0.5)
            found[name] = [low * middle, middle, high * middle]
            for machine in each if name != EVERY else ():
                if libraries[machine] == name:
                    least, middle, most = each[machine]
                    middle = _weighed(middle, len(known[machine]), found[name][1])
                    found[machine] = [min(least, low * middle), middle, max(most, high * middle)]
        for one, quantiles in found.items():
            head: dict[str, Any] = dict(zip(("machine", "what", "scope", "sizes"), (one, *where), strict=True))
            cells = len(known[one]) if one in known else sum(map(len, known.values()))
            low, middle, high = (float(f"{value:.4g}") for value in quantiles)
            rows.append({**head, "cells": cells, "low": low, "middle": middle, "high": high})
    return sorted(rows, key=lambda row: (row["machine"], row["what"], row["scope"], order.index(row["sizes"])))


def _levels(
    table: Mapping[tuple[str, str, str], Ratios], where: tuple[str, str, str], libraries: dict[str, str], library: str
) -> list[Ratios]:
    """The machines that a guess is made from, the farthest first: of any scope, of this one, and of the library."""
    what, scope, sizes = where
    own = {machine: ratios for machine, ratios in table[where].items() if libraries[machine] == library}
    return [table[what, SEVERAL, sizes]] * (scope == ALONE) + [table[where], own]


def _pooled(levels: Sequence[Ratios], share: float, left_out: str = "") -> float:
    """A quantile by partial pooling: machines of a level count by their number against all levels before it.

    One machine of a level has a middle, and no spread. left_out: a machine that is guessed as if nobody had measured
    it; 1 if there is no other.
    """
    found = 1.0
    for place, level in enumerate(levels):
        if others := {machine: ratios for machine, ratios in level.items() if machine != left_out}:
            own = _quantiles(others, (share,))[0]
            found = _weighed(own, len(others) - (share != 0.5), found) if place else own
    return found


def _weighed(own: float, count: int, others: float) -> float:
    """A ratio from `count` measurements, or machines, where all others together count as one more."""
    return float(np.exp((count * np.log(own) + np.log(others)) / (count + 1)))


def _quantiles(ratios: Ratios, shares: Sequence[float]) -> list[float]:
    """Quantiles of ratios, by their logarithms, of which every machine counts as much; of few the ends."""
    ordered = sorted((ratio, 1 / len(own)) for own in ratios.values() for ratio in own)
    weights = np.array([weight for _, weight in ordered])
    places = (np.cumsum(weights) - weights / 2) / weights.sum()
    logs = np.log([ratio for ratio, _ in ordered])
    if len(ordered) < MANY:
        shares = [0.0 if share < 0.5 else 1.0 if share > 0.5 else share for share in shares]
    return [float(np.exp(np.interp(end, places, logs))) for end in shares]


def _ratios(machine: str) -> Iterator[tuple[tuple[str, str, str], float]]:
    """What, scope and sizes, and published over predicted time; no prediction knows what it is held against."""
    cells = [one for one in with_places(public_tables.cells(machine)) if "forced" not in one[0].set.algorithm]
    for (question, off), jobs in grouped(cells, lambda one: (question_of(machine, one[0]), one[0].nvls == "off")):
        try:
            yield from _of_a_question(question, jobs, multicast=not off)
        except BlinksimError as error:
            print(f"{machine}: {error}")


def _of_a_question(
    question: Question, cells: list[tuple[Cell, bool]], *, multicast: bool
) -> Iterator[tuple[tuple[str, str, str], float]]:
    plain = Library(multicast=multicast).at(question)[0]
    for cell, fitted in cells:
        collective = Collective(cell.collective)
        where = scope_of(cell.nodes, cell.gpus), _sizes_of(cell.size)
        name, timing = plain._known_as, plain._choice(collective, cell.size)
        job = replace(plain.job, collective=cell.collective)
        for owner in (name, *relatives_of(name, "times")[:1]) if name else ():
            known = library_time(owner, load(owner).nccl_rates, job, cell.size, timing)
            if known is not None and not (fitted and owner == name) and (known.owner == name or job.nodes == 1):
                yield (EXPECTED if known.owner == name else LENT, *where), cell.time_s / known.time_s
        stated = plain.stated(collective, cell.size)
        if stated is not None:
            yield (PREDICTED, *where), cell.time_s / stated.time_s
        if not collective.personalized or cell.gpus <= MOST_RANKS:
            what = SENDS if collective.personalized else LINKS
            yield (what, *where), cell.time_s / plain.links(collective, cell.size).time_s
    for what, hides in ((AGAIN, _same_set), (BETWEEN, _near)):
        for cell, _ in cells:
            held_out = copy(plain)
            held_out.published = partial(_left, hides, cell)
            found = held_out.times(plain.machine, Collective(cell.collective), [cell.size])[0]
            if found.details["basis"] == {AGAIN: "measured", BETWEEN: "between"}[what]:
                # Few jobs were published twice: all of a size together say how far runs are apart, both sizes
                # below 512 KiB and both from 64 MiB on.
                scopes, sizes = [scope_of(cell.nodes, cell.gpus)], [_sizes_of(cell.size)]
                if what == AGAIN:
                    names = [name for _, name in library_rates.SIZE_STEPS]
                    scopes = list(library_rates.SCOPES)
                    sizes = next((pair for pair in (names[:2], names[-2:]) if sizes[0] in pair), sizes)
                for scope, name in product(scopes, sizes):
                    yield (what, scope, name), cell.time_s / found.time_s


def _sizes_of(size: int) -> str:
    """Which of `SIZE_STEPS` a size in bytes is in."""
    return next(name for least, name in reversed(library_rates.SIZE_STEPS) if size >= least)


def _left(hides: Callable[[Cell, Cell], bool], held: Cell, cell: Cell) -> bool:
    return not hides(held, cell)


def _same_set(held: Cell, cell: Cell) -> bool:
    return cell.set.name == held.set.name


def _near(held: Cell, cell: Cell) -> bool:
    """All runs of this size: what is left is between others."""
    return cell.size == held.size


if __name__ == "__main__":
    write(library_rates.folder() / "constants.csv", constants())
    library_rates.all_rates.cache_clear()
    write(library_rates.folder() / "spreads.csv", spreads())
    library_rates.spreads.cache_clear()
    PAGE.write_text(page(measurements()), encoding="utf-8")
