"""Distinct values by sorting, against NumPy's own; rows of tables, against lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from blinksim.graphs.arrays import distinct, expand, places, round_robin

WHOLE = st.lists(st.integers(-5, 2**40) | st.integers(-5, 5))


@given(WHOLE)
def test_they_are_numpys(values: list[int]) -> None:
    given_values = np.array(values, dtype=np.int64)
    assert distinct(given_values).tolist() == np.unique(given_values).tolist()


def test_rows_of_a_compressed_table() -> None:
    starts, values = np.array([0, 2, 2, 5], dtype=np.int32), np.array([7, 8, 4, 5, 6], dtype=np.int32)
    position, entries = expand(starts, values, np.array([2, 0, 1, 2], dtype=np.int32))
    assert position.tolist() == [0, 0, 0, 1, 1, 3, 3, 3]
    assert entries.tolist() == [4, 5, 6, 7, 8, 4, 5, 6]


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=6), st.data())
def test_rows_are_those_of_lists(table: list[list[int]], data: st.DataObject) -> None:
    which = data.draw(st.lists(st.sampled_from(range(len(table))), max_size=8)) if table else []
    starts = np.cumsum([0, *map(len, table)])
    values = np.array([value for row in table for value in row], dtype=np.int64)
    position, found = expand(starts, values, np.array(which, dtype=np.int64))
    assert position.tolist() == [place for place, row in enumerate(which) for _ in table[row]]
    assert found.tolist() == [value for row in which for value in table[row]]
    lengths = np.array([len(table[row]) for row in which], dtype=np.int64)
    assert places(lengths).tolist() == [place for row in which for place in range(len(table[row]))]


@given(st.integers(0, 30))
def test_everyone_meets_everyone_in_turns(count: int) -> None:
    left, right = (ends.tolist() for ends in round_robin(count))
    assert sorted(zip(left, right, strict=True)) == [(a, b) for a in range(count) for b in range(count) if a != b]
    for turn in range(count - 1):
        now = slice(turn * count, (turn + 1) * count)
        assert sorted(left[now]) == sorted(right[now]) == list(range(count))
