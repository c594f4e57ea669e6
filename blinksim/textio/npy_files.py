"""Arrays in files of NumPy (``.npy``) that nobody vouches for: no more is taken than the file has, and no objects."""

from __future__ import annotations

import warnings
from io import BytesIO
from math import prod
from os import PathLike
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt

from blinksim.errors import FileError, blamed_on

_NPY = b"\x93NUMPY"


def array_in(name: str, data: bytes) -> npt.NDArray[Any] | None:
    """The array in a file's content; None if it is no file of NumPy. Raises `FileError` with the file's `name`."""
    if not data.startswith(_NPY):
        return None
    file = BytesIO(data)
    refused = ValueError, EOFError, TypeError, SyntaxError, RecursionError, SystemError, TokenError
    with blamed_on(lambda why: FileError(name, f"cannot be read as a file of NumPy: {why[:200]}"), refused):
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers as Python 2 wrote them
            shape, fortran, dtype = read(file)
        # A header may promise more than there is, and NumPy would make room for it.
        if prod(shape) * dtype.itemsize != len(data) - file.tell():
            raise ValueError("it is cut off, or has more behind its numbers")
        return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape, order="F" if fortran else "C")


def content_of(path: str | PathLike[str], rows: npt.NDArray[Any]) -> bytes:
    """A file of whole numbers: in NumPy's format if the name is ``*.npy``, else in CSV."""
    file = BytesIO()
    if Path(path).suffix == ".npy":
        np.save(file, rows)
    else:
        np.savetxt(file, rows.reshape(-1, rows.shape[-1]), "%d", ",")
    return file.getvalue()
