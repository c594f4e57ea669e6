"""Thread blocks carried out one step at a time, in any order: the base of the checks of both MSCCL formats.

Every unit of data is the set of contributions in it, counted: a `Value`. In the end every rank must have in its output
what the collective promises.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Protocol, TypeVar

from blinksim.collective import EVERY, OWN, ROOT, Collective
from blinksim.errors import InfeasibleError

BlockId = tuple[int, int]
"""(GPU, number of the thread block on it)"""
Value = Counter[tuple[int, int]]
"""How often the unit (rank, unit of its input) is in a place."""

# Contributions carried, and looks at a block that may go on: together some seconds.
_MOST_EFFORT = 10_000_000
FILL = 10
"""What it costs to fill one unit of an input buffer."""


class Effort:
    """What carrying out a file has cost so far; files that cost more than some seconds are refused."""

    def __init__(self, path: object = "this program") -> None:
        self.path, self.left = path, _MOST_EFFORT

    def spend(self, amount: int) -> None:
        """Raises `InfeasibleError` if that was too much."""
        self.left -= amount
        if self.left < 0:
            raise InfeasibleError(
                f"{self.path}: moves more data than can be followed chunk by chunk; take fewer chunks or GPUs"
            )


V = TypeVar("V")


class Contents(Protocol[V]):
    """What is known of a unit of data while blocks run."""

    def own(self, rank: int, unit: int) -> V:
        """A unit of a rank's input."""

    def added(self, first: V, second: V) -> V:
        """The sum of two units."""

    def sent(self, src: int, dst: int, channel: int, values: list[V], more: bool) -> list[V]:
        """What arrives at rank `dst` when rank `src` sends these units; more: others go on in the same message."""

    def effort(self, values: list[V]) -> int:
        """What it costs to carry these units (`Effort`)."""


class Contributions:
    """Every unit is the set of contributions in it."""

    def own(self, rank: int, unit: int) -> Value:
        return Counter({(rank, unit): 1})

    def added(self, first: Value, second: Value) -> Value:
        return first + second

    def sent(self, src: int, dst: int, channel: int, values: list[Value], more: bool) -> list[Value]:
        return values

    def effort(self, values: list[Value]) -> int:
        return sum(map(len, values))


class Machine(Protocol):
    """What the blocks run on: connections, signals, memory."""

    def ready(self, block: BlockId, position: int) -> bool:
        """True if the block's step at `position` can be carried out now."""

    def carry_out(self, block: BlockId, position: int) -> str:
        """Carries the step out; returns what is wrong with it, or nothing."""


def interleave(
    lengths: Mapping[BlockId, int], machine: Machine, seed: int | None, effort: Effort
) -> tuple[BlockId, int, str] | None:
    """Runs all blocks to their ends; None if that goes well, else the block, its step and what is wrong with it.

    lengths: the steps of each block. seed: decides which block goes first where several can; None for their order in
    the file. A step that waits forever comes without a reason. Raises `InfeasibleError` if `effort` is used up.
    """
    at = dict.fromkeys(lengths, 0)
    order, blocks = random.Random(seed), list(lengths)
    moving = True
    while moving:
        moving = False
        if seed is not None:
            order.shuffle(blocks)
        effort.spend(len(blocks))
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


def listed(contents: Value) -> list[tuple[int, int]]:
    """The first contributions of `contents`, each as often as it is there, for a message."""
    times = (place for place, number in sorted(contents.items()) for _ in range(min(number, 4)))
    return list(islice(times, 4))
