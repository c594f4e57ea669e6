"""Names with ranges of numbers, as machine files and edits write them: ``gpu[0-3]``."""

from __future__ import annotations

import itertools
import re

from blinksim.errors import InputError

MOST_NAMES = 100_000
RANGE = re.compile(r"\[([0-9]{1,9})-([0-9]{1,9})\]")
"""A range such as ``[0-3]``."""


def expand(name: str, limit: int = MOST_NAMES) -> list[str]:
    """The names that bracket ranges stand for, the first range varying slowest: ``a[0-1].b[0-1]`` is four names.

    Raises `InputError` for a range that runs backwards and for more than `limit` names.
    """
    parts = RANGE.split(name)
    counts: list[range] = []
    total = 1
    for first, last in zip(parts[1::3], parts[2::3], strict=True):
        if int(last) < int(first):
            raise InputError(f"{name!r}: the range [{first}-{last}] runs backwards; write [{last}-{first}]")
        counts.append(range(int(first), int(last) + 1))
        total *= len(counts[-1])
        if total > limit:
            raise InputError(f"{name!r} stands for more than {limit} names, the most that a machine may have")
    fixed = parts[0::3]
    return [
        fixed[0] + "".join(f"{number}{text}" for number, text in zip(numbers, fixed[1:], strict=True))
        for numbers in itertools.product(*counts)
    ]


def paired(first: list[str], second: list[str]) -> list[tuple[str, str]]:
    """The ends of links between two ranges: number by number, or one name with all of the other range.

    Raises `InputError` for ranges of different lengths.
    """
    if len(first) != len(second) and 1 not in (len(first), len(second)):
        joined = "a link joins ranges of equal length or one device with a range"
        raise InputError(f"{joined}; these are {len(first)} and {len(second)} long")
    longest = max(len(first), len(second))
    return list(zip(first * (longest // len(first)), second * (longest // len(second)), strict=True))


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """A key that sorts ``gpu2`` before ``gpu10``."""
    parts = re.findall(r"([0-9]+)|([^0-9]+)", name)
    return tuple((0, int(number)) if number else (1, text) for number, text in parts)
