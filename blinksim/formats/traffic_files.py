"""Files of traffic matrices, as CSV or NumPy's ``.npy``: a row per rank with its bytes for every rank.

In CSV, bytes are whole numbers, or sizes such as ``64KiB``. Empty lines, and lines that begin with ``#``, are
left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from blinksim.errors import FileError, InputError, blamed_on
from blinksim.textio.npy_files import array_in, content_of
from blinksim.textio.text_files import MIB, decode, read_bytes, shown, write_bytes
from blinksim.traffic import MOST_RANKS, Traffic
from blinksim.units import parse_size

# The largest matrix in 64 bits, with a header.
_MOST_BYTES = 513 * MIB
_DIGITS, _LONGEST = re.compile(r"[0-9,]*"), 20
_HEADER = "; leave a header out, or begin its line with #: line i holds the bytes of rank i for every rank"


def read_traffic(path: str | os.PathLike[str]) -> Traffic:
    """Read a traffic matrix: row i holds the bytes of rank i for every rank.

    Parameters
    ----------
    path : str or path
        A CSV file without a header, a line per row, or what ``numpy.save`` writes; ``-`` is standard input.

    Returns
    -------
    Traffic
        The matrix, shape (n, n).

    Raises
    ------
    FileError
        For a file that cannot be read, with the line of the first entry that is no number of bytes, or of the
        first row that is not as long as there are rows.

    Examples
    --------
    >>> import blinksim as bs
    >>> with open("traffic.csv", "w") as file:
    ...     _ = file.write("0, 64KiB\\n1000, 0\\n")
    >>> bs.read_traffic("traffic.csv").matrix.tolist()
    [[0, 65536], [1000, 0]]
    """
    data = read_bytes(path, _MOST_BYTES, "traffic matrix")
    name = shown(path)
    if (matrix := array_in(name, data)) is None:
        return from_lines(name, decode(path, data, "traffic matrix").splitlines())
    with blamed_on(lambda message: FileError(name, message)):
        return Traffic(matrix)


def from_lines(name: str, lines: Sequence[str]) -> Traffic:
    """The matrix of a file's lines; raises `FileError` as `read_traffic` does. name: of the file, for messages."""
    rows: list[tuple[int, list[int]]] = []
    for number, text in enumerate(map(str.strip, lines), 1):
        if not text or text.startswith("#"):
            continue
        if re.search("[;\t]", text):
            between = "semicolons" if ";" in text else "tabs"
            raise FileError(name, f"has {between} between its entries; separate them with commas", number)
        entries, row = text.rstrip(",").split(","), list[int]()
        # Nearly all files hold digits; int() takes underscores and signs too, which no bytes have.
        if _DIGITS.fullmatch(text) and all(0 < len(entry) < _LONGEST for entry in entries):
            row += map(int, entries)
        else:
            for place, entry in enumerate(map(str.strip, entries), 1):
                try:
                    row.append(0 if entry == "0" else parse_size(entry))
                except InputError:
                    what = f"entry {place}, {entry[:40]!r}, is no number of bytes"
                    raise FileError(name, what + _HEADER * (number == 1), number) from None
        rows.append((number, row))
        if len(rows) > MOST_RANKS:
            raise FileError(name, f"more than {MOST_RANKS:,} ranks", number)
    if not rows:
        raise FileError(name, "holds no traffic matrix: give a line per rank with its bytes for every rank")
    for number, row in rows:
        if len(row) != len(rows):
            raise FileError(name, f"{len(row)} entries, but {len(rows)} ranks have a line each", number)
    with blamed_on(lambda message: FileError(name, message)):
        return Traffic([row for _, row in rows])


def write_traffic(traffic: Traffic, path: str | os.PathLike[str], force: bool = False) -> None:
    """Write a traffic matrix for `read_traffic`: in NumPy's format if the name ends in ``.npy``, else CSV.

    Parameters
    ----------
    traffic : Traffic
        What to write.
    path : str or path
        Where.
    force : bool
        Replace a file that exists.

    Raises
    ------
    InputError
        If the file exists and `force` is not given.
    FileError
        If the file cannot be written.

    Examples
    --------
    >>> import blinksim as bs
    >>> bs.write_traffic(bs.expert_traffic(8, tokens=100), "dispatch.csv")
    >>> bs.read_traffic("dispatch.csv").ranks
    8
    """
    write_bytes(path, content_of(path, traffic.matrix), force)
