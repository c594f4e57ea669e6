"""Tables of rows of unequal length in compressed form: all values one after the other, and where each row starts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def expand(
    starts: npt.NDArray[np.int32], values: npt.NDArray[np.int32], which: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Rows `which` of a table in compressed form: (position in `which`, value) for every entry."""
    length = (starts[1:] - starts[:-1])[which].astype(np.int64)
    position = np.repeat(np.arange(len(which), dtype=np.int64), length)
    offset = np.arange(len(position), dtype=np.int64) - np.repeat(np.cumsum(length) - length, length)
    return position, values[np.repeat(starts[:-1][which].astype(np.int64), length) + offset]
