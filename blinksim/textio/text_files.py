"""Reading text files with a limit on their size, and tables of CSV."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from blinksim.errors import FileError, InputError, nearest_names

Made = TypeVar("Made")

MIB = 2**20
STDIN = "-"
"""The path that stands for standard input."""

# What came through each standard input so far: a machine is read more than once on the way to an answer.
_received: dict[BinaryIO, bytes] = {}
# How much was asked for: less than that came, and the input has ended.
_received_limit: dict[BinaryIO, int] = {}


def standard_input(most: int) -> bytes:
    """The first `most` bytes of standard input, again at every call; raises `FileError` if they cannot be read."""
    if sys.stdin is None:
        raise FileError("standard input", "is closed")
    source = sys.stdin.buffer
    have = _received.get(source, b"")
    if len(have) < most and (not have or len(have) == _received_limit.get(source)):
        try:
            have += source.read(most - len(have))
        except OSError as error:
            raise FileError("standard input", f"cannot be read: {error.strerror or error}") from None
        _received[source], _received_limit[source] = have, most
    return have[:most]


def shown(path: str | os.PathLike[str]) -> str:
    """What messages call a path."""
    return "standard input" if os.fspath(path) == STDIN else os.fspath(path)


def read_bytes(path: str | os.PathLike[str], limit: int, what: str = "file") -> bytes:
    """The content of `path` or of standard input (`STDIN`), at most `limit` bytes; `what` names the kind of file.

    Raises `FileError` if it is missing (offers the nearest names), a directory, unreadable or larger. Never
    reads more than `limit` + 1 bytes, so that devices and pipes without end are refused too.
    """
    place = Path(path)
    try:
        if os.fspath(path) == STDIN:
            path, data = shown(path), standard_input(limit + 1)
        else:
            with place.open("rb") as file:
                # Room for all that is asked for is taken at once; pipes and devices have more than they say.
                there = min(limit, os.fstat(file.fileno()).st_size)
                data = file.read(there + 1)
                data += file.read(limit - there) if len(data) > there else b""
    except FileNotFoundError:
        raise FileError(path, f"no such {what}{_near(place)}") from None
    except IsADirectoryError:
        raise FileError(path, f"this is a folder; name a {what} in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(path, f"cannot read this {what}: {reason}") from None
    if len(data) > limit:
        size = f"{limit // MIB} MiB" if limit >= MIB else f"{limit} bytes"
        raise FileError(path, f"is larger than {size}; that is no {what}")
    return data


def read_text(path: str | os.PathLike[str], limit: int = MIB, what: str = "file") -> str:
    """The text of the UTF-8 file `path`; raises `FileError` as `read_bytes`, and for anything that is not text."""
    return decode(path, read_bytes(path, limit, what), what)


def decode(path: str | os.PathLike[str], data: bytes, what: str = "file", encoding: str = "utf-8-sig") -> str:
    """UTF-8 text of `data`; raises `FileError` naming line and column of the first fault.

    encoding: ``utf-8-sig`` leaves a byte order mark out, ``utf-8`` keeps it.
    """
    path = shown(path)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise FileError(path, "is not UTF-8 text but UTF-16, as PowerShell's > writes it; save it in UTF-8")
    if b"\0" in data:
        place = line_and_column(data.decode("latin-1"), data.index(b"\0"))
        raise FileError(path, f"is not text (it holds a zero byte), so it is no {what}", *place)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        place = line_and_column(data.decode("latin-1"), error.start)
        raise FileError(path, "is not UTF-8 text; save it in that encoding", *place) from None


def line_and_column(text: str, at: int) -> tuple[int, int]:
    """Both from 1, of a character by its number from 0."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def _near(place: Path) -> str:
    try:
        names = sorted(entry.name for entry in place.parent.iterdir())
    except (OSError, ValueError):
        return f"; there is no folder {place.parent} either" if place.parent != Path(".") else ""
    near = nearest_names(place.name, names, 2, 0.7)
    return f"; did you mean {' or '.join(str(place.with_name(name)) for name in near)}?" if near else ""


def read_rows(path: Path, make: Callable[[dict[str, str]], Made], what: str) -> list[Made]:
    """What `make` makes of every row, by the names in the first line; lines before it that begin with # are left out.

    Raises `FileError` with the line of a row of another length, and of one that `make` refuses; what: what a
    row is.
    """
    lines = read_text(path, what="table").splitlines()
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
