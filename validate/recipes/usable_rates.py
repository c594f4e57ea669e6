"""Fit of library constants to listed cells of published tables, and the errors of its predictions on all others.

    PYTHONPATH=. python3 validate/recipes/usable_rates.py

`models/usable/parts.csv` states the cells that constants are fitted to; ``constants.csv`` holds what comes out,
``spreads.csv`` what the other cells say of predictions, and `docs/measurements/how-wrong.md` sums it up for readers.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from copy import copy
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
from blinksim.question import Question
from blinksim.timing.library_model import Library
from blinksim.timing.measured import library_rates, public_tables
from blinksim.timing.measured.library_rates import AGAIN, BETWEEN, EVERY, EXPECTED, LINKS, PREDICTED, scope_of
from blinksim.timing.measured.public_tables import Cell
from validate.recipes.how_wrong import page
from validate.recipes.usable_fit import constant_rows, fit_machine

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measurements" / "how-wrong.md"
# Ranks up to which the links alone are asked.
MOST_RANKS = 32
# Eight in ten of the cells; what models alone say of a machine that nobody measured needs wider ends for that.
ENDS, WIDER = (0.1, 0.5, 0.9), (0.05, 0.5, 0.95)
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
    """The rows of ``spreads.csv``: quantiles by machine, and of all of them, each of which counts as much.

    Of schedules on the links also of the machines of a library: others of theirs are nearer to what it does.
    """
    ratios = defaultdict[tuple[str, str, str, str], list[tuple[float, float]]](list)
    for machine in public_tables.machines():
        found, library = list(_ratios(machine)), Library().at(Question(machine))[0].library
        cells = Counter(where for where, _ in found)
        for where, ratio in found:
            ratios[machine, *where].append((ratio, 1.0))
            for together in (EVERY, library)[: 1 + (where[0] == LINKS)]:
                ratios[together, *where].append((ratio, 1 / cells[where]))
    order = {name: place for place, (_, name) in enumerate(library_rates.SIZE_STEPS)}
    rows = []
    for key, values in sorted(ratios.items(), key=lambda one: (*one[0][:3], order[one[0][3]])):
        if key[0] != EVERY and key[1] == AGAIN:
            continue
        low, middle, high = (
            float(f"{value:.4g}") for value in _quantiles(values, WIDER if key[1] in (PREDICTED, LINKS) else ENDS)
        )
        head = dict(zip(("machine", "what", "scope", "sizes"), key, strict=True))
        rows.append({**head, "cells": len(values), "low": low, "middle": middle, "high": high})
    return rows


def _quantiles(values: list[tuple[float, float]], shares: Sequence[float]) -> list[float]:
    """Quantiles of weighted ratios, by their logarithms; of few the ends."""
    ordered = sorted(values)
    weights = np.array([weight for _, weight in ordered])
    places = (np.cumsum(weights) - weights / 2) / weights.sum()
    logs = np.log([ratio for ratio, _ in ordered])
    ends = (
        shares if len(ordered) >= MANY else [0.0 if share < 0.5 else 1.0 if share > 0.5 else share for share in shares]
    )
    return [float(np.exp(np.interp(end, places, logs))) for end in ends]


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
        known = plain.by_constants(collective, cell.size)
        if known is not None and not fitted:
            yield (EXPECTED, *where), cell.time_s / known.time_s
        stated = plain.stated(collective, cell.size)
        if stated is not None:
            yield (PREDICTED, *where), cell.time_s / stated.time_s
        if cell.gpus <= MOST_RANKS:
            yield (LINKS, *where), cell.time_s / plain.links(collective, cell.size).time_s
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
    PAGE.write_text(page(measurements()), encoding="utf-8")
