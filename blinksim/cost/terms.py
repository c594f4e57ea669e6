"""A time is a sum of named terms."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    """One addend of a time: what takes it, and how long, in seconds.

    `limit` names the link class or constant that sets it.
    """

    name: str
    time_s: float
    limit: str = ""


def total(terms: Iterable[Term]) -> float:
    """The time in seconds that the terms add up to, rounded once."""
    return math.fsum(term.time_s for term in terms)
