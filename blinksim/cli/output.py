"""What commands print: aligned tables, JSON, CSV, and notes on stderr."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence

import click

# Of the keys that ``--json`` prints: one is added without a new version, and removed or renamed with one.
SCHEMA_VERSION = 1


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, left: Collection[int] = (0,), indent: str = "  "
) -> str:
    """Columns under their headings; those numbered in `left` are text, flush left, the others numbers, flush right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]

    def cell(text: str, column: int) -> str:
        return text.ljust(widths[column]) if column in left else text.rjust(widths[column])

    return "\n".join(indent + "  ".join(cell(text, i) for i, text in enumerate(line)).rstrip() for line in lines)


def print_json(value: Mapping[str, object]) -> None:
    """One JSON object on stdout, as ``docs/answer.schema.json`` describes it."""
    click.echo(json.dumps({"schema_version": SCHEMA_VERSION, **value}, indent=2, ensure_ascii=False, allow_nan=False))


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """The rows as CSV with a heading; the columns are the keys of the first row."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def note(text: str, *, quiet: bool = False) -> None:
    """A line for people, on stderr."""
    if not quiet:
        print(text, file=sys.stderr)


def count(number: int, what: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def names(values: Sequence[str], most: int = 8) -> str:
    """A list of names, shortened in the middle: ``gpu0 gpu1 … gpu7``."""
    if len(values) <= most:
        return " ".join(values)
    return f"{' '.join(values[: most // 2])} … {values[-1]}"
