"""About how many sends a schedule has, by the number of ranks and the collective: what tells if it is too large.

And how many steps, one after another, what is known to be long.
"""

from __future__ import annotations

from collections.abc import Callable

from blinksim.collective import ROOTED

Sends = Callable[[int, str], int]


def per_pair(ranks: int, collective: str) -> int:
    """Two for every pair of ranks."""
    return 2 * ranks * ranks


def per_rank(ranks: int, collective: str) -> int:
    """A few for every rank."""
    return 4 * ranks


def per_channel(ranks: int, collective: str) -> int:
    """Some for every channel of every rank."""
    return 64 * ranks


def untold(ranks: int, collective: str) -> int:
    """Not known before it is built."""
    return 0


def around(ranks: int, collective: str) -> int:
    """The steps of a ring or chain: once past all ranks, or twice."""
    return (ranks - 1) * (2 if collective == "allreduce" else 1)


def straight(ranks: int, collective: str) -> int:
    """From every rank to every other, or to or from a root."""
    return (per_rank if collective in ROOTED else per_pair)(ranks, collective)
