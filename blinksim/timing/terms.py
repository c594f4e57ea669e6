"""Named terms, whose sum is a time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    """One addend of a time.

    Parameters
    ----------
    name : str
        What takes it.
    time_s : float
        How long, in seconds.
    limit : str
        The link class or constant that sets it.

    Examples
    --------
    >>> import blinksim as bs
    >>> [term.name for term in bs.project("dgx1-v100", "allreduce", "1GiB").terms]
    ['latency of 14 steps', 'overhead of further messages', 'bandwidth of nvlink']
    """

    name: str
    time_s: float
    limit: str = ""


def total(terms: Iterable[Term]) -> float:
    """The time in seconds that the terms add up to, rounded once."""
    return math.fsum(term.time_s for term in terms)
