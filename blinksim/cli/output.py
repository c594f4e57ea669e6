"""What commands print: aligned tables, JSON, CSV, and notes on stderr."""

from __future__ import annotations

import csv
import io
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TextIO

import click

from blinksim.errors import InputError
from blinksim.printable import printable
from blinksim.textio.text_table import count as count
from blinksim.textio.text_table import names as names
from blinksim.textio.text_table import table as table

# Of the keys that ``--json`` prints: one is added without a new version, and removed or renamed with one.
SCHEMA_VERSION = 1


class Door:
    """A stream that everything printed passes: no text of a file or of a user controls the terminal.

    What the terminal's encoding lacks is escaped instead of refused.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.rich_proxied_file = stream  # rich draws its bars here, with the control characters that it needs.

    @property
    def encoding(self) -> str:
        """One that click finds able; it would go around this door if it did not."""
        return "utf-8"

    def write(self, text: str) -> int:
        """Prints `text`, escaped."""
        self._stream.write(printable(text, getattr(self._stream, "encoding", None) or "utf-8"))
        return len(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@contextmanager
def doors() -> Iterator[None]:
    """Everything printed within goes through a `Door`."""
    out, err = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Door(out), Door(err)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err


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


def typed(path: str) -> str:
    """A file name as it is typed in a command."""
    return shlex.quote(f"./{path}" if path.startswith("-") and path != "-" else path)


def attempt(write: Callable[[], object]) -> InputError | None:
    """Writes a file; the error, if that fails, to be raised once the answer is printed: an answer is not lost."""
    try:
        write()
    except InputError as error:
        return error
    return None


def note(text: str, *, quiet: bool = False) -> None:
    """A line for people, on stderr."""
    if not quiet:
        print(text, file=sys.stderr)
