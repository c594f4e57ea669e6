"""Tables of this package's data folders as CSV, row by row, with the line of whatever cannot be used."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from blinksim.errors import FileError, InputError
from blinksim.textio import text_files

Made = TypeVar("Made")


def read_rows(path: Path, make: Callable[[dict[str, str]], Made], what: str) -> list[Made]:
    """What `make` makes of every row, by the names in the first line; lines before it that begin with # are left out.

    Raises `FileError` with the line of a row of another length, and of one that `make` refuses; what: what a
    row is.
    """
    lines = text_files.read_text(path, what="table").splitlines()
    first = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    made = []
    for number, row in enumerate(csv.DictReader(lines[first:]), start=first + 2):
        if None in row or None in row.values():
            raise FileError(path, "has more or fewer cells in this line than in its first", number)
        try:
            made.append(make(row))
        except (KeyError, ValueError, ZeroDivisionError, InputError) as error:
            raise FileError(path, f"is no {what}: {','.join(row.values()):.80} ({error})", number) from None
    return made
