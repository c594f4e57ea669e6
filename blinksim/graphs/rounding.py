"""A program's values as exact fractions: a ladder of denominators, tried from the short ones to the long ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial

# Largest denominators, in the order in which they are tried: the values at a vertex of a program are short fractions.
DENOMINATORS = (1, 2, 3, 4, 5, 6, 8, 12, 24, 60, 120, 840, 5040)
_GRID = 2**20
# Accuracy of a program's values, as a part of the greatest.
_ACCURACY = 1e-10
# Largest denominator whose multiples a double can tell apart.
_TOLD_APART = 2**53

Rounding = Callable[[Sequence[float]], list[Fraction]]


def roundings(best: Fraction) -> Iterator[Rounding]:
    """Ways to turn a program's values into fractions, the likeliest first; the last rounds down and always fits.

    A vertex has short fractions, or multiples of those of the rate `best` that it attains.
    """
    yield _common
    for most in DENOMINATORS:
        yield partial(_short, most=most)
    for times in DENOMINATORS[:-2]:
        if best.denominator * times <= _TOLD_APART:
            yield partial(_multiples, denominator=best.denominator * times)
    yield _down


def _common(values: Sequence[float]) -> list[Fraction]:
    """With the least common denominator that the solver's accuracy can tell; where there is none, with a large one."""
    error = _ACCURACY * max(values)
    denominator = 1
    for value in values:
        times = value * denominator
        for most in (1, 10, 100, 1000, 10**4, 10**5, 10**6):
            near = Fraction(times).limit_denominator(most)
            if abs(near - times) <= error * denominator:
                break
        denominator *= near.denominator
        if denominator * error > 1e-3:
            break
    return [Fraction(round(value * denominator), denominator) for value in values]


def _short(values: Sequence[float], most: int) -> list[Fraction]:
    return [Fraction(value).limit_denominator(most) for value in values]


def _multiples(values: Sequence[float], denominator: int) -> list[Fraction]:
    return [Fraction(round(value * denominator), denominator) for value in values]


def _down(values: Sequence[float]) -> list[Fraction]:
    step = Fraction(max(1, round(max(values))), _GRID)
    return [int(value / float(step) + 1e-6) * step for value in values]
