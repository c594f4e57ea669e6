"""Which wires may send in which round where they share links: a rank sends to one rank a round, and gets from one."""

from __future__ import annotations

import numpy as np

from blinksim.packing.rounds.rounds_program import Bools
from blinksim.packing.rounds.wires import Wires


def in_turns(wires: Wires, every: bool, rounds: int) -> Bools:
    """(K, E). Ranks exchange along the bits of their numbers, the highest first, or send to the next 2^i-th one.

    every: True for all other distances as well, after these.
    """
    n = wires.ranks
    away = [1 << bit for bit in range((n - 1).bit_length())][::-1]
    if every:
        away += [stride for stride in range(1, n) if stride not in away]
    allowed = np.zeros((rounds, len(wires.src)), dtype=bool)
    for now in range(rounds):
        stride = away[now % len(away)]
        to = wires.src ^ stride if n & (n - 1) == 0 else (wires.src + stride) % n
        allowed[now] = wires.dst == to
    return allowed
