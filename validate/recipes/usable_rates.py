"""What published tables say of real times: constants fitted to their stated part, and how far the rest is from them.

    PYTHONPATH=. python3 validate/recipes/usable_rates.py

`models/usable/parts.csv` states the cells that constants are fitted to; ``constants.csv`` holds what comes out,
``spreads.csv`` what the other cells say of predictions, and `docs/measurements/how-wrong.md` sums it up for readers.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from blinksim.answers.measurements.public import PublicMeasurements, grouped, job_of, public_measurements, question_of
from blinksim.answers.project import contest
from blinksim.errors import BlinksimError
from blinksim.timing.measured import library_rates, public_tables
from blinksim.timing.measured.library_rates import EVERY, EXPECTED, LINKS, MANY, scope_of, sizes_of
from blinksim.timing.measured.public_tables import Cell
from validate.recipes.how_wrong import page
from validate.recipes.usable_fit import constant_rows, fit_machine

PAGE = Path(__file__).resolve().parents[2] / "docs" / "measurements" / "how-wrong.md"
# Ranks up to which the links alone are asked.
MOST_RANKS = 32
Ratio = tuple[str, str, str, str, float]
"""Machine, what, scope, sizes, and measured over predicted time."""


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


def spreads(found: Iterable[PublicMeasurements]) -> list[dict[str, Any]]:
    """The rows of ``spreads.csv``."""
    ratios: dict[tuple[str, str, str, str], list[float]] = {}
    for machine, what, scope, sizes, ratio in _ratios(found):
        for name in (machine, EVERY):
            ratios.setdefault((name, what, scope, sizes), []).append(ratio)
    order = {name: place for place, (_, name) in enumerate(library_rates.SIZE_STEPS)}
    rows = []
    for key, values in sorted(ratios.items(), key=lambda one: (*one[0][:3], order[one[0][3]])):
        ends = (0.1, 0.5, 0.9) if len(values) >= MANY else (0.0, 0.5, 1.0)
        low, middle, high = (float(f"{value:.4g}") for value in np.quantile(values, ends))
        head = dict(zip(("machine", "what", "scope", "sizes"), key, strict=True))
        rows.append({**head, "cells": len(values), "low": low, "middle": middle, "high": high})
    return rows


def _ratios(found: Iterable[PublicMeasurements]) -> Iterator[Ratio]:
    for one in found:
        for cell in one.cells:
            if cell.expected is not None and not cell.fitted:
                key = scope_of(cell.cell.nodes, cell.cell.gpus), sizes_of(cell.cell.size)
                yield one.machine, EXPECTED, *key, cell.cell.time_s / cell.expected.time_s
        for _, alike in grouped((cell.cell for cell in one.cells), job_of):
            yield from _over_links(one.machine, alike)


def _over_links(machine: str, cells: list[Cell]) -> Iterator[Ratio]:
    """Measured times over those of the quickest algorithm on the links alone, at nominal rates."""
    first = cells[0]
    if first.gpus > MOST_RANKS:
        return
    try:
        part = question_of(machine, first).part()
        field = contest(part, first.collective, model="alpha-beta", sizes=[cell.size for cell in cells])
    except BlinksimError:
        return
    for cell in cells:
        time = field.projections(cell.size)[0].time_s
        yield machine, LINKS, scope_of(cell.nodes, cell.gpus), sizes_of(cell.size), cell.time_s / time


if __name__ == "__main__":
    write(library_rates.folder() / "constants.csv", constants())
    library_rates.all_rates.cache_clear()
    measured = measurements()
    write(library_rates.folder() / "spreads.csv", spreads(measured))
    PAGE.write_text(page(measured), encoding="utf-8")
