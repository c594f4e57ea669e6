"""The page on errors is what its recipe makes, and its first table is what NumPy finds in the rows of `measured`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from blinksim.timing.measured import public_tables
from blinksim.timing.measured.public_tables import band_of
from validate.recipes import usable_rates as recipe
from validate.recipes.how_wrong import page, remark_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "measurements" / "how-wrong.md"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def words(text: str) -> list[str]:
    """The text without its numbers, which solvers round differently from machine to machine."""
    return [NUMBER.sub("0", line) for line in text.splitlines() if "missing physics" not in line]


@pytest.mark.slow
def test_the_page_is_what_the_recipe_makes() -> None:
    found = recipe.measurements()
    fresh, shown = page(found), PAGE.read_text(encoding="utf-8")
    assert words(fresh)[:30] == words(shown)[:30]
    rows = [row | {"machine": one.machine} for one in found for row in one.rows()]
    faults = {
        (cell.set.name, cell.collective, cell.gpus, cell.size)
        for name in public_tables.machines()
        for cell in public_tables.cells(name)
        if (remark := remark_of(cell)) is not None and remark.fault
    }
    for band, least_within, most in (
        ("below 512 KiB", 0.8, 0.1),
        ("512 KiB to 64 MiB", 0.7, 0.15),
        ("from 64 MiB", 0.85, 0.07),
    ):
        errors = []
        for row in rows:
            error = row["error_pct"] if row["expected_error_pct"] is None else row["expected_error_pct"]
            known = (row["set"], row["collective"], row["gpus"], row["size_bytes"]) in faults
            if row["fitted"] or row["quality"] == "C" or known or error is None or band_of(row["size_bytes"]) != band:
                continue
            errors.append(abs(error) / 100)
        line = next(one for one in shown.splitlines() if one.startswith(f"| {band} | judged, A and B"))
        count, median, _, within = (float(NUMBER.findall(cell)[0]) for cell in line.split("|")[3:7])
        assert count == len(errors)
        assert 100 * np.median(errors) == pytest.approx(median, abs=0.2)
        assert 100 * np.mean(np.array(errors) <= 0.2) == pytest.approx(within, abs=1.5)
        assert np.median(errors) < most
        assert np.mean(np.array(errors) <= 0.2) > least_within
