"""What published tables say of real times: constants fitted to their stated part (models/usable).

    PYTHONPATH=. python3 validate/recipes/usable_rates.py

`models/usable/parts.csv` states the cells that constants are fitted to; ``constants.csv`` holds what comes out.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from blinksim.answers.measurements.usable_fit import constant_rows, fit_machine
from blinksim.sources import public_tables, usable_rates


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """A table with the keys of the rows as its first line."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def constants() -> list[dict[str, Any]]:
    """The rows of ``constants.csv``."""
    return [row for name in public_tables.machines() for one in fit_machine(name) for row in constant_rows(one)]


if __name__ == "__main__":
    write(usable_rates.folder() / "constants.csv", constants())
