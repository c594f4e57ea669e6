"""Distinct values by sorting, against NumPy's own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from blinksim.graphs.arrays import among, distinct

WHOLE = st.lists(st.integers(-5, 2**40) | st.integers(-5, 5))


@given(WHOLE, WHOLE)
def test_they_are_numpys(first: list[int], second: list[int]) -> None:
    a, b = np.array(first, dtype=np.int64), np.array(second, dtype=np.int64)
    assert distinct(a).tolist() == np.unique(a).tolist()
    assert among(a, b).tolist() == np.isin(a, b).tolist()
