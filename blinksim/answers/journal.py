"""Journal of finished work, one JSON line each, from which a killed run resumes.

Write-ahead logging as in Gray and Reuter, Transaction Processing (1993), chapter 9: a line counts once it is
whole and on disk, so a line cut short by the kill is work not done. So is a line whose checksum does not fit.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from blinksim.errors import FileError

Rows = list[dict[str, Any]]
_LARGEST = 2**30
_START = b'{"key": "'


class Journal:
    """Rows by the key of the work that gave them; with no path it keeps nothing.

    found: what an earlier run left. damaged: the numbers of its lines that are not as they were written; their work is
    done again. Raises `FileError` if the file is no journal or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = None if path is None else Path(path)
        self.found: dict[str, Rows] = {}
        self.damaged: tuple[int, ...] = ()
        if self.path is not None and os.path.lexists(self.path):
            self._read(self.path)

    def _read(self, path: Path) -> None:
        with _opened(path, os.O_RDWR) as handle:
            if os.fstat(handle).st_size > _LARGEST:
                raise FileError(path, "is larger than 1 GiB; that is no journal of a sweep")
            with open(handle, "rb", closefd=False) as file:
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            damaged = []
            for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
                entry = _entry(line)
                if entry is None:
                    damaged.append(number)
                else:
                    self.found[entry[0]] = entry[1]
            torn = not whole and (data.startswith(_START) or _START.startswith(data))
            if not self.found and data and not torn:
                reason = "is no journal of a sweep; name another file, or remove it"
                raise FileError(path, reason, damaged[0] if damaged else 1)
            self.damaged = tuple(damaged)
            os.ftruncate(handle, len(whole))

    def add(self, key: str, rows: Rows) -> None:
        """Appends finished work and waits until it is on disk."""
        if self.path is None:
            return
        line = json.dumps({"key": key, "rows": rows, "sum": _checksum(key, rows)}).encode("ascii") + b"\n"
        with _opened(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as handle:
            with open(handle, "wb", closefd=False) as file:
                file.write(line)
            os.fsync(handle)


def _checksum(key: str, rows: object) -> str:
    return sha256(json.dumps([key, rows]).encode("ascii")).hexdigest()


def _entry(line: bytes) -> tuple[str, Rows] | None:
    """Key and rows of a line, None unless they are what was written."""
    try:
        entry = json.loads(line)
        key, rows, checksum = entry["key"], entry["rows"], entry["sum"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return (key, rows) if checksum == _checksum(key, rows) else None


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """A file handle of a journal, which is no link, no pipe and no device; raises `FileError`."""
    try:
        # A pipe must not wait for its other end.
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        reason = "is a link" if error.errno == errno.ELOOP else error.strerror or str(error)
        raise FileError(path, f"cannot be used as a journal: {reason}") from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise FileError(path, "cannot be used as a journal: it is no ordinary file")
        yield handle
    except OSError as error:
        raise FileError(path, f"cannot be written: {error.strerror or error}") from None
    finally:
        os.close(handle)
