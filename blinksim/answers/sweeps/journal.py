"""A file of finished work, one JSON line each, that a killed run leaves behind and the next one goes on from.

Write-ahead logging as in Gray and Reuter, Transaction Processing (1993), chapter 9: a line counts once it is whole and
on disk, so a line cut short by the kill is work not done.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from blinksim.errors import FileError

Rows = list[dict[str, Any]]


class Journal:
    """Rows by the key of the work that gave them; with no path it keeps nothing.

    found: what an earlier run left. Raises `FileError` if the file is no journal or cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = None if path is None else Path(path)
        self.found: dict[str, Rows] = {}
        if self.path is not None and self.path.exists():
            self._read(self.path)

    def _read(self, path: Path) -> None:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise FileError(path, f"cannot be read: {error.strerror or error}") from None
        whole = data[: data.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                entry = json.loads(line)
                self.found[str(entry["key"])] = list(entry["rows"])
            except (ValueError, KeyError, TypeError):
                raise FileError(path, "is no journal of a sweep; name another file, or remove it", number) from None
        if len(whole) < len(data):
            with path.open("r+b") as file:
                file.truncate(len(whole))

    def add(self, key: str, rows: Rows) -> None:
        """Appends finished work and waits until it is on disk."""
        if self.path is None:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "rows": rows}) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise FileError(self.path, f"cannot be written: {error.strerror or error}") from None

    def remove(self) -> None:
        """Deletes the file: its rows are kept elsewhere now."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
