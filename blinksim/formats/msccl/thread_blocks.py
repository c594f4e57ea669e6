"""Thread blocks carried out one step at a time, in any order: the base of the checks of both MSCCL formats.

Every unit of data is the set of contributions in it, counted: a `Value`. In the end every rank must have in its output
what the collective promises.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Protocol

from blinksim.collective import EVERY, OWN, ROOT, Collective

BlockId = tuple[int, int]
"""(GPU, number of the thread block on it)"""
Value = Counter[tuple[int, int]]
"""How often the unit (rank, unit of its input) is in a place."""


class Machine(Protocol):
    """What the blocks run on: connections, signals, memory."""

    def ready(self, block: BlockId, position: int) -> bool:
        """True if the block's step at `position` can be carried out now."""

    def carry_out(self, block: BlockId, position: int) -> str:
        """Carries the step out; returns what is wrong with it, or nothing."""


def interleave(lengths: Mapping[BlockId, int], machine: Machine, seed: int) -> tuple[BlockId, int, str] | None:
    """Runs all blocks to their ends; None if that goes well, else the block, its step and what is wrong with it.

    lengths: the steps of each block. seed: decides which block goes first where several can. A step that waits
    forever comes without a reason.
    """
    at = dict.fromkeys(lengths, 0)
    order, blocks = random.Random(seed), list(lengths)
    moving = True
    while moving:
        moving = False
        order.shuffle(blocks)
        for block in blocks:
            while at[block] < lengths[block] and machine.ready(block, at[block]):
                wrong = machine.carry_out(block, at[block])
                if wrong:
                    return block, at[block], wrong
                at[block] += 1
                moving = True
    return next(((block, at[block], "") for block in sorted(blocks) if at[block] < lengths[block]), None)


def holds_input(collective: Collective, rank: int) -> bool:
    """True if the rank's input holds data of the collective."""
    return collective.starts != ROOT or rank == collective.root


def promised(collective: Collective, ranks: int, units: int) -> Iterator[tuple[int, int, Value]]:
    """(rank, output unit, contents) of everything that must be there after a collective on vectors of `units`."""
    block = units // ranks
    _, output = collective.buffers(units, ranks)
    for rank in range(ranks):
        if collective.ends == ROOT and rank != collective.root:
            continue
        # Of a sender's input, a rank with a block of its own gets that block.
        first = rank * block if collective.ends == OWN else 0
        for unit in range(output):
            if collective.starts == EVERY:
                contents = [(sender, first + unit) for sender in range(ranks)]
            elif collective.starts == ROOT:
                contents = [(collective.root, first + unit)]
            else:
                contents = [(unit // block, first + unit % block)] if block else []
            yield rank, unit, Counter(dict.fromkeys(contents, 1))
