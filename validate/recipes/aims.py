"""What predicted times aim at and what they reach: programs, NCCL, choices, emulated machines, published tables.

    PYTHONPATH=. python3 validate/recipes/aims.py [--results validate/results]

Reads what `time_predictions.py` and `calibration.py` predicted, and the published tables of `models/measured`, and
simulates nothing. What constants were fitted to is left out or counted apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from blinksim.answers.measurements.public import public_measurements
from blinksim.results import table
from validate.recipes import time_figures, words
from validate.recipes.arguments import arguments, script
from validate.recipes.figures import HERE, error, large, large_rows, load
from validate.recipes.time_figures import AIMS, HEAD, line
from validate.recipes.time_predictions import NAME

KIB = 2**10
# NVSwitch machines whose published tables are predicted; constants come from a stated part of them (`models/usable`).
PUBLISHED = ("dgx-a100", "hgx-h100", "hgx-b200")
PUBLISHED_GPUS, PUBLISHED_FROM = 8, 64 * KIB


def emulated(results: Mapping[str, Any]) -> list[list[str]]:
    """Emulated machines from 16 MiB on, by number of GPUs: their simulated programs against what was measured."""
    rows = []
    for name, content in results.items():
        if large_rows(name, content):
            gpus = name.removeprefix("emulated-").removesuffix("gpu-predicted")
            for shared, what in ((False, "one device on a GPU"), (True, "two devices on a GPU")):
                off = [error(row, "program") for row in large(content["rows"]) if bool(row["lane_GBps"]) == shared]
                if off:
                    rows.append(line((f"{gpus} GPUs", f"emulated machines, {what}"), off, AIMS["emulated"]))
    return rows


def apart(content: Mapping[str, Any]) -> list[list[str]]:
    """Runs that nothing was fitted to, by the constants of few runs."""
    rows = [row for row in content["ours"] if time_figures.apart(row)]
    gpus = sorted({row["gpus"] for row in rows})
    return [
        line(
            (f"{gpus[0]} to {gpus[-1]} GPUs", f"our programs, {band}"),
            [time_figures.error(row, "few") for row in rows if time_figures.band(row) == band],
            AIMS[band],
        )
        for band, _ in time_figures.BANDS
    ]


def published() -> list[list[str]]:
    """Published cells of 8 GPUs of a node, from 64 KiB on, that no constants were fitted to; by machine, and all."""
    rows, every = [], list[float]()
    for name in PUBLISHED:
        off = [
            found.expected_error_pct / 100
            for found in public_measurements(name).cells
            if not found.fitted and found.expected_error_pct is not None and found.cell.size >= PUBLISHED_FROM
            if (found.cell.gpus, found.cell.nodes) == (PUBLISHED_GPUS, 1)
        ]
        every += off
        rows.append(line(("8 GPUs", f"published tables of {name}"), off, AIMS["published"]))
    return [*rows, line(("8 GPUs", "published tables, all three"), every, AIMS["published"])]


def text(results: Path) -> Iterator[str]:
    """The tables, with a line above each."""
    found = load(results)
    for what, head in words.TIMES_BY.items():
        yield f"{head}:\n" + table(*time_figures.aims(found[NAME], what), left=(0, 1))
    yield f"{words.APART_AIM}:\n" + table(HEAD, apart(found[NAME]), left=(0, 1))
    yield f"{words.EMULATED_AIM}:\n" + table(HEAD, emulated(found), left=(0, 1))
    yield f"{words.PUBLISHED_AIM}:\n" + table(HEAD, published(), left=(0, 1))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    print(*text(parser.parse_args().results), sep="\n\n")


if __name__ == "__main__":
    script(main, __file__)
