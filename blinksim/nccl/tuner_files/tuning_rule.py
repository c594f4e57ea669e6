"""Rules by which NCCL's tuner plugins choose: for a collective and a range of sizes, what runs it and on how many
channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from blinksim.errors import InputError, unknown
from blinksim.nccl.tuner.constants import PROTOCOLS
from blinksim.nccl.tuner.tuner import ALGORITHMS, ALGORITHMS_OF, COLLECTIVES

DEFAULT = -1
"""As a number of channels, NCCL's own; as one of nodes or ranks, any."""
MOST_BYTES = 2**63 - 1
MOST_CHANNELS = 64
# NCCL runs the others with one protocol only (2.28.3, graph/tuning.cc).
_ALL_PROTOCOLS = ("tree", "ring")


def runs(collective: str, algorithm: str, protocol: str) -> bool:
    """True if some release of NCCL runs the collective so; protocol in small letters, as in files of rules.

    >>> runs("allgather", "ring", "ll128"), runs("allgather", "tree", "ll"), runs("allreduce", "nvls", "ll")
    (True, False, False)
    """
    if algorithm.startswith("collnet"):
        return protocol == "simple" and collective not in ("broadcast", "reduce")
    return algorithm in ALGORITHMS_OF[collective] and (protocol == "simple" or algorithm in _ALL_PROTOCOLS)


@dataclass(frozen=True, slots=True)
class TuningRule:
    """What to take for a collective of `least` to `most` bytes.

    Parameters
    ----------
    collective : str
        One of broadcast, reduce, allgather, reducescatter, allreduce.
    least, most : int
        Bytes, both included; of the larger of one rank's buffers, as NCCL counts.
    algorithm, protocol : str
        NCCL's names in small letters.
    channels : int
        How many, or `DEFAULT`.
    nodes, ranks : int
        Of the communicators that it is for, or `DEFAULT`.

    Raises
    ------
    InputError
        For what NCCL cannot run, or numbers out of range.

    Examples
    --------
    >>> TuningRule("allgather", 0, 65536, "tree", "ll")
    Traceback (most recent call last):
    blinksim.errors.InputError: NCCL does not run allgather by tree with ll
    """

    collective: str
    least: int
    most: int
    algorithm: str
    protocol: str
    channels: int = DEFAULT
    nodes: int = DEFAULT
    ranks: int = DEFAULT

    def __post_init__(self) -> None:
        protocols = tuple(name.lower() for name in PROTOCOLS)
        for what, value, known in (
            ("collective of NCCL's tuner", self.collective, COLLECTIVES),
            ("algorithm of NCCL", self.algorithm, ALGORITHMS),
            ("protocol of NCCL", self.protocol, protocols),
        ):
            if value not in known:
                raise unknown(what, value, known)
        if not runs(self.collective, self.algorithm, self.protocol):
            raise InputError(f"NCCL does not run {self.collective} by {self.algorithm} with {self.protocol}")
        if not 0 <= self.least <= self.most <= MOST_BYTES:
            raise InputError(f"a rule for {self.least} to {self.most} bytes: give whole numbers, the smaller first")
        if self.channels != DEFAULT and not 1 <= self.channels <= MOST_CHANNELS:
            raise InputError(f"channels={self.channels}: give 1 to {MOST_CHANNELS}, or {DEFAULT} for NCCL's own number")

    @property
    def choice(self) -> tuple[str, str, int]:
        """What it takes: algorithm, protocol, channels."""
        return self.algorithm, self.protocol, self.channels


Choice = tuple[str, str, int]


def rules_of(
    collective: str, cells: Sequence[tuple[int, Choice | None, frozenset[Choice | None]]], nodes: int, ranks: int
) -> tuple[TuningRule, ...]:
    """The fewest rules that give every size the choice of its cell, or one that is as good.

    cells: ascending sizes, each with its choice (None: no rule) and all that lose nothing there, itself among them.
    A range ends half way between two sizes, by their ratio; the first begins at 0 and the last never ends.
    """
    found = []
    for first, last, choice in _merged(cells):
        if choice is None:
            continue
        least = 0 if first == 0 else _between(cells[first - 1][0], cells[first][0]) + 1
        most = MOST_BYTES if last == len(cells) - 1 else _between(cells[last][0], cells[last + 1][0])
        found.append(TuningRule(collective, least, most, *choice, nodes=nodes, ranks=ranks))
    return tuple(found)


def _between(low: int, high: int) -> int:
    return math.isqrt(low * high)


def _merged(
    cells: Sequence[tuple[int, Choice | None, frozenset[Choice | None]]],
) -> list[tuple[int, int, Choice | None]]:
    """Neighbours under one choice, from the left, each run as long as some choice is good enough for all of it."""
    found: list[tuple[int, int, Choice | None]] = []
    start = 0
    while start < len(cells):
        common, end = cells[start][2], start
        while end + 1 < len(cells) and common & cells[end + 1][2]:
            end += 1
            common &= cells[end][2]
        own = [choice for _, choice, _ in cells[start : end + 1] if choice in common]
        # No rule at all is the least that a file can say.
        best = None if None in common else max(own or sorted(common, key=str), key=own.count)
        first, last = start, end
        while best is not None and None in cells[first][2]:
            first += 1
        while best is not None and None in cells[last][2]:
            last -= 1
        found.append((first, last, best))
        start = end + 1
    return found
