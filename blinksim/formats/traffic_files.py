"""Files of traffic matrices, as CSV or NumPy's ``.npy``: a row per rank with its bytes for every rank.

In CSV, bytes are whole numbers, or sizes such as ``64KiB``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from blinksim.errors import FileError, blamed_on
from blinksim.textio.number_files import array_in, content_of, csv_rows
from blinksim.textio.text_files import MIB, decode, read_bytes, shown, write_bytes
from blinksim.traffic import Traffic
from blinksim.units import parse_size

# The largest matrix in 64 bits, with a header.
_MOST_BYTES = 513 * MIB


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

    def size(entry: str) -> int:
        return int(entry) if entry.isascii() and entry.isdigit() else parse_size(entry)

    if not (rows := [*csv_rows(name, lines, size, "number of bytes")]):
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
