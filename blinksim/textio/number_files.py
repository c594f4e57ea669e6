"""Rows of numbers in files that nobody vouches for: CSV, and arrays of NumPy (``.npy``).

In CSV empty lines, and lines that begin with ``#``, are left out.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from os import PathLike
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.errors import FileError, InputError, blamed_on

_NPY = b"\x93NUMPY"


def array_in(name: str, data: bytes) -> npt.NDArray[Any] | None:
    """The array in a file's content; None if it is no file of NumPy. Raises `FileError` with the file's `name`."""
    if not data.startswith(_NPY):
        return None
    file = BytesIO(data)
    # MemoryError: a header may promise more than there is.
    refused = ValueError, EOFError, TypeError, SyntaxError, RecursionError, SystemError, TokenError, MemoryError
    blamed = blamed_on(lambda why: FileError(name, f"cannot be read as a file of NumPy: {why[:200]}"), refused)
    with blamed, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of headers as Python 2 wrote them
        array: npt.NDArray[Any] = np.load(file)
        if file.tell() < len(data):
            raise ValueError("it has more behind its numbers")
        return array


def csv_rows(
    name: str, lines: Iterable[str], number: Callable[[str], int], what: str
) -> Iterator[tuple[int, list[int]]]:
    """The rows of numbers in a file's lines, each with the number of its line.

    number: of an entry; it raises `InputError` or `ValueError` for what is none. Raises `FileError` with the entry
    that is no `what`.
    """
    for line, text in enumerate(map(str.strip, lines), 1):
        if not text or text.startswith("#"):
            continue
        if (mark := re.search("[;\t]", text)) is not None:
            between = "semicolons" if mark[0] == ";" else "tabs"
            raise FileError(name, f"has {between} between its entries; separate them with commas", line)
        row, entries = list[int](), [*map(str.strip, text.rstrip(",").split(","))]
        try:
            row += map(number, entries)
        except (InputError, ValueError):
            header = "; leave a header out, or begin its line with #" * (line == 1)
            wrong = f"entry {len(row) + 1}, {entries[len(row)][:40]!r}, is no {what}{header}"
            raise FileError(name, wrong, line) from None
        yield line, row


def content_of(path: str | PathLike[str], rows: npt.NDArray[Any]) -> bytes:
    """A file of whole numbers: in NumPy's format if the name is ``*.npy``, else in CSV."""
    file = BytesIO()
    if Path(path).suffix == ".npy":
        np.save(file, rows)
    else:
        np.savetxt(file, rows.reshape(-1, rows.shape[-1]), "%d", ",")
    return file.getvalue()
