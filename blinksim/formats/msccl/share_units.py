"""Shares as whole numbers of equal parts of the vector, as runtimes' programs count data.

Programs cut the vector into some thousands of parts at most. Where exact shares need more, they are rounded: to as few
parts as cost next to nothing, since messages must be multiples of all parts, and long moves take many steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from blinksim.cost.alpha_beta import cost
from blinksim.errors import InfeasibleError
from blinksim.schedule.model import Schedule

MOST_UNITS = 32767
# By which part of the time of large messages rounding may slow a schedule down, if fewer parts are to do.
_SLOWER = 5e-3
# Bytes for which latency does not matter.
_LARGE = 2**40


@dataclass(frozen=True)
class Units:
    """Equal parts of the vector: how many, and how many each chunk has.

    slower: by which part of the time of large messages the schedule takes longer with them than with its own shares;
    None where they are these shares exactly.
    """

    count: int
    lengths: tuple[int, ...]
    slower: float | None = None

    def notes(self) -> list[str]:
        """What whoever loads a program with them should know."""
        if self.slower is None:
            return []
        longer = f"large messages take {100 * self.slower:.2g} % longer" if self.slower > 0 else "this costs nothing"
        return [f"shares are rounded to {self.count:,} equal parts of the vector; {longer}"]


def units(schedule: Schedule) -> Units:
    """The parts that a schedule is written in; raises `InfeasibleError` if runtimes have too few for any rounding."""
    part = gcd(schedule.share_den, *map(int, schedule.share_num))
    exact = schedule.share_den // part
    if exact <= MOST_UNITS:
        return Units(exact, tuple(int(share) // part for share in schedule.share_num))
    found, least = None, cost(schedule, _LARGE).time_s
    for count, lengths in _rounded(schedule):
        shares = replace(schedule, share_num=np.array(lengths, dtype=np.int64), share_den=count)
        found = Units(count, tuple(lengths), cost(shares, _LARGE).time_s / least - 1)
        if found.slower is not None and found.slower <= _SLOWER:
            break
    if found is None:
        raise InfeasibleError(
            f"the shares cut the vector into {exact} equal parts; plans hold {MOST_UNITS}. Build it with "
            "algorithm=chains or algorithm=rings, whose shares are simple"
        )
    return found


def _rounded(schedule: Schedule) -> Iterator[tuple[int, list[int]]]:
    """Numbers of parts, each twice the one before, and the parts of each chunk.

    What chunks of the same ends have together stays exact.
    """
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for chunk, (origin, target) in enumerate(zip(schedule.origin.tolist(), schedule.target.tolist(), strict=True)):
        groups[schedule.collective.labels(origin, target)].append(chunk)
    shares, den = schedule.share_num.tolist(), schedule.share_den
    totals = {ends: Fraction(sum(shares[chunk] for chunk in mine), den) for ends, mine in groups.items()}
    count = lcm(*(total.denominator for total in totals.values()))
    while count <= MOST_UNITS:
        lengths = [share * count // den for share in shares]
        for ends, mine in groups.items():
            left = int(totals[ends] * count) - sum(lengths[chunk] for chunk in mine)
            # Those that lost most get what is left.
            for chunk in sorted(mine, key=lambda chunk: -(shares[chunk] * count % den))[:left]:
                lengths[chunk] += 1
        yield count, lengths
        count *= 2
