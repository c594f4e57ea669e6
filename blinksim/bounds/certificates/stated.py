"""What a file states beside what was derived: every key is the same, or it is a reason against the file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from blinksim.errors import InputError
from blinksim.units import parse_exact

# Sets of names; the order of all other lists counts.
_UNORDERED = ("links", "limits", "side")
# Floats are given for people, with the exact value beside them.
_ROUNDING = Fraction(1, 10**9)
# What the rest was derived from. Any lengths are valid ones, also 0 and fractions that are not in lowest terms.
_WITNESS = ("lengths",)
_LONGEST = 60


def differing(stated: Mapping[str, Any], derived: Mapping[str, Any], place: str = "") -> list[str]:
    """A reason for every key of either that the other lacks or that has another value, with its place."""
    reasons = []
    for key in {**derived, **stated}:
        where = f"{place}{key}"
        if key not in stated:
            reasons.append(f"{where} is missing")
        elif key not in derived:
            reasons.append(f"{where}: {shown(stated[key])} is no part of this")
        else:
            reasons += contradiction(key, stated[key], derived[key], where)
    return reasons


def contradiction(key: str, stated: Any, derived: Any, where: str = "") -> list[str]:
    """Reasons why `stated` is not the value `derived` of `key`; empty if it is."""
    where = where or key
    if key in _WITNESS:
        return []
    if isinstance(derived, Mapping) and isinstance(stated, Mapping):
        return differing(stated, derived, f"{where}.")
    if isinstance(derived, list) and isinstance(stated, list):
        if derived and isinstance(derived[0], Mapping) and len(stated) == len(derived):
            pairs = enumerate(zip(stated, derived, strict=True))
            return [text for n, (a, b) in pairs for text in contradiction(key, a, b, f"{where}[{n}]")]
        same = stated == derived or (key in _UNORDERED and sorted(map(repr, stated)) == sorted(map(repr, derived)))
        # True == 1 and 1.0 == 1, but neither is what was written.
        if same and all(type(a) is type(b) for a, b in zip(stated, derived, strict=True)):
            return []
        return [f"{where}: not those of this machine"]
    if _equal(key, stated, derived):
        return []
    return [f"{where} is {shown(stated)}, and must be {shown(derived)}"]


def _equal(key: str, stated: Any, derived: Any) -> bool:
    if key.endswith("_exact") and isinstance(derived, str):
        try:
            # What was derived may be longer than what is read, and the same text is the same number.
            return stated == derived or parse_exact(stated) == Fraction(derived)
        except InputError:
            return False
    if isinstance(derived, float):
        if type(stated) not in (int, float) or not math.isfinite(stated if isinstance(stated, float) else 0):
            return False
        return abs(Fraction(stated) - Fraction(derived)) <= _ROUNDING * abs(Fraction(derived))
    return type(stated) is type(derived) and bool(stated == derived)


def shown(value: Any) -> str:
    """A value in a message, cut short; control characters as escapes."""
    try:
        text = repr(value)
    except ValueError:
        # Python writes no whole number of more than 4,300 digits.
        return "a number of very many digits"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
