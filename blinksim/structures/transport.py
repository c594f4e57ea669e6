"""Transportation problems between totals: what goes from rows to columns whose sums are given."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Amounts = TypeVar("Amounts", npt.NDArray[np.int64], npt.NDArray[np.float64])


def transport(rows: Amounts, columns: Amounts) -> Amounts:
    """What goes from each row to each column (…, R, C), where totals are given (…, R) and (…, C) with equal sums.

    As much as possible stays on the diagonal; the rest follows the northwest-corner rule.

    >>> transport(np.array([5, 1]), np.array([3, 3])).tolist()
    [[3, 2], [0, 1]]
    """
    diagonal = np.minimum(rows, columns)
    left, right = rows - diagonal, columns - diagonal
    row_end, column_end = np.cumsum(left, axis=-1), np.cumsum(right, axis=-1)
    found = np.minimum(row_end[..., :, None], column_end[..., None, :])
    found -= np.maximum((row_end - left)[..., :, None], (column_end - right)[..., None, :])
    np.maximum(found, 0, out=found)
    places = np.arange(rows.shape[-1])
    found[..., places, places] += diagonal
    return found
