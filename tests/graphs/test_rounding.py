"""Exact fractions near a program's values."""

from __future__ import annotations

from fractions import Fraction

import pytest

from blinksim.graphs.programs import roundings


@pytest.mark.parametrize("digits", [1, 12, 400])
def test_values_are_near_whatever_the_rate(digits: int) -> None:
    """A bound from duals has a denominator of any length; beyond a float's range it is of no use, and does no harm."""
    values = [1 / 3, 0.2, 0.0]
    ways = [rounding(values) for rounding in roundings(Fraction(1, 10**digits + 1))]
    assert [Fraction(1, 3), Fraction(1, 5), Fraction(0)] in ways
    # The last rounds down.
    assert all(0 <= value - near < 1e-5 for value, near in zip(values, ways[-1], strict=True))
